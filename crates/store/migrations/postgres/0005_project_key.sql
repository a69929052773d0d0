-- A project's id is unique in its workspace only. Clients choose ids, and a refusal of one that another workspace has told
-- that it exists. `id` comes first, since the dashboard looks for an id in all workspaces.
ALTER TABLE project DROP CONSTRAINT project_pkey, ADD PRIMARY KEY (id, tenant_id);
