-- A known text, sealed. A process that cannot open it was not given the installation's encryption key.
CREATE TABLE sealing_canary (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    sealed     BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
