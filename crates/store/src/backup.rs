//! Copies of a SQLite database, and which schema a database has.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::error::{Error, Result};
use crate::open::Store;
use crate::tx::Dialect;

/// Copies a SQLite database as it is at one moment into a new file, also while another process writes to it. The copy
/// is compact and needs no file beside it.
///
/// # Errors
/// [`Error::Open`] when there is no such database, the new file exists, or there is no room.
pub async fn copy_sqlite(from: &Path, to: &Path) -> Result<()> {
    let mut conn = connect(from).await?;
    let target = to
        .to_str()
        .ok_or_else(|| Error::Open("the path of the copy is not UTF-8".to_owned()))?;
    let copied = sqlx::query("VACUUM INTO $1").bind(target).execute(&mut conn).await;
    copied.map_err(|error| Error::Open(format!("cannot copy {}: {error}", from.display())))?;
    let _ = conn.close().await;
    let file = std::fs::File::open(to).and_then(|file| file.sync_all());
    file.map_err(|error| Error::Open(format!("cannot write {}: {error}", to.display())))
}

/// The objects that a copy of a database names and cannot do without: units that wait to be folded, and segments that
/// somebody may read.
///
/// # Errors
/// [`Error::Open`] when there is no such database.
pub async fn needed_objects(copy: &Path) -> Result<Vec<String>> {
    let mut conn = connect(copy).await?;
    let paths = sqlx::query_scalar(
        "SELECT path FROM wal_unit WHERE state = 'open'
         UNION ALL SELECT path FROM segment WHERE state IN ('live', 'superseded')",
    )
    .fetch_all(&mut conn)
    .await?;
    let _ = conn.close().await;
    Ok(paths)
}

async fn connect(file: &Path) -> Result<SqliteConnection> {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(false)
        .busy_timeout(Duration::from_secs(30))
        .disable_statement_logging()
        .connect()
        .await
        .map_err(|error| Error::Open(format!("cannot open {}: {error}", file.display())))
}

/// How far the schema of a database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Migrations the database has.
    pub applied: Vec<i64>,
    /// Migrations this build knows.
    pub known: Vec<i64>,
}

impl Schema {
    /// Migrations that a start of this build would apply.
    #[must_use]
    pub fn pending(&self) -> Vec<i64> {
        let missing = self.known.iter().filter(|version| !self.applied.contains(version));
        missing.copied().collect()
    }

    /// Migrations that only a newer build knows.
    #[must_use]
    pub fn newer(&self) -> Vec<i64> {
        let foreign = self.applied.iter().filter(|version| !self.known.contains(version));
        foreign.copied().collect()
    }
}

/// The migrations this build knows for a database.
#[must_use]
pub fn known_migrations(dialect: Dialect) -> Vec<i64> {
    static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
    static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");
    let migrations = match dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
    };
    migrations.iter().map(|migration| migration.version).collect()
}

/// Looks how far the schema is. Changes nothing.
///
/// # Errors
/// As every statement.
pub async fn schema(store: &Store) -> Result<Schema> {
    let known = known_migrations(store.dialect());
    let applied = store
        .read(async |tx| {
            let text = sql!(tx,
                sqlite: "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '_sqlx_migrations')",
                postgres: "SELECT to_regclass('_sqlx_migrations') IS NOT NULL");
            let begun: bool = on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?;
            if !begun {
                return Ok(Vec::new());
            }
            Ok(on!(tx, |conn| {
                sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success ORDER BY version")
                    .fetch_all(conn)
                    .await
            })?)
        })
        .await?;
    Ok(Schema { applied, known })
}
