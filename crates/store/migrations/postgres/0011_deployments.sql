-- Deployments, their revisions and logs; listeners, integrations, and source archives that clients send.

-- A way into repositories. `token` and `webhook_secret` are sealed.
CREATE TABLE integration (
    id             uuid NOT NULL PRIMARY KEY,
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

-- A process that holds a compute backend. The built-in one has no row.
CREATE TABLE listener (
    id             uuid NOT NULL PRIMARY KEY,
    tenant_id      uuid NOT NULL,
    compute_type   text NOT NULL CHECK (compute_type = 'k8s'),
    compute_id     text NOT NULL,
    compute_config text NOT NULL,                               -- JSON
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    UNIQUE (tenant_id, compute_id)
);

-- `latest_revision_id` and `active_revision_id` name revisions without a foreign key: the two tables would wait for each
-- other. The project may be deleted on its own.
CREATE TABLE deployment (
    id                     uuid NOT NULL PRIMARY KEY,
    tenant_id              uuid NOT NULL,
    name                   text NOT NULL,
    source                 text NOT NULL CHECK (source IN ('github', 'external_docker', 'internal_docker',
                                                           'internal_source')),
    source_config          text NOT NULL,                       -- JSON
    deployment_type        text CHECK (deployment_type IN ('dev_free', 'dev', 'prod', 'dev_zero')),
    status                 text NOT NULL CHECK (status IN ('AWAITING_DATABASE', 'READY', 'UNUSED', 'AWAITING_DELETE',
                                                           'UNKNOWN')),
    latest_revision_id     uuid,
    active_revision_id     uuid,
    project_id             uuid NOT NULL,
    delete_tracing_project boolean NOT NULL DEFAULT FALSE,
    repo_key               text,                                -- host/owner/name, for what webhooks tell
    image_version          text,
    tracked_packages       text NOT NULL DEFAULT '[]',          -- JSON, of the client
    created_at             timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);
CREATE INDEX deployment_listing ON deployment (tenant_id, created_at DESC, id DESC);
CREATE INDEX deployment_repo ON deployment (tenant_id, repo_key) WHERE repo_key IS NOT NULL;

-- `secrets` is sealed; `secret_names` says what is in it. Both and `source_config` are as they were when the revision was
-- made, so that it can be deployed again. What is in `error` is shown to the user.
CREATE TABLE revision (
    id            uuid NOT NULL PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    seq           bigint NOT NULL CHECK (seq > 0),                 -- the first is 1
    source        text NOT NULL CHECK (source IN ('github', 'external_docker', 'internal_docker', 'internal_source')),
    status        text NOT NULL CHECK (status IN ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY',
                                                  'DEPLOYING', 'DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED',
                                                  'DEPLOY_FAILED', 'SKIPPED', 'INTERRUPTED', 'UNKNOWN')),
    config        text NOT NULL,                                -- JSON
    source_config text NOT NULL,                                -- JSON
    secrets       bytea,
    secret_names  text NOT NULL DEFAULT '[]',                   -- JSON
    redeploy_of   uuid,
    job_id        uuid,                                         -- absent where there was nothing to do
    error         text,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    UNIQUE (deployment_id, seq),
    CHECK ((finished_at IS NOT NULL) = (status IN ('DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED', 'SKIPPED',
                                                   'INTERRUPTED')))
);

-- Ids are made when a line is recorded, and sort in that order. A line without a revision is of the deployment as such.
CREATE TABLE revision_log (
    id            uuid NOT NULL PRIMARY KEY,
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

-- A source archive: handed out by us, sent by the client under a token of its own.
CREATE TABLE source_upload (
    id            uuid NOT NULL PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    token         bytea NOT NULL CHECK (length(token) = 32),    -- SHA-256
    path          text NOT NULL UNIQUE,
    bytes         bigint CHECK (bytes > 0),
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    uploaded_at   timestamptz,
    CHECK ((uploaded_at IS NULL) = (bytes IS NULL))
);
