-- Prices of models, and by which of them the costs in segments were computed.

CREATE TABLE model_price (
    id                      BLOB PRIMARY KEY NOT NULL,
    tenant_id               BLOB NOT NULL,
    name                    TEXT NOT NULL,
    provider                TEXT,
    match_pattern           TEXT NOT NULL,
    match_path              TEXT,           -- JSON list
    start_time              INTEGER,
    prompt_cost             TEXT NOT NULL,  -- decimal number, per token
    completion_cost         TEXT NOT NULL,  -- decimal number, per token
    prompt_cost_details     TEXT NOT NULL,  -- JSON object of decimal numbers
    completion_cost_details TEXT NOT NULL,  -- JSON object of decimal numbers
    created_at              INTEGER NOT NULL,
    modified_at             INTEGER NOT NULL
) STRICT;
CREATE INDEX model_price_of_tenant ON model_price (tenant_id, created_at DESC, id DESC);

-- Every change of a workspace's prices raises its version.
CREATE TABLE model_price_version (
    tenant_id      BLOB PRIMARY KEY NOT NULL,
    version        INTEGER NOT NULL,
    failed_version INTEGER NOT NULL,
    changed_at     INTEGER NOT NULL
) STRICT;

ALTER TABLE segment ADD COLUMN price_version INTEGER NOT NULL DEFAULT 0;
CREATE INDEX segment_of_prices ON segment (tenant_id, price_version, id) WHERE state = 'live';
