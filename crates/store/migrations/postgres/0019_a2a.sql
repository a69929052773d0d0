-- Tasks of the Agent2Agent protocol. The id is that of the run that began the task; `run_id` is its last run, whose row says where
-- the task stands. `outcome` is what that run left (JSON): the thread goes on, and its state changes. A task whose last run was
-- deleted is not shown. The rows go with their thread.
CREATE TABLE a2a_task (
    id           uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL,
    assistant_id uuid NOT NULL,
    thread_id    uuid NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    run_id       uuid NOT NULL,
    canceled     boolean NOT NULL DEFAULT false,  -- while it waited for an answer
    outcome      text,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL
);
CREATE INDEX a2a_task_listing ON a2a_task (tenant_id, assistant_id, updated_at DESC, id DESC);
CREATE INDEX a2a_task_of_thread ON a2a_task (thread_id);
CREATE UNIQUE INDEX a2a_task_of_run ON a2a_task (run_id);

-- Addresses that are told when a task comes to an end or to a question. `name` is the client's id. Token and credentials are for
-- the receiver: no answer shows them.
CREATE TABLE a2a_push_config (
    id          uuid PRIMARY KEY,
    tenant_id   uuid NOT NULL,
    task_id     uuid NOT NULL REFERENCES a2a_task (id) ON DELETE CASCADE,
    name        text NOT NULL,
    url         text NOT NULL,
    token       text,
    scheme      text,
    credentials text,
    dialect     text NOT NULL CHECK (dialect IN ('0.3', '1.0')),
    created_at  timestamptz NOT NULL
);
CREATE UNIQUE INDEX a2a_push_config_name ON a2a_push_config (task_id, name);
