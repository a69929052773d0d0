-- What boxes may call, and what they sent and received. A box without a row may call nothing.
CREATE TABLE sandbox_network (
    id             BLOB PRIMARY KEY NOT NULL REFERENCES sandbox_box (id) ON DELETE CASCADE,
    tenant_id      BLOB NOT NULL,
    config         TEXT NOT NULL,     -- JSON
    secrets        BLOB,              -- sealed
    version        INTEGER NOT NULL,  -- each change raises it
    sent_bytes     INTEGER NOT NULL,  -- written in bulk, so it may lag by some seconds
    received_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_network_of_tenant ON sandbox_network (tenant_id);
