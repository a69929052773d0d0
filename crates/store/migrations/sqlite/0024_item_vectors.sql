-- Vectors of items, for searches of the store by meaning.

-- What of an item is embedded: a JSON list of paths, empty for nothing; NULL is what the setting says.
ALTER TABLE store_item ADD COLUMN index_paths TEXT;

-- The setting by which the items of a workspace are embedded. `embedder` (JSON) names what embeds and its dimensions; it is empty once
-- the setting is gone, until the vectors are. Vectors of different embedders cannot be compared, so each embedder has its own `space`.
-- `walking` while items are queued after a change of the setting, those after `walk_namespace` and `walk_key` still. `last_seq` is the
-- highest `seq` of a vector. `job_id` is the job that embeds, if there is one.
CREATE TABLE item_index (
    tenant_id      BLOB PRIMARY KEY NOT NULL,
    space          INTEGER NOT NULL,
    embedder       TEXT NOT NULL,
    fields         TEXT NOT NULL,  -- JSON list
    walking        INTEGER NOT NULL,
    walk_namespace TEXT NOT NULL,
    walk_key       TEXT NOT NULL,
    last_seq       INTEGER NOT NULL,
    job_id         BLOB
) STRICT;

-- Items to embed. The rows go when the vectors are written, or with their item.
CREATE TABLE item_embedding (
    tenant_id BLOB NOT NULL,
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,  -- that failed because of this item
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, namespace, key),
    FOREIGN KEY (tenant_id, namespace, key) REFERENCES store_item (tenant_id, namespace, key) ON DELETE CASCADE
) STRICT;
CREATE INDEX item_embedding_due ON item_embedding (tenant_id, due_at);

-- The vectors of items, one for each embedded text: 32-bit floats, little-endian. They go with their item.
CREATE TABLE item_vector (
    tenant_id BLOB NOT NULL,
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    part      INTEGER NOT NULL,
    space     INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    vector    BLOB NOT NULL,
    PRIMARY KEY (tenant_id, namespace, key, part),
    FOREIGN KEY (tenant_id, namespace, key) REFERENCES store_item (tenant_id, namespace, key) ON DELETE CASCADE
) STRICT;
CREATE INDEX item_vector_listing ON item_vector (tenant_id, space, seq);
