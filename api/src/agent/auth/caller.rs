//! The caller of the request at hand, as the auth of the graphs' author named it.

use std::sync::Arc;

use serde_json::{Map, Value};
use towpath_runtime::hosted::Caller;

tokio::task_local! {
    pub(super) static CALLER: Arc<Caller>;
}

/// What runs of this caller find in their `configurable`.
pub(in crate::agent) fn configurable() -> Map<String, Value> {
    CALLER.try_with(|caller| caller.configurable()).unwrap_or_default()
}

/// Who it is.
pub(in crate::agent) fn identity() -> Option<String> {
    CALLER.try_with(|caller| caller.identity().to_owned()).ok()
}

/// All that is known of the caller, as JSON: for what runs later in the caller's name.
pub(in crate::agent) fn record() -> Option<String> {
    CALLER
        .try_with(|caller| Value::Object(caller.0.clone()).to_string())
        .ok()
}
