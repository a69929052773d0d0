-- The schema of the first release. This file is frozen: a change to the schema is a new pair of files.
--
-- Times are microseconds since 1970 in UTC; ids are the 16 bytes of a UUID. JSON is text, kept as it was given but for
-- NUL characters, so that the keys of objects keep their order. `tenant_id` is a workspace.

-- ---------------------------------------------------------------------------------------------------------------------
-- The engine: jobs, lanes, steps, pools, workers, schedules
-- ---------------------------------------------------------------------------------------------------------------------

-- Constraints and partial indexes compare `state` with one value after the other, instead of looking it up in a list.
-- For a list of more than two values SQLite builds a table in memory for every row that is written. A partial index
-- over a list also serves no query for a single state of it.
CREATE TABLE job (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    kind          TEXT NOT NULL,
    pool          TEXT NOT NULL,
    priority      INTEGER NOT NULL DEFAULT 0,
    state         TEXT NOT NULL
        CHECK (state = 'running' OR state = 'succeeded' OR state = 'ready' OR state = 'blocked' OR state = 'scheduled'
               OR state = 'waiting' OR state = 'failed' OR state = 'cancelled' OR state = 'timed_out'),
    run_at        INTEGER NOT NULL,
    deadline_at   INTEGER,
    input         TEXT NOT NULL,
    cursor        TEXT,

    lane          TEXT,
    lane_seq      INTEGER,
    lane_held     INTEGER NOT NULL DEFAULT 0,  -- counted in lane.held
    keep_place    INTEGER NOT NULL DEFAULT 0,  -- keeps its place in the lane while it backs off

    parent_id     BLOB,
    open_children INTEGER NOT NULL DEFAULT 0,  -- not yet over; kept by the transaction that ends a child
    bad_children  INTEGER NOT NULL DEFAULT 0,  -- ended other than succeeded

    attempt       INTEGER NOT NULL DEFAULT 0,  -- claims, less those given back
    failures      INTEGER NOT NULL DEFAULT 0,
    lost_leases   INTEGER NOT NULL DEFAULT 0,  -- in a row, since the last step or checkpoint
    fence         INTEGER NOT NULL DEFAULT 0,  -- one higher at every claim and every rescue
    worker_id     BLOB,
    lease_until   INTEGER,
    cancel_at     INTEGER,                     -- when a running job was asked to stop

    error         TEXT,
    dead          INTEGER NOT NULL DEFAULT 0,  -- dead letter: ended badly and worth a look
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

CREATE INDEX job_ready ON job (pool, tenant_id, priority DESC, run_at, id) WHERE state = 'ready';
CREATE INDEX job_due ON job (run_at) WHERE state = 'scheduled';
CREATE INDEX job_lease ON job (lease_until) WHERE state = 'running';
CREATE INDEX job_lane ON job (lane, lane_seq) WHERE lane IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_parent ON job (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_deadline ON job (deadline_at) WHERE deadline_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_waiting ON job (pool) WHERE state = 'waiting';
CREATE INDEX job_dead ON job (finished_at) WHERE dead;
-- Operators look for these few among very many jobs that succeeded.
CREATE INDEX job_badly_over ON job (id) WHERE state = 'failed' OR state = 'cancelled' OR state = 'timed_out';

-- Limits how many jobs with one key run at once, and orders them.
CREATE TABLE lane (
    key      TEXT PRIMARY KEY,
    places   INTEGER NOT NULL,
    held     INTEGER NOT NULL DEFAULT 0 CHECK (held >= 0),
    next_seq INTEGER NOT NULL DEFAULT 1
) STRICT;

-- The result of a finished step. Written once.
CREATE TABLE step (
    job_id BLOB NOT NULL,
    name   TEXT NOT NULL,
    output TEXT NOT NULL,
    fence  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) STRICT;

-- Attempts that ended badly: failures, lost leases, time-outs.
CREATE TABLE attempt (
    job_id    BLOB NOT NULL,
    fence     INTEGER NOT NULL,
    outcome   TEXT NOT NULL CHECK (outcome IN ('failed', 'timed_out', 'lost', 'cancelled')),
    failure   INTEGER,  -- n of retry_n; set for failures and time-outs only
    error     TEXT NOT NULL,
    worker_id BLOB,
    at        INTEGER NOT NULL,
    PRIMARY KEY (job_id, fence)
) STRICT;

-- A pool that drains is paused too.
CREATE TABLE pool (
    name     TEXT PRIMARY KEY,
    paused   INTEGER NOT NULL DEFAULT 0,
    draining INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE worker (
    id         BLOB PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    pools      TEXT NOT NULL,              -- JSON: pool name to slots
    version    TEXT NOT NULL,
    draining   INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    drain_at   INTEGER,                    -- when it was asked to drain; it knows once seen_at is later
    finished   TEXT NOT NULL DEFAULT '{}'  -- JSON: pool name to attempts it ended; rates come from it
) STRICT;

-- Spawns jobs again and again. next_at is the truth: a spawn moves it by compare-and-set.
CREATE TABLE schedule (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    kind       TEXT NOT NULL,  -- of the spawn job
    pool       TEXT NOT NULL,
    input      TEXT NOT NULL,
    next_at    INTEGER NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    spawn_job  BLOB,           -- the job recorded for next_at
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;
CREATE INDEX schedule_active ON schedule (next_at) WHERE ended_at IS NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- Access: organisations own workspaces and API keys
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE organization (
    id         BLOB PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE workspace (
    id              BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    name            TEXT NOT NULL,
    created_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX workspace_by_organization ON workspace (organization_id, id);

-- A key's secret is shown once and never stored: `hash` is its SHA-256. A key without `workspace_id` opens every
-- workspace of the organisation. An operator's key also opens the routes under /internal and the dashboard: the jobs of
-- every workspace, pools, workers.
CREATE TABLE api_key (
    id              BLOB PRIMARY KEY,
    organization_id BLOB NOT NULL REFERENCES organization (id),
    workspace_id    BLOB REFERENCES workspace (id),
    name            TEXT NOT NULL,
    prefix          TEXT NOT NULL,
    hash            BLOB NOT NULL CHECK (length(hash) = 32),
    created_at      INTEGER NOT NULL,
    revoked_at      INTEGER,
    operator        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX api_key_by_hash ON api_key (hash);
CREATE INDEX api_key_by_organization ON api_key (organization_id, created_at);

-- Sessions that were ended early. A session is a sealed token that the server does not keep, so its end has to be
-- remembered until the token expires.
CREATE TABLE ended_session (
    token      BLOB PRIMARY KEY,  -- SHA-256
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX ended_session_by_expiry ON ended_session (expires_at);

-- Answers to requests with an Idempotency-Key, kept for a day. The transaction that inserts the row also sets `answer`,
-- so a committed row always has one.
CREATE TABLE idempotency (
    tenant_id  BLOB NOT NULL,
    key        TEXT NOT NULL,
    request    BLOB NOT NULL,  -- SHA-256 of method, route and body
    answer     TEXT,           -- JSON
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, key)
) STRICT;
CREATE INDEX idempotency_age ON idempotency (created_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- Traces: projects, the write-ahead log of ingest, the catalog of segments, feedback, attachments
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE project (
    id                   BLOB PRIMARY KEY,
    tenant_id            BLOB NOT NULL,
    name                 TEXT NOT NULL,
    description          TEXT,
    extra                TEXT,  -- JSON object
    reference_dataset_id BLOB,
    start_time           INTEGER NOT NULL,
    end_time             INTEGER,
    UNIQUE (tenant_id, name)
) STRICT;
CREATE INDEX project_listing ON project (tenant_id, start_time DESC, id);

-- Deleted projects. Trace runs that still arrive for one are not shown.
CREATE TABLE project_tombstone (
    tenant_id  BLOB NOT NULL,
    project_id BLOB NOT NULL,
    deleted_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, project_id)
) STRICT;

-- One object of the write-ahead log. `seq` is the order of acceptance: the later one of two patches wins.
CREATE TABLE wal_unit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         BLOB NOT NULL UNIQUE,
    path       TEXT NOT NULL UNIQUE,
    bytes      INTEGER NOT NULL CHECK (bytes > 0),
    operations INTEGER NOT NULL CHECK (operations >= 0),
    state      TEXT NOT NULL CHECK (state IN ('open', 'folded')),
    fold_job   BLOB,  -- the job that folds or folded it
    created_at INTEGER NOT NULL,
    folded_at  INTEGER,
    CHECK ((state = 'folded') = (folded_at IS NOT NULL))
) STRICT;
CREATE INDEX wal_unit_open ON wal_unit (seq) WHERE state = 'open';
CREATE INDEX wal_unit_folded ON wal_unit (folded_at) WHERE state = 'folded';

-- The projects that a unit touches. A patch that names no project counts for the nil project, which stands for any
-- project of the workspace.
CREATE TABLE wal_unit_project (
    unit_id    BLOB NOT NULL REFERENCES wal_unit (id) ON DELETE CASCADE,
    tenant_id  BLOB NOT NULL,
    project_id BLOB NOT NULL,
    PRIMARY KEY (unit_id, tenant_id, project_id)
) STRICT;
CREATE INDEX wal_unit_project_touches ON wal_unit_project (tenant_id, project_id, unit_id);

-- An immutable Parquet object. State `writing` is the intent: its row is committed before the object is written.
CREATE TABLE segment (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    path       TEXT NOT NULL UNIQUE,
    state      TEXT NOT NULL CHECK (state IN ('writing', 'live', 'superseded', 'deleting')),
    job        BLOB,                        -- the job that writes it
    rows       INTEGER NOT NULL DEFAULT 0 CHECK (rows >= 0),
    bytes      INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,            -- of the state
    compacted  INTEGER NOT NULL DEFAULT 0,  -- one project and one day, sorted from end to end
    CHECK (state IN ('writing', 'deleting') OR (rows > 0 AND bytes > 0))
) STRICT;
CREATE INDEX segment_live ON segment (tenant_id, created_at DESC, id) WHERE state = 'live';
CREATE INDEX segment_waste ON segment (state, changed_at) WHERE state <> 'live';
CREATE INDEX segment_job ON segment (job) WHERE state = 'writing';

-- One visible row group: one project, one UTC day, sorted by (sort time, id).
CREATE TABLE segment_part (
    segment_id    BLOB NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    project_id    BLOB NOT NULL,
    day           TEXT NOT NULL,
    row_group     INTEGER NOT NULL CHECK (row_group >= 0),
    rows          INTEGER NOT NULL CHECK (rows > 0),
    min_sort_time INTEGER NOT NULL,
    max_sort_time INTEGER NOT NULL,
    min_seq       INTEGER NOT NULL,
    max_seq       INTEGER NOT NULL,
    PRIMARY KEY (segment_id, row_group),
    CHECK (min_sort_time <= max_sort_time AND min_seq <= max_seq)
) STRICT;
CREATE INDEX segment_part_day ON segment_part (tenant_id, project_id, day, segment_id);
-- For a trace run that arrives again and may lie in any project of the workspace.
CREATE INDEX segment_part_time ON segment_part (tenant_id, day);

-- Row groups that are no longer visible: their rows lie in a newer segment, or were deleted. A reader that has pinned
-- the segment goes on reading them.
CREATE TABLE segment_part_past (
    segment_id    BLOB NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    project_id    BLOB NOT NULL,
    day           TEXT NOT NULL,
    row_group     INTEGER NOT NULL,
    rows          INTEGER NOT NULL,
    min_sort_time INTEGER NOT NULL,
    max_sort_time INTEGER NOT NULL,
    min_seq       INTEGER NOT NULL,
    max_seq       INTEGER NOT NULL,
    PRIMARY KEY (segment_id, row_group)
) STRICT;

-- A reader that must keep seeing a segment. A pinned segment is not removed.
CREATE TABLE segment_pin (
    holder     BLOB NOT NULL,
    segment_id BLOB NOT NULL REFERENCES segment (id),
    pinned_at  INTEGER NOT NULL,
    PRIMARY KEY (holder, segment_id)
) STRICT;
CREATE INDEX segment_pin_segment ON segment_pin (segment_id);

-- Patches that arrived before their trace run and say neither in which project nor at what time it lies.
CREATE TABLE pending_patch (
    tenant_id  BLOB NOT NULL,
    run_id     BLOB NOT NULL,
    seq        INTEGER NOT NULL,
    operation  TEXT NOT NULL,  -- JSON
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, run_id, seq)
) STRICT;
CREATE INDEX pending_patch_age ON pending_patch (created_at);

CREATE TABLE feedback (
    tenant_id   BLOB NOT NULL,
    id          BLOB NOT NULL,
    run_id      BLOB,
    key         TEXT NOT NULL,
    body        TEXT NOT NULL,                                         -- JSON, as sent
    seq         INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    modified_at INTEGER,                                               -- when a client last changed its body
    deleted     INTEGER NOT NULL DEFAULT 0 CHECK (deleted IN (0, 1)),  -- outlasts older versions still to be folded
    source      TEXT,                                                  -- feedback_source.type of the body
    PRIMARY KEY (tenant_id, id)
) STRICT;
CREATE INDEX feedback_run ON feedback (tenant_id, run_id);
CREATE INDEX feedback_listing ON feedback (tenant_id, seq DESC, id);

-- Links for feedback without a key: one trace run, one feedback key. The last part of a link is its token. It is found
-- by its hash, and kept sealed for the owners of the link, who list it.
CREATE TABLE feedback_token (
    id          BLOB PRIMARY KEY,
    tenant_id   BLOB NOT NULL,
    hash        BLOB NOT NULL UNIQUE,  -- SHA-256 of the token
    token       BLOB NOT NULL,         -- sealed
    run_id      BLOB NOT NULL,
    key         TEXT NOT NULL,
    feedback_id BLOB,                  -- id of the feedback given; absent: a new one each time
    config      TEXT,                  -- JSON
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX feedback_token_run ON feedback_token (tenant_id, run_id, id);
CREATE INDEX feedback_token_end ON feedback_token (expires_at);

CREATE TABLE attachment (
    tenant_id    BLOB NOT NULL,
    run_id       BLOB NOT NULL,
    name         TEXT NOT NULL,
    content_type TEXT NOT NULL,
    path         TEXT NOT NULL,
    bytes        INTEGER NOT NULL CHECK (bytes >= 0),
    seq          INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, run_id, name)
) STRICT;

-- ---------------------------------------------------------------------------------------------------------------------
-- Exports: destinations, bulk exports with one export run per UTC day, schedules
-- ---------------------------------------------------------------------------------------------------------------------

-- `credentials` is sealed; `credentials_keys` names what is in it. Exports name their destination without a foreign
-- key: a destination may be deleted, which fails the exports that still need it.
CREATE TABLE destination (
    id               BLOB PRIMARY KEY,
    tenant_id        BLOB NOT NULL,
    destination_type TEXT NOT NULL CHECK (destination_type IN ('s3', 'file')),
    display_name     TEXT NOT NULL,
    config           TEXT NOT NULL,               -- JSON
    credentials      BLOB,
    credentials_keys TEXT NOT NULL DEFAULT '[]',  -- JSON
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    CHECK (destination_type = 's3' OR credentials IS NULL)
) STRICT;
CREATE INDEX destination_listing ON destination (tenant_id, created_at DESC, id DESC);

CREATE TABLE export (
    id                    BLOB PRIMARY KEY,
    tenant_id             BLOB NOT NULL,
    destination_id        BLOB NOT NULL,
    project_id            BLOB NOT NULL,
    status                TEXT NOT NULL
        CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')),
    start_time            INTEGER NOT NULL,
    end_time              INTEGER NOT NULL,
    compression           TEXT NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    export_fields         TEXT,                        -- JSON; absent: all
    source_bulk_export_id BLOB,
    job_id                BLOB NOT NULL,
    error                 TEXT,
    planned               INTEGER NOT NULL DEFAULT 0,  -- its export runs are recorded
    created_at            INTEGER NOT NULL,
    updated_at            INTEGER NOT NULL,
    started_at            INTEGER,
    finished_at           INTEGER,
    format_version        TEXT NOT NULL DEFAULT 'v1' CHECK (format_version IN ('v1', 'v2_beta')),
    UNIQUE (source_bulk_export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
) STRICT;
CREATE INDEX export_listing ON export (tenant_id, created_at DESC, id DESC);
CREATE INDEX export_project ON export (tenant_id, project_id, created_at DESC, id DESC);

-- Which trace runs an export takes, in the filter language. `id` is of an export or of a scheduled export; without a
-- row it takes all.
CREATE TABLE export_filter (
    id        BLOB PRIMARY KEY,
    tenant_id BLOB NOT NULL,
    filter    TEXT NOT NULL
) STRICT;

CREATE TABLE export_run (
    id             BLOB PRIMARY KEY,
    tenant_id      BLOB NOT NULL,
    export_id      BLOB NOT NULL REFERENCES export (id) ON DELETE CASCADE,
    job_id         BLOB NOT NULL,
    status         TEXT NOT NULL
        CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')),
    start_time     INTEGER NOT NULL,
    end_time       INTEGER NOT NULL,
    prefix         TEXT NOT NULL,               -- folder of its files
    retry_number   INTEGER NOT NULL DEFAULT 0,
    errors         TEXT NOT NULL DEFAULT '{}',  -- JSON: retry_n to text
    rows_written   INTEGER NOT NULL DEFAULT 0,
    bytes_written  INTEGER NOT NULL DEFAULT 0,
    files_written  INTEGER NOT NULL DEFAULT 0,
    latest_cursor  TEXT,                        -- JSON: the last row in a finished file
    pending_upload TEXT,                        -- JSON: the file that is about to become visible
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    UNIQUE (export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
) STRICT;

-- Finished files, in the order they were written.
CREATE TABLE export_file (
    export_run_id BLOB NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    path          TEXT NOT NULL,
    rows          INTEGER NOT NULL CHECK (rows > 0),
    bytes         INTEGER NOT NULL CHECK (bytes > 0),
    PRIMARY KEY (export_run_id, seq)
) STRICT;

-- Multipart uploads that were begun and neither completed nor aborted: what a clean-up has to abort.
CREATE TABLE export_upload (
    export_run_id BLOB NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    path          TEXT NOT NULL,
    upload_id     TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (export_run_id, path, upload_id)
) STRICT;

-- One export per interval, spawned ten minutes after the interval's end. The intervals follow from `start_time` and
-- `interval_hours`; the next one due is known to `schedule` alone.
CREATE TABLE scheduled_export (
    id             BLOB PRIMARY KEY,
    tenant_id      BLOB NOT NULL,
    destination_id BLOB NOT NULL,
    project_id     BLOB NOT NULL,
    status         TEXT NOT NULL CHECK (status IN ('RUNNING', 'CANCELLED')),
    start_time     INTEGER NOT NULL,
    interval_hours INTEGER NOT NULL CHECK (interval_hours BETWEEN 1 AND 168),
    compression    TEXT NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    format_version TEXT NOT NULL CHECK (format_version IN ('v1', 'v2_beta')),
    export_fields  TEXT,  -- JSON; absent: all
    schedule_id    BLOB NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    CHECK ((finished_at IS NOT NULL) = (status = 'CANCELLED'))
) STRICT;
CREATE INDEX scheduled_export_listing ON scheduled_export (tenant_id, created_at DESC, id DESC);
CREATE INDEX scheduled_export_project ON scheduled_export (tenant_id, project_id) WHERE status = 'RUNNING';

-- ---------------------------------------------------------------------------------------------------------------------
-- The agent server: assistants, threads, runs, crons, items, streamed events
-- ---------------------------------------------------------------------------------------------------------------------

-- `version` is the one in use; versions count up from 1 and are never reused. The id of an assistant that comes with a
-- graph is derived from the graph's name, so it is unique within a workspace only.
CREATE TABLE assistant (
    id          BLOB NOT NULL,
    tenant_id   BLOB NOT NULL,
    graph_id    TEXT NOT NULL,
    name        TEXT NOT NULL,
    description TEXT,
    config      TEXT NOT NULL DEFAULT '{}',  -- JSON
    context     TEXT NOT NULL DEFAULT '{}',  -- JSON
    metadata    TEXT NOT NULL DEFAULT '{}',  -- JSON
    version     INTEGER NOT NULL DEFAULT 1,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT;
CREATE INDEX assistant_listing ON assistant (tenant_id, created_at DESC, id DESC);
CREATE INDEX assistant_graph ON assistant (tenant_id, graph_id);

-- A full copy for each version.
CREATE TABLE assistant_version (
    tenant_id    BLOB NOT NULL,
    assistant_id BLOB NOT NULL,
    version      INTEGER NOT NULL,
    graph_id     TEXT NOT NULL,
    name         TEXT NOT NULL,
    description  TEXT,
    config       TEXT NOT NULL DEFAULT '{}',  -- JSON
    context      TEXT NOT NULL DEFAULT '{}',  -- JSON
    metadata     TEXT NOT NULL DEFAULT '{}',  -- JSON
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, assistant_id, version),
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
) STRICT;

-- A conversation. Checkpoints name it by its id alone, so the id is unique across workspaces. A temporary thread
-- belongs to one stateless run and is deleted with it.
CREATE TABLE thread (
    id               BLOB PRIMARY KEY,
    tenant_id        BLOB NOT NULL,
    status           TEXT NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'busy', 'interrupted', 'error')),
    metadata         TEXT NOT NULL DEFAULT '{}',  -- JSON
    config           TEXT NOT NULL DEFAULT '{}',  -- JSON
    current_values   TEXT,                        -- JSON: the state after the last run; absent before the first
    interrupts       TEXT NOT NULL DEFAULT '{}',  -- JSON: task id to interrupts
    error            TEXT,                        -- JSON: error, message
    temporary        INTEGER NOT NULL DEFAULT 0,
    ttl_strategy     TEXT CHECK (ttl_strategy IN ('delete', 'keep_latest')),
    ttl_minutes      REAL,
    expires_at       INTEGER,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    state_updated_at INTEGER NOT NULL,
    CHECK ((ttl_strategy IS NULL) = (ttl_minutes IS NULL))
) STRICT;
CREATE INDEX thread_listing ON thread (tenant_id, updated_at DESC, id DESC);
CREATE INDEX thread_expiry ON thread (expires_at) WHERE expires_at IS NOT NULL;

-- `pending` includes running: the job tells which. `cancel_action` is what the last cancel asked for.
CREATE TABLE run (
    id                 BLOB PRIMARY KEY,
    tenant_id          BLOB NOT NULL,
    thread_id          BLOB NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    assistant_id       BLOB NOT NULL,
    job_id             BLOB NOT NULL,
    cron_id            BLOB,                        -- the cron that fired it,
    cron_at            INTEGER,                     -- and the instant it stands for
    status             TEXT NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'success', 'error', 'timeout', 'interrupted')),
    metadata           TEXT NOT NULL DEFAULT '{}',  -- JSON
    kwargs             TEXT NOT NULL,               -- JSON
    multitask_strategy TEXT NOT NULL DEFAULT 'enqueue'
        CHECK (multitask_strategy IN ('enqueue', 'reject', 'interrupt', 'rollback')),
    cancel_action      TEXT CHECK (cancel_action IN ('interrupt', 'rollback')),
    created_at         INTEGER NOT NULL,            -- of a delayed run: when it is due
    updated_at         INTEGER NOT NULL,
    finished_at        INTEGER,
    UNIQUE (cron_id, cron_at),
    CHECK ((finished_at IS NOT NULL) = (status <> 'pending'))
) STRICT;
CREATE INDEX run_listing ON run (thread_id, created_at DESC, id DESC);
CREATE INDEX run_open ON run (tenant_id, thread_id) WHERE status = 'pending';

CREATE TABLE cron (
    id               BLOB PRIMARY KEY,
    tenant_id        BLOB NOT NULL,
    assistant_id     BLOB NOT NULL,
    thread_id        BLOB REFERENCES thread (id) ON DELETE CASCADE,
    schedule_id      BLOB,                        -- the engine's schedule that fires it
    user_id          TEXT,
    schedule         TEXT NOT NULL,
    timezone         TEXT,
    end_time         INTEGER,
    payload          TEXT NOT NULL,               -- JSON
    metadata         TEXT NOT NULL DEFAULT '{}',  -- JSON
    next_run_date    INTEGER,
    on_run_completed TEXT CHECK (on_run_completed IN ('delete', 'keep')),
    enabled          INTEGER NOT NULL DEFAULT 1,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX cron_listing ON cron (tenant_id, created_at DESC, id DESC);
CREATE INDEX cron_assistant ON cron (tenant_id, assistant_id);
CREATE INDEX cron_thread ON cron (thread_id) WHERE thread_id IS NOT NULL;

-- The long-term store. `namespace` is its labels joined by dots, which no label contains. Names too long for an index
-- are cut there, with a hash of the whole; `whole_namespace` and `whole_key` then hold the names themselves.
CREATE TABLE store_item (
    tenant_id       BLOB NOT NULL,
    namespace       TEXT NOT NULL,
    key             TEXT NOT NULL,
    value           TEXT NOT NULL,  -- JSON
    ttl_minutes     REAL,
    expires_at      INTEGER,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    whole_namespace TEXT,
    whole_key       TEXT,
    PRIMARY KEY (tenant_id, namespace, key)
) STRICT;
CREATE INDEX store_item_listing ON store_item (tenant_id, updated_at DESC);
CREATE INDEX store_item_expiry ON store_item (expires_at) WHERE expires_at IS NOT NULL;

-- Streamed frames, in batches. No foreign key: clients may still read the frames of a run that is gone. The frames of
-- one attempt are numbered from 1 without gaps; `last_ms` and `last_seq` are the id of the last one.
CREATE TABLE run_event (
    thread_id  BLOB NOT NULL,
    last_ms    INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    id         BLOB NOT NULL,
    tenant_id  BLOB NOT NULL,
    run_id     BLOB,           -- absent: an event of the thread itself
    attempt    INTEGER NOT NULL DEFAULT 0,
    first      INTEGER NOT NULL DEFAULT 0,
    last       INTEGER NOT NULL DEFAULT 0,
    frames     TEXT NOT NULL,  -- each after its length
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (thread_id, last_ms, last_seq, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_event_expiry ON run_event (expires_at) WHERE expires_at IS NOT NULL;

-- ---------------------------------------------------------------------------------------------------------------------
-- Checkpoints, in the tables of the PostgreSQL saver that graph libraries bring along, so that its tools read them
-- ---------------------------------------------------------------------------------------------------------------------

-- `thread_id` is the text form of thread.id. The rows are the migrations of that saver.
CREATE TABLE checkpoint_migrations (
    v INTEGER NOT NULL PRIMARY KEY
) STRICT;
INSERT INTO checkpoint_migrations (v) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);

CREATE TABLE checkpoints (
    thread_id            TEXT NOT NULL,
    checkpoint_ns        TEXT NOT NULL DEFAULT '',
    checkpoint_id        TEXT NOT NULL,
    parent_checkpoint_id TEXT,
    type                 TEXT,
    checkpoint           TEXT NOT NULL,               -- JSON
    metadata             TEXT NOT NULL DEFAULT '{}',  -- JSON
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoint_blobs (
    thread_id     TEXT NOT NULL,
    checkpoint_ns TEXT NOT NULL DEFAULT '',
    channel       TEXT NOT NULL,
    version       TEXT NOT NULL,
    type          TEXT NOT NULL,
    blob          BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
) STRICT;

-- `run_id` is not one of the saver's columns. The rollback of a run also removes what it wrote on checkpoints that were
-- there before it.
CREATE TABLE checkpoint_writes (
    thread_id     TEXT NOT NULL,
    checkpoint_ns TEXT NOT NULL DEFAULT '',
    checkpoint_id TEXT NOT NULL,
    task_id       TEXT NOT NULL,
    idx           INTEGER NOT NULL,
    channel       TEXT NOT NULL,
    type          TEXT,
    blob          BLOB NOT NULL,
    task_path     TEXT NOT NULL DEFAULT '',
    run_id        TEXT,  -- absent: written by an update from outside
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
) STRICT;

-- Writes of tasks (answers, interrupts, errors) that a run replaced, as they were before, so that its rollback restores
-- them. Deleted with their checkpoint.
CREATE TABLE replaced_write (
    thread_id     TEXT NOT NULL,
    checkpoint_ns TEXT NOT NULL,
    checkpoint_id TEXT NOT NULL,
    task_id       TEXT NOT NULL,
    idx           INTEGER NOT NULL,
    replaced_by   TEXT NOT NULL,  -- a run
    channel       TEXT NOT NULL,
    type          TEXT,
    blob          BLOB NOT NULL,
    task_path     TEXT NOT NULL,
    run_id        TEXT,           -- the run that had written it
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, replaced_by)
) STRICT;

-- ---------------------------------------------------------------------------------------------------------------------
-- Deployments: integrations, registries, listeners, revisions and their logs, source archives, placements
-- ---------------------------------------------------------------------------------------------------------------------

-- Access to repositories. `token` and `webhook_secret` are sealed.
CREATE TABLE integration (
    id             BLOB PRIMARY KEY,
    tenant_id      BLOB NOT NULL,
    kind           TEXT NOT NULL CHECK (kind = 'github'),
    name           TEXT NOT NULL,
    api_url        TEXT NOT NULL,
    token          BLOB,
    webhook_secret BLOB NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX integration_listing ON integration (tenant_id, created_at DESC, id DESC);

-- Logins for the registries that a workspace's images are pulled from. `logins` is sealed; `registries` says what is in
-- it.
CREATE TABLE image_pull_secret (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    name       TEXT NOT NULL,
    registries TEXT NOT NULL,  -- JSON
    logins     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;

-- A process that holds a compute backend. The built-in one has no row.
CREATE TABLE listener (
    id             BLOB PRIMARY KEY,
    tenant_id      BLOB NOT NULL,
    compute_type   TEXT NOT NULL CHECK (compute_type = 'k8s'),
    compute_id     TEXT NOT NULL,
    compute_config TEXT NOT NULL,  -- JSON
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    UNIQUE (tenant_id, compute_id)
) STRICT;

-- `latest_revision_id` and `active_revision_id` name revisions without a foreign key: the two tables would wait for
-- each other. The project may be deleted on its own.
CREATE TABLE deployment (
    id                     BLOB PRIMARY KEY,
    tenant_id              BLOB NOT NULL,
    name                   TEXT NOT NULL,
    source                 TEXT NOT NULL
        CHECK (source IN ('github', 'external_docker', 'internal_docker', 'internal_source')),
    source_config          TEXT NOT NULL,               -- JSON
    deployment_type        TEXT CHECK (deployment_type IN ('dev_free', 'dev', 'prod', 'dev_zero')),
    status                 TEXT NOT NULL
        CHECK (status IN ('AWAITING_DATABASE', 'READY', 'UNUSED', 'AWAITING_DELETE', 'UNKNOWN')),
    latest_revision_id     BLOB,
    active_revision_id     BLOB,
    project_id             BLOB NOT NULL,
    delete_tracing_project INTEGER NOT NULL DEFAULT 0,
    repo_key               TEXT,                        -- host/owner/name, which webhooks are matched by
    image_version          TEXT,
    tracked_packages       TEXT NOT NULL DEFAULT '[]',  -- JSON, from the client
    created_at             INTEGER NOT NULL,
    updated_at             INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;
CREATE INDEX deployment_listing ON deployment (tenant_id, created_at DESC, id DESC);
CREATE INDEX deployment_repo ON deployment (tenant_id, repo_key) WHERE repo_key IS NOT NULL;

-- `secrets` is sealed; `secret_names` says what is in it. Both and `source_config` are as they were when the revision
-- was made, so that it can be deployed again. The user sees the text of `error`.
CREATE TABLE revision (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL CHECK (seq > 0),  -- the first is 1
    source        TEXT NOT NULL
        CHECK (source IN ('github', 'external_docker', 'internal_docker', 'internal_source')),
    status        TEXT NOT NULL
        CHECK (status IN ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING',
                          'DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED', 'SKIPPED', 'INTERRUPTED',
                          'UNKNOWN')),
    config        TEXT NOT NULL,                     -- JSON
    source_config TEXT NOT NULL,                     -- JSON
    secrets       BLOB,
    secret_names  TEXT NOT NULL DEFAULT '[]',        -- JSON
    redeploy_of   BLOB,
    job_id        BLOB,                              -- absent: there was nothing to do
    error         TEXT,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    UNIQUE (deployment_id, seq),
    CHECK ((finished_at IS NOT NULL) = (status IN ('DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED',
                                                   'SKIPPED', 'INTERRUPTED')))
) STRICT;

-- Ids are made when a line is recorded, and sort in that order. A line without a revision is of the deployment as such.
CREATE TABLE revision_log (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    revision_id   BLOB,
    kind          TEXT NOT NULL CHECK (kind IN ('build', 'deploy')),
    at            INTEGER NOT NULL,
    level         TEXT NOT NULL CHECK (level IN ('DEBUG', 'INFO', 'WARNING', 'ERROR')),
    message       TEXT NOT NULL
) STRICT;
CREATE INDEX revision_log_of_revision ON revision_log (revision_id, kind, id) WHERE revision_id IS NOT NULL;
CREATE INDEX revision_log_of_deployment ON revision_log (deployment_id, kind, id);

-- A source archive. The server hands out its row and a token, and the client uploads the archive with that token.
CREATE TABLE source_upload (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    token         BLOB NOT NULL CHECK (length(token) = 32),  -- SHA-256
    path          TEXT NOT NULL UNIQUE,
    bytes         INTEGER CHECK (bytes > 0),
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    uploaded_at   INTEGER,
    CHECK ((uploaded_at IS NULL) = (bytes IS NULL))
) STRICT;

-- One row for each deployment that serves. Only the process that keeps deployments writes it; gateways read it with
-- every request, and hold requests for a moment while there is no address.
CREATE TABLE deployment_placement (
    deployment_id BLOB PRIMARY KEY REFERENCES deployment (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    revision_id   BLOB NOT NULL,               -- the one that serves
    artifact      TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('serving', 'switching', 'down')),
    address       TEXT,                        -- host:port
    restarts      INTEGER NOT NULL DEFAULT 0,  -- after it had ended by itself
    error         TEXT,
    updated_at    INTEGER NOT NULL,
    CHECK ((address IS NOT NULL) = (state = 'serving'))
) STRICT;

-- What a revision was built into. An artifact is named after what it was made from, so several revisions may share one.
CREATE TABLE revision_artifact (
    revision_id   BLOB PRIMARY KEY REFERENCES revision (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL,
    artifact      TEXT NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX revision_artifact_of_deployment ON revision_artifact (deployment_id, created_at DESC, revision_id DESC);
