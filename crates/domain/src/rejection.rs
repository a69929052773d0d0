//! Refusals that the caller can act on.

use std::fmt;

/// A violated rule. It names the field and what to do; nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// Decides the status code.
    pub kind: RejectionKind,
    /// The field, dotted (`config.prefix`); empty if the rejection is not about a field.
    pub field: String,
    /// The message for the client.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// A field is missing, of the wrong type, or out of range.
    Invalid,
    /// Fields or states are inconsistent.
    Rule,
    /// It does not exist or belongs to another caller.
    NotFound,
    /// It already exists or is in use.
    Conflict,
    /// This build does not support it.
    Unsupported,
}

impl Rejection {
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: RejectionKind::Invalid,
            field: field.into(),
            message: message.into(),
        }
    }

    pub fn rule(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: RejectionKind::Rule,
            field: field.into(),
            message: message.into(),
        }
    }

    /// Not found. Objects of other workspaces must look the same.
    pub fn not_found(noun: &str) -> Self {
        Self {
            kind: RejectionKind::NotFound,
            field: String::new(),
            message: format!("{noun} not found"),
        }
    }

    pub fn conflict(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: RejectionKind::Conflict,
            field: field.into(),
            message: message.into(),
        }
    }

    /// A valid request that this build does not support. It is refused, never ignored.
    pub fn unsupported(field: impl Into<String>, what: impl fmt::Display) -> Self {
        Self {
            kind: RejectionKind::Unsupported,
            field: field.into(),
            message: format!("{what} is not available in this build"),
        }
    }
}
