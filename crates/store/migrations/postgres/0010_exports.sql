-- Richer exports, scheduled exports, compaction and deletes.

ALTER TABLE export ADD COLUMN format_version text NOT NULL DEFAULT 'v1' CHECK (format_version IN ('v1', 'v2_beta'));
CREATE INDEX export_project ON export (tenant_id, project_id, created_at DESC, id DESC);

-- A scheduled export: one export per interval, spawned ten minutes after the interval's end. What an interval is follows
-- from `start_time` and `interval_hours`; where the chain stands is the truth of `schedule`.
CREATE TABLE scheduled_export (
    id             uuid    NOT NULL PRIMARY KEY,
    tenant_id      uuid    NOT NULL,
    destination_id uuid    NOT NULL,
    project_id     uuid    NOT NULL,
    status         text    NOT NULL CHECK (status IN ('RUNNING', 'CANCELLED')),
    start_time     timestamptz NOT NULL,
    interval_hours bigint NOT NULL CHECK (interval_hours BETWEEN 1 AND 168),
    compression    text    NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    format_version text    NOT NULL CHECK (format_version IN ('v1', 'v2_beta')),
    export_fields  text,                                        -- JSON; absent is all
    schedule_id    uuid    NOT NULL,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    finished_at    timestamptz,
    CHECK ((finished_at IS NOT NULL) = (status = 'CANCELLED'))
);
CREATE INDEX scheduled_export_listing ON scheduled_export (tenant_id, created_at DESC, id DESC);
CREATE INDEX scheduled_export_project ON scheduled_export (tenant_id, project_id) WHERE status = 'RUNNING';

-- `compacted`: one project and one day, sorted from end to end.
ALTER TABLE segment ADD COLUMN compacted boolean NOT NULL DEFAULT false;

-- What a workspace has of a day, whatever the project: where a trace run may lie that comes again.
CREATE INDEX segment_part_time ON segment_part (tenant_id, day);

-- Row groups that readers no longer see: their rows lie in a newer segment, or were deleted. Whoever has pinned the
-- segment goes on reading them. `segment_part` holds what may be seen and nothing else.
CREATE TABLE segment_part_past (
    segment_id    uuid NOT NULL REFERENCES segment (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    project_id    uuid NOT NULL,
    day           date NOT NULL,
    row_group     bigint NOT NULL,
    rows          bigint NOT NULL,
    min_sort_time timestamptz NOT NULL,
    max_sort_time timestamptz NOT NULL,
    min_seq       bigint NOT NULL,
    max_seq       bigint NOT NULL,
    PRIMARY KEY (segment_id, row_group)
);

-- Projects that were deleted: what still comes in for one is not shown.
CREATE TABLE project_tombstone (
    tenant_id  uuid NOT NULL,
    project_id uuid NOT NULL,
    deleted_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, project_id)
);
