-- Rows for every table and every column of 0001_schema.sql, as a server would have left them.
--
-- @id7 is an id, @at7 the seventh second of a day, @bytes7 seven bytes and @other7 seven others: the two databases write
-- these differently.

-- The engine
INSERT INTO job (id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq, lane_held,
                 keep_place, parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, worker_id,
                 lease_until, cancel_at, error, dead, traceparent, created_at, started_at, finished_at)
VALUES (@id10, @id1, 'run_export', 'exports', 5, 'running', @at1, @at59, '{"export": "é"}', '{"day": 3}', 'exports:a', 1, TRUE,
        FALSE, NULL, 1, 1, 3, 1, 1, 4, @id30, @at30, @at9, 'broken pipe', FALSE,
        '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', @at1, @at2, NULL),
       (@id11, @id1, 'export_part', 'export_parts', 0, 'failed', @at2, NULL, '{}', NULL, NULL, NULL, FALSE,
        FALSE, @id10, 0, 0, 3, 3, 0, 3, NULL,
        NULL, NULL, 'no such bucket', TRUE, NULL, @at2, @at3, @at4);
INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, lane, lane_seq, lane_held, keep_place, created_at, finished_at)
VALUES (@id12, @id1, 'run_agent', 'agents', 'scheduled', @at9, '{}', 'thread:a', 1, TRUE, TRUE, @at1, NULL),
       (@id13, @id1, 'run_agent', 'agents', 'blocked', @at1, '{}', 'thread:a', 2, FALSE, FALSE, @at1, NULL),
       (@id14, @id1, 'run_agent', 'agents', 'ready', @at1, '{}', 'thread:b', 1, TRUE, FALSE, @at1, NULL),
       (@id15, @id1, 'run_agent', 'agents', 'waiting', @at1, '{}', 'thread:c', 1, TRUE, FALSE, @at1, NULL),
       (@id16, @id1, 'run_agent', 'agents', 'succeeded', @at1, '{}', NULL, NULL, FALSE, FALSE, @at1, @at2),
       (@id17, @id1, 'run_agent', 'agents', 'cancelled', @at1, '{}', NULL, NULL, FALSE, FALSE, @at1, @at2),
       (@id18, @id1, 'run_agent', 'agents', 'timed_out', @at1, '{}', NULL, NULL, FALSE, FALSE, @at1, @at2);
INSERT INTO lane (key, places, held, next_seq) VALUES ('exports:a', 2, 1, 2), ('thread:a', 1, 1, 3);
INSERT INTO step (job_id, name, output, fence, at) VALUES (@id10, 'plan', '{"days": 3}', 4, @at3);
INSERT INTO attempt (job_id, fence, outcome, failure, error, worker_id, at)
VALUES (@id11, 1, 'failed', 1, 'no such bucket', @id30, @at3), (@id10, 2, 'lost', NULL, 'the lease ended', NULL, @at4);
INSERT INTO pool (name, paused, draining) VALUES ('exports', TRUE, TRUE);
INSERT INTO worker (id, host, pid, pools, version, draining, started_at, seen_at, drain_at, finished)
VALUES (@id30, 'here', 4711, '{"exports": 4}', '0.1.0', TRUE, @at1, @at5, @at4, '{"exports": 2}');
INSERT INTO schedule (id, tenant_id, kind, pool, input, next_at, paused, spawn_job, created_at, ended_at)
VALUES (@id40, @id1, 'spawn_export', 'exports', '{}', @at50, FALSE, @id12, @at1, NULL),
       (@id41, @id1, 'fire_cron', 'agents', '{}', @at50, TRUE, NULL, @at1, @at2);

-- Access
INSERT INTO organization (id, name, created_at) VALUES (@id2, 'acme', @at1);
INSERT INTO workspace (id, organization_id, name, created_at) VALUES (@id1, @id2, 'default', @at1);
INSERT INTO api_key (id, organization_id, workspace_id, name, prefix, hash, created_at, revoked_at, operator)
VALUES (@id50, @id2, NULL, 'first', 'tp_abc', @bytes32, @at1, NULL, TRUE);
INSERT INTO api_key (id, organization_id, workspace_id, name, prefix, hash, created_at, revoked_at)
VALUES (@id51, @id2, @id1, 'ci', 'tp_def', @other32, @at1, @at2);
INSERT INTO ended_session (token, expires_at) VALUES (@bytes32, @at59);
INSERT INTO idempotency (tenant_id, key, request, answer, created_at) VALUES (@id1, 'once', @bytes32, '{"id": 1}', @at1);

-- Traces
INSERT INTO project (id, tenant_id, name, description, extra, reference_dataset_id, start_time, end_time)
VALUES (@id60, @id1, 'production', 'what users do', '{"colour": "blue"}', @id61, @at1, @at9);
INSERT INTO project_tombstone (tenant_id, project_id, deleted_at) VALUES (@id1, @id62, @at5);
INSERT INTO wal_unit (id, path, bytes, operations, state, fold_job, created_at, folded_at)
VALUES (@id63, 'wal/1', 100, 2, 'folded', @id16, @at1, @at2), (@id64, 'wal/2', 100, 0, 'open', NULL, @at3, NULL);
INSERT INTO wal_unit_project (unit_id, tenant_id, project_id) VALUES (@id63, @id1, @id60), (@id64, @id1, @id0);
INSERT INTO segment (id, tenant_id, path, state, job, rows, bytes, created_at, changed_at, compacted)
VALUES (@id65, @id1, 'segments/1', 'live', @id16, 10, 1000, @at2, @at3, TRUE),
       (@id66, @id1, 'segments/2', 'superseded', @id16, 5, 500, @at2, @at3, FALSE),
       (@id67, @id1, 'segments/3', 'writing', @id10, 0, 0, @at4, @at4, FALSE);
INSERT INTO segment_part (segment_id, tenant_id, project_id, day, row_group, rows, min_sort_time, max_sort_time, min_seq,
                          max_seq)
VALUES (@id65, @id1, @id60, '2026-03-01', 0, 10, @at1, @at9, 1, 2);
INSERT INTO segment_part_past (segment_id, tenant_id, project_id, day, row_group, rows, min_sort_time, max_sort_time,
                               min_seq, max_seq)
VALUES (@id66, @id1, @id60, '2026-03-01', 0, 5, @at1, @at9, 1, 1);
INSERT INTO segment_pin (holder, segment_id, pinned_at) VALUES (@id10, @id66, @at5);
INSERT INTO pending_patch (tenant_id, run_id, seq, operation, created_at) VALUES (@id1, @id68, 2, '{"outputs": {}}', @at3);
INSERT INTO feedback (tenant_id, id, run_id, key, body, seq, created_at, modified_at, deleted, source)
VALUES (@id1, @id69, @id68, 'helpful', '{"score": 1}', 2, @at3, @at4, TRUE, 'api');
INSERT INTO feedback_token (id, tenant_id, hash, token, run_id, key, feedback_id, config, created_at, expires_at)
VALUES (@id70, @id1, @bytes32, @bytes60, @id68, 'helpful', @id69, '{"type": "continuous"}', @at3, @at59);
INSERT INTO attachment (tenant_id, run_id, name, content_type, path, bytes, seq, created_at)
VALUES (@id1, @id68, 'picture', 'image/png', 'attachments/1', 0, 2, @at3);

-- Exports
INSERT INTO destination (id, tenant_id, destination_type, display_name, config, credentials, credentials_keys, created_at,
                         updated_at)
VALUES (@id80, @id1, 's3', 'a bucket', '{"bucket": "b"}', @bytes60, '["access_key_id"]', @at1, @at2),
       (@id81, @id1, 'file', 'a folder', '{"prefix": "p"}', NULL, '[]', @at1, @at2);
INSERT INTO export (id, tenant_id, destination_id, project_id, status, start_time, end_time, compression, export_fields,
                    source_bulk_export_id, job_id, error, planned, created_at, updated_at, started_at, finished_at,
                    format_version)
VALUES (@id82, @id1, @id80, @id60, 'FAILED', @at1, @at9, 'zstandard', '["id"]', @id85, @id10, 'no such bucket', TRUE, @at1, @at2,
        @at2, @at5, 'v2_beta'),
       (@id83, @id1, @id81, @id60, 'RUNNING', @at1, @at9, 'none', NULL, NULL, @id10, NULL, FALSE, @at1, @at2,
        NULL, NULL, 'v1');
INSERT INTO export_filter (id, tenant_id, filter) VALUES (@id82, @id1, 'eq(name, "agent")');
INSERT INTO export_run (id, tenant_id, export_id, job_id, status, start_time, end_time, prefix, retry_number, errors,
                        rows_written, bytes_written, files_written, latest_cursor, pending_upload, created_at, updated_at,
                        finished_at)
VALUES (@id84, @id1, @id82, @id11, 'FAILED', @at1, @at9, 'out/1', 2, '{"retry_0": "no such bucket"}', 5, 500, 1, '{"row": 5}',
        '{"path": "out/2"}', @at2, @at4, @at4);
INSERT INTO export_file (export_run_id, seq, path, rows, bytes) VALUES (@id84, 1, 'out/1/a.parquet', 5, 500);
INSERT INTO export_upload (export_run_id, path, upload_id, created_at) VALUES (@id84, 'out/2', 'upload', @at3);
INSERT INTO scheduled_export (id, tenant_id, destination_id, project_id, status, start_time, interval_hours, compression,
                              format_version, export_fields, schedule_id, created_at, updated_at, finished_at)
VALUES (@id85, @id1, @id80, @id60, 'RUNNING', @at1, 24, 'gzip', 'v1', '["id"]', @id40, @at1, @at1, NULL),
       (@id86, @id1, @id80, @id60, 'CANCELLED', @at1, 168, 'snappy', 'v2_beta', NULL, @id41, @at1, @at2, @at2);

-- The agent server
INSERT INTO assistant (id, tenant_id, graph_id, name, description, config, context, metadata, version, created_at,
                       updated_at)
VALUES (@id90, @id1, 'agent', 'helper', 'helps', '{"tags": []}', '{"user": "ann"}', '{"team": "a"}', 2, @at1, @at2);
INSERT INTO assistant_version (tenant_id, assistant_id, version, graph_id, name, description, config, context, metadata,
                               created_at)
VALUES (@id1, @id90, 1, 'agent', 'helper', 'helps', '{}', '{}', '{}', @at1);
INSERT INTO thread (id, tenant_id, status, metadata, config, current_values, interrupts, error, temporary, ttl_strategy,
                    ttl_minutes, expires_at, created_at, updated_at, state_updated_at)
VALUES (@id91, @id1, 'error', '{"a": 1}', '{"b": 2}', '{"messages": []}', '{"task": []}', '{"error": "E"}', FALSE, 'delete',
        1.5, @at59, @at1, @at2, @at2),
       (@id92, @id1, 'busy', '{}', '{}', NULL, '{}', NULL, TRUE, NULL, NULL, NULL, @at1, @at2, @at2);
INSERT INTO cron (id, tenant_id, assistant_id, thread_id, schedule_id, user_id, schedule, timezone, end_time, payload,
                  metadata, next_run_date, on_run_completed, enabled, created_at, updated_at)
VALUES (@id93, @id1, @id90, @id91, @id41, 'ann', '* * * * *', 'Europe/Berlin', @at59, '{"input": {}}', '{"a": 1}', @at50, 'keep',
        FALSE, @at1, @at2);
INSERT INTO run (id, tenant_id, thread_id, assistant_id, job_id, cron_id, cron_at, status, metadata, kwargs,
                 multitask_strategy, cancel_action, created_at, updated_at, finished_at)
VALUES (@id94, @id1, @id91, @id90, @id16, @id93, @at1, 'interrupted', '{"a": 1}', '{"input": {}}', 'reject', 'rollback', @at1, @at2,
        @at2),
       (@id95, @id1, @id92, @id90, @id14, NULL, NULL, 'pending', '{}', '{}', 'enqueue', NULL, @at1, @at1, NULL);
INSERT INTO store_item (tenant_id, namespace, key, value, ttl_minutes, expires_at, created_at, updated_at, whole_namespace,
                        whole_key)
VALUES (@id1, 'users.ann', 'mood', '{"is": "good"}', 60.5, @at59, @at1, @at2, NULL, NULL),
       (@id1, 'users.long..hash', 'long', '{}', NULL, NULL, @at1, @at2, 'users.long.and.longer', 'long and longer');
INSERT INTO run_event (thread_id, last_ms, last_seq, id, tenant_id, run_id, attempt, first, last, frames, created_at,
                       expires_at)
VALUES (@id91, 1772323200000, 3, @id96, @id1, @id94, 1, 1, 3, '2 {}2 {}2 {}', @at1, @at59);

-- Checkpoints
INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
VALUES ('t', 'sub:1', 'c2', 'c1', 'msgpack', '{"v": 4}', '{"step": 1}');
INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
VALUES ('t', 'sub:1', 'messages', '1', 'msgpack', @bytes60), ('t', '', 'empty', '1', 'empty', NULL);
INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path, run_id)
VALUES ('t', 'sub:1', 'c2', 'task', -1, '__error__', 'msgpack', @bytes60, '~pull', 'a run');
INSERT INTO replaced_write (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, replaced_by, channel, type, blob,
                            task_path, run_id)
VALUES ('t', 'sub:1', 'c2', 'task', -1, 'a run', '__interrupt__', 'msgpack', @bytes60, '~pull', 'an earlier run');

-- Deployments
INSERT INTO integration (id, tenant_id, kind, name, api_url, token, webhook_secret, created_at, updated_at)
VALUES (@id110, @id1, 'github', 'ours', 'https://api.github.com', @bytes60, @bytes32, @at1, @at2);
INSERT INTO image_pull_secret (id, tenant_id, name, registries, logins, created_at, updated_at)
VALUES (@id111, @id1, 'registry', '["registry.example.com"]', @bytes60, @at1, @at2);
INSERT INTO listener (id, tenant_id, compute_type, compute_id, compute_config, created_at, updated_at)
VALUES (@id112, @id1, 'k8s', 'cluster', '{"namespace": "agents"}', @at1, @at2);
INSERT INTO deployment (id, tenant_id, name, source, source_config, deployment_type, status, latest_revision_id,
                        active_revision_id, project_id, delete_tracing_project, repo_key, image_version, tracked_packages,
                        created_at, updated_at)
VALUES (@id113, @id1, 'helper', 'github', '{"ref": "main"}', 'prod', 'READY', @id114, @id114, @id60, TRUE, 'github.com/a/b', '1.2',
        '["a"]', @at1, @at2);
INSERT INTO revision (id, tenant_id, deployment_id, seq, source, status, config, source_config, secrets, secret_names,
                      redeploy_of, job_id, error, created_at, updated_at, finished_at)
VALUES (@id114, @id1, @id113, 1, 'github', 'DEPLOYED', '{}', '{"ref": "main"}', @bytes60, '["KEY"]', @id115, @id16, NULL, @at1, @at2,
        @at2),
       (@id115, @id1, @id113, 2, 'github', 'BUILD_FAILED', '{}', '{}', NULL, '[]', NULL, NULL, 'no such file', @at3, @at4, @at4);
INSERT INTO revision_log (id, tenant_id, deployment_id, revision_id, kind, at, level, message)
VALUES (@id116, @id1, @id113, @id114, 'build', @at2, 'INFO', 'Step 1/1');
INSERT INTO source_upload (id, tenant_id, deployment_id, token, path, bytes, created_at, expires_at, uploaded_at)
VALUES (@id117, @id1, @id113, @bytes32, 'sources/1', 100, @at1, @at59, @at2),
       (@id118, @id1, @id113, @bytes32, 'sources/2', NULL, @at1, @at59, NULL);
INSERT INTO deployment_placement (deployment_id, tenant_id, revision_id, artifact, state, address, restarts, error,
                                  updated_at)
VALUES (@id113, @id1, @id114, 'a1', 'serving', '127.0.0.1:8123', 1, 'it ended by itself', @at5);
INSERT INTO revision_artifact (revision_id, tenant_id, deployment_id, artifact, created_at)
VALUES (@id114, @id1, @id113, 'a1', @at2);
