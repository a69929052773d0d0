-- A job that is over leaves `job` after a while and lies here until it is forgotten. So what is claimed, settled and counted
-- is in a table as large as what is open. Dead letters stay in `job`, and so do children for as long as their parent is open
-- or a dead letter. Steps and attempts are found by the id of the job, wherever it lies.
CREATE TABLE job_history (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    kind          TEXT NOT NULL,
    pool          TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    state         TEXT NOT NULL
        CHECK (state = 'succeeded' OR state = 'failed' OR state = 'cancelled' OR state = 'timed_out'),
    run_at        INTEGER NOT NULL,
    deadline_at   INTEGER,
    input         TEXT NOT NULL,
    cursor        TEXT,
    lane          TEXT,
    lane_seq      INTEGER,
    keep_place    INTEGER NOT NULL,
    parent_id     BLOB,
    open_children INTEGER NOT NULL,
    bad_children  INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    lost_leases   INTEGER NOT NULL,
    fence         INTEGER NOT NULL,
    cancel_at     INTEGER,
    error         TEXT,
    traceparent   TEXT,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER,
    finished_at   INTEGER NOT NULL,
    over_at       INTEGER NOT NULL  -- when it and its parent were over; by it history is emptied
) STRICT;
CREATE INDEX job_history_over ON job_history (over_at);
CREATE INDEX job_history_parent ON job_history (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_history_badly_over ON job_history (id) WHERE state = 'failed' OR state = 'cancelled' OR state = 'timed_out';
-- What lists are asked for.
CREATE INDEX job_history_lane ON job_history (lane, id) WHERE lane IS NOT NULL;
CREATE INDEX job_history_tenant ON job_history (tenant_id, id);
CREATE INDEX job_history_kind ON job_history (kind, id);
CREATE INDEX job_history_pool ON job_history (pool, id);

-- In this order schedules that have ended are forgotten.
CREATE INDEX schedule_ended ON schedule (ended_at) WHERE ended_at IS NOT NULL;

-- In this order jobs leave for the history.
CREATE INDEX job_over ON job (finished_at, id) WHERE finished_at IS NOT NULL AND NOT dead;
-- Lists of a lane: jobs that are over and have not left yet. Open ones are found by `job_lane`.
CREATE INDEX job_lane_over ON job (lane, id) WHERE lane IS NOT NULL AND finished_at IS NOT NULL;
