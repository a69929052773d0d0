-- What boxes may call, and what they sent and received. A box without a row may call nothing.
CREATE TABLE sandbox_network (
    id             uuid PRIMARY KEY REFERENCES sandbox_box (id) ON DELETE CASCADE,
    tenant_id      uuid NOT NULL,
    config         text NOT NULL,     -- JSON
    secrets        bytea,             -- sealed
    version        bigint NOT NULL,   -- each change raises it
    sent_bytes     bigint NOT NULL,   -- written in bulk, so it may lag by some seconds
    received_bytes bigint NOT NULL
);
CREATE INDEX sandbox_network_of_tenant ON sandbox_network (tenant_id);
