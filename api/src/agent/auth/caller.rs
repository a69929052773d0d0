//! Result of custom auth for the current request: the caller, and the rows they may see.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use towpath_domain::ThreadId;
use towpath_domain::agent::Object;
use towpath_domain::agent::visibility::matches;
use towpath_runtime::hosted::Caller;

pub(super) struct Grant {
    pub caller: Arc<Caller>,
    /// Filter on the metadata of visible rows; empty if all are visible.
    pub visible: Object,
    /// Threads that may be deleted with their assistant; `None` if the author has no handler for it.
    pub deletable: Option<HashSet<ThreadId>>,
}

tokio::task_local! {
    pub(super) static GRANT: Grant;
}

/// Entries for the `configurable` of this caller's runs.
pub(in crate::agent) fn configurable() -> Map<String, Value> {
    GRANT.try_with(|grant| grant.caller.configurable()).unwrap_or_default()
}

/// The caller, if custom auth is enabled.
pub(super) fn authenticated_caller() -> Option<Arc<Caller>> {
    GRANT.try_with(|grant| grant.caller.clone()).ok()
}

/// Runs a part of a request with another filter: one of several operations that a request may name in its body.
pub(in crate::agent) async fn with_visibility<F: Future>(visible: Object, work: F) -> F::Output {
    match authenticated_caller() {
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

/// Identity of the caller.
pub(in crate::agent) fn identity() -> Option<String> {
    GRANT.try_with(|grant| grant.caller.identity().to_owned()).ok()
}

/// Filter on the metadata of visible rows. Rows that did not exist during authorization are checked where they are found.
pub(in crate::agent) fn visible() -> Object {
    GRANT.try_with(|grant| grant.visible.clone()).unwrap_or_default()
}

/// Whether this caller may see a row with these metadata.
pub(in crate::agent) fn sees(metadata: &str) -> bool {
    let visible = visible();
    visible.is_empty() || serde_json::from_str::<Object>(metadata).is_ok_and(|metadata| matches(&visible, &metadata))
}

/// As [`sees`], for an assistant: everybody may read the default assistants.
pub(in crate::agent) fn sees_assistant(metadata: &str) -> bool {
    sees(metadata) || comes_with_graph(metadata)
}

/// Whether the server created an assistant as the default of its graph.
pub(super) fn comes_with_graph(metadata: &str) -> bool {
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
    metadata.get("created_by").is_some_and(|by| by == "system")
}

/// Filters threads that are deleted with their assistant.
pub(in crate::agent) fn deletable(mut threads: Vec<ThreadId>) -> Vec<ThreadId> {
    let _ = GRANT.try_with(|grant| {
        if let Some(deletable) = &grant.deletable {
            threads.retain(|thread| deletable.contains(thread));
        }
    });
    threads
}

/// The caller as JSON, for work that runs later on the caller's behalf.
pub(in crate::agent) fn record() -> Option<String> {
    GRANT
        .try_with(|grant| Value::Object(grant.caller.0.clone()).to_string())
        .ok()
}
