-- What may pile up beside trace runs is counted and collected: patches that wait for their trace run, files that were
-- replaced, files whose trace run never came.

-- What waits in `pending_patch`, by workspace. Triggers keep it, because processes of earlier builds write there too.
CREATE TABLE pending_usage (
    tenant_id uuid PRIMARY KEY,
    patches   bigint NOT NULL,
    bytes     bigint NOT NULL  -- of their operations
);

-- Rows are counted in the order of workspaces, so that two statements lock them in the same order.
CREATE FUNCTION count_pending_patches() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    direction integer := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    INSERT INTO pending_usage AS known (tenant_id, patches, bytes)
    SELECT changed.tenant_id, direction * count(*), direction * sum(octet_length(changed.operation))
    FROM changed GROUP BY changed.tenant_id ORDER BY changed.tenant_id
    ON CONFLICT (tenant_id) DO UPDATE
    SET patches = known.patches + excluded.patches, bytes = known.bytes + excluded.bytes;
    RETURN NULL;
END $$;

CREATE TRIGGER pending_patch_added AFTER INSERT ON pending_patch
REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_pending_patches();

CREATE TRIGGER pending_patch_removed AFTER DELETE ON pending_patch
REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_pending_patches();

INSERT INTO pending_usage (tenant_id, patches, bytes)
SELECT tenant_id, count(*), sum(octet_length(operation)) FROM pending_patch GROUP BY tenant_id;

-- For the oldest of a workspace, which are dropped first.
CREATE INDEX pending_patch_oldest ON pending_patch (tenant_id, seq);

-- Objects of attachments that no row of `attachment` names any more: a later file took the place of theirs, or their trace
-- run is gone. Links that were read before still lead to them for a while.
CREATE TABLE attachment_waste (
    path      text PRIMARY KEY,
    tenant_id uuid NOT NULL,
    run_id    uuid NOT NULL,
    name      text NOT NULL,
    since     timestamptz NOT NULL
);
CREATE INDEX attachment_waste_age ON attachment_waste (since, path);

-- In this order old attachments are looked at, each once.
CREATE INDEX attachment_age ON attachment (created_at, tenant_id, run_id, name);

-- How far sweeps that walk through a table have come.
CREATE TABLE sweep_cursor (
    name     text PRIMARY KEY,
    position text NOT NULL  -- JSON
);
