-- Vectors of items, for searches of the store by meaning.

-- What of an item is embedded: a JSON list of paths, empty for nothing; NULL is what the setting says.
ALTER TABLE store_item ADD COLUMN index_paths text;

-- The setting by which the items of a workspace are embedded. `embedder` (JSON) names what embeds and its dimensions; it is empty once
-- the setting is gone, until the vectors are. Vectors of different embedders cannot be compared, so each embedder has its own `space`.
-- `walking` while items are queued after a change of the setting, those after `walk_namespace` and `walk_key` still. `last_seq` is the
-- highest `seq` of a vector. `job_id` is the job that embeds, if there is one.
CREATE TABLE item_index (
    tenant_id      uuid PRIMARY KEY,
    space          bigint NOT NULL,
    embedder       text NOT NULL,
    fields         text NOT NULL,  -- JSON list
    walking        boolean NOT NULL,
    walk_namespace text NOT NULL,
    walk_key       text NOT NULL,
    last_seq       bigint NOT NULL,
    job_id         uuid
);

-- Items to embed. The rows go when the vectors are written, or with their item.
CREATE TABLE item_embedding (
    tenant_id uuid NOT NULL,
    namespace text NOT NULL,
    key       text NOT NULL,
    attempts  bigint NOT NULL DEFAULT 0,  -- that failed because of this item
    due_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, namespace, key),
    FOREIGN KEY (tenant_id, namespace, key) REFERENCES store_item (tenant_id, namespace, key) ON DELETE CASCADE
);
CREATE INDEX item_embedding_due ON item_embedding (tenant_id, due_at);

-- The vectors of items, one for each embedded text: 32-bit floats, little-endian. They go with their item.
CREATE TABLE item_vector (
    tenant_id uuid NOT NULL,
    namespace text NOT NULL,
    key       text NOT NULL,
    part      bigint NOT NULL,
    space     bigint NOT NULL,
    seq       bigint NOT NULL,
    vector    bytea NOT NULL,
    PRIMARY KEY (tenant_id, namespace, key, part),
    FOREIGN KEY (tenant_id, namespace, key) REFERENCES store_item (tenant_id, namespace, key) ON DELETE CASCADE
);
CREATE INDEX item_vector_listing ON item_vector (tenant_id, space, seq);
