//! Copies of a database, and the objects it cannot do without.

use std::path::Path;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::error::{Error, Result};
use crate::migrations;
use crate::tx::Tx;

/// Copies a SQLite database as it is at one moment into a new file, also while another process writes to it. The copy
/// is compact and needs no file beside it.
///
/// # Errors
/// [`Error::Open`] when there is no such database, the new file exists, or there is no room.
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

/// The objects a database cannot do without, by the table that names them: units that wait to be folded, what is in
/// quarantine, segments and their index files that somebody may read, attachments, source archives.
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

/// The objects that a copy of a database names and cannot do without. The copy may be of an earlier schema.
///
/// # Errors
/// [`Error::Open`] when there is no such database.
pub async fn needed_objects(copy: &Path) -> Result<Vec<String>> {
    let mut conn = connect_sqlite(copy).await?;
    let mut paths = Vec::new();
    for (table, statement) in NEEDED {
        let known: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = $1)")
            .bind(table)
            .fetch_one(&mut conn)
            .await?;
        if known {
            paths.extend(sqlx::query_scalar::<_, String>(statement).fetch_all(&mut conn).await?);
        }
    }
    let _ = conn.close().await;
    Ok(paths)
}

/// Whether a PostgreSQL database has the table.
const KNOWN: &str = "SELECT to_regclass($1) IS NOT NULL";

/// The objects that a database in use names and cannot do without. It may be of an earlier schema.
///
/// # Errors
/// Only the database's.
pub async fn named_objects(tx: &mut Tx<'_>) -> Result<Vec<String>> {
    let known = sql!(tx,
        sqlite: "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = $1)",
        postgres: KNOWN);
    let mut paths = Vec::new();
    for (table, statement) in NEEDED {
        let known: bool = on!(tx, |conn| sqlx::query_scalar(known).bind(table).fetch_one(conn).await)?;
        if !known {
            continue;
        }
        let named: Vec<String> = on!(tx, |conn| sqlx::query_scalar(statement).fetch_all(conn).await)?;
        paths.extend(named);
    }
    Ok(paths)
}

/// A moment of a PostgreSQL database, which others can look at as long as this is open.
#[derive(Debug)]
pub struct Moment {
    conn: PgConnection,
    /// Its name, for `SET TRANSACTION SNAPSHOT` and `pg_dump --snapshot`.
    pub snapshot: String,
    /// The objects that the database names at this moment, and cannot do without.
    pub objects: Vec<String>,
}

impl Moment {
    /// Lets go of it.
    pub async fn close(self) {
        let _ = self.conn.close().await;
    }
}

/// Holds on to the present moment of a PostgreSQL database.
///
/// # Errors
/// [`Error::Open`] when the address is wrong, else what the database says.
pub async fn postgres_moment(uri: &str) -> Result<Moment> {
    let (mut conn, _) = connect_postgres(uri).await?;
    sqlx::query("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut conn)
        .await?;
    let snapshot = sqlx::query_scalar("SELECT pg_export_snapshot()")
        .fetch_one(&mut conn)
        .await?;
    let mut objects = Vec::new();
    for (table, statement) in NEEDED {
        let known: bool = sqlx::query_scalar(KNOWN).bind(table).fetch_one(&mut conn).await?;
        if known {
            objects.extend(sqlx::query_scalar::<_, String>(statement).fetch_all(&mut conn).await?);
        }
    }
    Ok(Moment {
        conn,
        snapshot,
        objects,
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
