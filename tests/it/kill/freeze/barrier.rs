//! A transaction of the test that another transaction waits for, so that a process can be stopped in the middle of its
//! own.

use sqlx::{Connection, Executor, PgConnection};
use towpath_tests::World;
use uuid::Uuid;

/// Closed it holds a row. A session that waits for the row gets it as soon as the barrier is open.
pub struct Barrier {
    tables: PgConnection,
    session: i32,
}

impl Barrier {
    pub async fn new(world: &World) -> Self {
        let database = world.database.as_ref().expect("a cluster has a database");
        let mut tables = database.connect().await;
        let session = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut tables)
            .await;
        Self {
            tables,
            session: session.expect("the database of this test is there"),
        }
    }

    /// The session that others wait for.
    pub fn session(&self) -> i32 {
        self.session
    }

    /// Holds the row of a job that runs now. `question` finds and locks one, and gives the process that performs it;
    /// without one the barrier stays open.
    pub async fn close_at_job(&mut self, question: &'static str) -> Option<i64> {
        self.say("BEGIN").await;
        let found = sqlx::query_scalar(question).fetch_optional(&mut self.tables).await;
        let found = found.unwrap_or_else(|error| panic!("{question}: {error}"));
        if found.is_none() {
            self.say("ROLLBACK").await;
        }
        found
    }

    /// Holds the row of a run.
    pub async fn close_at_run(&mut self, run: &str) {
        let run: Uuid = run.parse().expect("a run has an id");
        self.say("BEGIN").await;
        let held = sqlx::query("SELECT id FROM run WHERE id = $1 FOR UPDATE")
            .bind(run)
            .fetch_one(&mut self.tables)
            .await;
        held.expect("the run is recorded");
    }

    /// Holds the name of a project that is not there yet.
    pub async fn close_at_project(&mut self, tenant: Uuid, name: &str) {
        self.say("BEGIN").await;
        let made = sqlx::query("INSERT INTO project (id, tenant_id, name, start_time) VALUES ($1, $2, $3, now())")
            .bind(Uuid::now_v7())
            .bind(tenant)
            .bind(name)
            .execute(&mut self.tables)
            .await;
        made.expect("nobody has a project of that name");
    }

    /// Lets go of the row as it was.
    pub async fn open(mut self) {
        self.say("ROLLBACK").await;
        self.tables.close().await.expect("the database of this test is there");
    }

    async fn say(&mut self, statement: &'static str) {
        let done = self.tables.execute(statement).await;
        done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}
