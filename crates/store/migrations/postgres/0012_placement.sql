-- Where deployments run, and what their revisions were built into.

-- One row for each deployment that serves. The one process that keeps deployments writes it; gateways read it with every
-- request. Without an address requests wait for a moment.
CREATE TABLE deployment_placement (
    deployment_id uuid NOT NULL PRIMARY KEY REFERENCES deployment (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    revision_id   uuid NOT NULL,                                -- what it serves
    artifact      text NOT NULL,
    state         text NOT NULL CHECK (state IN ('serving', 'switching', 'down')),
    address       text,                                         -- host:port
    restarts      bigint NOT NULL DEFAULT 0,                        -- after it had ended by itself
    error         text,
    updated_at    timestamptz NOT NULL,
    CHECK ((address IS NOT NULL) = (state = 'serving'))
);

-- An artifact is named after what it was made from; several revisions may share one.
CREATE TABLE revision_artifact (
    revision_id   uuid NOT NULL PRIMARY KEY REFERENCES revision (id) ON DELETE CASCADE,
    tenant_id     uuid NOT NULL,
    deployment_id uuid NOT NULL,
    artifact      text NOT NULL,
    created_at    timestamptz NOT NULL
);
CREATE INDEX revision_artifact_of_deployment ON revision_artifact (deployment_id, created_at DESC, revision_id DESC);
