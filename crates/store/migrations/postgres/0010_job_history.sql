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
);
CREATE INDEX job_history_over ON job_history (over_at);
CREATE INDEX job_history_parent ON job_history (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_history_badly_over ON job_history (id) WHERE state IN ('failed', 'cancelled', 'timed_out');

-- In this order jobs leave for the history.
CREATE INDEX job_over ON job (finished_at, id) WHERE finished_at IS NOT NULL AND NOT dead;
