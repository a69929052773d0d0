-- The machines that run boxes. A row outlives the processes of its machine.
CREATE TABLE sandbox_node (
    id                BLOB PRIMARY KEY NOT NULL, -- of the folder that its boxes lie in
    name              TEXT NOT NULL,        -- of the machine
    address           TEXT,                 -- host:port for other processes; without one they cannot reach its boxes
    life              BLOB NOT NULL,        -- of the process; a restart is another one
    alive_until       INTEGER NOT NULL,
    is_draining       INTEGER NOT NULL,     -- an operator allows no new boxes
    is_leaving        INTEGER NOT NULL,     -- the process shuts down
    max_boxes         INTEGER NOT NULL,     -- 0 is no limit
    memory_bytes      INTEGER NOT NULL,
    free_memory_bytes INTEGER NOT NULL,
    isolation         TEXT,                 -- once it is known
    trouble           TEXT,                 -- why it cannot start boxes
    lost_at           INTEGER,              -- when its boxes were marked as stopped
    created_at        INTEGER NOT NULL,
    seen_at           INTEGER NOT NULL
) STRICT;

-- The node that has the files. Until now there was one.
ALTER TABLE sandbox_volume ADD COLUMN host_id BLOB;
ALTER TABLE sandbox_snapshot ADD COLUMN host_id BLOB;
UPDATE sandbox_volume SET host_id =
    (SELECT host_id FROM sandbox_box WHERE host_id IS NOT NULL ORDER BY updated_at DESC LIMIT 1);
UPDATE sandbox_snapshot SET host_id =
    (SELECT host_id FROM sandbox_box WHERE host_id IS NOT NULL ORDER BY updated_at DESC LIMIT 1)
WHERE source_box_id IS NOT NULL;
CREATE INDEX sandbox_box_of_host ON sandbox_box (host_id, id);
