-- Deployments, their revisions and logs; listeners, integrations, and source archives that clients send.

-- A way into repositories. `token` and `webhook_secret` are sealed.
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

-- A process that holds a compute backend. The built-in one has no row.
CREATE TABLE listener (
    id             BLOB PRIMARY KEY,
    tenant_id      BLOB NOT NULL,
    compute_type   TEXT NOT NULL CHECK (compute_type = 'k8s'),
    compute_id     TEXT NOT NULL,
    compute_config TEXT NOT NULL,                               -- JSON
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    UNIQUE (tenant_id, compute_id)
) STRICT;

-- `latest_revision_id` and `active_revision_id` name revisions without a foreign key: the two tables would wait for each
-- other. The project may be deleted on its own.
CREATE TABLE deployment (
    id                     BLOB PRIMARY KEY,
    tenant_id              BLOB NOT NULL,
    name                   TEXT NOT NULL,
    source                 TEXT NOT NULL CHECK (source IN ('github', 'external_docker', 'internal_docker',
                                                           'internal_source')),
    source_config          TEXT NOT NULL,                       -- JSON
    deployment_type        TEXT CHECK (deployment_type IN ('dev_free', 'dev', 'prod', 'dev_zero')),
    status                 TEXT NOT NULL CHECK (status IN ('AWAITING_DATABASE', 'READY', 'UNUSED', 'AWAITING_DELETE',
                                                           'UNKNOWN')),
    latest_revision_id     BLOB,
    active_revision_id     BLOB,
    project_id             BLOB NOT NULL,
    delete_tracing_project INTEGER NOT NULL DEFAULT 0,
    repo_key               TEXT,                                -- host/owner/name, for what webhooks tell
    image_version          TEXT,
    tracked_packages       TEXT NOT NULL DEFAULT '[]',          -- JSON, of the client
    created_at             INTEGER NOT NULL,
    updated_at             INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;
CREATE INDEX deployment_listing ON deployment (tenant_id, created_at DESC, id DESC);
CREATE INDEX deployment_repo ON deployment (tenant_id, repo_key) WHERE repo_key IS NOT NULL;

-- `secrets` is sealed; `secret_names` says what is in it. Both and `source_config` are as they were when the revision was
-- made, so that it can be deployed again. What is in `error` is shown to the user.
CREATE TABLE revision (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL CHECK (seq > 0),                 -- the first is 1
    source        TEXT NOT NULL CHECK (source IN ('github', 'external_docker', 'internal_docker', 'internal_source')),
    status        TEXT NOT NULL CHECK (status IN ('CREATING', 'QUEUED', 'AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY',
                                                  'DEPLOYING', 'DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED',
                                                  'DEPLOY_FAILED', 'SKIPPED', 'INTERRUPTED', 'UNKNOWN')),
    config        TEXT NOT NULL,                                -- JSON
    source_config TEXT NOT NULL,                                -- JSON
    secrets       BLOB,
    secret_names  TEXT NOT NULL DEFAULT '[]',                   -- JSON
    redeploy_of   BLOB,
    job_id        BLOB,                                         -- absent where there was nothing to do
    error         TEXT,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    UNIQUE (deployment_id, seq),
    CHECK ((finished_at IS NOT NULL) = (status IN ('DEPLOYED', 'CREATE_FAILED', 'BUILD_FAILED', 'DEPLOY_FAILED', 'SKIPPED',
                                                   'INTERRUPTED')))
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

-- A source archive: handed out by us, sent by the client under a token of its own.
CREATE TABLE source_upload (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    token         BLOB NOT NULL CHECK (length(token) = 32),    -- SHA-256
    path          TEXT NOT NULL UNIQUE,
    bytes         INTEGER CHECK (bytes > 0),
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    uploaded_at   INTEGER,
    CHECK ((uploaded_at IS NULL) = (bytes IS NULL))
) STRICT;
