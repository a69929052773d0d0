-- Operating: who may, and a pool that is being emptied.

-- An operator's key opens the routes under /internal and the dashboard: jobs of every workspace, pools, workers.
ALTER TABLE api_key ADD COLUMN operator INTEGER NOT NULL DEFAULT 0;

-- Whoever had the first key of an organisation ran the place.
UPDATE api_key SET operator = 1
WHERE workspace_id IS NULL AND revoked_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM api_key earlier
    WHERE earlier.organization_id = api_key.organization_id AND earlier.workspace_id IS NULL
      AND earlier.revoked_at IS NULL
      AND (earlier.created_at, earlier.id) < (api_key.created_at, api_key.id)
);

-- Paused so that it gets empty. A pool that drains is paused too.
ALTER TABLE pool ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;

-- What operators look for among very many jobs that went well.
CREATE INDEX job_badly_over ON job (id) WHERE state IN ('failed', 'cancelled', 'timed_out');

-- When a worker was asked to drain. It has heard of it once it is seen after that.
ALTER TABLE worker ADD COLUMN drain_at INTEGER;
