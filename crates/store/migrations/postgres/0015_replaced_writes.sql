-- What a run replaced among the writes of tasks (answers, interrupts, errors), as it was before, so that taking back the
-- run brings it back. Goes with its checkpoint.
CREATE TABLE replaced_write (
    thread_id     text    NOT NULL,
    checkpoint_ns text    NOT NULL,
    checkpoint_id text    NOT NULL,
    task_id       text    NOT NULL,
    idx           integer NOT NULL,
    replaced_by   text    NOT NULL,                             -- a run
    channel       text    NOT NULL,
    type          text,
    blob          bytea   NOT NULL,
    task_path     text    NOT NULL,
    run_id        text,                                         -- who had written it
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, replaced_by)
);
