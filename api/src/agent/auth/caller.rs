//! The caller of the request at hand, as the auth of the graphs' author named it.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use towpath_runtime::hosted::Caller;

tokio::task_local! {
    pub(super) static CALLER: Arc<Caller>;
}

/// What runs of this caller find in their `configurable`.
pub(in crate::agent) fn configurable() -> Map<String, Value> {
    let entries = CALLER.try_with(|caller| {
        let permissions = caller.0.get("permissions").cloned().unwrap_or_else(|| json!([]));
        Map::from_iter([
            ("langgraph_auth_user".to_owned(), Value::Object(caller.0.clone())),
            ("langgraph_auth_user_id".to_owned(), json!(caller.identity())),
            ("langgraph_auth_permissions".to_owned(), permissions),
        ])
    });
    entries.unwrap_or_default()
}

/// Who it is.
pub(in crate::agent) fn identity() -> Option<String> {
    CALLER.try_with(|caller| caller.identity().to_owned()).ok()
}
