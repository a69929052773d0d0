//! What a graph's errors are to clients.

use towpath_runtime::GraphError;

use crate::agent::errors::AgentError;

pub(super) fn graph_error(error: &GraphError) -> AgentError {
    if error.retry {
        tracing::warn!(error = %error, "a thread's state cannot be read now");
        return AgentError::unavailable("Service Unavailable", std::time::Duration::from_secs(2));
    }
    match error.class.as_str() {
        "RuntimeError" => AgentError::internal(error),
        "InvalidUpdateError" | "ValueError" | "EmptyInputError" => AgentError::bad_request(error.message.clone()),
        _ => AgentError::bad_request(error.to_string()),
    }
}
