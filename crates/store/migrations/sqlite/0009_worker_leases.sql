-- One lease for each worker instead of one for each job. A running job names its worker; whether that one may keep its jobs
-- says its row here. A running job whose worker has no row here is taken back. A worker that lost its lease goes on under a
-- new id, so an id that has no row any more never gets one again.
CREATE TABLE lease (
    worker_id   BLOB PRIMARY KEY NOT NULL,
    alive_until INTEGER NOT NULL
) STRICT;

-- `job.lease_until` is read by nobody any more. It still gets the time of the claim: the CHECK that wants it set while a job
-- runs could be changed only by copying the table.

-- Jobs at work, by their worker.
CREATE INDEX job_worker ON job (worker_id, pool) WHERE state = 'running';
DROP INDEX job_lease;
-- Jobs that lost two leases in a row. They are claimed one at a time.
CREATE INDEX job_suspect ON job (pool, run_at) WHERE state = 'scheduled' AND lost_leases >= 2;
