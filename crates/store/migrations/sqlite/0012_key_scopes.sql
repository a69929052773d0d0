-- What a key may do: names of scopes with spaces between them. NULL, as for keys made before scopes: all that keys
-- without scopes could do, with `operator` as the only limit.
ALTER TABLE api_key ADD COLUMN scopes TEXT;
ALTER TABLE api_key ADD COLUMN expires_at INTEGER;
-- Written in bulk, so it may lag by a minute.
ALTER TABLE api_key ADD COLUMN last_used_at INTEGER;

-- Secrets that a rotation replaced. Each opens its key until `valid_until`. The row stays: a secret that was replaced must
-- not come back as a new key from the operator's environment.
CREATE TABLE api_key_former_secret (
    hash        BLOB PRIMARY KEY NOT NULL CHECK (length(hash) = 32),
    key_id      BLOB NOT NULL REFERENCES api_key (id),
    valid_until INTEGER NOT NULL
) STRICT;
