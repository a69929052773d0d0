//! Errors of the protocol, each with its number.

use serde_json::{Value, json};

use super::Dialect;

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The body is no JSON.
    Parse,
    /// It is JSON, and no request of JSON-RPC 2.0.
    InvalidRequest,
    /// There is no such method.
    MethodNotFound,
    /// A parameter is missing or wrong.
    InvalidParams,
    /// A defect of the server, or its database is away.
    Internal,
    /// There is no such task, or the caller does not see it.
    TaskNotFound,
    /// The task is over.
    TaskNotCancelable,
    /// Nobody is called back here.
    PushNotSupported,
    /// The task does not take this in its state.
    UnsupportedOperation,
    /// The assistant does not take such a part.
    ContentTypeNotSupported,
    /// Another version of the protocol.
    VersionNotSupported,
}

impl Code {
    /// As it stands in `error.code`.
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
pub struct Refusal {
    /// What it is about.
    pub code: Code,
    /// What is wrong and what to do.
    pub message: String,
}

impl Refusal {
    /// With a message for the caller.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// A parameter that is missing or wrong.
    pub fn params(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidParams, message)
    }

    /// No such task, or one that the caller does not see.
    pub fn no_task(id: impl std::fmt::Display) -> Self {
        Self::new(Code::TaskNotFound, format!("Task not found: {id}"))
    }

    /// The `error` of an answer. Version 1.0 adds the reason as a word.
    #[must_use]
    pub fn write(&self, dialect: Dialect) -> Value {
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
