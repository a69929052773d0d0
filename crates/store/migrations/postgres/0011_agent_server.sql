-- The log of a thread in the order in which it was committed. Ids of events do not give that order: a run at work makes them
-- by its worker's clock, and the end of another run is logged by another process meanwhile. A reader goes by the position, so
-- it passes over nothing that is logged later. Whoever logs holds a lock of the thread until the commit:
-- `store/src/run_events.rs`.
ALTER TABLE run_event ADD COLUMN log_position bigint NOT NULL DEFAULT 0;
UPDATE run_event SET log_position = placed.nth
FROM (SELECT thread_id, last_ms, last_seq, id,
             row_number() OVER (PARTITION BY thread_id ORDER BY last_ms, last_seq, id) AS nth
      FROM run_event) AS placed
WHERE run_event.thread_id = placed.thread_id AND run_event.last_ms = placed.last_ms
  AND run_event.last_seq = placed.last_seq AND run_event.id = placed.id;
-- For processes of the version before, which do not name the column. Positions are microseconds, so that they go on rising
-- when everything before them was pruned.
ALTER TABLE run_event
    ALTER COLUMN log_position SET DEFAULT CAST(extract(epoch FROM towpath_now()) * 1000000 AS bigint);
-- Its index is made beside the work: see `store/src/postgres/indexes.rs`.

-- Where the thread stood before its open runs: there it stands again when they are taken back, or cancelled before they began.
-- Absent until the first run after this migration.
ALTER TABLE thread ADD COLUMN rest_status text;

-- Who made the cron, where callers have names: JSON, as the auth of the graphs' author gave it. Its runs are that caller's.
ALTER TABLE cron ADD COLUMN caller text;
