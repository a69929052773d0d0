//! Pins of many holders at once: as many statements for many as for one.

use chrono::NaiveDate;
use sqlx::types::Uuid;
use towpath_domain::{ProjectId, SegmentId, TenantId};

use super::id_list;
use crate::tx::Conn;
use crate::{Result, Tx};

/// As [`super::pin`], for several holders, each on its own day. `holders` are sorted by day and have no pins yet.
pub async fn pin_all(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    holders: &[(NaiveDate, Uuid)],
) -> Result<()> {
    let (Some((first, _)), Some((last, _))) = (holders.first(), holders.last()) else {
        return Ok(());
    };
    let locked = lock_live(tx, tenant, project, *first, *last).await?;
    let now = tx.now();
    match tx.conn() {
        Conn::Sqlite(conn) => {
            let days = holders
                .iter()
                .map(|(day, holder)| (day.to_string(), holder.simple().to_string()));
            let days = serde_json::to_string(&days.collect::<Vec<_>>()).expect("texts are always JSON");
            sqlx::query(
                "INSERT INTO segment_pin (holder, segment_id, pinned_at)
                 SELECT DISTINCT unhex(h.value ->> 1), p.segment_id, $5 FROM json_each($3) h CROSS JOIN segment_part p
                 WHERE p.tenant_id = $1 AND p.project_id = $2 AND p.day = h.value ->> 0
                   AND p.segment_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($4))",
            )
            .bind(tenant)
            .bind(project)
            .bind(days)
            .bind(id_list(locked.iter().map(|id| id.0)))
            .bind(now)
            .execute(conn)
            .await?;
        }
        Conn::Postgres(conn) => {
            let (days, ids): (Vec<NaiveDate>, Vec<Uuid>) = holders.iter().copied().unzip();
            let locked: Vec<Uuid> = locked.iter().map(|id| id.0).collect();
            sqlx::query(
                "INSERT INTO segment_pin (holder, segment_id, pinned_at)
                 SELECT DISTINCT h.holder, p.segment_id, $6::timestamptz
                 FROM unnest($3::date[], $4::uuid[]) AS h(day, holder) JOIN segment_part p ON p.day = h.day
                 WHERE p.tenant_id = $1 AND p.project_id = $2 AND p.segment_id = ANY($5)",
            )
            .bind(tenant)
            .bind(project)
            .bind(days)
            .bind(ids)
            .bind(locked)
            .bind(now)
            .execute(conn)
            .await?;
        }
    }
    Ok(())
}

/// Releases all pins of these holders.
pub async fn unpin_all(tx: &mut Tx<'_>, holders: &[Uuid]) -> Result<()> {
    match tx.conn() {
        Conn::Sqlite(conn) => sqlx::query(
            "DELETE FROM segment_pin WHERE holder IN (SELECT unhex(replace(value, '-', '')) FROM json_each($1))",
        )
        .bind(id_list(holders.iter().copied()))
        .execute(conn)
        .await
        .map(drop)?,
        Conn::Postgres(conn) => sqlx::query("DELETE FROM segment_pin WHERE holder = ANY($1)")
            .bind(holders)
            .execute(conn)
            .await
            .map(drop)?,
    }
    Ok(())
}

/// Locks the live parts of a project from `first` to `last` day against replacement until the transaction ends, and
/// returns them.
pub(super) async fn lock_live(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    project: ProjectId,
    first: NaiveDate,
    last: NaiveDate,
) -> Result<Vec<SegmentId>> {
    // FOR SHARE waits for a compaction that is replacing a segment and then skips it, but the statement's snapshot does
    // not show the replacement. So repeat until the locked set is the live set.
    let lock = sql!(tx,
        // SQLite has one writer, so no other caller can hold or change these rows.
        sqlite: "SELECT id FROM segment s WHERE s.tenant_id = $1 AND s.state = 'live' AND EXISTS (
                     SELECT 1 FROM segment_part p WHERE p.segment_id = s.id AND p.tenant_id = $1
                       AND p.project_id = $2 AND p.day BETWEEN $3 AND $4)
                 ORDER BY id",
        postgres: "SELECT id FROM segment s WHERE s.tenant_id = $1 AND s.state = 'live' AND s.id IN (
                     SELECT p.segment_id FROM segment_part p WHERE p.tenant_id = $1
                       AND p.project_id = $2 AND p.day BETWEEN $3 AND $4)
                 ORDER BY id FOR SHARE");
    let mut before: Option<Vec<SegmentId>> = None;
    loop {
        let now: Vec<SegmentId> = on!(tx, |conn| sqlx::query_scalar(lock)
            .bind(tenant)
            .bind(project)
            .bind(first)
            .bind(last)
            .fetch_all(conn)
            .await)?;
        if before.as_ref() == Some(&now) {
            return Ok(now);
        }
        before = Some(now);
    }
}
