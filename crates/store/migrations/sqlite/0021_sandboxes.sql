-- Boxes: isolated machines for the commands of agents, and what belongs to them.

-- The process that holds the machine of boxes: one of an installation does.
CREATE TABLE sandbox_host (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    host_id     BLOB NOT NULL,         -- of the folder that its boxes lie in
    host        TEXT NOT NULL,
    life        BLOB NOT NULL,         -- a restart is another one
    alive_until INTEGER NOT NULL
) STRICT;

CREATE TABLE sandbox_template (
    id         BLOB PRIMARY KEY NOT NULL,
    tenant_id  BLOB NOT NULL,
    name       TEXT NOT NULL,
    image      TEXT NOT NULL,
    resources  TEXT NOT NULL,          -- JSON, as it was sent
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;

-- Boxes of a template that are started ahead, each for one caller.
CREATE TABLE sandbox_pool (
    id          BLOB PRIMARY KEY NOT NULL,
    tenant_id   BLOB NOT NULL,
    name        TEXT NOT NULL,
    template_id BLOB NOT NULL REFERENCES sandbox_template (id),
    replicas    INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;
CREATE INDEX sandbox_pool_of_template ON sandbox_pool (template_id);

CREATE TABLE sandbox_snapshot (
    id                BLOB PRIMARY KEY NOT NULL,
    tenant_id         BLOB NOT NULL,
    name              TEXT NOT NULL,
    status            TEXT NOT NULL CHECK (status IN ('building', 'ready', 'failed', 'deleting')),
    status_message    TEXT,
    docker_image      TEXT,
    fs_capacity_bytes INTEGER NOT NULL,
    fs_used_bytes     INTEGER,
    source_box_id     BLOB,            -- the box may be gone
    parent_id         BLOB REFERENCES sandbox_snapshot (id),
    root              TEXT,            -- JSON: what boxes of it are started on
    run_config        TEXT,            -- JSON
    labels            TEXT NOT NULL,   -- JSON
    description       TEXT,
    included          TEXT NOT NULL,   -- JSON
    request           BLOB NOT NULL,   -- digest: a request that is sent again finds its snapshot
    created_by        TEXT NOT NULL,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_snapshot_of_tenant ON sandbox_snapshot (tenant_id, name, created_at);
CREATE INDEX sandbox_snapshot_of_parent ON sandbox_snapshot (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE sandbox_snapshot_tag (
    tenant_id   BLOB NOT NULL,
    name        TEXT NOT NULL,
    tag         TEXT NOT NULL,
    snapshot_id BLOB NOT NULL REFERENCES sandbox_snapshot (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant_id, name, tag)
) STRICT;
CREATE INDEX sandbox_tag_of_snapshot ON sandbox_snapshot_tag (snapshot_id);

CREATE TABLE sandbox_box (
    id                        BLOB PRIMARY KEY NOT NULL,
    tenant_id                 BLOB NOT NULL,
    name                      TEXT NOT NULL,
    status                    TEXT NOT NULL CHECK (status IN ('provisioning', 'ready', 'stopped', 'failed', 'deleting')),
    status_message            TEXT,
    generation                INTEGER NOT NULL,  -- of its newest life: each start raises it
    host_id                   BLOB,              -- where its files lie, once it was started
    isolation                 TEXT,
    root                      TEXT,              -- JSON: what it was started on
    config                    TEXT NOT NULL,     -- JSON
    template_name             TEXT NOT NULL,     -- of its template or its snapshot
    template_id               BLOB REFERENCES sandbox_template (id),
    snapshot_id               BLOB REFERENCES sandbox_snapshot (id),
    pool_id                   BLOB REFERENCES sandbox_pool (id),  -- while nobody has claimed it
    idle_ttl_seconds          INTEGER NOT NULL,
    ttl_seconds               INTEGER NOT NULL,
    delete_after_stop_seconds INTEGER NOT NULL,
    active_at                 INTEGER NOT NULL,  -- written in bulk, so it may lag by some seconds
    due_at                    INTEGER,           -- when one of its times may be over
    stopped_at                INTEGER,
    request                   BLOB NOT NULL,     -- digest: a request that is sent again finds its box
    created_by                TEXT NOT NULL,
    updated_by                TEXT NOT NULL,
    created_at                INTEGER NOT NULL,
    updated_at                INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX sandbox_box_name_key ON sandbox_box (tenant_id, name) WHERE status <> 'deleting';
CREATE INDEX sandbox_box_of_tenant ON sandbox_box (tenant_id, created_at);
CREATE INDEX sandbox_box_due ON sandbox_box (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sandbox_box_of_template ON sandbox_box (template_id) WHERE template_id IS NOT NULL;
CREATE INDEX sandbox_box_of_snapshot ON sandbox_box (snapshot_id) WHERE snapshot_id IS NOT NULL;
CREATE INDEX sandbox_box_of_pool ON sandbox_box (pool_id) WHERE pool_id IS NOT NULL;

CREATE TABLE sandbox_volume (
    id               BLOB PRIMARY KEY NOT NULL,
    tenant_id        BLOB NOT NULL,
    name             TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('provisioning', 'ready', 'failed', 'deleting')),
    status_message   TEXT,
    size_bytes       INTEGER NOT NULL,
    storage_class    TEXT NOT NULL,
    description      TEXT,
    labels           TEXT NOT NULL,    -- JSON
    source_volume_id BLOB,             -- it was copied from; that may be gone
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX sandbox_volume_name_key ON sandbox_volume (tenant_id, name) WHERE status <> 'deleting';

-- Volumes in boxes. A volume cannot go while a row names it.
CREATE TABLE sandbox_box_volume (
    box_id     BLOB NOT NULL REFERENCES sandbox_box (id) ON DELETE CASCADE,
    volume_id  BLOB NOT NULL REFERENCES sandbox_volume (id),
    mount_path TEXT NOT NULL,
    read_only  INTEGER NOT NULL,
    PRIMARY KEY (box_id, mount_path)
) STRICT;
CREATE INDEX sandbox_box_of_volume ON sandbox_box_volume (volume_id);

CREATE TABLE sandbox_template_volume (
    template_id BLOB NOT NULL REFERENCES sandbox_template (id) ON DELETE CASCADE,
    volume_id   BLOB NOT NULL REFERENCES sandbox_volume (id),
    mount_path  TEXT NOT NULL,
    PRIMARY KEY (template_id, mount_path)
) STRICT;
CREATE INDEX sandbox_template_of_volume ON sandbox_template_volume (volume_id);

-- Links into boxes for callers without a key. A link without an end lasts as long as its box.
CREATE TABLE sandbox_token (
    hash                BLOB PRIMARY KEY NOT NULL CHECK (length(hash) = 32),
    tenant_id           BLOB NOT NULL,
    box_id              BLOB NOT NULL REFERENCES sandbox_box (id) ON DELETE CASCADE,
    kind                TEXT NOT NULL CHECK (kind IN ('service', 'download')),
    port                INTEGER,
    path                TEXT,
    content_type        TEXT,
    content_disposition TEXT,
    created_at          INTEGER NOT NULL,
    expires_at          INTEGER
) STRICT;
CREATE INDEX sandbox_token_of_box ON sandbox_token (box_id, created_at);
CREATE INDEX sandbox_token_end ON sandbox_token (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE sandbox_registry (
    id          BLOB PRIMARY KEY NOT NULL,
    tenant_id   BLOB NOT NULL,
    name        TEXT NOT NULL,
    url         TEXT NOT NULL,
    auth_type   TEXT NOT NULL,
    credentials BLOB NOT NULL,         -- sealed
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;
