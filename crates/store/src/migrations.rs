//! The schema: its migrations, and which databases this build supports.
//!
//! Migrations are pairs of files with the same name, one per database. `0001_schema.sql` is the schema of the first
//! release. Earlier builds had other migrations under the same numbers; checksums tell them apart.

use std::path::Path;

use sqlx::Connection as _;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;

use crate::backup;
use crate::error::{Error, Result};
use crate::open::Store;
use crate::tx::{Conn, Dialect, StoreContext, Tx};

pub(crate) static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
pub(crate) static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

const fn migrator(dialect: Dialect) -> &'static Migrator {
    match dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
    }
}

/// The version of the newest migration that this build knows.
#[must_use]
pub fn newest(dialect: Dialect) -> i64 {
    migrator(dialect).iter().map(|known| known.version).max().unwrap_or(0)
}

/// Whether this build knows a migration.
#[must_use]
pub fn is_known_version(dialect: Dialect, version: i64) -> bool {
    migrator(dialect).version_exists(version)
}

/// The migrations of one database, compared with those of this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The database, without user and password.
    pub database: String,
    /// Versions that the database has.
    pub applied: Vec<i64>,
    /// Versions that the next start of this build applies.
    pub pending: Vec<i64>,
    /// Versions that only a newer build knows.
    pub newer: Vec<i64>,
    /// Versions that had another content when they were applied.
    pub altered: Vec<i64>,
}

impl Schema {
    /// Whether this build can use the database once pending migrations are applied.
    ///
    /// # Errors
    /// [`Error::OlderBuild`] and [`Error::NewerBuild`].
    pub fn check(&self) -> Result<()> {
        let database = self.database.clone();
        if !self.altered.is_empty() {
            return Err(Error::OlderBuild { database });
        }
        if let Some(&version) = self.newer.last() {
            return Err(Error::NewerBuild { database, version });
        }
        Ok(())
    }

    fn of(dialect: Dialect, database: String, found: &[(i64, Vec<u8>)]) -> Self {
        let known = migrator(dialect);
        let applied: Vec<i64> = found.iter().map(|(version, _)| *version).collect();
        let pending = known.iter().map(|one| one.version);
        let altered = known.iter().filter(|one| {
            let applied = found.iter().find(|(version, _)| *version == one.version);
            applied.is_some_and(|(_, checksum)| **checksum != *one.checksum)
        });
        Self {
            database,
            pending: pending.filter(|version| !applied.contains(version)).collect(),
            newer: applied
                .iter()
                .copied()
                .filter(|version| !known.version_exists(*version))
                .collect(),
            altered: altered.map(|one| one.version).collect(),
            applied,
        }
    }
}

/// The schema of a database that is open.
pub async fn schema(store: &Store) -> Result<Schema> {
    store.read(async |tx| read(tx, store.name()).await).await
}

/// The schema of a SQLite file, which another process may be using.
pub async fn of_sqlite(file: &Path) -> Result<Schema> {
    let mut conn = backup::connect_sqlite(file).await?;
    let shared = StoreContext::default();
    let schema = read(&mut Tx::new(Conn::Sqlite(&mut conn), &shared), sqlite_name(file)).await;
    let _ = conn.close().await;
    schema
}

/// The schema of a PostgreSQL database.
pub async fn of_postgres(uri: &str) -> Result<Schema> {
    let (mut conn, name) = backup::connect_postgres(uri).await?;
    let shared = StoreContext::default();
    let schema = read(&mut Tx::new(Conn::Postgres(&mut conn), &shared), name).await;
    let _ = conn.close().await;
    schema
}

async fn read(tx: &mut Tx<'_>, database: String) -> Result<Schema> {
    let text = sql!(tx,
        sqlite: "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '_sqlx_migrations')",
        postgres: "SELECT to_regclass('_sqlx_migrations') IS NOT NULL");
    let begun: bool = on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?;
    let mut found = Vec::new();
    if begun {
        let text = "SELECT version, checksum FROM _sqlx_migrations WHERE success ORDER BY version";
        found = on!(tx, |conn| sqlx::query_as(text).fetch_all(conn).await)?;
    }
    Ok(Schema::of(tx.dialect(), database, &found))
}

/// The error of a failed migration run. The runner compares versions and checksums before it changes anything.
pub(crate) async fn refused(tx: &mut Tx<'_>, database: String, error: MigrateError) -> Error {
    if matches!(
        error,
        MigrateError::VersionMismatch(_) | MigrateError::VersionMissing(_)
    ) {
        match read(tx, database.clone()).await.and_then(|schema| schema.check()) {
            Ok(()) => (),
            Err(refusal) => return refusal,
        }
    }
    Error::Open(format!("cannot migrate {database}: {error}"))
}

/// The name of a SQLite file in messages.
pub(crate) fn sqlite_name(file: &Path) -> String {
    format!("the database {}", file.display())
}

/// The name of a PostgreSQL database in messages.
pub(crate) fn postgres_name(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("the database {database} on {}", socket.display()),
        None => format!(
            "the database {database} on {}:{}",
            options.get_host(),
            options.get_port()
        ),
    }
}
