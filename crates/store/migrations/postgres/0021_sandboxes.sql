-- Boxes: isolated machines for the commands of agents, and what belongs to them.

-- The process that holds the machine of boxes: one of an installation does.
CREATE TABLE sandbox_host (
    id          bigint PRIMARY KEY CHECK (id = 1),
    host_id     uuid NOT NULL,         -- of the folder that its boxes lie in
    host        text NOT NULL,
    life        uuid NOT NULL,         -- a restart is another one
    alive_until timestamptz NOT NULL
);

CREATE TABLE sandbox_template (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    name       text NOT NULL,
    image      text NOT NULL,
    resources  text NOT NULL,          -- JSON, as it was sent
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);

-- Boxes of a template that are started ahead, each for one caller.
CREATE TABLE sandbox_pool (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    name        text NOT NULL,
    template_id uuid NOT NULL REFERENCES sandbox_template (id),
    replicas    bigint NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);
CREATE INDEX sandbox_pool_of_template ON sandbox_pool (template_id);

CREATE TABLE sandbox_snapshot (
    id                uuid PRIMARY KEY,
    tenant_id         uuid NOT NULL,
    name              text NOT NULL,
    status            text NOT NULL CHECK (status IN ('building', 'ready', 'failed', 'deleting')),
    status_message    text,
    docker_image      text,
    fs_capacity_bytes bigint NOT NULL,
    fs_used_bytes     bigint,
    source_box_id     uuid,            -- the box may be gone
    parent_id         uuid REFERENCES sandbox_snapshot (id),
    root              text,            -- JSON: what boxes of it are started on
    run_config        text,            -- JSON
    labels            text NOT NULL,   -- JSON
    description       text,
    included          text NOT NULL,   -- JSON
    request           bytea NOT NULL,   -- digest: a request that is sent again finds its snapshot
    created_by        text NOT NULL,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL
);
CREATE INDEX sandbox_snapshot_of_tenant ON sandbox_snapshot (tenant_id, name, created_at);
CREATE INDEX sandbox_snapshot_of_parent ON sandbox_snapshot (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE sandbox_snapshot_tag (
    tenant_id   uuid NOT NULL,
    name        text NOT NULL,
    tag         text NOT NULL,
    snapshot_id uuid NOT NULL REFERENCES sandbox_snapshot (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant_id, name, tag)
);
CREATE INDEX sandbox_tag_of_snapshot ON sandbox_snapshot_tag (snapshot_id);

CREATE TABLE sandbox_box (
    id                        uuid PRIMARY KEY,
    tenant_id                 uuid NOT NULL,
    name                      text NOT NULL,
    status                    text NOT NULL CHECK (status IN ('provisioning', 'ready', 'stopped', 'failed', 'deleting')),
    status_message            text,
    generation                bigint NOT NULL,  -- of its newest life: each start raises it
    host_id                   uuid,              -- where its files lie, once it was started
    isolation                 text,
    root                      text,              -- JSON: what it was started on
    config                    text NOT NULL,     -- JSON
    template_name             text NOT NULL,     -- of its template or its snapshot
    template_id               uuid REFERENCES sandbox_template (id),
    snapshot_id               uuid REFERENCES sandbox_snapshot (id),
    pool_id                   uuid REFERENCES sandbox_pool (id),  -- while nobody has claimed it
    idle_ttl_seconds          bigint NOT NULL,
    ttl_seconds               bigint NOT NULL,
    delete_after_stop_seconds bigint NOT NULL,
    active_at                 timestamptz NOT NULL,  -- written in bulk, so it may lag by some seconds
    due_at                    timestamptz,           -- when one of its times may be over
    stopped_at                timestamptz,
    request                   bytea NOT NULL,     -- digest: a request that is sent again finds its box
    created_by                text NOT NULL,
    updated_by                text NOT NULL,
    created_at                timestamptz NOT NULL,
    updated_at                timestamptz NOT NULL
);
CREATE UNIQUE INDEX sandbox_box_name_key ON sandbox_box (tenant_id, name) WHERE status <> 'deleting';
CREATE INDEX sandbox_box_of_tenant ON sandbox_box (tenant_id, created_at);
CREATE INDEX sandbox_box_due ON sandbox_box (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sandbox_box_of_template ON sandbox_box (template_id) WHERE template_id IS NOT NULL;
CREATE INDEX sandbox_box_of_snapshot ON sandbox_box (snapshot_id) WHERE snapshot_id IS NOT NULL;
CREATE INDEX sandbox_box_of_pool ON sandbox_box (pool_id) WHERE pool_id IS NOT NULL;

CREATE TABLE sandbox_volume (
    id               uuid PRIMARY KEY,
    tenant_id        uuid NOT NULL,
    name             text NOT NULL,
    status           text NOT NULL CHECK (status IN ('provisioning', 'ready', 'failed', 'deleting')),
    status_message   text,
    size_bytes       bigint NOT NULL,
    storage_class    text NOT NULL,
    description      text,
    labels           text NOT NULL,    -- JSON
    source_volume_id uuid,             -- it was copied from; that may be gone
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL
);
CREATE UNIQUE INDEX sandbox_volume_name_key ON sandbox_volume (tenant_id, name) WHERE status <> 'deleting';

-- Volumes in boxes. A volume cannot go while a row names it.
CREATE TABLE sandbox_box_volume (
    box_id     uuid NOT NULL REFERENCES sandbox_box (id) ON DELETE CASCADE,
    volume_id  uuid NOT NULL REFERENCES sandbox_volume (id),
    mount_path text NOT NULL,
    read_only  boolean NOT NULL,
    PRIMARY KEY (box_id, mount_path)
);
CREATE INDEX sandbox_box_of_volume ON sandbox_box_volume (volume_id);

CREATE TABLE sandbox_template_volume (
    template_id uuid NOT NULL REFERENCES sandbox_template (id) ON DELETE CASCADE,
    volume_id   uuid NOT NULL REFERENCES sandbox_volume (id),
    mount_path  text NOT NULL,
    PRIMARY KEY (template_id, mount_path)
);
CREATE INDEX sandbox_template_of_volume ON sandbox_template_volume (volume_id);

-- Links into boxes for callers without a key. A link without an end lasts as long as its box.
CREATE TABLE sandbox_token (
    hash                bytea PRIMARY KEY CHECK (length(hash) = 32),
    tenant_id           uuid NOT NULL,
    box_id              uuid NOT NULL REFERENCES sandbox_box (id) ON DELETE CASCADE,
    kind                text NOT NULL CHECK (kind IN ('service', 'download')),
    port                bigint,
    path                text,
    content_type        text,
    content_disposition text,
    created_at          timestamptz NOT NULL,
    expires_at          timestamptz
);
CREATE INDEX sandbox_token_of_box ON sandbox_token (box_id, created_at);
CREATE INDEX sandbox_token_end ON sandbox_token (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE sandbox_registry (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    name        text NOT NULL,
    url         text NOT NULL,
    auth_type   text NOT NULL,
    credentials bytea NOT NULL,         -- sealed
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);
