-- Answers to requests that carried an Idempotency-Key, kept for a day.

-- `answer` is set by the transaction that makes the row, so a committed row always has one.
CREATE TABLE idempotency (
    tenant_id  BLOB NOT NULL,
    key        TEXT NOT NULL,
    request    BLOB NOT NULL,                        -- SHA-256 of method, route and body
    answer     TEXT,                                 -- JSON
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, key)
) STRICT;
CREATE INDEX idempotency_age ON idempotency (created_at);
