-- A job that is over leaves `job` after a while and lies here until it is forgotten. So what is claimed, settled and counted
-- is in a table as large as what is open. Dead letters stay in `job`, and so do children for as long as their parent is open
-- or a dead letter. Steps and attempts are found by the id of the job, wherever it lies.
CREATE TABLE job_history (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    kind          text NOT NULL,
    pool          text NOT NULL,
    priority      bigint NOT NULL,
    state         text NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'timed_out')),
    run_at        timestamptz NOT NULL,
    deadline_at   timestamptz,
    input         text NOT NULL,
    cursor        text,
    lane          text,
    lane_seq      bigint,
    keep_place    boolean NOT NULL,
    parent_id     uuid,
    open_children bigint NOT NULL,
    bad_children  bigint NOT NULL,
    attempt       bigint NOT NULL,
    failures      bigint NOT NULL,
    lost_leases   bigint NOT NULL,
    fence         bigint NOT NULL,
    cancel_at     timestamptz,
    error         text,
    traceparent   text,
    created_at    timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    over_at       timestamptz NOT NULL  -- when it and its parent were over; by it history is emptied
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX job_history_over ON job_history (over_at);
CREATE INDEX job_history_parent ON job_history (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_history_badly_over ON job_history (id) WHERE state IN ('failed', 'cancelled', 'timed_out');
-- What lists are asked for.
CREATE INDEX job_history_lane ON job_history (lane, id) WHERE lane IS NOT NULL;
CREATE INDEX job_history_tenant ON job_history (tenant_id, id);
CREATE INDEX job_history_kind ON job_history (kind, id);
CREATE INDEX job_history_pool ON job_history (pool, id);

-- The indexes of `job` that go with it are made without locking the table: see `store/src/postgres/indexes.rs`.
