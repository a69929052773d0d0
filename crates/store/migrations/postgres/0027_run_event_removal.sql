-- The last event of a run that was removed from the log of its thread: a reader that resumes before it has missed
-- events. No foreign key: the sweep that writes it locks no thread. The row goes with the log of its thread.
CREATE TABLE run_event_removal (
    thread_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    last_ms   bigint NOT NULL,
    last_seq  bigint NOT NULL
);
