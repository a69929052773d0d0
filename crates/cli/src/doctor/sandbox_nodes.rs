//! The nodes of sandboxes.

use towpath_store::Store;
use towpath_store::sandboxes::nodes::{self, Node, NodeState};

use super::findings::{Findings, Verdict};

const CHECK: &str = "sandbox nodes";

/// Names every node, and what keeps it from running sandboxes for the whole installation.
pub(super) async fn check(store: &Store, findings: &mut Findings) {
    let found = match store.read(async |tx| nodes::list(tx).await).await {
        Ok(found) => found,
        Err(error) => return findings.add(CHECK, Verdict::Failed, error.to_string()),
    };
    let alive = found.iter().filter(|node| node.is_alive).count();
    for node in &found {
        let (verdict, text) = report(node, alive);
        findings.add(CHECK, verdict, text);
    }
}

fn report(node: &Node, alive: usize) -> (Verdict, String) {
    let name = &node.name;
    let boxes = node.live_boxes;
    match node.state() {
        NodeState::Lost => (
            Verdict::Warning,
            format!(
                "{name} has not reported since {}: its sandboxes are stopped, and their files are there; start it \
                 again, or remove it under /ui/sandboxes",
                node.seen_at
            ),
        ),
        NodeState::Draining => (
            Verdict::Warning,
            format!("{name} is draining: it runs {boxes} sandboxes and takes no new ones"),
        ),
        NodeState::Active => match (&node.trouble, &node.address) {
            (Some(trouble), _) => (Verdict::Failed, format!("{name} cannot start sandboxes: {trouble}")),
            (None, None) if alive > 1 => (
                Verdict::Warning,
                format!(
                    "{name} runs {boxes} sandboxes, which requests to other processes cannot reach; set \
                     sandboxes.node_listen there"
                ),
            ),
            (None, None) => (Verdict::Ok, format!("{name} runs {boxes} sandboxes")),
            (None, Some(address)) => (Verdict::Ok, format!("{name} at {address} runs {boxes} sandboxes")),
        },
    }
}

#[cfg(test)]
mod tests {
    use towpath_domain::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn node() -> Node {
        Node {
            id: Uuid::nil(),
            name: "yard".to_owned(),
            address: Some("10.0.0.5:8404".to_owned()),
            is_alive: true,
            is_draining: false,
            is_leaving: false,
            max_boxes: 0,
            memory_bytes: 0,
            free_memory_bytes: 0,
            isolation: None,
            trouble: None,
            lost_at: None,
            seen_at: Timestamp::from_micros(0),
            live_boxes: 3,
        }
    }

    #[test]
    fn every_node_is_named_with_what_it_lacks() {
        let hidden = Node {
            address: None,
            ..node()
        };
        for (node, alive, verdict, expected) in [
            (node(), 2, Verdict::Ok, "yard at 10.0.0.5:8404 runs 3"),
            (hidden.clone(), 1, Verdict::Ok, "yard runs 3"),
            (hidden, 2, Verdict::Warning, "sandboxes.node_listen"),
            (
                Node {
                    is_draining: true,
                    ..node()
                },
                2,
                Verdict::Warning,
                "draining",
            ),
            (
                Node {
                    is_alive: false,
                    ..node()
                },
                1,
                Verdict::Warning,
                "has not reported",
            ),
            (
                Node {
                    trouble: Some("no namespaces".to_owned()),
                    ..node()
                },
                1,
                Verdict::Failed,
                "no namespaces",
            ),
        ] {
            let (found, text) = report(&node, alive);
            assert_eq!(found, verdict, "{text}");
            assert!(text.contains("yard") && text.contains(expected), "{text}");
        }
    }
}
