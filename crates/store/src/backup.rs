//! Copies of a database, and the objects it cannot do without.

use std::path::Path;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use towpath_domain::DeploymentId;

use crate::error::{Error, Result};
use crate::tx::{Conn, StoreContext, Tx};
use crate::{migrations, sealed};

/// Copies a SQLite database as of one moment into a new file, even while another process writes to it. The copy is
/// compact and needs no further files.
///
/// # Errors
/// [`Error::Open`] if there is no such database, the new file exists, or the disk is full.
pub async fn copy_sqlite(from: &Path, to: &Path) -> Result<()> {
    let mut conn = connect_sqlite(from).await?;
    let target = to
        .to_str()
        .ok_or_else(|| Error::Open("the path of the copy is not UTF-8".to_owned()))?;
    let copied = sqlx::query("VACUUM INTO $1").bind(target).execute(&mut conn).await;
    copied.map_err(|error| Error::Open(format!("cannot copy {}: {error}", from.display())))?;
    let _ = conn.close().await;
    let file = std::fs::File::open(to).and_then(|file| file.sync_all());
    file.map_err(|error| Error::Open(format!("cannot write {}: {error}", to.display())))
}

/// The objects that a database refers to and needs, by the table that names them: unflushed WAL segments, quarantined
/// data, segments and their index files that may be read, attachments, source archives.
const NEEDED: [(&str, &str); 6] = [
    ("wal_unit", "SELECT DISTINCT path FROM wal_unit WHERE state <> 'folded'"),
    ("quarantine", "SELECT path FROM quarantine WHERE kind <> 'missing'"),
    (
        "segment",
        "SELECT path FROM segment WHERE state IN ('live', 'superseded')",
    ),
    (
        "run_index",
        "SELECT path FROM run_index WHERE state IN ('live', 'superseded')",
    ),
    ("attachment", "SELECT DISTINCT path FROM attachment"),
    (
        "source_upload",
        "SELECT path FROM source_upload WHERE uploaded_at IS NOT NULL",
    ),
];

/// References of a database to the rest of its installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The objects that it names and cannot do without.
    pub objects: Vec<String>,
    /// What only the installation's encryption key opens; see [`crate::sealed`].
    pub canary: Option<Vec<u8>>,
    /// Deployments that run somewhere, each with a database of its own.
    pub deployments: Vec<DeploymentId>,
}

/// Reads the references of a database, which may have an earlier schema.
pub async fn contents(tx: &mut Tx<'_>) -> Result<Contents> {
    let mut contents = Contents::default();
    for (table, statement) in NEEDED {
        if has(tx, table).await? {
            let named: Vec<String> = on!(tx, |conn| sqlx::query_scalar(statement).fetch_all(conn).await)?;
            contents.objects.extend(named);
        }
    }
    if has(tx, "sealing_canary").await? {
        contents.canary = sealed::canary(tx).await?;
    }
    if has(tx, "deployment_placement").await? {
        contents.deployments = on!(tx, |conn| sqlx::query_scalar(PLACED).fetch_all(conn).await)?;
    }
    Ok(contents)
}

/// Deployments that are deleted need nothing any more.
const PLACED: &str = "SELECT p.deployment_id FROM deployment_placement p JOIN deployment d ON d.id = p.deployment_id \
                      WHERE d.status <> 'AWAITING_DELETE' ORDER BY p.deployment_id";

async fn has(tx: &mut Tx<'_>, table: &str) -> Result<bool> {
    let text = sql!(tx,
        sqlite: "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = $1)",
        postgres: "SELECT to_regclass($1) IS NOT NULL");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(table)
        .fetch_one(conn)
        .await)?)
}

/// The same of a SQLite file, which another process may be using.
pub async fn contents_of_sqlite(file: &Path) -> Result<Contents> {
    let mut conn = connect_sqlite(file).await?;
    let shared = StoreContext::default();
    let contents = contents(&mut Tx::new(Conn::Sqlite(&mut conn), &shared)).await;
    let _ = conn.close().await;
    contents
}

/// The same of a PostgreSQL database.
pub async fn contents_of_postgres(uri: &str) -> Result<Contents> {
    let (mut conn, _) = connect_postgres(uri).await?;
    let shared = StoreContext::default();
    let contents = contents(&mut Tx::new(Conn::Postgres(&mut conn), &shared)).await;
    let _ = conn.close().await;
    contents
}

/// A moment of a PostgreSQL database, which others can look at as long as this is open.
#[derive(Debug)]
pub struct DatabaseSnapshot {
    conn: PgConnection,
    /// Its name, for `SET TRANSACTION SNAPSHOT` and `pg_dump --snapshot`.
    pub snapshot: String,
    /// The references at this moment.
    pub contents: Contents,
}

impl DatabaseSnapshot {
    /// Releases the snapshot.
    pub async fn close(self) {
        let _ = self.conn.close().await;
    }
}

/// Opens a snapshot of a PostgreSQL database.
///
/// # Errors
/// [`Error::Open`] if the address is wrong, else the database's error.
pub async fn postgres_snapshot(uri: &str) -> Result<DatabaseSnapshot> {
    let (mut conn, _) = connect_postgres(uri).await?;
    sqlx::query("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut conn)
        .await?;
    let snapshot = sqlx::query_scalar("SELECT pg_export_snapshot()")
        .fetch_one(&mut conn)
        .await?;
    let shared = StoreContext::default();
    let contents = contents(&mut Tx::new(Conn::Postgres(&mut conn), &shared)).await?;
    Ok(DatabaseSnapshot {
        conn,
        snapshot,
        contents,
    })
}

pub(crate) async fn connect_sqlite(file: &Path) -> Result<SqliteConnection> {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(false)
        .busy_timeout(Duration::from_secs(30))
        .disable_statement_logging()
        .connect()
        .await
        .map_err(|error| Error::Open(format!("cannot open {}: {error}", file.display())))
}

/// A connection, and what messages call the database.
pub(crate) async fn connect_postgres(uri: &str) -> Result<(PgConnection, String)> {
    // What is wrong with the address may hold the password.
    let options: PgConnectOptions = uri
        .parse()
        .map_err(|_| Error::Open("the address of the database is not one of PostgreSQL".to_owned()))?;
    let name = migrations::postgres_name(&options);
    Ok((options.disable_statement_logging().connect().await?, name))
}
