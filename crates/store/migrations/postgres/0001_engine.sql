-- The engine: jobs, lanes, steps, schedules, workers.

-- The clock every host compares due times, leases and deadlines by. Statements shared with SQLite hand in NULL.
-- Tests replace this function to move time. STABLE although the clock is not, so that an index can serve
-- `lease_until < towpath_now($1)`: one statement sees one value, which is what is wanted.
CREATE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT coalesce(known, clock_timestamp()) $$;

CREATE TABLE job (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    kind          text NOT NULL,
    pool          text NOT NULL,
    priority      bigint NOT NULL DEFAULT 0,
    state         text NOT NULL CHECK (state IN ('scheduled', 'blocked', 'ready', 'running', 'waiting',
                                                 'succeeded', 'failed', 'cancelled', 'timed_out')),
    run_at        timestamptz NOT NULL,
    deadline_at   timestamptz,
    input         text NOT NULL,
    cursor        text,

    lane          text,
    lane_seq      bigint,
    lane_held     boolean NOT NULL DEFAULT false,   -- counts in lane.held
    keep_place    boolean NOT NULL DEFAULT false,   -- holds its place while it backs off

    parent_id     uuid,
    open_children bigint NOT NULL DEFAULT 0,        -- children not yet over; kept by the transaction that ends a child
    bad_children  bigint NOT NULL DEFAULT 0,        -- children that ended other than succeeded

    attempt       bigint NOT NULL DEFAULT 0,        -- claims, less those given back
    failures      bigint NOT NULL DEFAULT 0,
    lost_leases   bigint NOT NULL DEFAULT 0,        -- in a row, since the last step or checkpoint
    fence         bigint NOT NULL DEFAULT 0,        -- one higher at every claim and every rescue
    worker_id     uuid,
    lease_until   timestamptz,
    cancel_at     timestamptz,                      -- somebody asked a running job to stop

    error         text,
    dead          boolean NOT NULL DEFAULT false,   -- dead letter: ended badly and worth a look
    traceparent   text,
    created_at    timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz,

    CHECK ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled', 'timed_out'))),
    CHECK ((worker_id IS NOT NULL) = (state = 'running')),
    CHECK ((lease_until IS NOT NULL) = (state = 'running')),
    CHECK (NOT lane_held OR lane IS NOT NULL),
    CHECK (NOT lane_held OR state IN ('ready', 'running', 'waiting', 'scheduled'))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);

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
    key      text PRIMARY KEY,
    places   bigint NOT NULL,
    held     bigint NOT NULL DEFAULT 0 CHECK (held >= 0),
    next_seq bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50);

-- What a finished step answered; written once.
CREATE TABLE step (
    job_id uuid NOT NULL,
    name   text NOT NULL,
    output text NOT NULL,
    fence  bigint NOT NULL,
    at     timestamptz NOT NULL,
    PRIMARY KEY (job_id, name)
);

-- Attempts that did not end well: failures, lost leases, time-outs.
CREATE TABLE attempt (
    job_id    uuid NOT NULL,
    fence     bigint NOT NULL,
    outcome   text NOT NULL CHECK (outcome IN ('failed', 'timed_out', 'lost', 'cancelled')),
    failure   bigint,                               -- n of retry_n; only failures and time-outs have one
    error     text NOT NULL,
    worker_id uuid,
    at        timestamptz NOT NULL,
    PRIMARY KEY (job_id, fence)
);

CREATE TABLE pool (
    name   text PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false
);

CREATE TABLE worker (
    id         uuid PRIMARY KEY,
    host       text NOT NULL,
    pid        bigint NOT NULL,
    pools      text NOT NULL,                       -- JSON: pool name to slots
    version    text NOT NULL,
    draining   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL
);

-- What spawns work again and again. next_at is the truth; a spawn moves it by compare-and-set.
CREATE TABLE schedule (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    kind       text NOT NULL,                       -- kind of the spawn job
    pool       text NOT NULL,
    input      text NOT NULL,
    next_at    timestamptz NOT NULL,
    paused     boolean NOT NULL DEFAULT false,
    spawn_job  uuid,                                -- the job recorded for next_at
    created_at timestamptz NOT NULL,
    ended_at   timestamptz
);
CREATE INDEX schedule_active ON schedule (next_at) WHERE ended_at IS NULL;
