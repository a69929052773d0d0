-- The machines that run boxes. A row outlives the processes of its machine.
CREATE TABLE sandbox_node (
    id                uuid PRIMARY KEY,     -- of the folder that its boxes lie in
    name              text NOT NULL,        -- of the machine
    address           text,                 -- host:port for other processes; without one they cannot reach its boxes
    life              uuid NOT NULL,        -- of the process; a restart is another one
    alive_until       timestamptz NOT NULL,
    is_draining       boolean NOT NULL,     -- an operator allows no new boxes
    is_leaving        boolean NOT NULL,     -- the process shuts down
    max_boxes         bigint NOT NULL,      -- 0 is no limit
    memory_bytes      bigint NOT NULL,
    free_memory_bytes bigint NOT NULL,
    isolation         text,                 -- once it is known
    trouble           text,                 -- why it cannot start boxes
    lost_at           timestamptz,          -- when its boxes were marked as stopped
    created_at        timestamptz NOT NULL,
    seen_at           timestamptz NOT NULL
);

-- The node that has the files. Until now there was one.
ALTER TABLE sandbox_volume ADD COLUMN host_id uuid;
ALTER TABLE sandbox_snapshot ADD COLUMN host_id uuid;
UPDATE sandbox_volume SET host_id =
    (SELECT host_id FROM sandbox_box WHERE host_id IS NOT NULL ORDER BY updated_at DESC LIMIT 1);
UPDATE sandbox_snapshot SET host_id =
    (SELECT host_id FROM sandbox_box WHERE host_id IS NOT NULL ORDER BY updated_at DESC LIMIT 1)
WHERE source_box_id IS NOT NULL;
