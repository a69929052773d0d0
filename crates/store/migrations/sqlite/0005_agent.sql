-- The agent server: assistants, threads, runs, crons, items, the log of streamed frames, checkpoints.
--
-- JSON stands in TEXT columns as it was given, without NUL characters. Keys of objects keep their order.

-- `version` is the one in use; versions count up from 1 and are never reused. Ids of assistants that come with a graph
-- are made from its name, so they are unique within a workspace only.
CREATE TABLE assistant (
    id          BLOB    NOT NULL,
    tenant_id   BLOB    NOT NULL,
    graph_id    TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT,
    config      TEXT    NOT NULL DEFAULT '{}',                  -- JSON
    context     TEXT    NOT NULL DEFAULT '{}',                  -- JSON
    metadata    TEXT    NOT NULL DEFAULT '{}',                  -- JSON
    version     INTEGER NOT NULL DEFAULT 1,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT;
CREATE INDEX assistant_listing ON assistant (tenant_id, created_at DESC, id DESC);
CREATE INDEX assistant_graph ON assistant (tenant_id, graph_id);

-- A full copy for each version.
CREATE TABLE assistant_version (
    tenant_id    BLOB    NOT NULL,
    assistant_id BLOB    NOT NULL,
    version      INTEGER NOT NULL,
    graph_id     TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    description  TEXT,
    config       TEXT    NOT NULL DEFAULT '{}',                 -- JSON
    context      TEXT    NOT NULL DEFAULT '{}',                 -- JSON
    metadata     TEXT    NOT NULL DEFAULT '{}',                 -- JSON
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, assistant_id, version),
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
) STRICT;

-- A conversation. Checkpoints name it by its id alone, so the id is unique for all workspaces. A temporary thread
-- belongs to one stateless run and goes with it.
CREATE TABLE thread (
    id               BLOB    NOT NULL PRIMARY KEY,
    tenant_id        BLOB    NOT NULL,
    status           TEXT    NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'busy', 'interrupted', 'error')),
    metadata         TEXT    NOT NULL DEFAULT '{}',             -- JSON
    config           TEXT    NOT NULL DEFAULT '{}',             -- JSON
    current_values   TEXT,                                      -- JSON: state after the last run; absent before it
    interrupts       TEXT    NOT NULL DEFAULT '{}',             -- JSON: task id to interrupts
    error            TEXT,                                      -- JSON: error, message
    temporary        INTEGER NOT NULL DEFAULT 0,
    ttl_strategy     TEXT    CHECK (ttl_strategy IN ('delete', 'keep_latest')),
    ttl_minutes      REAL,
    expires_at       INTEGER,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    state_updated_at INTEGER NOT NULL,
    CHECK ((ttl_strategy IS NULL) = (ttl_minutes IS NULL))
) STRICT;
CREATE INDEX thread_listing ON thread (tenant_id, updated_at DESC, id DESC);
CREATE INDEX thread_expiry ON thread (expires_at) WHERE expires_at IS NOT NULL;

-- `pending` covers running: the job says which. `cancel_action` is what the last cancel asked for.
CREATE TABLE run (
    id                 BLOB    NOT NULL PRIMARY KEY,
    tenant_id          BLOB    NOT NULL,
    thread_id          BLOB    NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    assistant_id       BLOB    NOT NULL,
    job_id             BLOB    NOT NULL,
    cron_id            BLOB,                                    -- the cron that fired it,
    cron_at            INTEGER,                                 -- and the instant it stands for
    status             TEXT    NOT NULL DEFAULT 'pending'
                       CHECK (status IN ('pending', 'success', 'error', 'timeout', 'interrupted')),
    metadata           TEXT    NOT NULL DEFAULT '{}',           -- JSON
    kwargs             TEXT    NOT NULL,                        -- JSON
    multitask_strategy TEXT    NOT NULL DEFAULT 'enqueue'
                       CHECK (multitask_strategy IN ('enqueue', 'reject', 'interrupt', 'rollback')),
    cancel_action      TEXT    CHECK (cancel_action IN ('interrupt', 'rollback')),
    created_at         INTEGER NOT NULL,                        -- of a delayed run: when it is due
    updated_at         INTEGER NOT NULL,
    finished_at        INTEGER,
    UNIQUE (cron_id, cron_at),
    CHECK ((finished_at IS NOT NULL) = (status <> 'pending'))
) STRICT;
CREATE INDEX run_listing ON run (thread_id, created_at DESC, id DESC);
CREATE INDEX run_open ON run (tenant_id, thread_id) WHERE status = 'pending';

CREATE TABLE cron (
    id               BLOB    NOT NULL PRIMARY KEY,
    tenant_id        BLOB    NOT NULL,
    assistant_id     BLOB    NOT NULL,
    thread_id        BLOB    REFERENCES thread (id) ON DELETE CASCADE,
    schedule_id      BLOB,                                      -- the engine's schedule that fires it
    user_id          TEXT,
    schedule         TEXT    NOT NULL,
    timezone         TEXT,
    end_time         INTEGER,
    payload          TEXT    NOT NULL,                          -- JSON
    metadata         TEXT    NOT NULL DEFAULT '{}',             -- JSON
    next_run_date    INTEGER,
    on_run_completed TEXT    CHECK (on_run_completed IN ('delete', 'keep')),
    enabled          INTEGER NOT NULL DEFAULT 1,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
) STRICT;
CREATE INDEX cron_listing ON cron (tenant_id, created_at DESC, id DESC);
CREATE INDEX cron_assistant ON cron (tenant_id, assistant_id);
CREATE INDEX cron_thread ON cron (thread_id) WHERE thread_id IS NOT NULL;

-- The long-term store. `namespace` is its labels joined by dots, which no label contains.
CREATE TABLE store_item (
    tenant_id   BLOB    NOT NULL,
    namespace   TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    value       TEXT    NOT NULL,                               -- JSON
    ttl_minutes REAL,
    expires_at  INTEGER,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, namespace, key)
) STRICT;
CREATE INDEX store_item_listing ON store_item (tenant_id, updated_at DESC);
CREATE INDEX store_item_expiry ON store_item (expires_at) WHERE expires_at IS NOT NULL;

-- What was streamed, in batches. No foreign key: readers may still fetch frames of a run that is gone.
-- Frames of one attempt are numbered from 1 without gaps; `last_ms` and `last_seq` are the id of the last one.
CREATE TABLE run_event (
    thread_id  BLOB    NOT NULL,
    last_ms    INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    id         BLOB    NOT NULL,
    tenant_id  BLOB    NOT NULL,
    run_id     BLOB,                                            -- absent: an event of the thread itself
    attempt    INTEGER NOT NULL DEFAULT 0,
    first      INTEGER NOT NULL DEFAULT 0,
    last       INTEGER NOT NULL DEFAULT 0,
    frames     TEXT    NOT NULL,                                -- each after its length
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (thread_id, last_ms, last_seq, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_event_expiry ON run_event (expires_at) WHERE expires_at IS NOT NULL;

-- Checkpoints, in the layout of the PostgreSQL saver that graph libraries bring along, so that its tools read them.
-- `thread_id` is the text form of thread.id.
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
    checkpoint           TEXT NOT NULL,                         -- JSON
    metadata             TEXT NOT NULL DEFAULT '{}',            -- JSON
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

CREATE TABLE checkpoint_writes (
    thread_id     TEXT    NOT NULL,
    checkpoint_ns TEXT    NOT NULL DEFAULT '',
    checkpoint_id TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    idx           INTEGER NOT NULL,
    channel       TEXT    NOT NULL,
    type          TEXT,
    blob          BLOB    NOT NULL,
    task_path     TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
) STRICT;
