//! What `towpath bench soak` asks of its database.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, FromRow, PgConnection, SqliteConnection};
use towpath_domain::Timestamp;

use super::BaselineConnection;
use super::statements::{Cost, Costs};
use crate::error::Result;

/// Rows of the engine's tables.
#[derive(Clone, Copy, Debug, FromRow, Serialize)]
pub struct Rows {
    pub job: i64,
    pub job_history: i64,
    pub lane: i64,
    pub step: i64,
    pub attempt: i64,
}

const ROWS: &str = "SELECT (SELECT count(*) FROM job) AS job, (SELECT count(*) FROM job_history) AS job_history,
     (SELECT count(*) FROM lane) AS lane, (SELECT count(*) FROM step) AS step, (SELECT count(*) FROM attempt) AS attempt";

/// Processes as the database sees them.
#[derive(Clone, Copy, Debug, FromRow, Serialize)]
pub struct Processes {
    /// Rows of `worker`.
    pub worker: i64,
    /// Rows of `lease`.
    pub lease: i64,
    /// Connections of PostgreSQL to this database, but for the one that asks; 0 on SQLite.
    pub connections: i64,
}

/// How the jobs of a day ended.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Outcomes {
    /// Jobs that succeeded.
    pub succeeded: i64,
    /// Jobs that ended otherwise.
    pub bad: i64,
    /// Unfinished jobs.
    pub open: i64,
    /// Attempts that ended with the lease of their worker.
    pub lost: i64,
}

const OUTCOMES: &str = "SELECT count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
     count(*) FILTER (WHERE finished_at IS NOT NULL AND state <> 'succeeded') AS bad,
     count(*) FILTER (WHERE finished_at IS NULL) AS open,
     (SELECT count(*) FROM attempt WHERE outcome = 'lost' AND at >= $1) AS lost
     FROM job WHERE created_at >= $1";

/// Space that the database takes.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Tables and indexes; on SQLite the file and its log.
    pub bytes: i64,
    /// Pages of the SQLite file.
    pub pages: Option<Pages>,
}

/// Pages of a file.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pages {
    pub all: i64,
    /// Those that hold nothing and are used again.
    pub free: i64,
}

/// The engine's tables in the order in which they are vacuumed.
const VACUUM: [&str; 7] = [
    "VACUUM ANALYZE job",
    "VACUUM ANALYZE job_history",
    "VACUUM ANALYZE lane",
    "VACUUM ANALYZE step",
    "VACUUM ANALYZE attempt",
    "VACUUM ANALYZE lease",
    "VACUUM ANALYZE worker",
];

/// The statements of this database so far.
const COSTS: &str =
    "SELECT coalesce(query, ''), calls, rows, shared_blks_hit + shared_blks_read FROM pg_stat_statements
     WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// A dedicated connection without statement timeouts: it counts whole tables.
pub struct Probe {
    own: BaselineConnection,
    /// The SQLite file.
    file: Option<PathBuf>,
    /// Why the blocks of statements are not counted.
    uncounted: Option<String>,
}

impl Probe {
    /// Connects to a database that the store has migrated.
    pub async fn open(uri: &str) -> Result<Self> {
        if let Some(path) = uri.strip_prefix("sqlite://") {
            let options = SqliteConnectOptions::new().filename(path).read_only(true);
            let conn = SqliteConnection::connect_with(&options).await?;
            return Ok(Self {
                own: BaselineConnection::Sqlite(Box::new(conn)),
                file: Some(PathBuf::from(path)),
                uncounted: Some("SQLite does not count them".to_owned()),
            });
        }
        let mut conn = PgConnection::connect(uri).await?;
        let counted = count_blocks(&mut conn).await;
        Ok(Self {
            own: BaselineConnection::Postgres(Box::new(conn)),
            file: None,
            uncounted: counted.err().map(|error| error.to_string()),
        })
    }

    /// Why [`Probe::costs`] has nothing to tell, if so.
    #[must_use]
    pub fn uncounted(&self) -> Option<&str> {
        self.uncounted.as_deref()
    }

    /// Counts the rows of the engine's tables.
    pub async fn rows(&mut self) -> Result<Rows> {
        Ok(match &mut self.own {
            BaselineConnection::Sqlite(conn) => sqlx::query_as(ROWS).fetch_one(&mut **conn).await?,
            BaselineConnection::Postgres(conn) => sqlx::query_as(ROWS).fetch_one(&mut **conn).await?,
        })
    }

    /// Counts workers, leases and connections.
    pub async fn processes(&mut self) -> Result<Processes> {
        Ok(match &mut self.own {
            BaselineConnection::Sqlite(conn) => {
                sqlx::query_as(
                    "SELECT (SELECT count(*) FROM worker) AS worker, (SELECT count(*) FROM lease) AS lease, 0 AS connections",
                )
                .fetch_one(&mut **conn)
                .await?
            }
            BaselineConnection::Postgres(conn) => {
                sqlx::query_as(
                    "SELECT (SELECT count(*) FROM worker) AS worker, (SELECT count(*) FROM lease) AS lease,
                            (SELECT count(*) FROM pg_stat_activity
                             WHERE datname = current_database() AND backend_type = 'client backend'
                               AND pid <> pg_backend_pid()) AS connections",
                )
                .fetch_one(&mut **conn)
                .await?
            }
        })
    }

    /// Counts by outcome the jobs in `job` that were recorded since then.
    pub async fn outcomes(&mut self, since: Timestamp) -> Result<Outcomes> {
        Ok(match &mut self.own {
            BaselineConnection::Sqlite(conn) => sqlx::query_as(OUTCOMES).bind(since).fetch_one(&mut **conn).await?,
            BaselineConnection::Postgres(conn) => sqlx::query_as(OUTCOMES).bind(since).fetch_one(&mut **conn).await?,
        })
    }

    /// Measures the database.
    pub async fn size(&mut self) -> Result<Size> {
        match &mut self.own {
            BaselineConnection::Sqlite(conn) => {
                let all = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut **conn).await?;
                let free = sqlx::query_scalar("PRAGMA freelist_count")
                    .fetch_one(&mut **conn)
                    .await?;
                Ok(Size {
                    bytes: self.file.as_deref().map_or(0, file_bytes),
                    pages: Some(Pages { all, free }),
                })
            }
            BaselineConnection::Postgres(conn) => Ok(Size {
                bytes: sqlx::query_scalar("SELECT pg_database_size(current_database())")
                    .fetch_one(&mut **conn)
                    .await?,
                pages: None,
            }),
        }
    }

    /// Vacuums and analyses the engine's tables on PostgreSQL, as autovacuum does many times a day.
    pub async fn vacuum(&mut self) -> Result<()> {
        if let BaselineConnection::Postgres(conn) = &mut self.own {
            for text in VACUUM {
                conn.execute(text).await?;
            }
        }
        Ok(())
    }

    /// What the engine's statements have cost so far; nothing where it is not counted.
    pub async fn costs(&mut self) -> Result<Costs> {
        let mut costs = Costs::default();
        if let (BaselineConnection::Postgres(conn), None) = (&mut self.own, &self.uncounted) {
            let found: Vec<(String, i64, i64, i64)> = sqlx::query_as(COSTS).fetch_all(&mut **conn).await?;
            for (text, calls, rows, blocks) in found {
                costs.add(&text, Cost { calls, rows, blocks });
            }
        }
        Ok(costs)
    }
}

async fn count_blocks(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    conn.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        .await?;
    // The extension can exist in a server that has not loaded the library; reading it then fails.
    conn.execute("SELECT count(*) FROM pg_stat_statements").await.map(drop)
}

/// The file and its write-ahead log.
fn file_bytes(path: &Path) -> i64 {
    let log = format!("{}-wal", path.display());
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    i64::try_from(bytes(path) + bytes(Path::new(&log))).unwrap_or(i64::MAX)
}
