//! The index of items of agent servers.

use towpath_store::Store;
use towpath_store::item_vectors;

use super::{Findings, Verdict};

/// Reports where vectors are searched, and what is still to be embedded. Nothing without an index.
pub(super) async fn check(store: &Store, findings: &mut Findings) {
    let found = match store.read(async |tx| item_vectors::summaries(tx).await).await {
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
        let text = format!(
            "workspace {tenant}: {}; the embedded index, in the memory of each process; {} items wait to be embedded{walk}",
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
