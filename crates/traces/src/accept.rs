//! What happens to a request before it is accepted, and the same reading again when it is folded.
//!
//! [`accept`] checks everything that could make folding fail later: encoding, parts, JSON syntax and depth, types of
//! the fields, ids, times. What it lets pass is kept as sent; [`read`] makes operations of it afterwards and finds
//! nothing new to object to. Both go through the same [`Draft`]s, which borrow from the decoded body.

mod parts;
mod run;

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use towpath_domain::trace::{DEFAULT_PROJECT, ProjectRef};
use towpath_domain::{TenantId, Timestamp, TraceRunId};
use uuid::Uuid;

use crate::body::{self, BodyError, Encoding, Limits};
use crate::json;
use crate::multipart::MultipartError;
use crate::operation::{Operation, Verb};
use crate::wal::{Frame, FrameHead};
use parts::Drafts;

/// Which of the ingest routes a body came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// `POST /runs/multipart`.
    Multipart,
    /// `POST /runs/batch`: `{"post": […], "patch": […]}`.
    Batch,
    /// `POST /runs`: one trace run.
    Run,
    /// `PATCH /runs/{id}`: a change of one trace run.
    Patch(TraceRunId),
    /// `POST /feedback`.
    Feedback,
}

/// Projects that one body may name. Each that is not there is made when the body is registered.
pub const MAX_PROJECTS: usize = 1000;
/// Days on which the trace runs of one body may start. Each is a row group of its own once it is folded.
pub const MAX_DAYS: usize = 4096;

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Multipart => f.write_str("POST /runs/multipart"),
            Self::Batch => f.write_str("POST /runs/batch"),
            Self::Run => f.write_str("POST /runs"),
            Self::Patch(id) => write!(f, "PATCH /runs/{id}"),
            Self::Feedback => f.write_str("POST /feedback"),
        }
    }
}

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The caller's workspace.
    pub tenant: TenantId,
    /// The route.
    pub route: Route,
    /// `Content-Type`.
    pub content_type: &'a str,
    /// `Content-Encoding`.
    pub content_encoding: Option<&'a str>,
    /// The body as sent.
    pub body: Bytes,
    /// Now. The start of a trace run that names none.
    pub received_at: Timestamp,
}

/// A request that may be acknowledged as soon as it is on disk: hand it to [`Wal::append`](crate::wal::Wal::append).
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What goes to disk.
    pub frame: Frame,
    /// The projects it names, each once.
    pub projects: Vec<ProjectRef>,
    /// Operations on trace runs.
    pub operations: usize,
    /// Feedback.
    pub feedback: usize,
    /// Attachments.
    pub attachments: usize,
    /// Size of the body after decoding.
    pub decoded_bytes: usize,
}

/// Everything a body holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Operations in the order in which they begin in the body.
    pub operations: Vec<Operation>,
    /// Feedback.
    pub feedback: Vec<Feedback>,
    /// Attachments.
    pub attachments: Vec<Attachment>,
    /// Size of the body after decoding.
    pub decoded_bytes: usize,
}

impl Contents {
    /// How many things it holds; they are numbered in the order of the fields above.
    #[must_use]
    pub fn items(&self) -> usize {
        self.operations.len() + self.feedback.len() + self.attachments.len()
    }
}

/// A judgement on a trace run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// Its own id.
    pub id: Uuid,
    /// The trace run; a whole project where there is none.
    pub run: Option<TraceRunId>,
    /// Under which name.
    pub key: String,
    /// All of it, JSON as sent.
    pub body: String,
}

/// A file that came with a trace run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The trace run.
    pub run: TraceRunId,
    /// Its name.
    pub name: String,
    /// As the client said.
    pub content_type: String,
    /// The file.
    pub data: Bytes,
}

/// Why a body is not accepted. The text names the part or field and is meant for the sender.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Its encoding, or its size after decoding.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// How it is cut into parts.
    #[error(transparent)]
    Multipart(#[from] MultipartError),
    /// A JSON route was sent something else.
    #[error("expected the content type application/json, not `{0}`")]
    NotJson(String),
    /// Too many operations, feedback and attachments in one body.
    #[error("a body holds at most {limit} trace runs, feedback and attachments")]
    TooMany {
        /// What is accepted.
        limit: usize,
    },
    /// Its trace runs start on too many days.
    #[error("start_time: the trace runs of a body start on at most {limit} days; send those of others in another one")]
    TooManyDays {
        /// What is accepted.
        limit: usize,
    },
    /// A field of a trace run.
    #[error("{place}: larger than {limit} bytes, the most that one field may have; send files as attachments")]
    FieldTooLarge {
        /// The field.
        place: String,
        /// What is accepted.
        limit: usize,
    },
    /// Something in it.
    #[error("{place}: {what}")]
    Invalid {
        /// The part or field.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// Something in it that is well-formed by itself.
    #[error("{place}: {what}")]
    Rule {
        /// The part or field.
        place: String,
        /// What it does not go with.
        what: String,
    },
}

/// Sorts of refusal, for whoever has to choose a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// A content type or encoding that is not supported.
    Unsupported,
    /// Too large, packed or unpacked, or too many parts.
    TooLarge,
    /// It is not what it says it is, so it was probably damaged or cut off.
    Malformed,
    /// A value that is missing or of the wrong type.
    Invalid,
    /// Values that do not go together, or that nobody can keep.
    Rule,
}

impl Refusal {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers hand over texts and errors they are done with"
    )]
    pub(crate) fn invalid(place: impl Into<String>, what: impl ToString) -> Self {
        Self::Invalid {
            place: place.into(),
            what: what.to_string(),
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "as above")]
    pub(crate) fn rule(place: impl Into<String>, what: impl ToString) -> Self {
        Self::Rule {
            place: place.into(),
            what: what.to_string(),
        }
    }

    /// Which sort of refusal it is.
    #[must_use]
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::Body(BodyError::Unknown(_)) | Self::Multipart(MultipartError::ContentType) | Self::NotJson(_) => {
                RefusalKind::Unsupported
            }
            Self::Body(BodyError::TooLarge { .. }) | Self::TooMany { .. } | Self::FieldTooLarge { .. } => {
                RefusalKind::TooLarge
            }
            Self::Body(BodyError::Broken { .. })
            | Self::Multipart(MultipartError::Start | MultipartError::Truncated { .. }) => RefusalKind::Malformed,
            Self::Multipart(MultipartError::Part { .. }) | Self::TooManyDays { .. } | Self::Invalid { .. } => {
                RefusalKind::Invalid
            }
            Self::Rule { .. } => RefusalKind::Rule,
        }
    }
}

/// Checks a request. Takes as long as decoding and looking at each byte takes, so it belongs on a thread that may be
/// busy for some milliseconds.
///
/// # Errors
/// Why it is refused; nothing of it may be kept.
pub fn accept(request: Request<'_>, limits: &Limits) -> Result<Accepted, Refusal> {
    let encoding = Encoding::parse(request.content_encoding)?;
    let plain = body::decode(encoding, &request.body, limits)?;
    let drafts = Drafts::of(request.route, request.content_type, &plain, limits, json::check)?;
    let (mut projects, mut days) = (BTreeSet::new(), BTreeSet::new());
    for attachment in &drafts.attachments {
        attachment.check()?;
    }
    for run in &drafts.runs {
        // A post that states no start has the time at which it came.
        let received = (run.verb == Verb::Post).then_some(request.received_at);
        days.extend(run.check(limits)?.or(received).map(Timestamp::day));
        if days.len() > MAX_DAYS {
            return Err(Refusal::TooManyDays { limit: MAX_DAYS });
        }
        let default = || (run.verb == Verb::Post).then(|| run::NamedProject::Name(DEFAULT_PROJECT.into()));
        projects.extend(run.project()?.or_else(default));
        if projects.len() > MAX_PROJECTS {
            let what = format!("a body names at most {MAX_PROJECTS} projects; send those of others in another one");
            return Err(Refusal::rule("session_name", what));
        }
    }
    let (operations, feedback, attachments) = (drafts.runs.len(), drafts.feedback.len(), drafts.attachments.len());
    let head = FrameHead {
        tenant: request.tenant,
        route: request.route,
        content_type: request.content_type.to_owned(),
        encoding,
        received_at: request.received_at,
        items: u32::try_from(operations + feedback + attachments).unwrap_or(u32::MAX),
        decoded_bytes: plain.len() as u64,
    };
    let projects = projects.into_iter().map(run::NamedProject::into_ref).collect();
    let decoded_bytes = plain.len();
    Ok(Accepted {
        frame: Frame {
            head,
            body: request.body,
        },
        projects,
        operations,
        feedback,
        attachments,
        decoded_bytes,
    })
}

/// Reads a frame that was accepted.
///
/// # Errors
/// Only if it was not accepted by [`accept`], or is damaged.
pub fn read(frame: &Frame, limits: &Limits) -> Result<Contents, Refusal> {
    let head = &frame.head;
    let plain = body::decode(head.encoding, &frame.body, limits)?;
    let drafts = Drafts::of(head.route, &head.content_type, &plain, limits, json::known)?;
    let mut contents = Contents {
        operations: Vec::with_capacity(drafts.runs.len()),
        decoded_bytes: plain.len(),
        ..Contents::default()
    };
    for run in &drafts.runs {
        let mut operation = run.to_operation()?;
        if operation.verb == Verb::Post {
            // A post says where and when; what it leaves out is filled in from when it came.
            operation
                .project
                .get_or_insert_with(|| ProjectRef::Name(DEFAULT_PROJECT.to_owned()));
            if operation.sort_time().is_none() {
                operation.fields.start_time = Some(head.received_at);
            }
        }
        contents.operations.push(operation);
    }
    contents.feedback = drafts.feedback;
    contents.attachments = drafts
        .attachments
        .into_iter()
        .map(|attachment| Attachment {
            run: attachment.run,
            name: attachment.name.to_owned(),
            content_type: attachment.content_type.to_owned(),
            data: plain.slice_ref(attachment.data),
        })
        .collect();
    Ok(contents)
}
