-- A known text, sealed. A process that cannot open it was not given the installation's encryption key.
CREATE TABLE sealing_canary (
    id         bigint PRIMARY KEY CHECK (id = 1),
    sealed     bytea NOT NULL,
    created_at timestamptz NOT NULL
);
