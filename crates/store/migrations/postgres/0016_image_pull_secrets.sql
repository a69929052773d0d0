-- Logins of registries that a workspace's images are pulled from. `logins` is sealed; `registries` says what is in it.
CREATE TABLE image_pull_secret (
    id         uuid NOT NULL PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    name       text NOT NULL,
    registries text NOT NULL,                                   -- JSON
    logins     bytea NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    UNIQUE (tenant_id, name)
);
