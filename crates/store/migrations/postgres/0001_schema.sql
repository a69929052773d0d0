-- The schema of the first release. This file is frozen: a change to the schema is a new pair of files.
--
-- Times are whole microseconds. JSON is text, kept as it was given but for NUL characters, so that the keys of objects
-- keep their order. `tenant_id` is a workspace.

-- ---------------------------------------------------------------------------------------------------------------------
-- The engine: jobs, lanes, steps, pools, workers, schedules
-- ---------------------------------------------------------------------------------------------------------------------

-- The clock that every host compares due times, leases and deadlines by. Statements shared with SQLite pass NULL.
-- Tests replace this function to move time. STABLE although the clock is not, so that an index can serve
-- `lease_until < towpath_now($1)`: a statement has to see one value throughout.
CREATE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT coalesce(known, clock_timestamp()) $$;

CREATE TABLE job (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    kind          text NOT NULL,
    pool          text NOT NULL,
    priority      bigint NOT NULL DEFAULT 0,
    state         text NOT NULL
        CHECK (state IN ('scheduled', 'blocked', 'ready', 'running', 'waiting', 'succeeded', 'failed', 'cancelled',
                         'timed_out')),
    run_at        timestamptz NOT NULL,
    deadline_at   timestamptz,
    input         text NOT NULL,
    cursor        text,

    lane          text,
    lane_seq      bigint,
    lane_held     boolean NOT NULL DEFAULT false,  -- counted in lane.held
    keep_place    boolean NOT NULL DEFAULT false,  -- keeps its place in the lane while it backs off

    parent_id     uuid,
    open_children bigint NOT NULL DEFAULT 0,       -- not yet over; kept by the transaction that ends a child
    bad_children  bigint NOT NULL DEFAULT 0,       -- ended other than succeeded

    attempt       bigint NOT NULL DEFAULT 0,       -- claims, less those given back
    failures      bigint NOT NULL DEFAULT 0,
    lost_leases   bigint NOT NULL DEFAULT 0,       -- in a row, since the last step or checkpoint
    fence         bigint NOT NULL DEFAULT 0,       -- one higher at every claim and every rescue
    worker_id     uuid,
    lease_until   timestamptz,
    cancel_at     timestamptz,                     -- when a running job was asked to stop

    error         text,
    dead          boolean NOT NULL DEFAULT false,  -- dead letter: ended badly and worth a look
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
-- Operators look for these few among very many jobs that succeeded.
CREATE INDEX job_badly_over ON job (id) WHERE state IN ('failed', 'cancelled', 'timed_out');

-- Limits how many jobs with one key run at once, and orders them.
CREATE TABLE lane (
    key      text PRIMARY KEY,
    places   bigint NOT NULL,
    held     bigint NOT NULL DEFAULT 0 CHECK (held >= 0),
    next_seq bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50);

-- The result of a finished step. Written once.
CREATE TABLE step (
    job_id uuid NOT NULL,
    name   text NOT NULL,
    output text NOT NULL,
    fence  bigint NOT NULL,
    at     timestamptz NOT NULL,
    PRIMARY KEY (job_id, name)
);

-- Attempts that ended badly: failures, lost leases, time-outs.
CREATE TABLE attempt (
    job_id    uuid NOT NULL,
    fence     bigint NOT NULL,
    outcome   text NOT NULL CHECK (outcome IN ('failed', 'timed_out', 'lost', 'cancelled')),
    failure   bigint,  -- n of retry_n; set for failures and time-outs only
    error     text NOT NULL,
    worker_id uuid,
    at        timestamptz NOT NULL,
    PRIMARY KEY (job_id, fence)
);

-- A pool that drains is paused too.
CREATE TABLE pool (
    name     text PRIMARY KEY,
    paused   boolean NOT NULL DEFAULT false,
    draining boolean NOT NULL DEFAULT false
);

CREATE TABLE worker (
    id         uuid PRIMARY KEY,
    host       text NOT NULL,
    pid        bigint NOT NULL,
    pools      text NOT NULL,              -- JSON: pool name to slots
    version    text NOT NULL,
    draining   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    drain_at   timestamptz,                -- when it was asked to drain; it knows once seen_at is later
    finished   text NOT NULL DEFAULT '{}'  -- JSON: pool name to attempts it ended; rates come from it
);

-- Spawns jobs again and again. next_at is the truth: a spawn moves it by compare-and-set.
CREATE TABLE schedule (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    kind       text NOT NULL,  -- of the spawn job
    pool       text NOT NULL,
    input      text NOT NULL,
    next_at    timestamptz NOT NULL,
    paused     boolean NOT NULL DEFAULT false,
    spawn_job  uuid,           -- the job recorded for next_at
    created_at timestamptz NOT NULL,
    ended_at   timestamptz
);
CREATE INDEX schedule_active ON schedule (next_at) WHERE ended_at IS NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- Access: organisations own workspaces and API keys
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE organization (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE workspace (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organization (id),
    name            text NOT NULL,
    created_at      timestamptz NOT NULL
);
CREATE INDEX workspace_by_organization ON workspace (organization_id, id);

-- A key's secret is shown once and never stored: `hash` is its SHA-256. A key without `workspace_id` opens every
-- workspace of the organisation. An operator's key also opens the routes under /internal and the dashboard: the jobs of
-- every workspace, pools, workers.
CREATE TABLE api_key (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organization (id),
    workspace_id    uuid REFERENCES workspace (id),
    name            text NOT NULL,
    prefix          text NOT NULL,
    hash            bytea NOT NULL CHECK (length(hash) = 32),
    created_at      timestamptz NOT NULL,
    revoked_at      timestamptz,
    operator        boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX api_key_by_hash ON api_key (hash);
CREATE INDEX api_key_by_organization ON api_key (organization_id, created_at);

-- Sessions that were ended early. A session is a sealed token that the server does not keep, so its end has to be
-- remembered until the token expires.
CREATE TABLE ended_session (
    token      bytea PRIMARY KEY,  -- SHA-256
    expires_at timestamptz NOT NULL
);
CREATE INDEX ended_session_by_expiry ON ended_session (expires_at);

-- Answers to requests with an Idempotency-Key, kept for a day. The transaction that inserts the row also sets `answer`,
-- so a committed row always has one.
CREATE TABLE idempotency (
    tenant_id  uuid NOT NULL,
    key        text NOT NULL,
    request    bytea NOT NULL,  -- SHA-256 of method, route and body
    answer     text,            -- JSON
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- Traces: projects, the write-ahead log of ingest, the catalog of segments, feedback, attachments
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE project (
    id                   uuid PRIMARY KEY,
    tenant_id            uuid NOT NULL,
    name                 text NOT NULL,
    description          text,
    extra                text,  -- JSON object
    reference_dataset_id uuid,
    start_time           timestamptz NOT NULL,
    end_time             timestamptz,
    UNIQUE (tenant_id, name)
);
CREATE INDEX project_listing ON project (tenant_id, start_time DESC, id);

-- Deleted projects. Trace runs that still arrive for one are not shown.
CREATE TABLE project_tombstone (
    tenant_id  uuid NOT NULL,
    project_id uuid NOT NULL,
    deleted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, project_id)
);

-- One object of the write-ahead log. `seq` is the order of acceptance: the later one of two patches wins.
CREATE TABLE wal_unit (
    seq        bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id         uuid NOT NULL UNIQUE,
    path       text NOT NULL UNIQUE,
    bytes      bigint NOT NULL CHECK (bytes > 0),
    operations bigint NOT NULL CHECK (operations >= 0),
    state      text NOT NULL CHECK (state IN ('open', 'folded')),
    fold_job   uuid,  -- the job that folds or folded it
    created_at timestamptz NOT NULL,
    folded_at  timestamptz,
    CHECK ((state = 'folded') = (folded_at IS NOT NULL))
);
CREATE INDEX wal_unit_open ON wal_unit (seq) WHERE state = 'open';
CREATE INDEX wal_unit_folded ON wal_unit (folded_at) WHERE state = 'folded';

-- The projects that a unit touches. A patch that names no project counts for the nil project, which stands for any
-- project of the workspace.
CREATE TABLE wal_unit_project (
    unit_id    uuid NOT NULL REFERENCES wal_unit (id) ON DELETE CASCADE,
    tenant_id  uuid NOT NULL,
    project_id uuid NOT NULL,
    PRIMARY KEY (unit_id, tenant_id, project_id)
);
CREATE INDEX wal_unit_project_touches ON wal_unit_project (tenant_id, project_id, unit_id);

-- An immutable Parquet object. State `writing` is the intent: its row is committed before the object is written.
CREATE TABLE segment (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    path       text NOT NULL UNIQUE,
    state      text NOT NULL CHECK (state IN ('writing', 'live', 'superseded', 'deleting')),
    job        uuid,                            -- the job that writes it
    rows       bigint NOT NULL DEFAULT 0 CHECK (rows >= 0),
    bytes      bigint NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,            -- of the state
    compacted  boolean NOT NULL DEFAULT false,  -- one project and one day, sorted from end to end
    CHECK (state IN ('writing', 'deleting') OR (rows > 0 AND bytes > 0))
);
CREATE INDEX segment_live ON segment (tenant_id, created_at DESC, id) WHERE state = 'live';
CREATE INDEX segment_waste ON segment (state, changed_at) WHERE state <> 'live';
CREATE INDEX segment_job ON segment (job) WHERE state = 'writing';

-- One visible row group: one project, one UTC day, sorted by (sort time, id).
CREATE TABLE segment_part (
    segment_id    uuid NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    project_id    uuid NOT NULL,
    day           date NOT NULL,
    row_group     bigint NOT NULL CHECK (row_group >= 0),
    rows          bigint NOT NULL CHECK (rows > 0),
    min_sort_time timestamptz NOT NULL,
    max_sort_time timestamptz NOT NULL,
    min_seq       bigint NOT NULL,
    max_seq       bigint NOT NULL,
    PRIMARY KEY (segment_id, row_group),
    CHECK (min_sort_time <= max_sort_time AND min_seq <= max_seq)
);
CREATE INDEX segment_part_day ON segment_part (tenant_id, project_id, day, segment_id);
-- For a trace run that arrives again and may lie in any project of the workspace.
CREATE INDEX segment_part_time ON segment_part (tenant_id, day);

-- Row groups that are no longer visible: their rows lie in a newer segment, or were deleted. A reader that has pinned
-- the segment goes on reading them.
CREATE TABLE segment_part_past (
    segment_id    uuid NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    project_id    uuid NOT NULL,
    day           date NOT NULL,
    row_group     bigint NOT NULL,
    rows          bigint NOT NULL,
    min_sort_time timestamptz NOT NULL,
    max_sort_time timestamptz NOT NULL,
    min_seq       bigint NOT NULL,
    max_seq       bigint NOT NULL,
    PRIMARY KEY (segment_id, row_group)
);

-- A reader that must keep seeing a segment. A pinned segment is not removed.
CREATE TABLE segment_pin (
    holder     uuid NOT NULL,
    segment_id uuid NOT NULL REFERENCES segment (id),
    pinned_at  timestamptz NOT NULL,
    PRIMARY KEY (holder, segment_id)
);
CREATE INDEX segment_pin_segment ON segment_pin (segment_id);

-- Patches that arrived before their trace run and say neither in which project nor at what time it lies.
CREATE TABLE pending_patch (
    tenant_id  uuid NOT NULL,
    run_id     uuid NOT NULL,
    seq        bigint NOT NULL,
    operation  text NOT NULL,  -- JSON
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, run_id, seq)
);
CREATE INDEX pending_patch_age ON pending_patch (created_at);

CREATE TABLE feedback (
    tenant_id   uuid NOT NULL,
    id          uuid NOT NULL,
    run_id      uuid,
    key         text NOT NULL,
    body        text NOT NULL,                   -- JSON, as sent
    seq         bigint NOT NULL,
    created_at  timestamptz NOT NULL,
    modified_at timestamptz,                     -- when a client last changed its body
    deleted     boolean NOT NULL DEFAULT false,  -- outlasts older versions still to be folded
    source      text,                            -- feedback_source.type of the body
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX feedback_run ON feedback (tenant_id, run_id);
CREATE INDEX feedback_listing ON feedback (tenant_id, seq DESC, id);

-- Links for feedback without a key: one trace run, one feedback key. The last part of a link is its token. It is found
-- by its hash, and kept sealed for the owners of the link, who list it.
CREATE TABLE feedback_token (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    hash        bytea NOT NULL UNIQUE,  -- SHA-256 of the token
    token       bytea NOT NULL,         -- sealed
    run_id      uuid NOT NULL,
    key         text NOT NULL,
    feedback_id uuid,                   -- id of the feedback given; absent: a new one each time
    config      text,                   -- JSON
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX feedback_token_run ON feedback_token (tenant_id, run_id, id);
CREATE INDEX feedback_token_end ON feedback_token (expires_at);

CREATE TABLE attachment (
    tenant_id    uuid NOT NULL,
    run_id       uuid NOT NULL,
    name         text NOT NULL,
    content_type text NOT NULL,
    path         text NOT NULL,
    bytes        bigint NOT NULL CHECK (bytes >= 0),
    seq          bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, run_id, name)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Exports: destinations, bulk exports with one export run per UTC day, schedules
-- ---------------------------------------------------------------------------------------------------------------------

-- `credentials` is sealed; `credentials_keys` names what is in it. Exports name their destination without a foreign
-- key: a destination may be deleted, which fails the exports that still need it.
CREATE TABLE destination (
    id               uuid PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    destination_type text NOT NULL CHECK (destination_type IN ('s3', 'file')),
    display_name     text NOT NULL,
    config           text NOT NULL,               -- JSON
    credentials      bytea,
    credentials_keys text NOT NULL DEFAULT '[]',  -- JSON
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    CHECK (destination_type = 's3' OR credentials IS NULL)
);
CREATE INDEX destination_listing ON destination (tenant_id, created_at DESC, id DESC);

CREATE TABLE export (
    id                    uuid PRIMARY KEY,
    tenant_id             uuid NOT NULL,
    destination_id        uuid NOT NULL,
    project_id            uuid NOT NULL,
    status                text NOT NULL
        CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')),
    start_time            timestamptz NOT NULL,
    end_time              timestamptz NOT NULL,
    compression           text NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    export_fields         text,                            -- JSON; absent: all
    source_bulk_export_id uuid,
    job_id                uuid NOT NULL,
    error                 text,
    planned               boolean NOT NULL DEFAULT false,  -- its export runs are recorded
    created_at            timestamptz NOT NULL,
    updated_at            timestamptz NOT NULL,
    started_at            timestamptz,
    finished_at           timestamptz,
    format_version        text NOT NULL DEFAULT 'v1' CHECK (format_version IN ('v1', 'v2_beta')),
    UNIQUE (source_bulk_export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
);
CREATE INDEX export_listing ON export (tenant_id, created_at DESC, id DESC);
CREATE INDEX export_project ON export (tenant_id, project_id, created_at DESC, id DESC);

-- Which trace runs an export takes, in the filter language. `id` is of an export or of a scheduled export; without a
-- row it takes all.
CREATE TABLE export_filter (
    id        uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    filter    text NOT NULL
);

CREATE TABLE export_run (
    id             uuid PRIMARY KEY,
    tenant_id      uuid NOT NULL,
    export_id      uuid NOT NULL REFERENCES export (id) ON DELETE CASCADE,
    job_id         uuid NOT NULL,
    status         text NOT NULL
        CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')),
    start_time     timestamptz NOT NULL,
    end_time       timestamptz NOT NULL,
    prefix         text NOT NULL,               -- folder of its files
    retry_number   bigint NOT NULL DEFAULT 0,
    errors         text NOT NULL DEFAULT '{}',  -- JSON: retry_n to text
    rows_written   bigint NOT NULL DEFAULT 0,
    bytes_written  bigint NOT NULL DEFAULT 0,
    files_written  bigint NOT NULL DEFAULT 0,
    latest_cursor  text,                        -- JSON: the last row in a finished file
    pending_upload text,                        -- JSON: the file that is about to become visible
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    finished_at    timestamptz,
    UNIQUE (export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
);

-- Finished files, in the order they were written.
CREATE TABLE export_file (
    export_run_id uuid NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    seq           bigint NOT NULL,
    path          text NOT NULL,
    rows          bigint NOT NULL CHECK (rows > 0),
    bytes         bigint NOT NULL CHECK (bytes > 0),
    PRIMARY KEY (export_run_id, seq)
);

-- Multipart uploads that were begun and neither completed nor aborted: what a clean-up has to abort.
CREATE TABLE export_upload (
    export_run_id uuid NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    path          text NOT NULL,
    upload_id     text NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (export_run_id, path, upload_id)
);

-- One export per interval, spawned ten minutes after the interval's end. The intervals follow from `start_time` and
-- `interval_hours`; the next one due is known to `schedule` alone.
CREATE TABLE scheduled_export (
    id             uuid PRIMARY KEY,
    tenant_id      uuid NOT NULL,
    destination_id uuid NOT NULL,
    project_id     uuid NOT NULL,
    status         text NOT NULL CHECK (status IN ('RUNNING', 'CANCELLED')),
    start_time     timestamptz NOT NULL,
    interval_hours bigint NOT NULL CHECK (interval_hours BETWEEN 1 AND 168),
    compression    text NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    format_version text NOT NULL CHECK (format_version IN ('v1', 'v2_beta')),
    export_fields  text,  -- JSON; absent: all
    schedule_id    uuid NOT NULL,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    finished_at    timestamptz,
    CHECK ((finished_at IS NOT NULL) = (status = 'CANCELLED'))
);
CREATE INDEX scheduled_export_listing ON scheduled_export (tenant_id, created_at DESC, id DESC);
CREATE INDEX scheduled_export_project ON scheduled_export (tenant_id, project_id) WHERE status = 'RUNNING';

-- ---------------------------------------------------------------------------------------------------------------------
-- The agent server: assistants, threads, runs, crons, items, streamed events
-- ---------------------------------------------------------------------------------------------------------------------

-- `version` is the one in use; versions count up from 1 and are never reused. The id of an assistant that comes with a
-- graph is derived from the graph's name, so it is unique within a workspace only.
CREATE TABLE assistant (
    id          uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    graph_id    text NOT NULL,
    name        text NOT NULL,
    description text,
    config      text NOT NULL DEFAULT '{}',  -- JSON
    context     text NOT NULL DEFAULT '{}',  -- JSON
    metadata    text NOT NULL DEFAULT '{}',  -- JSON
    version     bigint NOT NULL DEFAULT 1,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX assistant_listing ON assistant (tenant_id, created_at DESC, id DESC);
CREATE INDEX assistant_graph ON assistant (tenant_id, graph_id);

-- A full copy for each version.
CREATE TABLE assistant_version (
    tenant_id    uuid NOT NULL,
    assistant_id uuid NOT NULL,
    version      bigint NOT NULL,
    graph_id     text NOT NULL,
    name         text NOT NULL,
    description  text,
    config       text NOT NULL DEFAULT '{}',  -- JSON
    context      text NOT NULL DEFAULT '{}',  -- JSON
    metadata     text NOT NULL DEFAULT '{}',  -- JSON
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, assistant_id, version),
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
);

-- A conversation. Checkpoints name it by its id alone, so the id is unique across workspaces. A temporary thread
-- belongs to one stateless run and is deleted with it.
CREATE TABLE thread (
    id               uuid PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    status           text NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'busy', 'interrupted', 'error')),
    metadata         text NOT NULL DEFAULT '{}',  -- JSON
    config           text NOT NULL DEFAULT '{}',  -- JSON
    current_values   text,                        -- JSON: the state after the last run; absent before the first
    interrupts       text NOT NULL DEFAULT '{}',  -- JSON: task id to interrupts
    error            text,                        -- JSON: error, message
    temporary        boolean NOT NULL DEFAULT false,
    ttl_strategy     text CHECK (ttl_strategy IN ('delete', 'keep_latest')),
    ttl_minutes      double precision,
    expires_at       timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    state_updated_at timestamptz NOT NULL,
    CHECK ((ttl_strategy IS NULL) = (ttl_minutes IS NULL))
);
CREATE INDEX thread_listing ON thread (tenant_id, updated_at DESC, id DESC);
CREATE INDEX thread_expiry ON thread (expires_at) WHERE expires_at IS NOT NULL;

-- `pending` includes running: the job tells which. `cancel_action` is what the last cancel asked for.
CREATE TABLE run (
    id                 uuid PRIMARY KEY,
    tenant_id          uuid NOT NULL,
    thread_id          uuid NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    assistant_id       uuid NOT NULL,
    job_id             uuid NOT NULL,
    cron_id            uuid,                        -- the cron that fired it,
    cron_at            timestamptz,                 -- and the instant it stands for
    status             text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'success', 'error', 'timeout', 'interrupted')),
    metadata           text NOT NULL DEFAULT '{}',  -- JSON
    kwargs             text NOT NULL,               -- JSON
    multitask_strategy text NOT NULL DEFAULT 'enqueue'
        CHECK (multitask_strategy IN ('enqueue', 'reject', 'interrupt', 'rollback')),
    cancel_action      text CHECK (cancel_action IN ('interrupt', 'rollback')),
    created_at         timestamptz NOT NULL,        -- of a delayed run: when it is due
    updated_at         timestamptz NOT NULL,
    finished_at        timestamptz,
    UNIQUE (cron_id, cron_at),
    CHECK ((finished_at IS NOT NULL) = (status <> 'pending'))
);
CREATE INDEX run_listing ON run (thread_id, created_at DESC, id DESC);
CREATE INDEX run_open ON run (tenant_id, thread_id) WHERE status = 'pending';

CREATE TABLE cron (
    id               uuid PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    assistant_id     uuid NOT NULL,
    thread_id        uuid REFERENCES thread (id) ON DELETE CASCADE,
    schedule_id      uuid,                        -- the engine's schedule that fires it
    user_id          text,
    schedule         text NOT NULL,
    timezone         text,
    end_time         timestamptz,
    payload          text NOT NULL,               -- JSON
    metadata         text NOT NULL DEFAULT '{}',  -- JSON
    next_run_date    timestamptz,
    on_run_completed text CHECK (on_run_completed IN ('delete', 'keep')),
    enabled          boolean NOT NULL DEFAULT true,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX cron_listing ON cron (tenant_id, created_at DESC, id DESC);
CREATE INDEX cron_assistant ON cron (tenant_id, assistant_id);
CREATE INDEX cron_thread ON cron (thread_id) WHERE thread_id IS NOT NULL;

-- The long-term store. `namespace` is its labels joined by dots, which no label contains. Names too long for an index
-- are cut there, with a hash of the whole; `whole_namespace` and `whole_key` then hold the names themselves.
CREATE TABLE store_item (
    tenant_id       uuid NOT NULL,
    namespace       text NOT NULL,
    key             text NOT NULL,
    value           text NOT NULL,  -- JSON
    ttl_minutes     double precision,
    expires_at      timestamptz,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    whole_namespace text,
    whole_key       text,
    PRIMARY KEY (tenant_id, namespace, key)
);
CREATE INDEX store_item_listing ON store_item (tenant_id, updated_at DESC);
CREATE INDEX store_item_expiry ON store_item (expires_at) WHERE expires_at IS NOT NULL;

-- Streamed frames, in batches. No foreign key: clients may still read the frames of a run that is gone. The frames of
-- one attempt are numbered from 1 without gaps; `last_ms` and `last_seq` are the id of the last one.
CREATE TABLE run_event (
    thread_id  uuid NOT NULL,
    last_ms    bigint NOT NULL,
    last_seq   bigint NOT NULL,
    id         uuid NOT NULL,
    tenant_id  uuid NOT NULL,
    run_id     uuid,           -- absent: an event of the thread itself
    attempt    bigint NOT NULL DEFAULT 0,
    first      bigint NOT NULL DEFAULT 0,
    last       bigint NOT NULL DEFAULT 0,
    frames     text NOT NULL,  -- each after its length
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (thread_id, last_ms, last_seq, id)
);
CREATE INDEX run_event_expiry ON run_event (expires_at) WHERE expires_at IS NOT NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- Checkpoints, in the tables of the saver that graph libraries bring along, so that its tools read and write them
-- ---------------------------------------------------------------------------------------------------------------------

-- `thread_id` is the text form of thread.id. Migrations of that saver are marked as done, so that it makes no tables.
CREATE TABLE checkpoint_migrations (
    v integer NOT NULL PRIMARY KEY
);
INSERT INTO checkpoint_migrations (v) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);

CREATE TABLE checkpoints (
    thread_id            text NOT NULL,
    checkpoint_ns        text NOT NULL DEFAULT '',
    checkpoint_id        text NOT NULL,
    parent_checkpoint_id text,
    type                 text,
    checkpoint           jsonb NOT NULL,
    metadata             jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);

CREATE TABLE checkpoint_blobs (
    thread_id     text NOT NULL,
    checkpoint_ns text NOT NULL DEFAULT '',
    channel       text NOT NULL,
    version       text NOT NULL,
    type          text NOT NULL,
    blob          bytea,
    PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
);

-- `run_id` is not one of the saver's columns. The rollback of a run also removes what it wrote on checkpoints that were
-- there before it.
CREATE TABLE checkpoint_writes (
    thread_id     text NOT NULL,
    checkpoint_ns text NOT NULL DEFAULT '',
    checkpoint_id text NOT NULL,
    task_id       text NOT NULL,
    idx           integer NOT NULL,
    channel       text NOT NULL,
    type          text,
    blob          bytea NOT NULL,
    task_path     text NOT NULL DEFAULT '',
    run_id        text,  -- absent: written by an update from outside
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);

-- Writes of tasks (answers, interrupts, errors) that a run replaced, as they were before, so that its rollback restores
-- them. Deleted with their checkpoint.
CREATE TABLE replaced_write (
    thread_id     text NOT NULL,
    checkpoint_ns text NOT NULL,
    checkpoint_id text NOT NULL,
    task_id       text NOT NULL,
    idx           integer NOT NULL,
    replaced_by   text NOT NULL,  -- a run
    channel       text NOT NULL,
    type          text,
    blob          bytea NOT NULL,
    task_path     text NOT NULL,
    run_id        text,           -- the run that had written it
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, replaced_by)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Deployments: integrations, registries, listeners, revisions and their logs, source archives, placements
-- ---------------------------------------------------------------------------------------------------------------------

-- Access to repositories. `token` and `webhook_secret` are sealed.
CREATE TABLE integration (
    id             uuid PRIMARY KEY,
    tenant_id      uuid NOT NULL,
    kind           text NOT NULL CHECK (kind = 'github'),
    name           text NOT NULL,
    api_url        text NOT NULL,
    token          bytea,
    webhook_secret bytea NOT NULL,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL
);
CREATE INDEX integration_listing ON integration (tenant_id, created_at DESC, id DESC);

-- Logins for the registries that a workspace's images are pulled from. `logins` is sealed; `registries` says what is in
-- it.
CREATE TABLE image_pull_secret (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    name       text NOT NULL,
    registries text NOT NULL,  -- JSON
    logins     bytea NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);

-- A process that holds a compute backend. The built-in one has no row.
CREATE TABLE listener (
    id             uuid PRIMARY KEY,
    tenant_id      uuid NOT NULL,
    compute_type   text NOT NULL CHECK (compute_type = 'k8s'),
    compute_id     text NOT NULL,
    compute_config text NOT NULL,  -- JSON
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    UNIQUE (tenant_id, compute_id)
);

-- `latest_revision_id` and `active_revision_id` name revisions without a foreign key: the two tables would wait for
-- each other. The project may be deleted on its own.
CREATE TABLE deployment (
    id                     uuid PRIMARY KEY,
    tenant_id              uuid NOT NULL,
    name                   text NOT NULL,
    source                 text NOT NULL
        CHECK (source IN ('github', 'external_docker', 'internal_docker', 'internal_source')),
    source_config          text NOT NULL,               -- JSON
    deployment_type        text CHECK (deployment_type IN ('dev_free', 'dev', 'prod', 'dev_zero')),
    status                 text NOT NULL
        CHECK (status IN ('AWAITING_DATABASE', 'READY', 'UNUSED', 'AWAITING_DELETE', 'UNKNOWN')),
    latest_revision_id     uuid,
    active_revision_id     uuid,
    project_id             uuid NOT NULL,
    delete_tracing_project boolean NOT NULL DEFAULT false,
    repo_key               text,                        -- host/owner/name, which webhooks are matched by
    image_version          text,
    tracked_packages       text NOT NULL DEFAULT '[]',  -- JSON, from the client
    created_at             timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);
CREATE INDEX deployment_listing ON deployment (tenant_id, created_at DESC, id DESC);
CREATE INDEX deployment_repo ON deployment (tenant_id, repo_key) WHERE repo_key IS NOT NULL;

-- `secrets` is sealed; `secret_names` says what is in it. Both and `source_config` are as they were when the revision
-- was made, so that it can be deployed again. The user sees the text of `error`.
CREATE TABLE revision (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    seq           bigint NOT NULL CHECK (seq > 0),  -- the first is 1
    source        text NOT NULL
        CHECK (source IN ('github', 'external_docker', 'internal_docker', 'internal_source')),
    status        text NOT NULL
        CHECK (status IN ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING',
                          'DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED', 'SKIPPED', 'INTERRUPTED',
                          'UNKNOWN')),
    config        text NOT NULL,                    -- JSON
    source_config text NOT NULL,                    -- JSON
    secrets       bytea,
    secret_names  text NOT NULL DEFAULT '[]',       -- JSON
    redeploy_of   uuid,
    job_id        uuid,                             -- absent: there was nothing to do
    error         text,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    UNIQUE (deployment_id, seq),
    CHECK ((finished_at IS NOT NULL) = (status IN ('DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED',
                                                   'SKIPPED', 'INTERRUPTED')))
);

-- Ids are made when a line is recorded, and sort in that order. A line without a revision is of the deployment as such.
CREATE TABLE revision_log (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    revision_id   uuid,
    kind          text NOT NULL CHECK (kind IN ('build', 'deploy')),
    at            timestamptz NOT NULL,
    level         text NOT NULL CHECK (level IN ('DEBUG', 'INFO', 'WARNING', 'ERROR')),
    message       text NOT NULL
);
CREATE INDEX revision_log_of_revision ON revision_log (revision_id, kind, id) WHERE revision_id IS NOT NULL;
CREATE INDEX revision_log_of_deployment ON revision_log (deployment_id, kind, id);

-- A source archive. The server hands out its row and a token, and the client uploads the archive with that token.
CREATE TABLE source_upload (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    token         bytea NOT NULL CHECK (length(token) = 32),  -- SHA-256
    path          text NOT NULL UNIQUE,
    bytes         bigint CHECK (bytes > 0),
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    uploaded_at   timestamptz,
    CHECK ((uploaded_at IS NULL) = (bytes IS NULL))
);

-- One row for each deployment that serves. Only the process that keeps deployments writes it; gateways read it with
-- every request, and hold requests for a moment while there is no address.
CREATE TABLE deployment_placement (
    deployment_id uuid PRIMARY KEY REFERENCES deployment (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    revision_id   uuid NOT NULL,              -- the one that serves
    artifact      text NOT NULL,
    state         text NOT NULL CHECK (state IN ('serving', 'switching', 'down')),
    address       text,                       -- host:port
    restarts      bigint NOT NULL DEFAULT 0,  -- after it had ended by itself
    error         text,
    updated_at    timestamptz NOT NULL,
    CHECK ((address IS NOT NULL) = (state = 'serving'))
);

-- What a revision was built into. An artifact is named after what it was made from, so several revisions may share one.
CREATE TABLE revision_artifact (
    revision_id   uuid PRIMARY KEY REFERENCES revision (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL,
    artifact      text NOT NULL,
    created_at    timestamptz NOT NULL
);
CREATE INDEX revision_artifact_of_deployment ON revision_artifact (deployment_id, created_at DESC, revision_id DESC);
