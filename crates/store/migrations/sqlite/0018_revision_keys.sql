-- The key of its own that each revision's agent server has. Sealed and not only hashed: an agent server is started again
-- with the key it had. The row goes when the key is revoked; the key's own row stays.
CREATE TABLE revision_key (
    id            BLOB PRIMARY KEY NOT NULL REFERENCES revision (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL,
    key_id        BLOB NOT NULL REFERENCES api_key (id),
    secret        BLOB NOT NULL
) STRICT;
CREATE INDEX revision_key_of_deployment ON revision_key (deployment_id);
