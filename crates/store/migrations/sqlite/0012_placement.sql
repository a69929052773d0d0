-- Where deployments run, and what their revisions were built into.

-- One row for each deployment that serves. The one process that keeps deployments writes it; gateways read it with every
-- request. Without an address requests wait for a moment.
CREATE TABLE deployment_placement (
    deployment_id BLOB PRIMARY KEY REFERENCES deployment (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    revision_id   BLOB NOT NULL,                                -- what it serves
    artifact      TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('serving', 'switching', 'down')),
    address       TEXT,                                         -- host:port
    restarts      INTEGER NOT NULL DEFAULT 0,                        -- after it had ended by itself
    error         TEXT,
    updated_at    INTEGER NOT NULL,
    CHECK ((address IS NOT NULL) = (state = 'serving'))
) STRICT;

-- An artifact is named after what it was made from; several revisions may share one.
CREATE TABLE revision_artifact (
    revision_id   BLOB PRIMARY KEY REFERENCES revision (id) ON DELETE CASCADE,
    tenant_id     BLOB NOT NULL,
    deployment_id BLOB NOT NULL,
    artifact      TEXT NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX revision_artifact_of_deployment ON revision_artifact (deployment_id, created_at DESC, revision_id DESC);
