-- Answers to requests that carried an Idempotency-Key, kept for a day.

-- `answer` is set by the transaction that makes the row, so a committed row always has one.
CREATE TABLE idempotency (
    tenant_id  uuid  NOT NULL,
    key        text  NOT NULL,
    request    bytea NOT NULL,                       -- SHA-256 of method, route and body
    answer     text,                                 -- JSON
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);
