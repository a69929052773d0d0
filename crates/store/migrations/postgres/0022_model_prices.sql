-- Prices of models, and by which of them the costs in segments were computed.

CREATE TABLE model_price (
    id                      uuid PRIMARY KEY NOT NULL,
    tenant_id               uuid NOT NULL,
    name                    text NOT NULL,
    provider                text,
    match_pattern           text NOT NULL,
    match_path              text,           -- JSON list
    start_time              timestamptz,
    prompt_cost             text NOT NULL,  -- decimal number, per token
    completion_cost         text NOT NULL,  -- decimal number, per token
    prompt_cost_details     text NOT NULL,  -- JSON object of decimal numbers
    completion_cost_details text NOT NULL,  -- JSON object of decimal numbers
    created_at              timestamptz NOT NULL,
    modified_at             timestamptz NOT NULL
);
CREATE INDEX model_price_of_tenant ON model_price (tenant_id, created_at DESC, id DESC);

-- Every change of a workspace's prices raises its version.
CREATE TABLE model_price_version (
    tenant_id      uuid PRIMARY KEY NOT NULL,
    version        bigint NOT NULL,
    failed_version bigint NOT NULL,
    changed_at     timestamptz NOT NULL
);

ALTER TABLE segment ADD COLUMN price_version bigint NOT NULL DEFAULT 0;
-- Its index on `segment` is built concurrently: see `store/src/postgres/indexes.rs`.
