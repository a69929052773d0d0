-- The key of its own that each revision's agent server has. Sealed and not only hashed: an agent server is started again
-- with the key it had. The row goes when the key is revoked; the key's own row stays.
CREATE TABLE revision_key (
    id            uuid PRIMARY KEY REFERENCES revision (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL,
    key_id        uuid NOT NULL REFERENCES api_key (id),
    secret        bytea NOT NULL
);
CREATE INDEX revision_key_of_deployment ON revision_key (deployment_id);
