-- What may pile up beside trace runs is counted and collected: patches that wait for their trace run, files that were
-- replaced, files whose trace run never came.

-- What waits in `pending_patch`, by workspace. Triggers keep it, because processes of earlier builds write there too.
CREATE TABLE pending_usage (
    tenant_id BLOB PRIMARY KEY,
    patches   INTEGER NOT NULL,
    bytes     INTEGER NOT NULL  -- of their operations
) STRICT;

CREATE TRIGGER pending_patch_added AFTER INSERT ON pending_patch BEGIN
    INSERT INTO pending_usage (tenant_id, patches, bytes)
    VALUES (new.tenant_id, 1, octet_length(new.operation))
    ON CONFLICT (tenant_id) DO UPDATE SET patches = patches + excluded.patches, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER pending_patch_removed AFTER DELETE ON pending_patch BEGIN
    INSERT INTO pending_usage (tenant_id, patches, bytes)
    VALUES (old.tenant_id, -1, -octet_length(old.operation))
    ON CONFLICT (tenant_id) DO UPDATE SET patches = patches + excluded.patches, bytes = bytes + excluded.bytes;
END;

INSERT INTO pending_usage (tenant_id, patches, bytes)
SELECT tenant_id, count(*), sum(octet_length(operation)) FROM pending_patch GROUP BY tenant_id;

-- For the oldest of a workspace, which are dropped first.
CREATE INDEX pending_patch_oldest ON pending_patch (tenant_id, seq);

-- Objects of attachments that no row of `attachment` names any more: a later file took the place of theirs, or their trace
-- run is gone. Links that were read before still lead to them for a while.
CREATE TABLE attachment_waste (
    path      TEXT PRIMARY KEY,
    tenant_id BLOB NOT NULL,
    run_id    BLOB NOT NULL,
    name      TEXT NOT NULL,
    since     INTEGER NOT NULL
) STRICT;
CREATE INDEX attachment_waste_age ON attachment_waste (since, path);

-- In this order old attachments are looked at, each once.
CREATE INDEX attachment_age ON attachment (created_at, tenant_id, run_id, name);

-- How far sweeps that walk through a table have come.
CREATE TABLE sweep_cursor (
    name     TEXT PRIMARY KEY,
    position TEXT NOT NULL  -- JSON
) STRICT;
