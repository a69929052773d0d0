//! The databases of a site, looked at past the product: what is open, what is to be tidied up, how much there is.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Executor};
use towpath_tests::World;

use crate::tables::Tables;

/// What is counted, of how many seconds ago (`AGO`), and the question, which both databases understand.
type CountQuery = (&'static str, i64, &'static str);

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// What must not be there once work has come to rest. Jobs that are scheduled for later may be, unless they back off.
const OPEN: [CountQuery; 5] = [
    (
        "jobs at work",
        0,
        "SELECT count(*) FROM job WHERE state IN ('ready', 'running', 'waiting', 'blocked')",
    ),
    (
        "jobs that are due or tried again",
        0,
        "SELECT count(*) FROM job WHERE state = 'scheduled' AND (run_at <= AGO OR failures > 0 OR lost_leases > 0)",
    ),
    (
        "units that are not folded",
        0,
        "SELECT count(*) FROM wal_unit WHERE state = 'open'",
    ),
    (
        "runs that are not over",
        0,
        "SELECT count(*) FROM run WHERE status = 'pending'",
    ),
    (
        "exports that are not over",
        0,
        "SELECT count(*) FROM export WHERE finished_at IS NULL",
    ),
];

/// What must not be there once everything that tidies up has had its turn. Each is asked for a little later than the
/// product promises.
const OVERDUE: [CountQuery; 10] = [
    (
        "jobs that have been over for long among the open ones",
        HOUR,
        "SELECT count(*) FROM job j WHERE j.finished_at < AGO AND NOT j.dead
             AND NOT EXISTS (SELECT 1 FROM job p WHERE p.id = j.parent_id AND (p.finished_at IS NULL OR p.dead))",
    ),
    (
        "jobs past their time in the history",
        14 * DAY + HOUR,
        "SELECT count(*) FROM job_history WHERE over_at < AGO",
    ),
    (
        "answers past their day",
        DAY + HOUR,
        "SELECT count(*) FROM idempotency WHERE created_at < AGO",
    ),
    (
        "units that were folded",
        HOUR,
        "SELECT count(*) FROM wal_unit WHERE state = 'folded' AND folded_at < AGO",
    ),
    (
        "workers that are gone",
        2 * HOUR,
        "SELECT count(*) FROM worker WHERE seen_at < AGO",
    ),
    (
        "threads past their time",
        HOUR,
        "SELECT count(*) FROM thread WHERE expires_at < AGO",
    ),
    (
        "items past their time",
        HOUR,
        "SELECT count(*) FROM store_item WHERE expires_at < AGO",
    ),
    (
        "events past their time",
        HOUR,
        "SELECT count(*) FROM run_event WHERE expires_at < AGO",
    ),
    (
        "segments that were replaced",
        HOUR,
        "SELECT count(*) FROM segment WHERE state <> 'live' AND changed_at < AGO",
    ),
    (
        "index files that were replaced",
        HOUR,
        "SELECT count(*) FROM run_index WHERE state <> 'live' AND changed_at < AGO",
    ),
];

/// Open jobs, for the text of a failure.
const JOBS: &str = "SELECT kind || ' ' || state || ', attempt ' || attempt || ', ' || failures || ' failures, '
                        || lost_leases || ' lost leases: ' || coalesce(error, '')
                    FROM job WHERE finished_at IS NULL";
const DEAD: &str = "SELECT kind || ' after ' || attempt || ' attempts: ' || coalesce(error, '') FROM job WHERE dead";
const SQLITE_TABLES: &str =
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1";
const POSTGRES_TABLES: &str = "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                               WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') ORDER BY 1";
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                               AND backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// A database.
pub struct Store {
    pub name: &'static str,
    tables: Tables,
}

impl Store {
    /// Those of a site. Without agent servers of their own, the platform's process has a second file for them.
    pub async fn all(platform: &World, agents: Option<&World>) -> Vec<Self> {
        let mut stores = Vec::new();
        if let Some(agents) = agents {
            for (name, world) in [("platform", platform), ("agents", agents)] {
                let tables = Tables::of(world).await;
                stores.push(Self { name, tables });
            }
        } else {
            for (file, tables) in Tables::all(platform).await {
                let name = if file == "agent.db" { "agents" } else { "platform" };
                stores.push(Self { name, tables });
            }
        }
        for store in &mut stores {
            if store.is_postgres() {
                // What the test asks is not what the product costs.
                store.execute("SET pg_stat_statements.track = 'none'").await;
            }
        }
        stores
    }

    pub const fn is_postgres(&self) -> bool {
        matches!(self.tables, Tables::Postgres(_))
    }

    /// What is open at `now`, in microseconds.
    pub async fn open(&mut self, now: i64) -> Vec<String> {
        self.answers(&OPEN, now).await
    }

    /// What should have been tidied up at `now`.
    pub async fn overdue(&mut self, now: i64) -> Vec<String> {
        self.answers(&OVERDUE, now).await
    }

    pub async fn jobs(&mut self) -> Vec<String> {
        self.tables.texts(JOBS).await
    }

    pub async fn dead(&mut self) -> Vec<String> {
        self.tables.texts(DEAD).await
    }

    /// Rows of every table.
    pub async fn rows(&mut self) -> BTreeMap<String, i64> {
        let names = if self.is_postgres() {
            POSTGRES_TABLES
        } else {
            SQLITE_TABLES
        };
        let mut rows = BTreeMap::new();
        for table in self.tables.texts(names).await {
            let count = self.number(&format!("SELECT count(*) FROM \"{table}\"")).await;
            rows.insert(table, count);
        }
        rows
    }

    /// Connections of the product to it, and its bytes; `None` for a file, which others measure.
    pub async fn server(&mut self) -> Option<(i64, i64)> {
        if !self.is_postgres() {
            return None;
        }
        let bytes = self.number("SELECT pg_database_size(current_database())").await;
        Some((self.number(CONNECTIONS).await, bytes))
    }

    /// Its name on its server.
    pub async fn database(&mut self) -> String {
        let mut names = self.tables.texts("SELECT current_database()::text").await;
        names.pop().expect("one row")
    }

    /// Moves the clock of a PostgreSQL database as far ahead; SQLite has that of its process.
    pub async fn move_clock(&mut self, offset_ms: i64) {
        if self.is_postgres() {
            self.execute(&format!(
                "CREATE OR REPLACE FUNCTION towpath_now(known timestamptz DEFAULT NULL) RETURNS timestamptz
                 LANGUAGE sql STABLE PARALLEL SAFE
                 AS $$ SELECT coalesce(known, clock_timestamp() + interval '{offset_ms} milliseconds') $$"
            ))
            .await;
        }
    }

    /// Does what autovacuum does in a day of the machine: it has no time for that in a day of the test.
    pub async fn vacuum(&mut self) {
        if self.is_postgres() {
            self.execute("VACUUM ANALYZE").await;
        }
    }

    pub async fn execute(&mut self, statement: &str) {
        let text = AssertSqlSafe(statement.to_owned());
        let done = match &mut self.tables {
            Tables::Sqlite(tables) => tables.execute(text).await.map(drop),
            Tables::Postgres(tables) => tables.execute(text).await.map(drop),
        };
        done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// The answer to a question for one number.
    pub async fn number(&mut self, question: &str) -> i64 {
        let text = AssertSqlSafe(question.to_owned());
        let found = match &mut self.tables {
            Tables::Sqlite(tables) => sqlx::query_scalar(text).fetch_one(tables).await,
            Tables::Postgres(tables) => sqlx::query_scalar(text).fetch_one(tables).await,
        };
        found.unwrap_or_else(|error| panic!("{question}: {error}"))
    }

    /// The questions that are not answered with 0.
    async fn answers(&mut self, questions: &[CountQuery], now: i64) -> Vec<String> {
        let mut found = Vec::new();
        for (what, seconds, question) in questions {
            let ago = match self.tables {
                Tables::Sqlite(_) => (now - seconds * 1_000_000).to_string(),
                Tables::Postgres(_) => format!("(towpath_now() - interval '{seconds} seconds')"),
            };
            let count = self.number(&question.replace("AGO", &ago)).await;
            if count > 0 {
                found.push(format!("{count} {what} ({})", self.name));
            }
        }
        found
    }
}
