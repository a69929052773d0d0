//! The tables of a world, looked at past the product.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};
use towpath_tests::World;

/// A connection of the test's own.
pub enum Tables {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Tables {
    /// Those of `world`.
    ///
    /// # Panics
    /// If they cannot be reached.
    pub async fn of(world: &World) -> Self {
        if let Some(database) = &world.database {
            return Self::Postgres(database.connect().await);
        }
        Self::file(world, "towpath.db").await
    }

    /// Those of `world` and of the agent server of `dev`, which has a database of its own; each with its name.
    ///
    /// # Panics
    /// If they cannot be reached.
    pub async fn all(world: &World) -> Vec<(&'static str, Self)> {
        if world.database.is_some() {
            return vec![("the database", Self::of(world).await)];
        }
        let mut all = Vec::new();
        for name in ["towpath.db", "agent.db"] {
            all.push((name, Self::file(world, name).await));
        }
        all
    }

    async fn file(world: &World, name: &str) -> Self {
        let uri = format!("sqlite://{}", world.data().join(name).display());
        let opened = SqliteConnection::connect(&uri).await;
        Self::Sqlite(opened.expect("the world's database is there"))
    }

    /// The answer to a question that both databases understand.
    pub async fn count(&mut self, question: &'static str) -> i64 {
        let counted = match self {
            Self::Sqlite(tables) => sqlx::query_scalar(question).fetch_one(tables).await,
            Self::Postgres(tables) => sqlx::query_scalar(question).fetch_one(tables).await,
        };
        counted.unwrap_or_else(|error| panic!("{question}: {error}"))
    }

    /// How many jobs the process `pid` performs.
    ///
    /// # Panics
    /// When the database refuses.
    pub async fn held_by(&mut self, pid: u32) -> i64 {
        const QUESTION: &str =
            "SELECT count(*) FROM job j JOIN worker w ON w.id = j.worker_id WHERE j.state = 'running' AND w.pid = $1";
        let pid = i64::from(pid);
        let counted = match self {
            Self::Sqlite(tables) => sqlx::query_scalar(QUESTION).bind(pid).fetch_one(tables).await,
            Self::Postgres(tables) => sqlx::query_scalar(QUESTION).bind(pid).fetch_one(tables).await,
        };
        counted.unwrap_or_else(|error| panic!("{QUESTION}: {error}"))
    }

    /// A column of texts.
    pub async fn texts(&mut self, question: &'static str) -> Vec<String> {
        let read = match self {
            Self::Sqlite(tables) => sqlx::query_scalar(question).fetch_all(tables).await,
            Self::Postgres(tables) => sqlx::query_scalar(question).fetch_all(tables).await,
        };
        read.unwrap_or_else(|error| panic!("{question}: {error}"))
    }

    /// Moves the times of some rows to long ago: `column` in the rows of `table` for which `rows` holds.
    pub async fn age(&mut self, table: &str, column: &str, rows: &str) {
        self.move_to(("0", "'1970-01-02'"), table, column, rows).await;
    }

    /// Replaces a time by one that no test sees, in microseconds the year 2255.
    ///
    /// # Panics
    /// When the database refuses.
    pub async fn postpone(&mut self, table: &str, column: &str, rows: &str) {
        self.move_to(("9000000000000000", "'2255-03-14'"), table, column, rows)
            .await;
    }

    async fn move_to(&mut self, (micros, timestamp): (&str, &str), table: &str, column: &str, rows: &str) {
        let update = |then: &str| AssertSqlSafe(format!("UPDATE {table} SET {column} = {then} WHERE {rows}"));
        let done = match self {
            Self::Sqlite(tables) => tables.execute(update(micros)).await.map(drop),
            Self::Postgres(tables) => tables.execute(update(timestamp)).await.map(drop),
        };
        done.unwrap_or_else(|error| panic!("{table}.{column}: {error}"));
    }

    /// Forgets how many workers died of jobs: a drill that kills on purpose is not a sign of a job that kills.
    ///
    /// # Panics
    /// When the database refuses.
    pub async fn forgive(&mut self) {
        const UPDATE: &str = "UPDATE job SET lost_leases = 0 WHERE lost_leases > 0";
        let done = match self {
            Self::Sqlite(tables) => tables.execute(UPDATE).await.map(drop),
            Self::Postgres(tables) => tables.execute(UPDATE).await.map(drop),
        };
        done.unwrap_or_else(|error| panic!("job.lost_leases: {error}"));
    }
}
