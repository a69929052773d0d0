//! Errors between the engine, the graph and clients.

use serde_json::{Value, json};
use towpath_durable::Failure;
use towpath_runtime::{GraphError, HostError};

pub fn host_error(failure: Failure) -> HostError {
    match failure {
        Failure::Cancelled => HostError::Cancelled,
        Failure::Fatal(cause) => HostError::Invalid {
            class: "RuntimeError".to_owned(),
            message: cause.text().to_owned(),
        },
        failure => HostError::Lost(failure.to_string()),
    }
}

/// Longer tracebacks lose their beginning.
const LONGEST_TRACEBACK: usize = 6 << 10;

/// An error with its traceback.
pub fn for_operator(error: &GraphError) -> String {
    let mut told = error.to_string().replace('\0', "\u{FFFD}");
    let end = (0..=LONGEST_TRACEBACK.min(told.len()))
        .rev()
        .find(|&at| told.is_char_boundary(at));
    told.truncate(end.unwrap_or(0));
    if let Some(traceback) = &error.traceback {
        let skip = traceback.len().saturating_sub(LONGEST_TRACEBACK);
        let from = (skip..traceback.len()).find(|&at| traceback.is_char_boundary(at));
        told.push('\n');
        told.push_str(&traceback[from.unwrap_or(0)..].replace('\0', "\u{FFFD}"));
    }
    told
}

/// Exceptions whose text is meant for clients; others may reveal too much.
const PUBLIC_EXCEPTIONS: [&str; 16] = [
    "ValueError",
    "TypeError",
    "KeyError",
    "AttributeError",
    "RuntimeError",
    "RecursionError",
    "GraphRecursionError",
    "TimeoutError",
    "InvalidUpdateError",
    "GraphBubbleUp",
    "GraphInterrupt",
    "EmptyInputError",
    "TaskNotFound",
    "HTTPException",
    "UserInterrupt",
    "UnknownInterruptError",
];

/// An error in the format for clients.
pub fn public_error(class: &str, message: &str) -> Value {
    let message = if PUBLIC_EXCEPTIONS.contains(&class) {
        message
    } else {
        "An internal error occurred"
    };
    json!({"error": class, "message": message})
}
