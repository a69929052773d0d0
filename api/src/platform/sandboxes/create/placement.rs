//! Selects the node of a new sandbox.

use std::time::Duration;

use http::StatusCode;
use towpath_domain::TenantId;
use towpath_domain::sandbox::Attachment;
use towpath_store::sandboxes::nodes::{self, Node, NodeState};
use towpath_store::sandboxes::volumes;
use towpath_store::{self as store, Tx};
use towpath_workflows::sandbox_nodes::eligible;
use uuid::Uuid;

use crate::errors::ApiError;

/// When a client is to try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The node that has the files of a snapshot and of volumes; without any, the one with the most room.
pub(super) async fn place(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    of_snapshot: Option<Uuid>,
    attachments: &[Attachment],
    memory_bytes: Option<i64>,
) -> store::Result<Result<Uuid, ApiError>> {
    let mut bound: Vec<Uuid> = of_snapshot.into_iter().collect();
    for attachment in attachments {
        bound.extend(volumes::get(tx, tenant, attachment.volume).await?.host_id);
    }
    bound.sort_unstable();
    bound.dedup();
    match bound.as_slice() {
        [] => {
            let best = eligible(tx, memory_bytes).await?.first().copied();
            Ok(match best {
                Some(node) => Ok(node),
                None => Err(ApiError::unavailable(reason(&nodes::list(tx).await?), RETRY_AFTER)),
            })
        }
        &[node] => Ok(check(nodes::find(tx, node).await?.as_ref()).map(|()| node)),
        _ => {
            let text =
                "the files of its snapshot and volumes are on different nodes; a sandbox can only use files of one";
            Ok(Err(ApiError::with_name(StatusCode::CONFLICT, "Conflict", text)))
        }
    }
}

/// Whether the node that has the files takes another sandbox.
fn check(node: Option<&Node>) -> Result<(), ApiError> {
    let Some(node) = node else {
        let text = "the files of its snapshot or volumes are on a node that was removed";
        return Err(ApiError::with_name(StatusCode::CONFLICT, "Conflict", text));
    };
    let why = match node.state() {
        NodeState::Lost => "does not report",
        NodeState::Draining => "is draining",
        NodeState::Active if is_full(node) => "has reached sandboxes.max_per_node",
        NodeState::Active if node.trouble.is_some() => "cannot start sandboxes",
        NodeState::Active => return Ok(()),
    };
    let text = format!(
        "the files of its snapshot or volumes are on the node {}, which {why}",
        node.name
    );
    Err(ApiError::unavailable(text, RETRY_AFTER))
}

fn is_full(node: &Node) -> bool {
    node.max_boxes > 0 && node.live_boxes >= node.max_boxes
}

/// Why no node takes a sandbox.
fn reason(nodes: &[Node]) -> String {
    let count = |matches: &dyn Fn(&Node) -> bool| nodes.iter().filter(|node| matches(node)).count();
    let active = |node: &Node| node.state() == NodeState::Active;
    let parts = [
        (count(&|node| node.state() == NodeState::Lost), "do not report"),
        (count(&|node| node.state() == NodeState::Draining), "are draining"),
        (
            count(&|node| active(node) && is_full(node)),
            "have reached sandboxes.max_per_node",
        ),
        (
            count(&|node| active(node) && !is_full(node) && node.trouble.is_some()),
            "cannot start sandboxes",
        ),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    match parts.as_slice() {
        [] => "no node runs sandboxes".to_owned(),
        parts => format!("no node takes sandboxes: of {} nodes {}", nodes.len(), parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::Timestamp;

    use super::*;

    fn node() -> Node {
        Node {
            id: Uuid::from_u128(1),
            name: "a".to_owned(),
            address: None,
            is_alive: true,
            is_draining: false,
            is_leaving: false,
            max_boxes: 2,
            memory_bytes: 0,
            free_memory_bytes: 0,
            isolation: None,
            trouble: None,
            lost_at: None,
            seen_at: Timestamp::from_micros(0),
            live_boxes: 1,
        }
    }

    #[test]
    fn a_node_with_the_files_is_refused_with_the_reason() {
        assert!(check(Some(&node())).is_ok());
        for (changed, expected) in [
            (
                Node {
                    is_alive: false,
                    ..node()
                },
                "does not report",
            ),
            (
                Node {
                    is_draining: true,
                    ..node()
                },
                "is draining",
            ),
            (
                Node {
                    live_boxes: 2,
                    ..node()
                },
                "max_per_node",
            ),
            (
                Node {
                    trouble: Some("no user namespaces".to_owned()),
                    ..node()
                },
                "cannot start",
            ),
        ] {
            let refused = check(Some(&changed)).unwrap_err();
            assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(refused.plain().contains(expected), "{}", refused.plain());
        }
        assert_eq!(check(None).unwrap_err().status(), StatusCode::CONFLICT);
    }

    #[test]
    fn the_reason_counts_nodes() {
        let full = Node {
            live_boxes: 2,
            ..node()
        };
        let lost = Node {
            is_alive: false,
            ..node()
        };
        assert_eq!(
            reason(&[full, lost.clone(), lost]),
            "no node takes sandboxes: of 3 nodes 2 do not report, 1 have reached sandboxes.max_per_node"
        );
        assert_eq!(reason(&[]), "no node runs sandboxes");
    }
}
