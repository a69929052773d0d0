-- Links by which somebody without a key judges one trace run under one name. A link's last part is its token: found by
-- its hash, and kept sealed beside it, for those who made it and list it.
CREATE TABLE feedback_token (
    id          BLOB PRIMARY KEY,
    tenant_id   BLOB NOT NULL,
    hash        BLOB NOT NULL UNIQUE,                            -- SHA-256 of the token
    token       BLOB NOT NULL,                                   -- sealed
    run_id      BLOB NOT NULL,
    key         TEXT NOT NULL,
    feedback_id BLOB,                                            -- of what is given; another one each time where absent
    config      TEXT,                                            -- JSON
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX feedback_token_run ON feedback_token (tenant_id, run_id, id);
CREATE INDEX feedback_token_end ON feedback_token (expires_at);

-- Names of items of any length. Where they are too long for an index, the columns `namespace` and `key` hold what is left
-- of them, with a hash of both, and these the names themselves.
ALTER TABLE store_item ADD COLUMN whole_namespace TEXT;
ALTER TABLE store_item ADD COLUMN whole_key TEXT;
