-- One lease for each worker instead of one for each job. A running job names its worker; whether that one may keep its jobs
-- says its row here, which nobody locks but who renews or ends it. A running job whose worker has no row here is taken back.
-- A worker that lost its lease goes on under a new id, so an id that has no row any more never gets one again.
--
-- No column of `job` or `worker` changes: old processes that are still running have cached statements that read all columns,
-- which PostgreSQL refuses once there is one more.
CREATE TABLE lease (
    worker_id   uuid PRIMARY KEY,
    alive_until timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- `job.lease_until` is set by old processes alone. What they claimed is taken back when it has passed.
DO $$
DECLARE
    name text;
BEGIN
    SELECT conname INTO STRICT name FROM pg_constraint
    WHERE conrelid = 'job'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%lease_until%';
    EXECUTE format('ALTER TABLE job DROP CONSTRAINT %I', name);
END
$$;
-- NOT VALID spares reading the table, and the constraint that was there before says more.
ALTER TABLE job ADD CONSTRAINT job_lease_until_check CHECK (lease_until IS NULL OR state = 'running') NOT VALID;

-- The indexes that go with it are made without locking the table: see `store/src/postgres/indexes.rs`.
