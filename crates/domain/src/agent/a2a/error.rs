//! Errors of the protocol, each with its number.

use serde_json::{Value, json};

use super::Dialect;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The body is not JSON.
    Parse,
    /// Valid JSON, but not a JSON-RPC 2.0 request.
    InvalidRequest,
    MethodNotFound,
    /// A parameter is missing or wrong.
    InvalidParams,
    /// A bug of the server, or its database is unavailable.
    Internal,
    /// There is no such task, or the caller may not see it.
    TaskNotFound,
    /// The task is over.
    TaskNotCancelable,
    /// Push notifications are disabled.
    PushNotSupported,
    /// The task does not accept the operation in its state.
    UnsupportedOperation,
    /// The assistant does not accept such a part.
    ContentTypeNotSupported,
    /// Unsupported protocol version.
    VersionNotSupported,
}

impl ErrorCode {
    /// The number in `error.code`.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Parse => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::Internal => -32603,
            Self::TaskNotFound => -32001,
            Self::TaskNotCancelable => -32002,
            Self::PushNotSupported => -32003,
            Self::UnsupportedOperation => -32004,
            Self::ContentTypeNotSupported => -32005,
            Self::VersionNotSupported => -32009,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Parse => "JSON_PARSE_ERROR",
            Self::InvalidRequest => "INVALID_REQUEST",
            Self::MethodNotFound => "METHOD_NOT_FOUND",
            Self::InvalidParams => "INVALID_PARAMS",
            Self::Internal => "INTERNAL_ERROR",
            Self::TaskNotFound => "TASK_NOT_FOUND",
            Self::TaskNotCancelable => "TASK_NOT_CANCELABLE",
            Self::PushNotSupported => "PUSH_NOTIFICATION_NOT_SUPPORTED",
            Self::UnsupportedOperation => "UNSUPPORTED_OPERATION",
            Self::ContentTypeNotSupported => "CONTENT_TYPE_NOT_SUPPORTED",
            Self::VersionNotSupported => "VERSION_NOT_SUPPORTED",
        }
    }
}

/// An error that the caller reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct A2aError {
    pub code: ErrorCode,
    /// What is wrong and what to do.
    pub message: String,
}

impl A2aError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// A parameter that is missing or wrong.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    pub fn task_not_found(id: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::TaskNotFound, format!("Task not found: {id}"))
    }

    /// The `error` of an answer. Version 1.0 adds the reason as a word.
    #[must_use]
    pub fn to_json(&self, dialect: Dialect) -> Value {
        let mut error = json!({"code": self.code.number(), "message": self.message});
        if dialect == Dialect::V10 {
            error["data"] = json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": self.code.reason(),
                "domain": "a2a-protocol.org",
                "metadata": {},
            }]);
        }
        error
    }
}
