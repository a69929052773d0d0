//! What is sealed in the database, under which keys, and the record that tells whether a process was given the right one.

use towpath_domain::TenantId;
use uuid::Uuid;

use crate::sealing::{Place, Sealer, key_id};
use crate::{Result, Tx};

/// Where the canary lies.
const CANARY: Place<'static> = Place {
    tenant: TenantId::nil(),
    table: "sealing_canary",
    column: "sealed",
    row: Uuid::nil(),
};

/// What is sealed in it.
const TEXT: &[u8] = b"towpath";

/// A column of sealed records.
struct Column {
    table: &'static str,
    column: &'static str,
    /// A record that is as new as any.
    newest: &'static str,
    /// Ids of keys, and how many records each of them opens.
    counts: &'static str,
}

/// The id of a record's key stands behind the version, which is one byte.
macro_rules! sealed {
    ($table:literal, $column:literal) => {
        Column {
            table: $table,
            column: $column,
            newest: concat!(
                "SELECT ",
                $column,
                " FROM ",
                $table,
                " WHERE ",
                $column,
                " IS NOT NULL ORDER BY id DESC LIMIT 1"
            ),
            counts: concat!(
                "SELECT substr(",
                $column,
                ", 2, 4), count(*) FROM ",
                $table,
                " WHERE ",
                $column,
                " IS NOT NULL GROUP BY 1 ORDER BY 1"
            ),
        }
    };
}

const COLUMNS: [Column; 6] = [
    sealed!("revision", "secrets"),
    sealed!("destination", "credentials"),
    sealed!("image_pull_secret", "logins"),
    sealed!("integration", "token"),
    sealed!("integration", "webhook_secret"),
    sealed!("feedback_token", "token"),
];

/// How many records of a column are sealed under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Table.
    pub table: &'static str,
    /// Column.
    pub column: &'static str,
    /// Id of the key, in hexadecimal digits.
    pub key: String,
    /// How many.
    pub rows: i64,
}

/// How many records are sealed under which key. Reads every row of these tables.
///
/// # Errors
/// Only the database's.
pub async fn counts(tx: &mut Tx<'_>) -> Result<Vec<Count>> {
    let mut counts = Vec::new();
    for Column {
        table,
        column,
        counts: text,
        ..
    } in COLUMNS
    {
        let found: Vec<(Vec<u8>, i64)> = on!(tx, |conn| sqlx::query_as(text).fetch_all(conn).await)?;
        counts.extend(found.into_iter().map(|(key, rows)| Count {
            table,
            column,
            key: hex::encode(key),
            rows,
        }));
    }
    Ok(counts)
}

/// Whether a process was given the key of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was.
    Known,
    /// It was not: what is stored is sealed under another key, whose id this is.
    Unknown {
        /// In hexadecimal digits.
        key: String,
    },
}

/// The canary, where the installation has one.
///
/// # Errors
/// Only the database's.
pub async fn canary(tx: &mut Tx<'_>) -> Result<Option<Vec<u8>>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT sealed FROM sealing_canary WHERE id = 1"
    )
    .fetch_optional(conn)
    .await)?)
}

/// Whether the keys of `sealer` open a canary.
#[must_use]
pub fn opens(sealer: &Sealer, canary: &[u8]) -> Standing {
    match sealer.open(CANARY, canary) {
        Ok(_) => Standing::Known,
        Err(_) => Standing::Unknown {
            key: key_id(canary).unwrap_or_default(),
        },
    }
}

/// The id of a key that the installation needs; `None` where nothing was sealed yet.
///
/// # Errors
/// Only the database's.
pub async fn needed_key(tx: &mut Tx<'_>) -> Result<Option<String>> {
    if let Some(canary) = canary(tx).await? {
        return Ok(Some(key_id(&canary).unwrap_or_default()));
    }
    Ok(newest_keys(tx).await?.into_iter().next())
}

/// Compares the keys of `sealer` with those of the installation. The first process of an installation leaves the canary for
/// the others, unless what is sealed already needs another key.
///
/// # Errors
/// Only the database's.
pub async fn ensure(tx: &mut Tx<'_>, sealer: &Sealer) -> Result<Standing> {
    if let Some(canary) = canary(tx).await? {
        return Ok(opens(sealer, &canary));
    }
    let needed = newest_keys(tx).await?;
    let given = sealer.key_ids();
    if let Some(key) = needed.first()
        && !needed.iter().any(|key| given.contains(key))
    {
        return Ok(Standing::Unknown { key: key.clone() });
    }
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO sealing_canary (id, sealed, created_at) VALUES (1, $1, $2) ON CONFLICT (id) DO NOTHING"
    )
    .bind(sealer.seal(CANARY, TEXT))
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    // Another process may have been first.
    Ok(match canary(tx).await? {
        Some(canary) => opens(sealer, &canary),
        None => Standing::Known,
    })
}

/// Ids of the keys of the newest records.
async fn newest_keys(tx: &mut Tx<'_>) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for Column { newest, .. } in COLUMNS {
        let record: Option<Vec<u8>> = on!(tx, |conn| sqlx::query_scalar(newest).fetch_optional(conn).await)?;
        keys.extend(record.as_deref().and_then(key_id));
    }
    Ok(keys)
}
