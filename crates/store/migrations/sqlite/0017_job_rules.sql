-- The same jobs under the same rules, which are said another way. SQLite makes a table in memory of each list of more
-- than two that a rule or an index looks something up in, anew for each row that is written: a third of what it takes to
-- claim and end a job. Comparisons cost next to nothing. (An index whose rule is a list also serves no question for one
-- of its states, as operators ask it.) A rule cannot be altered, so the rows are copied.

CREATE TABLE job_anew (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    kind          TEXT NOT NULL,
    pool          TEXT NOT NULL,
    priority      INTEGER NOT NULL DEFAULT 0,
    state         TEXT NOT NULL CHECK (state = 'running' OR state = 'succeeded' OR state = 'ready' OR state = 'blocked'
                                             OR state = 'scheduled' OR state = 'waiting' OR state = 'failed'
                                             OR state = 'cancelled' OR state = 'timed_out'),
    run_at        INTEGER NOT NULL,
    deadline_at   INTEGER,
    input         TEXT NOT NULL,
    cursor        TEXT,

    lane          TEXT,
    lane_seq      INTEGER,
    lane_held     INTEGER NOT NULL DEFAULT 0,   -- counts in lane.held
    keep_place    INTEGER NOT NULL DEFAULT 0,   -- holds its place while it backs off

    parent_id     BLOB,
    open_children INTEGER NOT NULL DEFAULT 0,        -- children not yet over; kept by the transaction that ends a child
    bad_children  INTEGER NOT NULL DEFAULT 0,        -- children that ended other than succeeded

    attempt       INTEGER NOT NULL DEFAULT 0,        -- claims, less those given back
    failures      INTEGER NOT NULL DEFAULT 0,
    lost_leases   INTEGER NOT NULL DEFAULT 0,        -- in a row, since the last step or checkpoint
    fence         INTEGER NOT NULL DEFAULT 0,        -- one higher at every claim and every rescue
    worker_id     BLOB,
    lease_until   INTEGER,
    cancel_at     INTEGER,                      -- somebody asked a running job to stop

    error         TEXT,
    dead          INTEGER NOT NULL DEFAULT 0,   -- dead letter: ended badly and worth a look
    traceparent   TEXT,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER,
    finished_at   INTEGER,

    CHECK ((finished_at IS NOT NULL) = (state = 'succeeded' OR state = 'failed' OR state = 'cancelled'
                                        OR state = 'timed_out')),
    CHECK ((worker_id IS NOT NULL) = (state = 'running')),
    CHECK ((lease_until IS NOT NULL) = (state = 'running')),
    CHECK (NOT lane_held OR lane IS NOT NULL),
    CHECK (NOT lane_held OR state = 'ready' OR state = 'running' OR state = 'waiting' OR state = 'scheduled')
) STRICT;

INSERT INTO job_anew (id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq, lane_held,
    keep_place, parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, worker_id,
    lease_until, cancel_at, error, dead, traceparent, created_at, started_at, finished_at)
SELECT id, tenant_id, kind, pool, priority, state, run_at, deadline_at, input, cursor, lane, lane_seq, lane_held,
    keep_place, parent_id, open_children, bad_children, attempt, failures, lost_leases, fence, worker_id,
    lease_until, cancel_at, error, dead, traceparent, created_at, started_at, finished_at
FROM job ORDER BY id;

DROP TABLE job;
ALTER TABLE job_anew RENAME TO job;

CREATE INDEX job_ready ON job (pool, tenant_id, priority DESC, run_at, id) WHERE state = 'ready';
CREATE INDEX job_due ON job (run_at) WHERE state = 'scheduled';
CREATE INDEX job_lease ON job (lease_until) WHERE state = 'running';
CREATE INDEX job_lane ON job (lane, lane_seq) WHERE lane IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_parent ON job (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_deadline ON job (deadline_at) WHERE deadline_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_waiting ON job (pool) WHERE state = 'waiting';
CREATE INDEX job_dead ON job (finished_at) WHERE dead;
CREATE INDEX job_badly_over ON job (id) WHERE state = 'failed' OR state = 'cancelled' OR state = 'timed_out';
