//! Nodes: the machines that run boxes.
//!
//! A process that runs boxes registers their folder as a node and renews its lease. A process on the same folder takes
//! the node over immediately: the lock on that folder proves that the previous process is dead. A node whose lease has
//! expired is lost: its boxes are marked as stopped, and their files are there again when it returns.

use std::time::Duration;

use towpath_domain::{BoxId, Timestamp};
use uuid::Uuid;

use super::boxes::BoxLocation;
use crate::error::Result;
use crate::leases::{FAR_FUTURE, millis};
use crate::tx::{Conn, Tx};

/// The `host_id` under which nodes hold `sandbox_host`, in which versions with a single host look for it.
const SHARED_HOST: Uuid = Uuid::max();

/// A process that runs boxes, and its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRegistration {
    /// Of the folder that its boxes are in.
    pub id: Uuid,
    /// The machine's name, for people.
    pub name: String,
    /// `host:port` for other processes.
    pub address: Option<String>,
    /// Of this life of the process.
    pub process_id: Uuid,
    /// 0 is no limit.
    pub max_boxes: i64,
}

/// What a node reports with each renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    pub memory_bytes: i64,
    pub free_memory_bytes: i64,
    /// Isolation of its boxes, once it is known.
    pub isolation: Option<String>,
    /// Why it cannot start boxes.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Node {
    pub id: Uuid,
    /// The machine's name.
    pub name: String,
    /// `host:port` for other processes.
    pub address: Option<String>,
    /// Whether its lease has not expired.
    pub is_alive: bool,
    /// Whether an operator allows no new boxes.
    pub is_draining: bool,
    /// Whether its process shuts down.
    pub is_leaving: bool,
    /// 0 is no limit.
    pub max_boxes: i64,
    pub memory_bytes: i64,
    pub free_memory_bytes: i64,
    pub isolation: Option<String>,
    /// Why it cannot start boxes.
    pub trouble: Option<String>,
    /// When its boxes were marked as stopped.
    pub lost_at: Option<Timestamp>,
    /// When its lease was renewed last.
    pub seen_at: Timestamp,
    /// Boxes that run or are being started.
    pub live_boxes: i64,
}

/// Whether a node runs boxes and takes new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    Active,
    /// It takes no new boxes.
    Draining,
    /// Its lease has expired.
    Lost,
}

impl NodeState {
    pub const ALL: [Self; 3] = [Self::Active, Self::Draining, Self::Lost];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Lost => "lost",
        }
    }
}

impl Node {
    #[must_use]
    pub const fn state(&self) -> NodeState {
        if !self.is_alive {
            NodeState::Lost
        } else if self.is_draining {
            NodeState::Draining
        } else {
            NodeState::Active
        }
    }
}

/// The columns of [`Node`] for a table expression `n`; `$now` is an expression of the current time.
macro_rules! node_columns {
    ($now:literal) => {
        concat!(
            "n.id, n.name, n.address, n.alive_until >= ",
            $now,
            " AS is_alive, n.is_draining, n.is_leaving, n.max_boxes, n.memory_bytes, n.free_memory_bytes, n.isolation,
             n.trouble, n.lost_at, n.seen_at,
             (SELECT count(*) FROM sandbox_box b WHERE b.host_id = n.id AND b.status IN ('provisioning', 'ready'))
                 AS live_boxes"
        )
    };
}

/// Registers a process, which becomes the only one of its node. False while a process of a version with a single host
/// runs boxes elsewhere.
pub async fn register(tx: &mut Tx<'_>, node: &NodeRegistration, lease: Duration) -> Result<bool> {
    if !hold_shared_host(tx, node, lease).await? {
        return Ok(false);
    }
    let (now, known) = (tx.now(), tx.now_param());
    match tx.conn() {
        Conn::Sqlite(conn) => {
            // One process is all there is: other folders are those of earlier processes.
            sqlx::query("UPDATE sandbox_node SET alive_until = 0 WHERE id <> $1")
                .bind(node.id)
                .execute(&mut *conn)
                .await?;
            sqlx::query(
                "INSERT INTO sandbox_node (id, name, address, life, alive_until, is_draining, is_leaving, max_boxes,
                                           memory_bytes, free_memory_bytes, created_at, seen_at)
                 VALUES ($1, $2, $3, $4, $5, FALSE, FALSE, $6, 0, 0, $7, $7)
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name, address = excluded.address, life = excluded.life,
                     alive_until = excluded.alive_until, is_leaving = FALSE, max_boxes = excluded.max_boxes,
                     isolation = NULL, trouble = NULL, lost_at = NULL, seen_at = excluded.seen_at",
            )
            .bind(node.id)
            .bind(&node.name)
            .bind(&node.address)
            .bind(node.process_id)
            .bind(FAR_FUTURE)
            .bind(node.max_boxes)
            .bind(now)
            .execute(conn)
            .await?;
        }
        Conn::Postgres(conn) => {
            sqlx::query(
                "INSERT INTO sandbox_node (id, name, address, life, alive_until, is_draining, is_leaving, max_boxes,
                                           memory_bytes, free_memory_bytes, created_at, seen_at)
                 VALUES ($1, $2, $3, $4, towpath_now($5) + $6 * interval '1 millisecond', FALSE, FALSE, $7, 0, 0, $8, $8)
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name, address = excluded.address, life = excluded.life,
                     alive_until = excluded.alive_until, is_leaving = FALSE, max_boxes = excluded.max_boxes,
                     isolation = NULL, trouble = NULL, lost_at = NULL, seen_at = excluded.seen_at",
            )
            .bind(node.id)
            .bind(&node.name)
            .bind(&node.address)
            .bind(node.process_id)
            .bind(known)
            .bind(millis(lease))
            .bind(node.max_boxes)
            .bind(now)
            .execute(conn)
            .await?;
        }
    }
    Ok(true)
}

/// Keeps processes of versions with a single host from running boxes: they take this row when it has expired.
async fn hold_shared_host(tx: &mut Tx<'_>, node: &NodeRegistration, lease: Duration) -> Result<bool> {
    let known = tx.now_param();
    let Conn::Postgres(conn) = tx.conn() else {
        return Ok(true);
    };
    let held: Option<Uuid> = sqlx::query_scalar(
        "INSERT INTO sandbox_host (id, host_id, host, life, alive_until)
         VALUES (1, $1, $2, $3, towpath_now($4) + $5 * interval '1 millisecond')
         ON CONFLICT (id) DO UPDATE SET host_id = excluded.host_id, host = excluded.host, life = excluded.life,
             alive_until = greatest(sandbox_host.alive_until, excluded.alive_until)
         WHERE sandbox_host.host_id IN ($1, $6) OR sandbox_host.alive_until < towpath_now($4)
         RETURNING host_id",
    )
    .bind(SHARED_HOST)
    .bind(&node.name)
    .bind(node.process_id)
    .bind(known)
    .bind(millis(lease))
    .bind(node.id)
    .fetch_optional(conn)
    .await?;
    Ok(held.is_some())
}

/// Extends the lease of a node. Returns `false` if another process has registered it since.
pub async fn renew(tx: &mut Tx<'_>, node: &NodeRegistration, report: &NodeReport, lease: Duration) -> Result<bool> {
    hold_shared_host(tx, node, lease).await?;
    let (now, known) = (tx.now(), tx.now_param());
    let end = sql!(tx,
        sqlite: "UPDATE sandbox_node SET alive_until = $9, lost_at = NULL, seen_at = $3, memory_bytes = $4,
                        free_memory_bytes = $5, isolation = $6, trouble = $7
                 WHERE id = $1 AND life = $2 AND $8 IS NOT NULL RETURNING id",
        // The database's clock: other processes judge the lease.
        postgres: "UPDATE sandbox_node SET alive_until = towpath_now($8) + $9 * interval '1 millisecond', lost_at = NULL,
                          seen_at = $3, memory_bytes = $4, free_memory_bytes = $5, isolation = $6, trouble = $7
                   WHERE id = $1 AND life = $2 RETURNING id");
    let length = sql!(tx, sqlite: FAR_FUTURE.micros(), postgres: millis(lease));
    let renewed: Option<Uuid> = on!(tx, |conn| sqlx::query_scalar(end)
        .bind(node.id)
        .bind(node.process_id)
        .bind(now)
        .bind(report.memory_bytes)
        .bind(report.free_memory_bytes)
        .bind(&report.isolation)
        .bind(&report.trouble)
        .bind(known)
        .bind(length)
        .fetch_optional(conn)
        .await)?;
    Ok(renewed.is_some())
}

/// The process of a node shuts down: others are preferred for new boxes. Its boxes keep running, so the lease stays.
pub async fn leave(tx: &mut Tx<'_>, process_id: Uuid) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_node SET is_leaving = TRUE WHERE life = $1"
    )
    .bind(process_id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Every node, by name.
pub async fn list(tx: &mut Tx<'_>) -> Result<Vec<Node>> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: concat!("SELECT ", node_columns!("$1"), " FROM sandbox_node n ORDER BY n.name, n.id"),
        postgres: concat!("SELECT ", node_columns!("towpath_now($1)"), " FROM sandbox_node n ORDER BY n.name, n.id"));
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(known).fetch_all(conn).await)?)
}

/// One node.
pub async fn find(tx: &mut Tx<'_>, id: Uuid) -> Result<Option<Node>> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: concat!("SELECT ", node_columns!("$1"), " FROM sandbox_node n WHERE n.id = $2"),
        postgres: concat!("SELECT ", node_columns!("towpath_now($1)"), " FROM sandbox_node n WHERE n.id = $2"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(known)
        .bind(id)
        .fetch_optional(conn)
        .await)?)
}

/// Whether a node is known, also a lost one.
pub async fn exists(tx: &mut Tx<'_>, id: Uuid) -> Result<bool> {
    let found: Option<Uuid> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT id FROM sandbox_node WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// The number of nodes whose lease has not expired.
pub async fn count_alive(tx: &mut Tx<'_>) -> Result<i64> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: "SELECT count(*) FROM sandbox_node WHERE alive_until >= $1",
        postgres: "SELECT count(*) FROM sandbox_node WHERE alive_until >= towpath_now($1)");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(known)
        .fetch_one(conn)
        .await)?)
}

/// Nodes that take new boxes, the best one first: one that stays, has this much free memory, and runs few boxes for its
/// memory. Concurrent placements may exceed `max_boxes` by their number.
pub async fn eligible(tx: &mut Tx<'_>, memory_bytes: i64) -> Result<Vec<Uuid>> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: "SELECT id FROM (SELECT n.id, n.alive_until, n.is_draining, n.is_leaving, n.max_boxes,
                     n.memory_bytes, n.free_memory_bytes, n.trouble, (SELECT count(*) FROM sandbox_box b
                     WHERE b.host_id = n.id AND b.status IN ('provisioning', 'ready')) AS live_boxes FROM sandbox_node n) m
                 WHERE alive_until >= $1 AND NOT is_draining AND trouble IS NULL
                   AND (max_boxes = 0 OR live_boxes < max_boxes)
                 ORDER BY is_leaving, free_memory_bytes < $2, CAST(live_boxes AS REAL) / (memory_bytes + 1), id",
        postgres: "SELECT id FROM (SELECT n.id, n.alive_until, n.is_draining, n.is_leaving, n.max_boxes,
                     n.memory_bytes, n.free_memory_bytes, n.trouble, (SELECT count(*) FROM sandbox_box b
                       WHERE b.host_id = n.id AND b.status IN ('provisioning', 'ready')) AS live_boxes FROM sandbox_node n) m
                   WHERE alive_until >= towpath_now($1) AND NOT is_draining AND trouble IS NULL
                     AND (max_boxes = 0 OR live_boxes < max_boxes)
                   ORDER BY is_leaving, free_memory_bytes < $2, CAST(live_boxes AS double precision) / (memory_bytes + 1),
                            id");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(known)
        .bind(memory_bytes)
        .fetch_all(conn)
        .await)?)
}

/// Drains a node: it takes no new boxes. False if there is no such node.
pub async fn drain(tx: &mut Tx<'_>, id: Uuid) -> Result<bool> {
    set_draining(tx, id, true).await
}

/// Resumes a draining node. False if there is no such node.
pub async fn resume(tx: &mut Tx<'_>, id: Uuid) -> Result<bool> {
    set_draining(tx, id, false).await
}

async fn set_draining(tx: &mut Tx<'_>, id: Uuid, is_draining: bool) -> Result<bool> {
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_node SET is_draining = $2 WHERE id = $1"
    )
    .bind(id)
    .bind(is_draining)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Nodes whose lease has expired and that are not known as lost, or have boxes that count as running; with their names.
pub async fn expired(tx: &mut Tx<'_>) -> Result<Vec<(Uuid, String)>> {
    let known = tx.now_param();
    let text = sql!(tx,
        sqlite: "SELECT n.id, n.name FROM sandbox_node n WHERE n.alive_until < $1
                 AND (n.lost_at IS NULL OR EXISTS (SELECT 1 FROM sandbox_box b
                      WHERE b.host_id = n.id AND b.status IN ('provisioning', 'ready'))) ORDER BY n.id",
        postgres: "SELECT n.id, n.name FROM sandbox_node n WHERE n.alive_until < towpath_now($1)
                   AND (n.lost_at IS NULL OR EXISTS (SELECT 1 FROM sandbox_box b
                        WHERE b.host_id = n.id AND b.status IN ('provisioning', 'ready'))) ORDER BY n.id");
    Ok(on!(tx, |conn| sqlx::query_as(text).bind(known).fetch_all(conn).await)?)
}

/// Locks a node whose lease has expired until the transaction ends: it does not return meanwhile. False if it has
/// returned.
pub async fn lock_expired(tx: &mut Tx<'_>, id: Uuid) -> Result<bool> {
    let known = tx.now_param();
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM sandbox_node WHERE id = $2 AND alive_until < $1",
        postgres: "SELECT id FROM sandbox_node WHERE id = $2 AND alive_until < towpath_now($1) FOR UPDATE");
    let found: Option<Uuid> = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(known)
        .bind(id)
        .fetch_optional(conn)
        .await)?;
    Ok(found.is_some())
}

/// Boxes of a node that run or are being started.
pub async fn live_boxes(tx: &mut Tx<'_>, id: Uuid, limit: i64) -> Result<Vec<BoxLocation>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, status, generation, host_id FROM sandbox_box
         WHERE host_id = $1 AND status IN ('provisioning', 'ready') ORDER BY id LIMIT $2"
    )
    .bind(id)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Ends what a lost node has not finished, once none of its boxes counts as running: the node is known as lost.
pub async fn mark_lost(tx: &mut Tx<'_>, id: Uuid, message: &str) -> Result<()> {
    let now = tx.now();
    for text in [
        "UPDATE sandbox_snapshot SET status = 'failed', status_message = $2, updated_at = $3
         WHERE host_id = $1 AND status = 'building'",
        "UPDATE sandbox_volume SET status = 'failed', status_message = $2, updated_at = $3
         WHERE host_id = $1 AND status = 'provisioning'",
    ] {
        on!(tx, |conn| sqlx::query(text)
            .bind(id)
            .bind(message)
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?;
    }
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_node SET lost_at = $2 WHERE id = $1"
    )
    .bind(id)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Whether anything of a node is recorded.
pub async fn is_used(tx: &mut Tx<'_>, id: Uuid) -> Result<bool> {
    for text in [
        "SELECT 1 FROM sandbox_box WHERE host_id = $1 LIMIT 1",
        "SELECT 1 FROM sandbox_volume WHERE host_id = $1 LIMIT 1",
        "SELECT 1 FROM sandbox_snapshot WHERE host_id = $1 LIMIT 1",
    ] {
        let found = on!(tx, |conn| sqlx::query(text)
            .bind(id)
            .fetch_optional(conn)
            .await
            .map(|row| row.is_some()))?;
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lost nodes since before `before`.
pub async fn lost_before(tx: &mut Tx<'_>, before: Timestamp) -> Result<Vec<Uuid>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT id FROM sandbox_node WHERE lost_at < $1 ORDER BY id"
    )
    .bind(before)
    .fetch_all(conn)
    .await)?)
}

/// Removes a lost node and gives its open jobs to `pool`, whose workers find that it is gone. False if it is not lost.
pub async fn remove(tx: &mut Tx<'_>, id: Uuid, own_pool: &str, pool: &str) -> Result<bool> {
    let removed = on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_node WHERE id = $1 AND lost_at IS NOT NULL"
    )
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if removed == 0 {
        return Ok(false);
    }
    on!(tx, |conn| sqlx::query(
        "UPDATE job SET pool = $2 WHERE pool = $1 AND state IN ('scheduled', 'ready', 'blocked')"
    )
    .bind(own_pool)
    .bind(pool)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(true)
}

/// The node of a box, once it has one.
pub async fn of_box(tx: &mut Tx<'_>, id: BoxId) -> Result<Option<Uuid>> {
    let found: Option<Option<Uuid>> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT host_id FROM sandbox_box WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    Ok(found.flatten())
}

/// No process has a node, in a database that was restored.
pub async fn forget(tx: &mut Tx<'_>) -> Result<()> {
    for text in ["DELETE FROM sandbox_node", "DELETE FROM sandbox_host"] {
        on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?;
    }
    Ok(())
}
