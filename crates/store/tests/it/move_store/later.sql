-- Rows for every table that came after 0001_schema.sql, beside those of migrations/filled.sql, and values for later
-- columns. Written as there.

INSERT INTO lease (worker_id, alive_until) VALUES (@id30, @at9);
INSERT INTO job_history (id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq,
                         keep_place, parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, cancel_at,
                         error, traceparent, created_at, started_at, finished_at, over_at)
VALUES (@id200, @id1, 'run_agent', 'agents', -3, 'failed', @at1, @at9, '{"text": "ü"}', '7', 'thread:z', 4, TRUE, @id10, 0, 1, 2,
        1, 1, 5, @at2, 'no answer', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', @at1, @at2, @at3, @at4);
INSERT INTO sweep_cursor (name, position) VALUES ('attachments', '["a", 1]');
INSERT INTO sealing_canary (id, sealed, created_at) VALUES (1, @bytes40, @at1);
INSERT INTO api_key_former_secret (hash, key_id, valid_until) VALUES (@bytes32, @id50, @at9);

INSERT INTO wal_unit_name (unit_id, name, project_id) VALUES (@id64, 'production', @id60);
INSERT INTO run_index (id, tenant_id, path, state, job, entries, bytes, first_run, last_run, created_at, changed_at)
VALUES (@id201, @id1, 'index/1', 'live', @id16, 12, 4096, @id1, @id9, @at1, @at2);
INSERT INTO quarantine (id, tenant_id, kind, reason, path, byte_offset, bytes, decoded_bytes, items, names, projects,
                        first_start, last_start, accepted_at, created_at)
VALUES (@id202, @id1, 'damaged', 'the checksum differs', 'quarantine/1', 0, 100, 300, 2, '{}', '[]', @at1, @at2, @at3, @at4);
INSERT INTO attachment_waste (path, tenant_id, run_id, name, since) VALUES ('attachments/9', @id1, @id7, 'picture', @at5);

INSERT INTO dataset (id, tenant_id, name, description, data_type, inputs_schema, outputs_schema, metadata, created_at,
                     modified_at, version_at, example_count, stored_rows, stored_bytes)
VALUES (@id210, @id1, 'questions', 'of users', 'kv', '{}', '{"type": "object"}', '{"a": 1.50}', @at1, @at2, @at3, 1, 2, 900);
INSERT INTO dataset_version (tenant_id, dataset_id, as_of) VALUES (@id1, @id210, @at1), (@id1, @id210, @at3);
INSERT INTO dataset_tag (tenant_id, dataset_id, tag, as_of) VALUES (@id1, @id210, 'prod', @at3);
INSERT INTO example (tenant_id, dataset_id, example_id, valid_from, valid_until, created_at, inputs, outputs, metadata,
                     source_run_id, files, bytes)
VALUES (@id1, @id210, @id211, @at1, @at3, @at1, '{"q": "1+1"}', '{"a": 3}', '{}', @id7, '[]', 20),
       (@id1, @id210, @id211, @at3, NULL, @at1, '{"q": "1+1"}', NULL, '{}', NULL, '[]', 12);
INSERT INTO example_file (tenant_id, id, dataset_id, example_id, mime_type, data, bytes)
VALUES (@id1, @id212, @id210, @id211, 'image/png', @bytes9, 9);
INSERT INTO comparative_experiment (tenant_id, id, dataset_id, name, description, extra, experiment_ids, created_at,
                                    modified_at)
VALUES (@id1, @id213, @id210, 'a against b', 'words', '{}', '[]', @at1, @at2);
INSERT INTO feedback_config (tenant_id, feedback_key, id, config, is_lower_score_better, modified_at)
VALUES (@id1, 'latency', @id214, '{"type": "continuous"}', TRUE, @at1);
INSERT INTO annotation_queue (tenant_id, id, name, description, rubric_instructions, rubric_items, created_at, updated_at)
VALUES (@id1, @id215, 'review', 'by people', 'read it', '[]', @at1, @at2);
INSERT INTO annotation_queue_run (tenant_id, queue_id, run_id, added_at) VALUES (@id1, @id215, @id7, @at3);

INSERT INTO revision_key (id, tenant_id, deployment_id, key_id, secret) VALUES (@id114, @id1, @id113, @id51, @other20);
INSERT INTO deployment_keeper (id, host_id, host, pid, life, alive_until) VALUES (1, @id220, 'here', 4711, @id221, @at9);

INSERT INTO a2a_task (id, tenant_id, assistant_id, thread_id, run_id, state, outcome, created_at, updated_at)
VALUES (@id230, @id1, @id90, @id91, @id94, 'completed', '{}', @at1, @at2);
INSERT INTO a2a_task_run (run_id, tenant_id, task_id) VALUES (@id94, @id1, @id230);
INSERT INTO a2a_push_config (id, tenant_id, task_id, name, url, token, scheme, credentials, dialect, created_at)
VALUES (@id231, @id1, @id230, 'first', 'https://example.com/hook', 'sealed', 'Bearer', 'sealed too', '1.0', @at1);

INSERT INTO sandbox_host (id, host_id, host, life, alive_until) VALUES (1, @id240, 'here', @id241, @at9);
INSERT INTO sandbox_node (id, name, address, life, alive_until, is_draining, is_leaving, max_boxes, memory_bytes,
                          free_memory_bytes, isolation, trouble, lost_at, created_at, seen_at)
VALUES (@id240, 'here', '10.0.0.5:8402', @id241, @at9, FALSE, FALSE, 100, 8000000000, 5000000000, 'namespace', 'none', @at6,
        @at1, @at2);
INSERT INTO sandbox_template (id, tenant_id, name, image, resources, created_at, updated_at)
VALUES (@id242, @id1, 'python', 'python:3.13', '{"cpu": 1}', @at1, @at2);
INSERT INTO sandbox_pool (id, tenant_id, name, template_id, replicas, created_at, updated_at)
VALUES (@id243, @id1, 'warm', @id242, 2, @at1, @at2);
-- The parent has the greater id: a copy in the order of the ids meets the child first.
INSERT INTO sandbox_snapshot (id, tenant_id, name, status, status_message, docker_image, fs_capacity_bytes, fs_used_bytes,
                              source_box_id, parent_id, root, run_config, labels, description, included, request, created_by,
                              created_at, updated_at, host_id)
VALUES (@id245, @id1, 'base', 'ready', 'done', 'debian:13', 1000000, 20000, @id246, NULL, '{}', '{}', '{}', 'words', '[]',
        @bytes32, 'key', @at1, @at2, @id240);
INSERT INTO sandbox_snapshot (id, tenant_id, name, status, fs_capacity_bytes, parent_id, labels, included, request,
                              created_by, created_at, updated_at)
VALUES (@id244, @id1, 'child', 'ready', 1000000, @id245, '{}', '[]', @other32, 'key', @at1, @at2);
INSERT INTO sandbox_snapshot_tag (tenant_id, name, tag, snapshot_id) VALUES (@id1, 'base', 'latest', @id245);
INSERT INTO sandbox_box (id, tenant_id, name, status, status_message, generation, host_id, isolation, root, config,
                         template_name, template_id, snapshot_id, pool_id, idle_ttl_seconds, ttl_seconds,
                         delete_after_stop_seconds, active_at, due_at, stopped_at, request, created_by, updated_by,
                         created_at, updated_at)
VALUES (@id246, @id1, 'box', 'stopped', 'idle', 3, @id240, 'namespace', '{}', '{}', 'python', @id242, @id244, @id243, 600, 0,
        0, @at5, @at9, @at6, @bytes32, 'key', 'key', @at1, @at2);
INSERT INTO sandbox_volume (id, tenant_id, name, status, status_message, size_bytes, storage_class, description, labels,
                            source_volume_id, created_at, updated_at, host_id)
VALUES (@id247, @id1, 'data', 'ready', 'done', 5000000000, 'local', 'words', '{}', @id248, @at1, @at2, @id240);
INSERT INTO sandbox_box_volume (box_id, volume_id, mount_path, read_only) VALUES (@id246, @id247, '/data', FALSE);
INSERT INTO sandbox_template_volume (template_id, volume_id, mount_path) VALUES (@id242, @id247, '/data');
INSERT INTO sandbox_token (hash, tenant_id, box_id, kind, port, path, content_type, content_disposition, created_at,
                           expires_at)
VALUES (@bytes32, @id1, @id246, 'service', 8080, '/', 'text/html', 'inline', @at1, @at9);
INSERT INTO sandbox_registry (id, tenant_id, name, url, auth_type, credentials, created_at, updated_at)
VALUES (@id249, @id1, 'ours', 'https://example.com', 'basic', @bytes24, @at1, @at2);
INSERT INTO sandbox_network (id, tenant_id, config, secrets, version, sent_bytes, received_bytes)
VALUES (@id246, @id1, '{"rules": []}', @bytes24, 2, 100, 2000);

INSERT INTO model_price (id, tenant_id, name, provider, match_pattern, match_path, start_time, prompt_cost, completion_cost,
                         prompt_cost_details, completion_cost_details, created_at, modified_at)
VALUES (@id250, @id1, 'small', 'openai', '^small$', '["model"]', @at1, '0.00000015', '0.0000006', '{"cache_read": 0.1}', '{}',
        @at1, @at2);
INSERT INTO model_price_version (tenant_id, version, failed_version, changed_at) VALUES (@id1, 3, 1, @at2);

INSERT INTO prompt (id, tenant_id, name, description, readme, labels, is_archived, last_seq, last_commit_hash, commit_count,
                    like_count, stored_bytes, created_at, updated_at)
VALUES (@id260, @id1, 'greeting', 'of users', '# Greeting', '["a"]', FALSE, 1, 'abcdef0123', 1, 1, 20, @at1, @at2);
INSERT INTO prompt_commit (id, tenant_id, prompt_id, seq, hash, parent_hash, manifest, manifest_hash, description, created_at)
VALUES (@id261, @id1, @id260, 1, 'abcdef0123', '0123456789', '{"lc": 1}', 'fedcba', 'first', @at1);
INSERT INTO prompt_tag (tenant_id, prompt_id, name, id, commit_seq, created_at, updated_at)
VALUES (@id1, @id260, 'prod', @id262, 1, @at1, @at2);
INSERT INTO prompt_like (tenant_id, prompt_id, key_id) VALUES (@id1, @id260, @id51);

INSERT INTO item_index (tenant_id, space, embedder, fields, walking, walk_namespace, walk_key, last_seq, job_id)
VALUES (@id1, 2, '{"dims": 3}', '["$"]', TRUE, 'users', 'a', 1, @id10);
INSERT INTO item_embedding (tenant_id, namespace, key, attempts, due_at) VALUES (@id1, 'users.ann', 'mood', 2, @at9);
INSERT INTO item_vector (tenant_id, namespace, key, part, space, seq, vector)
VALUES (@id1, 'users.ann', 'mood', 0, 2, 1, @bytes12);

INSERT INTO run_event_removal (thread_id, tenant_id, last_ms, last_seq) VALUES (@id91, @id1, 1772323200000, 2);

UPDATE a2a_task SET context = 'a conversation';
UPDATE api_key SET scopes = '["traces:read"]', expires_at = @at59, last_used_at = @at3 WHERE id = @id51;
UPDATE cron SET caller = '{}';
UPDATE deployment_placement SET database_id = 'a database';
UPDATE revision_artifact SET image = 'sha256:1';
UPDATE scheduled_export SET error = 'the destination is gone';
UPDATE segment SET remove_at = @at59, price_version = 3;
UPDATE store_item SET index_paths = '["text"]';
UPDATE source_upload SET released_at = @at9;
UPDATE thread SET rest_status = 'idle';
