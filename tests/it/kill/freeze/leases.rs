//! Workers, their jobs and their sessions, looked at past the product.

use sqlx::PgConnection;
use towpath_tests::World;
use uuid::Uuid;

/// A connection of the test's own.
pub struct Leases {
    tables: PgConnection,
}

impl Leases {
    pub async fn of(world: &World) -> Self {
        let database = world.database.as_ref().expect("a cluster has a database");
        Self {
            tables: database.connect().await,
        }
    }

    /// The worker that has a lease in the process `pid`.
    pub async fn worker(&mut self, pid: u32) -> Option<Uuid> {
        let found = sqlx::query_scalar("SELECT w.id FROM worker w JOIN lease l ON l.worker_id = w.id WHERE w.pid = $1")
            .bind(i64::from(pid))
            .fetch_optional(&mut self.tables)
            .await;
        found.expect("the tables are there")
    }

    /// The jobs that a worker performs.
    pub async fn held(&mut self, worker: Uuid) -> Vec<Uuid> {
        let found = sqlx::query_scalar("SELECT id FROM job WHERE state = 'running' AND worker_id = $1")
            .bind(worker)
            .fetch_all(&mut self.tables)
            .await;
        found.expect("the tables are there")
    }

    /// How many of these jobs wait for a worker, or are still those of `worker`.
    pub async fn left(&mut self, jobs: &[Uuid], worker: Uuid) -> i64 {
        let question = "SELECT count(*) FROM job
                        WHERE id = ANY($1) AND (state IN ('scheduled', 'blocked', 'ready') OR worker_id = $2)";
        let counted = sqlx::query_scalar(question)
            .bind(jobs.to_vec())
            .bind(worker)
            .fetch_one(&mut self.tables)
            .await;
        counted.expect("the tables are there")
    }

    /// How many jobs were taken back from a worker.
    pub async fn taken_back(&mut self, worker: Uuid) -> i64 {
        let counted = sqlx::query_scalar("SELECT count(*) FROM attempt WHERE outcome = 'lost' AND worker_id = $1")
            .bind(worker)
            .fetch_one(&mut self.tables)
            .await;
        counted.expect("the tables are there")
    }

    /// How many jobs were taken back from other workers than these.
    pub async fn taken_back_from_others(&mut self, workers: &[Uuid]) -> i64 {
        let counted =
            sqlx::query_scalar("SELECT count(*) FROM attempt WHERE outcome = 'lost' AND worker_id <> ALL($1)")
                .bind(workers.to_vec())
                .fetch_one(&mut self.tables)
                .await;
        counted.expect("the tables are there")
    }

    /// How many steps were recorded by an attempt after its job was taken back.
    pub async fn steps_of_lost_attempts(&mut self) -> i64 {
        let question = "SELECT count(*) FROM step s JOIN attempt a ON a.job_id = s.job_id AND a.fence = s.fence
                        WHERE a.outcome = 'lost' AND s.at > a.at";
        let counted = sqlx::query_scalar(question).fetch_one(&mut self.tables).await;
        counted.expect("the tables are there")
    }

    /// A session that waits for another one.
    pub async fn waiting_for(&mut self, session: i32) -> Option<i32> {
        let found =
            sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)) LIMIT 1")
                .bind(session)
                .fetch_optional(&mut self.tables)
                .await;
        found.expect("the server says who waits for whom")
    }

    /// What a session is doing; `None` once it has ended.
    pub async fn state_of(&mut self, session: i32) -> Option<String> {
        let found = sqlx::query_scalar("SELECT coalesce(state, '') FROM pg_stat_activity WHERE pid = $1")
            .bind(session)
            .fetch_optional(&mut self.tables)
            .await;
        found.expect("the server knows its sessions")
    }
}
