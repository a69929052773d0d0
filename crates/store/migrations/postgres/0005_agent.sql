-- The agent server: assistants, threads, runs, crons, items, the log of streamed frames, checkpoints.
--
-- JSON stands in text columns as it was given, without NUL characters. Keys of objects keep their order.

-- `version` is the one in use; versions count up from 1 and are never reused. Ids of assistants that come with a graph
-- are made from its name, so they are unique within a workspace only.
CREATE TABLE assistant (
    id          uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    graph_id    text NOT NULL,
    name        text NOT NULL,
    description text,
    config      text NOT NULL DEFAULT '{}',                  -- JSON
    context     text NOT NULL DEFAULT '{}',                  -- JSON
    metadata    text NOT NULL DEFAULT '{}',                  -- JSON
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
    config       text NOT NULL DEFAULT '{}',                 -- JSON
    context      text NOT NULL DEFAULT '{}',                 -- JSON
    metadata     text NOT NULL DEFAULT '{}',                 -- JSON
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, assistant_id, version),
    FOREIGN KEY (tenant_id, assistant_id) REFERENCES assistant (tenant_id, id) ON DELETE CASCADE
);

-- A conversation. Checkpoints name it by its id alone, so the id is unique for all workspaces. A temporary thread
-- belongs to one stateless run and goes with it.
CREATE TABLE thread (
    id               uuid NOT NULL PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    status           text NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'busy', 'interrupted', 'error')),
    metadata         text NOT NULL DEFAULT '{}',             -- JSON
    config           text NOT NULL DEFAULT '{}',             -- JSON
    current_values   text,                                      -- JSON: state after the last run; absent before it
    interrupts       text NOT NULL DEFAULT '{}',             -- JSON: task id to interrupts
    error            text,                                      -- JSON: error, message
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

-- `pending` covers running: the job says which. `cancel_action` is what the last cancel asked for.
CREATE TABLE run (
    id                 uuid NOT NULL PRIMARY KEY,
    tenant_id          uuid NOT NULL,
    thread_id          uuid NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    assistant_id       uuid NOT NULL,
    job_id             uuid NOT NULL,
    cron_id            uuid,                                    -- the cron that fired it,
    cron_at            timestamptz,                                 -- and the instant it stands for
    status             text NOT NULL DEFAULT 'pending'
                       CHECK (status IN ('pending', 'success', 'error', 'timeout', 'interrupted')),
    metadata           text NOT NULL DEFAULT '{}',           -- JSON
    kwargs             text NOT NULL,                        -- JSON
    multitask_strategy text NOT NULL DEFAULT 'enqueue'
                       CHECK (multitask_strategy IN ('enqueue', 'reject', 'interrupt', 'rollback')),
    cancel_action      text CHECK (cancel_action IN ('interrupt', 'rollback')),
    created_at         timestamptz NOT NULL,                        -- of a delayed run: when it is due
    updated_at         timestamptz NOT NULL,
    finished_at        timestamptz,
    UNIQUE (cron_id, cron_at),
    CHECK ((finished_at IS NOT NULL) = (status <> 'pending'))
);
CREATE INDEX run_listing ON run (thread_id, created_at DESC, id DESC);
CREATE INDEX run_open ON run (tenant_id, thread_id) WHERE status = 'pending';

CREATE TABLE cron (
    id               uuid NOT NULL PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    assistant_id     uuid NOT NULL,
    thread_id        uuid REFERENCES thread (id) ON DELETE CASCADE,
    schedule_id      uuid,                                      -- the engine's schedule that fires it
    user_id          text,
    schedule         text NOT NULL,
    timezone         text,
    end_time         timestamptz,
    payload          text NOT NULL,                          -- JSON
    metadata         text NOT NULL DEFAULT '{}',             -- JSON
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

-- The long-term store. `namespace` is its labels joined by dots, which no label contains.
CREATE TABLE store_item (
    tenant_id   uuid NOT NULL,
    namespace   text NOT NULL,
    key         text NOT NULL,
    value       text NOT NULL,                               -- JSON
    ttl_minutes double precision,
    expires_at  timestamptz,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, namespace, key)
);
CREATE INDEX store_item_listing ON store_item (tenant_id, updated_at DESC);
CREATE INDEX store_item_expiry ON store_item (expires_at) WHERE expires_at IS NOT NULL;

-- What was streamed, in batches. No foreign key: readers may still fetch frames of a run that is gone.
-- Frames of one attempt are numbered from 1 without gaps; `last_ms` and `last_seq` are the id of the last one.
CREATE TABLE run_event (
    thread_id  uuid NOT NULL,
    last_ms    bigint NOT NULL,
    last_seq   bigint NOT NULL,
    id         uuid NOT NULL,
    tenant_id  uuid NOT NULL,
    run_id     uuid,                                            -- absent: an event of the thread itself
    attempt    bigint NOT NULL DEFAULT 0,
    first      bigint NOT NULL DEFAULT 0,
    last       bigint NOT NULL DEFAULT 0,
    frames     text NOT NULL,                                -- each after its length
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (thread_id, last_ms, last_seq, id)
);
CREATE INDEX run_event_expiry ON run_event (expires_at) WHERE expires_at IS NOT NULL;

-- Checkpoints, in the layout of the saver that graph libraries bring along, so that its tools read and write them.
-- `thread_id` is the text form of thread.id. The migrations it knows are marked as done.
CREATE TABLE checkpoint_migrations (
    v integer NOT NULL PRIMARY KEY
);
INSERT INTO checkpoint_migrations (v) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);

CREATE TABLE checkpoints (
    thread_id            text  NOT NULL,
    checkpoint_ns        text  NOT NULL DEFAULT '',
    checkpoint_id        text  NOT NULL,
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

CREATE TABLE checkpoint_writes (
    thread_id     text    NOT NULL,
    checkpoint_ns text    NOT NULL DEFAULT '',
    checkpoint_id text    NOT NULL,
    task_id       text    NOT NULL,
    idx           integer NOT NULL,
    channel       text    NOT NULL,
    type          text,
    blob          bytea   NOT NULL,
    task_path     text    NOT NULL DEFAULT '',
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);
