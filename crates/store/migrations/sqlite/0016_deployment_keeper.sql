-- The process that keeps deployments: one of an installation does.
CREATE TABLE deployment_keeper (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    host_id     BLOB NOT NULL,         -- of the folder that its deployments lie in
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    life        BLOB NOT NULL,         -- a restart is another one
    alive_until INTEGER NOT NULL
) STRICT;

-- The database that the deployment had when it served last. NULL where that is not known, or another one was accepted.
ALTER TABLE deployment_placement ADD COLUMN database_id TEXT;
