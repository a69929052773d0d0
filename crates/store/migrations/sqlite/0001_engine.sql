-- The engine: jobs, lanes, steps, schedules, workers.


CREATE TABLE job (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    kind          TEXT NOT NULL,
    pool          TEXT NOT NULL,
    priority      INTEGER NOT NULL DEFAULT 0,
    state         TEXT NOT NULL CHECK (state IN ('scheduled', 'blocked', 'ready', 'running', 'waiting',
                                                 'succeeded', 'failed', 'cancelled', 'timed_out')),
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

    CHECK ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled', 'timed_out'))),
    CHECK ((worker_id IS NOT NULL) = (state = 'running')),
    CHECK ((lease_until IS NOT NULL) = (state = 'running')),
    CHECK (NOT lane_held OR lane IS NOT NULL),
    CHECK (NOT lane_held OR state IN ('ready', 'running', 'waiting', 'scheduled'))
) STRICT;

CREATE INDEX job_ready ON job (pool, tenant_id, priority DESC, run_at, id) WHERE state = 'ready';
CREATE INDEX job_due ON job (run_at) WHERE state = 'scheduled';
CREATE INDEX job_lease ON job (lease_until) WHERE state = 'running';
CREATE INDEX job_lane ON job (lane, lane_seq) WHERE lane IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_parent ON job (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_deadline ON job (deadline_at) WHERE deadline_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_waiting ON job (pool) WHERE state = 'waiting';
CREATE INDEX job_dead ON job (finished_at) WHERE dead;

-- A limit on how many jobs of one key may be at work, and their order.
CREATE TABLE lane (
    key      TEXT PRIMARY KEY,
    places   INTEGER NOT NULL,
    held     INTEGER NOT NULL DEFAULT 0 CHECK (held >= 0),
    next_seq INTEGER NOT NULL DEFAULT 1
) STRICT;

-- What a finished step answered; written once.
CREATE TABLE step (
    job_id BLOB NOT NULL,
    name   TEXT NOT NULL,
    output TEXT NOT NULL,
    fence  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) STRICT;

-- Attempts that did not end well: failures, lost leases, time-outs.
CREATE TABLE attempt (
    job_id    BLOB NOT NULL,
    fence     INTEGER NOT NULL,
    outcome   TEXT NOT NULL CHECK (outcome IN ('failed', 'timed_out', 'lost', 'cancelled')),
    failure   INTEGER,                               -- n of retry_n; only failures and time-outs have one
    error     TEXT NOT NULL,
    worker_id BLOB,
    at        INTEGER NOT NULL,
    PRIMARY KEY (job_id, fence)
) STRICT;

CREATE TABLE pool (
    name   TEXT PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE worker (
    id         BLOB PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    pools      TEXT NOT NULL,                       -- JSON: pool name to slots
    version    TEXT NOT NULL,
    draining   INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) STRICT;

-- What spawns work again and again. next_at is the truth; a spawn moves it by compare-and-set.
CREATE TABLE schedule (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    kind       TEXT NOT NULL,                       -- kind of the spawn job
    pool       TEXT NOT NULL,
    input      TEXT NOT NULL,
    next_at    INTEGER NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    spawn_job  BLOB,                                -- the job recorded for next_at
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;
CREATE INDEX schedule_active ON schedule (next_at) WHERE ended_at IS NULL;
