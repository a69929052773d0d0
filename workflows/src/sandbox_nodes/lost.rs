//! Lost nodes: their sandboxes are marked as stopped, and nodes without anything are removed.

use std::time::Duration;

use towpath_store::sandboxes::boxes;
use towpath_store::sandboxes::nodes::{self, NodeState};
use towpath_store::{self as store, Store};
use uuid::Uuid;

use super::pool_of_node;
use crate::metric;
use crate::sandbox_host::POOL;

/// Interval of checks for lost nodes.
pub const SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// Sandboxes of a transaction.
const PAGE_SIZE: i64 = 100;
/// How long an unused lost node is listed.
const KEEP_UNUSED: Duration = Duration::from_secs(24 * 60 * 60);

/// Marks sandboxes of lost nodes as stopped, and removes lost nodes that have nothing. Returns the number of nodes that
/// were lost.
pub async fn stop_lost(store: &Store) -> store::Result<usize> {
    let expired = store.read(async |tx| nodes::expired(tx).await).await?;
    let mut lost = 0;
    for (id, name) in expired {
        if stop_boxes(store, id, &name).await? {
            lost += 1;
        }
    }
    remove_unused(store).await?;
    report(store).await?;
    Ok(lost)
}

/// Returns false if the node has returned.
async fn stop_boxes(store: &Store, id: Uuid, name: &str) -> store::Result<bool> {
    let message = format!("its node {name} was lost; its files are there if the node returns");
    loop {
        let left = store
            .write(async |tx| {
                if !nodes::lock_expired(tx, id).await? {
                    return Ok(None);
                }
                let rows = nodes::live_boxes(tx, id, PAGE_SIZE).await?;
                for row in &rows {
                    boxes::mark_stopped(tx, row.tenant_id, row.id, row.generation, Some(&message)).await?;
                }
                if rows.is_empty() {
                    nodes::mark_lost(tx, id, &message).await?;
                }
                Ok(Some(rows.len()))
            })
            .await?;
        match left {
            None => return Ok(false),
            Some(0) => {
                tracing::warn!(node.id = %id, node.name = name, "a node of sandboxes was lost");
                return Ok(true);
            }
            Some(stopped) => metrics::counter!(metric::BOXES_LOST).increment(stopped as u64),
        }
    }
}

async fn remove_unused(store: &Store) -> store::Result<()> {
    let before = store.clock().now().minus(KEEP_UNUSED);
    for id in store.read(async |tx| nodes::lost_before(tx, before).await).await? {
        store
            .write(async |tx| {
                if !nodes::is_used(tx, id).await? {
                    nodes::remove(tx, id, &pool_of_node(id), POOL).await?;
                }
                Ok(())
            })
            .await?;
    }
    Ok(())
}

/// Removes a lost node at the request of an operator. Its open jobs find that it is gone. False if it is not lost.
pub async fn remove(store: &Store, id: Uuid) -> store::Result<bool> {
    store
        .write(async |tx| nodes::remove(tx, id, &pool_of_node(id), POOL).await)
        .await
}

async fn report(store: &Store) -> store::Result<()> {
    let found = store.read(async |tx| nodes::list(tx).await).await?;
    for state in NodeState::ALL {
        let count = found.iter().filter(|node| node.state() == state).count();
        metrics::gauge!(metric::NODES, "state" => state.as_str()).set(count as f64);
    }
    Ok(())
}
