-- Logins of registries that a workspace's images are pulled from. `logins` is sealed; `registries` says what is in it.
CREATE TABLE image_pull_secret (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    name       TEXT NOT NULL,
    registries TEXT NOT NULL,                                   -- JSON
    logins     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;
