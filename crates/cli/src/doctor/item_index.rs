//! The index of items of agent servers.

use serde_json::Value;
use towpath_store::Store;
use towpath_store::item_vectors::{self, pgvector};

use super::findings::{Findings, Verdict};

/// Reports where vectors are searched, and what is still to be embedded. Nothing without an index.
pub(super) async fn check(store: &Store, findings: &mut Findings) {
    let read = store.read(async |tx| {
        let found = item_vectors::summaries(tx).await?;
        Ok((found, pgvector::is_installed(tx).await?))
    });
    let (found, has_pgvector) = match read.await {
        Ok(found) => found,
        Err(error) => return findings.add("item index", Verdict::Failed, error.to_string()),
    };
    for summary in found {
        let tenant = summary.tenant_id;
        if summary.embedder.is_empty() {
            let text =
                format!("workspace {tenant}: the graph file has no store.index any more; vectors are being removed");
            findings.add("item index", Verdict::Ok, text);
            continue;
        }
        let walk = if summary.walking {
            "; store.index was changed, and items are embedded again"
        } else {
            ""
        };
        let place = if has_pgvector && dims(&summary.embedder) <= pgvector::MAX_DIMS {
            "the index of pgvector in the database"
        } else {
            "the embedded index, in the memory of each process"
        };
        let text = format!(
            "workspace {tenant}: {}; {place}; {} items wait to be embedded{walk}",
            summary.embedder, summary.waiting
        );
        if summary.failing > 0 {
            let text = format!(
                "{text}; the embedder refused {} of them, which are tried again later: see the log of the workers",
                summary.failing
            );
            findings.add("item index", Verdict::Warning, text);
        } else {
            findings.add("item index", Verdict::Ok, text);
        }
    }
}

/// The dimensions of an embedder.
fn dims(embedder: &str) -> usize {
    let embedder: Value = serde_json::from_str(embedder).unwrap_or_default();
    let dims = embedder.get("dims").and_then(Value::as_u64);
    dims.and_then(|dims| usize::try_from(dims).ok()).unwrap_or(usize::MAX)
}
