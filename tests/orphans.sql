-- Rows left behind by jobs that are over. A job ends in the transaction that settles its business rows, so each of
-- these counts is 0 at every moment, whatever was killed. One statement after each name; both databases read them. A job
-- that is over may have left for `job_history`.

-- exports left running by a job that is over
SELECT count(*) FROM export e
    JOIN (SELECT id, finished_at FROM job UNION ALL SELECT id, finished_at FROM job_history) j ON j.id = e.job_id
    WHERE e.finished_at IS NULL AND j.finished_at IS NOT NULL;

-- export runs left running by a job that is over
SELECT count(*) FROM export_run r
    JOIN (SELECT id, finished_at FROM job UNION ALL SELECT id, finished_at FROM job_history) j ON j.id = r.job_id
    WHERE r.finished_at IS NULL AND j.finished_at IS NOT NULL;

-- revisions left unfinished by a job that is over
SELECT count(*) FROM revision r
    JOIN (SELECT id, finished_at FROM job UNION ALL SELECT id, finished_at FROM job_history) j ON j.id = r.job_id
    WHERE r.finished_at IS NULL AND j.finished_at IS NOT NULL;

-- deployments that wait to be deleted by nobody
SELECT count(*) FROM deployment d WHERE d.status = 'AWAITING_DELETE'
    AND NOT EXISTS (SELECT 1 FROM job j WHERE j.kind = 'delete_deployment' AND j.finished_at IS NULL AND j.tenant_id = d.tenant_id);

-- runs of agents left pending by a job that is over
SELECT count(*) FROM run r
    JOIN (SELECT id, finished_at FROM job UNION ALL SELECT id, finished_at FROM job_history) j ON j.id = r.job_id
    WHERE r.status = 'pending' AND j.finished_at IS NOT NULL;

-- threads left busy without a run
SELECT count(*) FROM thread t WHERE t.status = 'busy'
    AND NOT EXISTS (SELECT 1 FROM run r WHERE r.thread_id = t.id AND r.status = 'pending');

-- parents that wait for children which are over
SELECT count(*) FROM job p WHERE p.state = 'waiting'
    AND NOT EXISTS (SELECT 1 FROM job c WHERE c.parent_id = p.id AND c.finished_at IS NULL);

-- children that go on when their parent is over
SELECT count(*) FROM job c
    JOIN (SELECT id, finished_at FROM job UNION ALL SELECT id, finished_at FROM job_history) p ON p.id = c.parent_id
    WHERE p.finished_at IS NOT NULL AND c.state IN ('ready', 'blocked', 'scheduled', 'waiting') AND c.cancel_at IS NULL;

-- lanes that count other places than are held
SELECT count(*) FROM lane l
    WHERE l.held <> (SELECT count(*) FROM job j WHERE j.lane = l.key AND j.lane_held AND j.finished_at IS NULL);
