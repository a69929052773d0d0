-- Segments whose object cannot be removed are tried again later, each time after a longer pause.
ALTER TABLE segment ADD COLUMN removal_failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE segment ADD COLUMN remove_at INTEGER;  -- not before; absent: at once
CREATE INDEX segment_removal ON segment (coalesce(remove_at, changed_at)) WHERE state = 'deleting';

-- Why a scheduled export stopped, unless somebody cancelled it.
ALTER TABLE scheduled_export ADD COLUMN error TEXT;

-- What ends when its destination is deleted.
CREATE INDEX export_destination ON export (destination_id) WHERE finished_at IS NULL;
CREATE INDEX scheduled_export_destination ON scheduled_export (tenant_id, destination_id) WHERE status = 'RUNNING';
