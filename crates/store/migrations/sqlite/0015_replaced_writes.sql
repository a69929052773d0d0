-- What a run replaced among the writes of tasks (answers, interrupts, errors), as it was before, so that taking back the
-- run brings it back. Goes with its checkpoint.
CREATE TABLE replaced_write (
    thread_id     TEXT    NOT NULL,
    checkpoint_ns TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    idx           INTEGER NOT NULL,
    replaced_by   TEXT    NOT NULL,                             -- a run
    channel       TEXT    NOT NULL,
    type          TEXT,
    blob          BLOB    NOT NULL,
    task_path     TEXT    NOT NULL,
    run_id        TEXT,                                         -- who had written it
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, replaced_by)
) STRICT;
