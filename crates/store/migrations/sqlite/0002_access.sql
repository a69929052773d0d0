-- Who may call: organisations own workspaces (tenants) and API keys.

CREATE TABLE organization (
    id         BLOB    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE workspace (
    id              BLOB    NOT NULL PRIMARY KEY,
    organization_id BLOB    NOT NULL REFERENCES organization (id),
    name            TEXT    NOT NULL,
    created_at      INTEGER NOT NULL
) STRICT;

CREATE INDEX workspace_by_organization ON workspace (organization_id, id);

-- A key's secret is shown once and never stored: `hash` is its SHA-256. `workspace_id` NULL opens every workspace of
-- the organisation.
CREATE TABLE api_key (
    id              BLOB    NOT NULL PRIMARY KEY,
    organization_id BLOB    NOT NULL REFERENCES organization (id),
    workspace_id    BLOB    REFERENCES workspace (id),
    name            TEXT    NOT NULL,
    prefix          TEXT    NOT NULL,
    hash            BLOB    NOT NULL CHECK (length(hash) = 32),
    created_at      INTEGER NOT NULL,
    revoked_at      INTEGER
) STRICT;

CREATE UNIQUE INDEX api_key_by_hash ON api_key (hash);
CREATE INDEX api_key_by_organization ON api_key (organization_id, created_at);
