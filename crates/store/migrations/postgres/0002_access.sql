-- Who may call: organisations own workspaces (tenants) and API keys.

CREATE TABLE organization (
    id         uuid        NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE workspace (
    id              uuid        NOT NULL PRIMARY KEY,
    organization_id uuid        NOT NULL REFERENCES organization (id),
    name            text        NOT NULL,
    created_at      timestamptz NOT NULL
);

CREATE INDEX workspace_by_organization ON workspace (organization_id, id);

-- A key's secret is shown once and never stored: `hash` is its SHA-256. `workspace_id` NULL opens every workspace of
-- the organisation.
CREATE TABLE api_key (
    id              uuid        NOT NULL PRIMARY KEY,
    organization_id uuid        NOT NULL REFERENCES organization (id),
    workspace_id    uuid        REFERENCES workspace (id),
    name            text        NOT NULL,
    prefix          text        NOT NULL,
    hash            bytea       NOT NULL CHECK (length(hash) = 32),
    created_at      timestamptz NOT NULL,
    revoked_at      timestamptz
);

CREATE UNIQUE INDEX api_key_by_hash ON api_key (hash);
CREATE INDEX api_key_by_organization ON api_key (organization_id, created_at);
