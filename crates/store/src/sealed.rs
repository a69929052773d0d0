//! What is sealed in the database under which keys, and the record that verifies a process's keys.

use serde::{Deserialize, Serialize};
use towpath_domain::TenantId;
use uuid::Uuid;

use crate::sealing::{SealContext, Sealer, key_id};
use crate::{Result, Tx};

/// The seal context of the canary.
const CANARY: SealContext<'static> = SealContext {
    tenant: TenantId::nil(),
    table: "sealing_canary",
    column: "sealed",
    row: Uuid::nil(),
};

/// The plaintext of the canary.
const TEXT: &[u8] = b"towpath";

/// A column of sealed records.
struct Column {
    table: &'static str,
    column: &'static str,
    /// A record that is as new as any.
    newest: &'static str,
    /// Ids of keys, and how many records each of them opens.
    counts: &'static str,
    /// Records behind a row, in the order of the rows.
    page: &'static str,
    /// Puts a record instead of another one.
    replace: &'static str,
}

/// The id of a record's key is behind the version, which is one byte.
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
            page: concat!(
                "SELECT id, tenant_id, ",
                $column,
                " FROM ",
                $table,
                " WHERE id > $1 AND ",
                $column,
                " IS NOT NULL ORDER BY id LIMIT $2"
            ),
            replace: concat!(
                "UPDATE ",
                $table,
                " SET ",
                $column,
                " = $1 WHERE id = $2 AND ",
                $column,
                " = $3"
            ),
        }
    };
}

static COLUMNS: [Column; 9] = [
    sealed!("revision", "secrets"),
    sealed!("destination", "credentials"),
    sealed!("image_pull_secret", "logins"),
    sealed!("integration", "token"),
    sealed!("integration", "webhook_secret"),
    sealed!("feedback_token", "token"),
    sealed!("revision_key", "secret"),
    sealed!("sandbox_registry", "credentials"),
    sealed!("sandbox_network", "secrets"),
];

/// How many records of a column are sealed under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    pub table: &'static str,
    pub column: &'static str,
    /// Id of the key, in hexadecimal digits.
    pub key: String,
    pub rows: i64,
}

/// How many records are sealed under which key. Reads every row of these tables.
pub async fn counts(tx: &mut Tx<'_>) -> Result<Vec<Count>> {
    let mut counts = Vec::new();
    for sealed in &COLUMNS {
        let text = sealed.counts;
        let found: Vec<(Vec<u8>, i64)> = on!(tx, |conn| sqlx::query_as(text).fetch_all(conn).await)?;
        counts.extend(found.into_iter().map(|(key, rows)| Count {
            table: sealed.table,
            column: sealed.column,
            key: hex::encode(key),
            rows,
        }));
    }
    Ok(counts)
}

/// Whether a process was given the key of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    Known,
    /// It was not: what is stored is sealed under another key, whose id this is.
    Unknown {
        /// In hexadecimal digits.
        key: String,
    },
}

/// The canary, where the installation has one.
pub async fn canary(tx: &mut Tx<'_>) -> Result<Option<Vec<u8>>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT sealed FROM sealing_canary WHERE id = 1"
    )
    .fetch_optional(conn)
    .await)?)
}

/// Whether the keys of `sealer` open a canary.
#[must_use]
pub fn key_status(sealer: &Sealer, canary: &[u8]) -> KeyStatus {
    match sealer.open(CANARY, canary) {
        Ok(_) => KeyStatus::Known,
        Err(_) => KeyStatus::Unknown {
            key: key_id(canary).unwrap_or_default(),
        },
    }
}

/// The id of a key that the installation needs; `None` where nothing was sealed yet.
pub async fn needed_key(tx: &mut Tx<'_>) -> Result<Option<String>> {
    if let Some(canary) = canary(tx).await? {
        return Ok(Some(key_id(&canary).unwrap_or_default()));
    }
    Ok(newest_keys(tx).await?.into_iter().next())
}

/// Compares the keys of `sealer` with those of the installation. The first process stores the canary, unless existing
/// sealed data need another key.
pub async fn ensure(tx: &mut Tx<'_>, sealer: &Sealer) -> Result<KeyStatus> {
    if let Some(canary) = canary(tx).await? {
        return Ok(key_status(sealer, &canary));
    }
    let needed = newest_keys(tx).await?;
    let given = sealer.key_ids();
    if let Some(key) = needed.first()
        && !needed.iter().any(|key| given.contains(key))
    {
        return Ok(KeyStatus::Unknown { key: key.clone() });
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
        Some(canary) => key_status(sealer, &canary),
        None => KeyStatus::Known,
    })
}

/// The position of a scan of the sealed records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    column: usize,
    /// The row before; nil for none.
    row: Uuid,
}

/// A sealed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    row: Uuid,
    tenant: TenantId,
    sealed: Vec<u8>,
}

/// A record that is to be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    row: Uuid,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// A page of records to process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where the scan continues; `None` at its end.
    pub next: Option<Position>,
    /// Records that are sealed under another key than the first.
    pub changes: Vec<Change>,
    /// Records that none of the keys opens.
    pub unopened: u64,
}

/// At most `limit` records from a position on, all of one column.
pub async fn records(tx: &mut Tx<'_>, at: Position, limit: i64) -> Result<Vec<Record>> {
    let Some(page) = COLUMNS.get(at.column).map(|sealed| sealed.page) else {
        return Ok(Vec::new());
    };
    let found: Vec<(Uuid, TenantId, Vec<u8>)> = on!(tx, |conn| sqlx::query_as(page)
        .bind(at.row)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let records = found
        .into_iter()
        .map(|(row, tenant, sealed)| Record { row, tenant, sealed });
    Ok(records.collect())
}

/// Seals those of `records` again, found at `at`, that are not sealed under the first key.
#[must_use]
pub fn reseal(sealer: &Sealer, at: Position, records: &[Record]) -> Page {
    let first = sealer.key_ids().into_iter().next();
    let mut page = Page {
        next: next(at, records),
        changes: Vec::new(),
        unopened: 0,
    };
    let Some(Column { table, column, .. }) = COLUMNS.get(at.column) else {
        return page;
    };
    for record in records {
        if key_id(&record.sealed) == first {
            continue;
        }
        let place = SealContext {
            tenant: record.tenant,
            table,
            column,
            row: record.row,
        };
        match sealer.open(place, &record.sealed) {
            Ok(text) => page.changes.push(Change {
                row: record.row,
                before: record.sealed.clone(),
                after: sealer.seal(place, &text),
            }),
            Err(_) => page.unopened += 1,
        }
    }
    page
}

/// Behind the last record of its column the walk continues with the next column.
fn next(at: Position, records: &[Record]) -> Option<Position> {
    let next = match records.last() {
        Some(last) => Position { row: last.row, ..at },
        None => Position {
            column: at.column + 1,
            row: Uuid::nil(),
        },
    };
    (next.column < COLUMNS.len()).then_some(next)
}

/// Writes the result of [`reseal`] for `at`. A record that was changed meanwhile stays: it has just been sealed.
pub async fn replace(tx: &mut Tx<'_>, at: Position, changes: &[Change]) -> Result<()> {
    let Some(replace) = COLUMNS.get(at.column).map(|sealed| sealed.replace) else {
        return Ok(());
    };
    for change in changes {
        on!(tx, |conn| sqlx::query(replace)
            .bind(&change.after[..])
            .bind(change.row)
            .bind(&change.before[..])
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Seals the canary under the first key of `sealer`: from then on the other keys are not needed to start.
pub async fn renew(tx: &mut Tx<'_>, sealer: &Sealer) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE sealing_canary SET sealed = $1 WHERE id = 1"
    )
    .bind(sealer.seal(CANARY, TEXT))
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Ids of the keys of the newest records.
async fn newest_keys(tx: &mut Tx<'_>) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for sealed in &COLUMNS {
        let newest = sealed.newest;
        let record: Option<Vec<u8>> = on!(tx, |conn| sqlx::query_scalar(newest).fetch_optional(conn).await)?;
        keys.extend(record.as_deref().and_then(key_id));
    }
    Ok(keys)
}
