//! A refusal that the caller can act on.

use std::fmt;

/// Something a rule does not allow. It names the field and says what to do; nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// What sort of refusal, which decides the status code at the surface.
    pub why: Why,
    /// The field, dotted (`config.prefix`), or empty where it is not about one.
    pub field: String,
    /// A sentence for the person who sent it.
    pub message: String,
}

/// Sorts of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A field alone is missing, of the wrong type, or out of its range.
    Invalid,
    /// Fields or states do not go together.
    Rule,
    /// There is no such thing, or it is somebody else's.
    NotFound,
    /// It exists already or is in the way.
    Conflict,
    /// This build does not have it yet.
    Unsupported,
}

impl Rejection {
    /// A field that is wrong by itself.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            why: Why::Invalid,
            field: field.into(),
            message: message.into(),
        }
    }

    /// A rule across fields or states.
    pub fn rule(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            why: Why::Rule,
            field: field.into(),
            message: message.into(),
        }
    }

    /// No such `noun`, or it belongs to another workspace, which must look the same.
    pub fn not_found(noun: &str) -> Self {
        Self {
            why: Why::NotFound,
            field: String::new(),
            message: format!("{noun} not found"),
        }
    }

    /// Exists already, or is in the way.
    pub fn conflict(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            why: Why::Conflict,
            field: field.into(),
            message: message.into(),
        }
    }

    /// A valid wish this build cannot fulfil. It is refused, never ignored.
    pub fn unsupported(field: impl Into<String>, what: impl fmt::Display) -> Self {
        Self {
            why: Why::Unsupported,
            field: field.into(),
            message: format!("{what} is not available in this build"),
        }
    }
}
