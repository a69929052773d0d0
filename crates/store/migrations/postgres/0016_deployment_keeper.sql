-- The process that keeps deployments: one of an installation does.
CREATE TABLE deployment_keeper (
    id          bigint PRIMARY KEY CHECK (id = 1),
    host_id     uuid NOT NULL,         -- of the folder that its deployments lie in
    host        text NOT NULL,
    pid         bigint NOT NULL,
    life        uuid NOT NULL,         -- a restart is another one
    alive_until timestamptz NOT NULL
);

-- The database that the deployment had when it served last. NULL where that is not known, or another one was accepted.
ALTER TABLE deployment_placement ADD COLUMN database_id text;
