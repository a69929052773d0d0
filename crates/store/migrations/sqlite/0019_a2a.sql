-- Tasks of the Agent2Agent protocol. The id is that of the run that began the task; `run_id` is its last run. `state` is set when a run
-- of it is recorded and when the last one ends; whether a submitted task is worked on is what the run's job says. `outcome` is what the
-- last run left (JSON): the thread goes on, and its state changes. The rows go with their thread.
CREATE TABLE a2a_task (
    id           BLOB PRIMARY KEY NOT NULL,
    tenant_id    BLOB NOT NULL,
    assistant_id BLOB NOT NULL,
    thread_id    BLOB NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    run_id       BLOB NOT NULL,
    state        TEXT NOT NULL DEFAULT 'submitted'
        CHECK (state IN ('submitted', 'completed', 'failed', 'canceled', 'input-required')),
    outcome      TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX a2a_task_listing ON a2a_task (tenant_id, assistant_id, updated_at DESC, id DESC);
CREATE INDEX a2a_task_listing_of_state ON a2a_task (tenant_id, assistant_id, state, updated_at DESC, id DESC);
CREATE INDEX a2a_task_of_thread ON a2a_task (thread_id);
CREATE UNIQUE INDEX a2a_task_of_run ON a2a_task (run_id);

-- The runs of a task that are not over. A row goes when its run ends, or with its task.
CREATE TABLE a2a_task_run (
    run_id    BLOB PRIMARY KEY NOT NULL,
    tenant_id BLOB NOT NULL,
    task_id   BLOB NOT NULL REFERENCES a2a_task (id) ON DELETE CASCADE
) STRICT;
CREATE INDEX a2a_task_run_of_task ON a2a_task_run (task_id);

-- Addresses that are told when a task comes to an end or to a question. `name` is the client's id. Token and credentials are for
-- the receiver: no answer shows them.
CREATE TABLE a2a_push_config (
    id          BLOB PRIMARY KEY NOT NULL,
    tenant_id   BLOB NOT NULL,
    task_id     BLOB NOT NULL REFERENCES a2a_task (id) ON DELETE CASCADE,
    name        TEXT NOT NULL,
    url         TEXT NOT NULL,
    token       TEXT,
    scheme      TEXT,
    credentials TEXT,
    dialect     TEXT NOT NULL CHECK (dialect IN ('0.3', '1.0')),
    created_at  INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX a2a_push_config_name ON a2a_push_config (task_id, name);
