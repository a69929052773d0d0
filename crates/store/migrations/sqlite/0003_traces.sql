-- Tracing: projects, the write-ahead log of ingest, the catalog of segments, and what waits beside them.

CREATE TABLE project (
    id                   BLOB PRIMARY KEY,
    tenant_id            BLOB NOT NULL,
    name                 TEXT NOT NULL,
    description          TEXT,
    extra                TEXT,                                  -- JSON object
    reference_dataset_id BLOB,
    start_time           INTEGER NOT NULL,
    UNIQUE (tenant_id, name)
) STRICT;
CREATE INDEX project_listing ON project (tenant_id, start_time DESC, id);

-- One object of the write-ahead log. `seq` is the order of acceptance: of two patches the later one wins.
CREATE TABLE wal_unit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         BLOB NOT NULL UNIQUE,
    path       TEXT NOT NULL UNIQUE,
    bytes      INTEGER NOT NULL CHECK (bytes > 0),
    operations INTEGER NOT NULL CHECK (operations >= 0),
    state      TEXT NOT NULL CHECK (state IN ('open', 'folded')),
    fold_job   BLOB,                                            -- the job that folds or folded it
    created_at INTEGER NOT NULL,
    folded_at  INTEGER,
    CHECK ((state = 'folded') = (folded_at IS NOT NULL))
) STRICT;
CREATE INDEX wal_unit_open ON wal_unit (seq) WHERE state = 'open';
CREATE INDEX wal_unit_folded ON wal_unit (folded_at) WHERE state = 'folded';

-- Which projects a unit touches. The nil project stands for "some project of this workspace": a patch that names none.
CREATE TABLE wal_unit_project (
    unit_id    BLOB NOT NULL REFERENCES wal_unit (id) ON DELETE CASCADE,
    tenant_id  BLOB NOT NULL,
    project_id BLOB NOT NULL,
    PRIMARY KEY (unit_id, tenant_id, project_id)
) STRICT;
CREATE INDEX wal_unit_project_touches ON wal_unit_project (tenant_id, project_id, unit_id);

-- An immutable Parquet object. `writing` is the intent, written before the object.
CREATE TABLE segment (
    id         BLOB PRIMARY KEY,
    tenant_id  BLOB NOT NULL,
    path       TEXT NOT NULL UNIQUE,
    state      TEXT NOT NULL CHECK (state IN ('writing', 'live', 'superseded', 'deleting')),
    job        BLOB,                                            -- the job that writes it
    rows       INTEGER NOT NULL DEFAULT 0 CHECK (rows >= 0),
    bytes      INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,                                -- of the state
    CHECK (state IN ('writing', 'deleting') OR (rows > 0 AND bytes > 0))
) STRICT;
CREATE INDEX segment_live ON segment (tenant_id, created_at DESC, id) WHERE state = 'live';
CREATE INDEX segment_waste ON segment (state, changed_at) WHERE state <> 'live';
CREATE INDEX segment_job ON segment (job) WHERE state = 'writing';

-- One row group: one project, one UTC day, sorted by (sort time, id).
CREATE TABLE segment_part (
    segment_id    BLOB NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    project_id    BLOB NOT NULL,
    day           TEXT NOT NULL,
    row_group     INTEGER NOT NULL CHECK (row_group >= 0),
    rows          INTEGER NOT NULL CHECK (rows > 0),
    min_sort_time INTEGER NOT NULL,
    max_sort_time INTEGER NOT NULL,
    min_seq       INTEGER NOT NULL,
    max_seq       INTEGER NOT NULL,
    PRIMARY KEY (segment_id, row_group),
    CHECK (min_sort_time <= max_sort_time AND min_seq <= max_seq)
) STRICT;
CREATE INDEX segment_part_day ON segment_part (tenant_id, project_id, day, segment_id);

-- A reader that must keep seeing a segment. A pinned segment is not removed.
CREATE TABLE segment_pin (
    holder     BLOB NOT NULL,
    segment_id BLOB NOT NULL REFERENCES segment (id),
    pinned_at  INTEGER NOT NULL,
    PRIMARY KEY (holder, segment_id)
) STRICT;
CREATE INDEX segment_pin_segment ON segment_pin (segment_id);

-- Patches that say neither where nor when their trace run lies, and came before it.
CREATE TABLE pending_patch (
    tenant_id  BLOB NOT NULL,
    run_id     BLOB NOT NULL,
    seq        INTEGER NOT NULL,
    operation  TEXT NOT NULL,                                   -- JSON
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, run_id, seq)
) STRICT;
CREATE INDEX pending_patch_age ON pending_patch (created_at);

CREATE TABLE feedback (
    tenant_id  BLOB NOT NULL,
    id         BLOB NOT NULL,
    run_id     BLOB,
    key        TEXT NOT NULL,
    body       TEXT NOT NULL,                                   -- JSON, as sent
    seq        INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT;
CREATE INDEX feedback_run ON feedback (tenant_id, run_id);

CREATE TABLE attachment (
    tenant_id    BLOB NOT NULL,
    run_id       BLOB NOT NULL,
    name         TEXT NOT NULL,
    content_type TEXT NOT NULL,
    path         TEXT NOT NULL,
    bytes        INTEGER NOT NULL CHECK (bytes >= 0),
    seq          INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, run_id, name)
) STRICT;
