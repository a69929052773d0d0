//! Column lists for statements that read whole rows.
//!
//! `SELECT *` returns other columns once a newer build has added one. PostgreSQL then rejects cached statements, and
//! old processes are still running. So new columns are also added here.

/// The columns of a table; with `alias, table` those of the table under that name.
macro_rules! columns {
    (job) => {
        "id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq, lane_held, \
         keep_place, parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, worker_id, cancel_at, \
         error, dead, traceparent, created_at, started_at, finished_at"
    };
    (lane) => {
        "key, places, held, next_seq"
    };
    (worker) => {
        "id, host, pid, pools, version, draining, started_at, seen_at, finished, drain_at"
    };
    (a2a_push_config) => {
        "id, task_id, name, url, token, scheme, credentials, dialect, created_at"
    };
    (assistant) => {
        "id, tenant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at"
    };
    (attachment) => {
        "tenant_id, run_id, name, content_type, path, bytes, seq, created_at"
    };
    (a, attachment) => {
        "a.tenant_id, a.run_id, a.name, a.content_type, a.path, a.bytes, a.seq, a.created_at"
    };
    (annotation_queue) => {
        "id, tenant_id, name, description, rubric_instructions, rubric_items, created_at, updated_at"
    };
    (comparative_experiment) => {
        "tenant_id, id, dataset_id, name, description, extra, experiment_ids, created_at, modified_at"
    };
    (dataset) => {
        "id, tenant_id, name, description, data_type, inputs_schema, outputs_schema, metadata, created_at, modified_at, \
         version_at, example_count"
    };
    (example) => {
        "dataset_id, example_id, valid_from, created_at, inputs, outputs, metadata, source_run_id, files"
    };
    (feedback_config) => {
        "tenant_id, feedback_key, id, config, is_lower_score_better, modified_at"
    };
    (cron) => {
        "id, tenant_id, assistant_id, thread_id, schedule_id, user_id, schedule, timezone, end_time, payload, \
         metadata, next_run_date, on_run_completed, enabled, created_at, updated_at, caller"
    };
    (deployment_placement) => {
        "deployment_id, tenant_id, revision_id, artifact, state, address, restarts, error, updated_at, database_id"
    };
    (deployment_placement, deployment_placement) => {
        "deployment_placement.deployment_id, deployment_placement.tenant_id, deployment_placement.revision_id, \
         deployment_placement.artifact, deployment_placement.state, deployment_placement.address, \
         deployment_placement.restarts, deployment_placement.error, deployment_placement.updated_at, \
         deployment_placement.database_id"
    };
    (destination) => {
        "id, tenant_id, destination_type, display_name, config, credentials, credentials_keys, created_at, \
         updated_at"
    };
    (export) => {
        "id, tenant_id, destination_id, project_id, status, start_time, end_time, compression, export_fields, \
         source_bulk_export_id, job_id, error, planned, created_at, updated_at, started_at, finished_at, \
         format_version, missing_operations"
    };
    (export_file) => {
        "export_run_id, seq, path, rows, bytes"
    };
    (f, export_file) => {
        "f.export_run_id, f.seq, f.path, f.rows, f.bytes"
    };
    (export_run) => {
        "id, tenant_id, export_id, job_id, status, start_time, end_time, prefix, retry_number, errors, \
         rows_written, bytes_written, files_written, latest_cursor, pending_upload, created_at, updated_at, \
         finished_at"
    };
    (r, export_run) => {
        "r.id, r.tenant_id, r.export_id, r.job_id, r.status, r.start_time, r.end_time, r.prefix, r.retry_number, \
         r.errors, r.rows_written, r.bytes_written, r.files_written, r.latest_cursor, r.pending_upload, \
         r.created_at, r.updated_at, r.finished_at"
    };
    (feedback) => {
        "tenant_id, id, run_id, key, body, seq, created_at, modified_at, deleted, source"
    };
    (feedback_token) => {
        "id, tenant_id, hash, token, run_id, key, feedback_id, config, created_at, expires_at"
    };
    (image_pull_secret) => {
        "id, tenant_id, name, registries, logins, created_at, updated_at"
    };
    (integration) => {
        "id, tenant_id, kind, name, api_url, token, webhook_secret, created_at, updated_at"
    };
    (listener) => {
        "id, tenant_id, compute_type, compute_id, compute_config, created_at, updated_at"
    };
    (model_price) => {
        "id, tenant_id, name, provider, match_pattern, match_path, start_time, prompt_cost, completion_cost, \
         prompt_cost_details, completion_cost_details, created_at, modified_at"
    };
    (pending_patch) => {
        "tenant_id, run_id, seq, operation, created_at"
    };
    (p, pending_patch) => {
        "p.tenant_id, p.run_id, p.seq, p.operation, p.created_at"
    };
    (found, pending_patch) => {
        "found.tenant_id, found.run_id, found.seq, found.operation, found.created_at"
    };
    (project) => {
        "id, tenant_id, name, description, extra, reference_dataset_id, start_time, end_time"
    };
    (prompt) => {
        "id, tenant_id, name, description, readme, labels, is_archived, last_seq, last_commit_hash, commit_count, \
         like_count, created_at, updated_at"
    };
    (prompt_commit) => {
        "id, tenant_id, prompt_id, seq, hash, parent_hash, manifest_hash, description, created_at"
    };
    (quarantine) => {
        "id, tenant_id, kind, reason, path, byte_offset, bytes, decoded_bytes, items, names, projects, \
         first_start, last_start, accepted_at, created_at"
    };
    (revision) => {
        "id, tenant_id, deployment_id, seq, source, status, config, source_config, secrets, secret_names, \
         redeploy_of, job_id, error, created_at, updated_at, finished_at"
    };
    (run_index) => {
        "id, tenant_id, path, state, job, entries, bytes, first_run, last_run, created_at, changed_at"
    };
    (sandbox_box) => {
        "id, tenant_id, name, status, status_message, generation, host_id, isolation, root, config, template_name, \
         template_id, snapshot_id, pool_id, idle_ttl_seconds, ttl_seconds, delete_after_stop_seconds, active_at, due_at, \
         stopped_at, created_by, updated_by, created_at, updated_at"
    };
    (sandbox_network) => {
        "id, tenant_id, config, secrets, version, sent_bytes, received_bytes"
    };
    (sandbox_pool) => {
        "id, tenant_id, name, template_id, replicas, created_at, updated_at"
    };
    (sandbox_registry) => {
        "id, tenant_id, name, url, auth_type, credentials, created_at, updated_at"
    };
    (sandbox_snapshot) => {
        "id, tenant_id, name, status, status_message, docker_image, fs_capacity_bytes, fs_used_bytes, source_box_id, \
         parent_id, host_id, root, run_config, labels, description, included, created_by, created_at, updated_at"
    };
    (sandbox_template) => {
        "id, tenant_id, name, image, resources, created_at, updated_at"
    };
    (sandbox_token) => {
        "tenant_id, box_id, kind, port, path, content_type, content_disposition, created_at, expires_at"
    };
    (sandbox_volume) => {
        "id, tenant_id, name, status, status_message, size_bytes, storage_class, description, labels, source_volume_id, \
         host_id, created_at, updated_at"
    };
    (schedule) => {
        "id, tenant_id, kind, pool, input, next_at, paused, spawn_job, created_at, ended_at"
    };
    (s, scheduled_export) => {
        "s.id, s.tenant_id, s.destination_id, s.project_id, s.status, s.start_time, s.interval_hours, s.compression, \
         s.format_version, s.export_fields, s.schedule_id, s.error, s.created_at, s.updated_at, s.finished_at"
    };
    (s, schedule) => {
        "s.id, s.tenant_id, s.kind, s.pool, s.input, s.next_at, s.paused, s.spawn_job, s.created_at, s.ended_at"
    };
    (segment) => {
        "id, tenant_id, path, state, job, rows, bytes, created_at, changed_at, compacted, indexed, \
         removal_failures, remove_at, price_version"
    };
    (s, segment) => {
        "s.id, s.tenant_id, s.path, s.state, s.job, s.rows, s.bytes, s.created_at, s.changed_at, s.compacted, \
         s.indexed, s.removal_failures, s.remove_at, s.price_version"
    };
    (segment_part) => {
        "segment_id, tenant_id, project_id, day, row_group, rows, min_sort_time, max_sort_time, min_seq, max_seq"
    };
    (p, segment_part) => {
        "p.segment_id, p.tenant_id, p.project_id, p.day, p.row_group, p.rows, p.min_sort_time, p.max_sort_time, \
         p.min_seq, p.max_seq"
    };
    (o, segment_part) => {
        "o.segment_id, o.tenant_id, o.project_id, o.day, o.row_group, o.rows, o.min_sort_time, o.max_sort_time, \
         o.min_seq, o.max_seq"
    };
    (o, segment_part_past) => {
        "o.segment_id, o.tenant_id, o.project_id, o.day, o.row_group, o.rows, o.min_sort_time, o.max_sort_time, \
         o.min_seq, o.max_seq"
    };
    (source_upload) => {
        "id, tenant_id, deployment_id, token, path, bytes, created_at, expires_at, uploaded_at, released_at"
    };
    (thread) => {
        "id, tenant_id, status, metadata, config, current_values, interrupts, error, temporary, ttl_strategy, \
         ttl_minutes, expires_at, created_at, updated_at, state_updated_at"
    };
    (wal_unit) => {
        "seq, id, path, bytes, operations, state, fold_job, created_at, folded_at, tenant_id, shard, byte_offset, \
         decoded_bytes, ordinal, frames_done"
    };
}
