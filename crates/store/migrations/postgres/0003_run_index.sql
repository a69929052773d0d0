-- Where trace runs lie, by id. Segments are sorted by time, so an id alone would have to be looked for in every one of them.

-- An immutable Parquet object of entries (id, sort time, project) sorted by id, as segments of one workspace say them.
-- State `writing` is the intent, as it is of segments.
CREATE TABLE run_index (
    id         uuid PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    path       text NOT NULL UNIQUE,
    state      text NOT NULL CHECK (state IN ('writing', 'live', 'superseded', 'deleting')),
    job        uuid,                            -- the job that writes it
    entries    bigint NOT NULL DEFAULT 0 CHECK (entries >= 0),
    bytes      bigint NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    first_run  uuid,                            -- smallest id
    last_run   uuid,                            -- largest id
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,            -- of the state
    CHECK (state IN ('writing', 'deleting')
           OR (entries > 0 AND bytes > 0 AND first_run IS NOT NULL AND last_run IS NOT NULL))
);
CREATE INDEX run_index_live ON run_index (tenant_id) WHERE state = 'live';
CREATE INDEX run_index_waste ON run_index (state, changed_at) WHERE state <> 'live';
CREATE INDEX run_index_job ON run_index (job) WHERE state = 'writing';

-- Whether index files say where the rows of the segment lie.
ALTER TABLE segment ADD COLUMN indexed boolean NOT NULL DEFAULT false;
CREATE INDEX segment_unindexed ON segment (tenant_id, changed_at) WHERE state = 'live' AND NOT indexed;
