//! What the auth of the graphs' author said about the request at hand: who calls, and which rows they may see.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;
use towpath_domain::agent::visibility::passes;
use towpath_runtime::hosted::Caller;

/// What was granted to a request.
pub(super) struct Grant {
    /// Who calls.
    pub caller: Arc<Caller>,
    /// What the metadata of a row must pass, where the caller is to see it; empty where everything is seen.
    pub visible: Object,
    /// Threads that may be deleted with their assistant; `None` where the author does not judge that.
    pub deletable: Option<HashSet<ThreadId>>,
}

tokio::task_local! {
    pub(super) static GRANT: Grant;
}

/// What runs of this caller find in their `configurable`.
pub(in crate::agent) fn configurable() -> Map<String, Value> {
    GRANT.try_with(|grant| grant.caller.configurable()).unwrap_or_default()
}

/// The caller, where the author's auth knows callers.
pub(super) fn granted() -> Option<Arc<Caller>> {
    GRANT.try_with(|grant| grant.caller.clone()).ok()
}

/// Does a part of a request's work as far as its caller sees rows whose metadata pass this: one operation of several that a
/// request may name in its body.
pub(in crate::agent) async fn seeing<F: Future>(visible: Object, work: F) -> F::Output {
    match granted() {
        Some(caller) => {
            let grant = Grant {
                caller,
                visible,
                deletable: None,
            };
            GRANT.scope(grant, work).await
        }
        None => work.await,
    }
}

/// Who it is.
pub(in crate::agent) fn identity() -> Option<String> {
    GRANT.try_with(|grant| grant.caller.identity().to_owned()).ok()
}

/// What the metadata of a row must pass, where this caller is to see it. A row that was not there when the request was
/// judged is judged by it where it is found.
pub(in crate::agent) fn visible() -> Object {
    GRANT.try_with(|grant| grant.visible.clone()).unwrap_or_default()
}

/// Whether this caller sees a row with these metadata.
pub(in crate::agent) fn sees(metadata: &str) -> bool {
    let visible = visible();
    visible.is_empty() || serde_json::from_str::<Object>(metadata).is_ok_and(|metadata| passes(&visible, &metadata))
}

/// As [`sees`], of an assistant: those that come with the graphs are everybody's to read.
pub(in crate::agent) fn sees_assistant(metadata: &str) -> bool {
    sees(metadata) || comes_with_graph(metadata)
}

/// Whether an assistant was made for its graph by the server.
pub(super) fn comes_with_graph(metadata: &str) -> bool {
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
    metadata.get("created_by").is_some_and(|by| by == "system")
}

/// Of these threads, which are to be deleted with their assistant, those that this caller may delete.
pub(in crate::agent) fn deletable(mut threads: Vec<ThreadId>) -> Vec<ThreadId> {
    let _ = GRANT.try_with(|grant| {
        if let Some(deletable) = &grant.deletable {
            threads.retain(|thread| deletable.contains(thread));
        }
    });
    threads
}

/// All that is known of the caller, as JSON: for what runs later in the caller's name.
pub(in crate::agent) fn record() -> Option<String> {
    GRANT
        .try_with(|grant| Value::Object(grant.caller.0.clone()).to_string())
        .ok()
}
