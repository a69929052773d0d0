-- Richer exports, scheduled exports, compaction and deletes.

ALTER TABLE export ADD COLUMN format_version TEXT NOT NULL DEFAULT 'v1' CHECK (format_version IN ('v1', 'v2_beta'));
CREATE INDEX export_project ON export (tenant_id, project_id, created_at DESC, id DESC);

-- A scheduled export: one export per interval, spawned ten minutes after the interval's end. What an interval is follows
-- from `start_time` and `interval_hours`; where the chain stands is the truth of `schedule`.
CREATE TABLE scheduled_export (
    id             BLOB    NOT NULL PRIMARY KEY,
    tenant_id      BLOB    NOT NULL,
    destination_id BLOB    NOT NULL,
    project_id     BLOB    NOT NULL,
    status         TEXT    NOT NULL CHECK (status IN ('RUNNING', 'CANCELLED')),
    start_time     INTEGER NOT NULL,
    interval_hours INTEGER NOT NULL CHECK (interval_hours BETWEEN 1 AND 168),
    compression    TEXT    NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    format_version TEXT    NOT NULL CHECK (format_version IN ('v1', 'v2_beta')),
    export_fields  TEXT,                                        -- JSON; absent is all
    schedule_id    BLOB    NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    CHECK ((finished_at IS NOT NULL) = (status = 'CANCELLED'))
) STRICT;
CREATE INDEX scheduled_export_listing ON scheduled_export (tenant_id, created_at DESC, id DESC);
CREATE INDEX scheduled_export_project ON scheduled_export (tenant_id, project_id) WHERE status = 'RUNNING';

-- `compacted`: one project and one day, sorted from end to end.
ALTER TABLE segment ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0;

-- What a workspace has of a day, whatever the project: where a trace run may lie that comes again.
CREATE INDEX segment_part_time ON segment_part (tenant_id, day);

-- Row groups that readers no longer see: their rows lie in a newer segment, or were deleted. Whoever has pinned the
-- segment goes on reading them. `segment_part` holds what may be seen and nothing else.
CREATE TABLE segment_part_past (
    segment_id    BLOB NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    project_id    BLOB NOT NULL,
    day           TEXT NOT NULL,
    row_group     INTEGER NOT NULL,
    rows          INTEGER NOT NULL,
    min_sort_time INTEGER NOT NULL,
    max_sort_time INTEGER NOT NULL,
    min_seq       INTEGER NOT NULL,
    max_seq       INTEGER NOT NULL,
    PRIMARY KEY (segment_id, row_group)
) STRICT;

-- Projects that were deleted: what still comes in for one is not shown.
CREATE TABLE project_tombstone (
    tenant_id  BLOB    NOT NULL,
    project_id BLOB    NOT NULL,
    deleted_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, project_id)
) STRICT;
