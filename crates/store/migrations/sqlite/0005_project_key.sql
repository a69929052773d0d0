-- A project's id is unique in its workspace only. Clients choose ids, and a refusal of one that another workspace has told
-- that it exists. `id` comes first, since the dashboard looks for an id in all workspaces.
CREATE TABLE project_in_workspace (
    id                   BLOB NOT NULL,
    tenant_id            BLOB NOT NULL,
    name                 TEXT NOT NULL,
    description          TEXT,
    extra                TEXT,  -- JSON object
    reference_dataset_id BLOB,
    start_time           INTEGER NOT NULL,
    end_time             INTEGER,
    PRIMARY KEY (id, tenant_id),
    UNIQUE (tenant_id, name)
) STRICT;
INSERT INTO project_in_workspace (id, tenant_id, name, description, extra, reference_dataset_id, start_time, end_time)
    SELECT id, tenant_id, name, description, extra, reference_dataset_id, start_time, end_time FROM project;
DROP TABLE project;
ALTER TABLE project_in_workspace RENAME TO project;
CREATE INDEX project_listing ON project (tenant_id, start_time DESC, id);
