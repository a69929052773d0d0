-- Where trace runs lie, by id. Segments are sorted by time, so an id alone would have to be looked for in every one of them.

-- An immutable Parquet object of entries (id, sort time, project) sorted by id, as segments of one workspace say them.
-- State `writing` is the intent, as it is of segments.
CREATE TABLE run_index (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    path       TEXT NOT NULL UNIQUE,
    state      TEXT NOT NULL CHECK (state IN ('writing', 'live', 'superseded', 'deleting')),
    job        BLOB,                        -- the job that writes it
    entries    INTEGER NOT NULL DEFAULT 0 CHECK (entries >= 0),
    bytes      INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    first_run  BLOB,                        -- smallest id
    last_run   BLOB,                        -- largest id
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,            -- of the state
    CHECK (state IN ('writing', 'deleting')
           OR (entries > 0 AND bytes > 0 AND first_run IS NOT NULL AND last_run IS NOT NULL))
) STRICT;
CREATE INDEX run_index_live ON run_index (tenant_id) WHERE state = 'live';
CREATE INDEX run_index_waste ON run_index (state, changed_at) WHERE state <> 'live';
CREATE INDEX run_index_job ON run_index (job) WHERE state = 'writing';

-- Whether index files say where the rows of the segment lie.
ALTER TABLE segment ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX segment_unindexed ON segment (tenant_id, changed_at) WHERE state = 'live' AND NOT indexed;
