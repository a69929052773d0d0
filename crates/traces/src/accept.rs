//! Validation of requests before they are accepted, and the same parser for flushes.
//!
//! [`accept`] checks everything that could make a flush fail later: encoding, parts, JSON syntax and depth, types of
//! fields, ids, times. Accepted bytes are stored as sent; [`read`] later converts them into operations and finds no new
//! errors. Both use the same [`RawOperation`]s, which borrow from the decoded body.

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
use parts::RawBody;

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

/// Projects that one body may name. Missing ones are created when the body is registered.
pub const MAX_PROJECTS: usize = 1000;
/// Distinct start days in one body. Each becomes a separate row group.
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
    pub route: Route,
    pub content_type: &'a str,
    pub content_encoding: Option<&'a str>,
    /// The body as sent.
    pub body: Bytes,
    /// Now. The start of a trace run that names none.
    pub received_at: Timestamp,
}

/// A request that may be acknowledged once it is on disk: pass it to [`Wal::append`](crate::wal::Wal::append).
#[derive(Clone, Debug)]
pub struct AcceptedRequest {
    /// What goes to disk.
    pub frame: Frame,
    /// The projects it names, each once.
    pub projects: Vec<ProjectRef>,
    /// Operations on trace runs.
    pub operations: usize,
    pub feedback: usize,
    pub attachments: usize,
    /// Size of the body after decoding.
    pub decoded_bytes: usize,
}

/// Everything a body holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Operations in the order in which they begin in the body.
    pub operations: Vec<Operation>,
    pub feedback: Vec<Feedback>,
    pub attachments: Vec<Attachment>,
    /// Size of the body after decoding.
    pub decoded_bytes: usize,
}

impl Contents {
    /// The number of its items, which are numbered in the order of the fields above.
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
    /// The trace run; a whole project if there is none.
    pub run: Option<TraceRunId>,
    /// Under which name.
    pub key: String,
    /// All of it, JSON as sent.
    pub body: String,
}

/// A file that came with a trace run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub run: TraceRunId,
    pub name: String,
    /// As sent by the client.
    pub content_type: String,
    /// The file.
    pub data: Bytes,
}

/// Why a body is refused. The message names the part or field and is for the sender.
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
    #[error("a body may hold at most {limit} trace runs, feedback and attachments")]
    TooMany {
        /// What is accepted.
        limit: usize,
    },
    /// Its trace runs start on too many days.
    #[error(
        "start_time: the trace runs of a body may start on at most {limit} days; send the others in another request"
    )]
    TooManyDays {
        /// What is accepted.
        limit: usize,
    },
    /// A field of a trace run.
    #[error("{place}: larger than {limit} bytes, the limit per field; send files as attachments")]
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

/// Sorts of refusal, for the caller that has to choose a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// A content type or encoding that is not supported.
    Unsupported,
    /// Too large, packed or unpacked, or too many parts.
    TooLarge,
    /// The content contradicts its declaration, so it was probably damaged or truncated.
    Malformed,
    /// A value that is missing or of the wrong type.
    Invalid,
    /// Values that do not go together, or that no one can keep.
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

/// Checks a request. Takes as long as decoding and scanning it, so run it on a thread that may block for some
/// milliseconds.
pub fn accept(request: Request<'_>, limits: &Limits) -> Result<AcceptedRequest, Refusal> {
    let encoding = Encoding::parse(request.content_encoding)?;
    let plain = body::decode(encoding, &request.body, limits)?;
    let drafts = RawBody::of(request.route, request.content_type, &plain, limits, json::check)?;
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
        let default = || (run.verb == Verb::Post).then(|| run::ProjectKey::Name(DEFAULT_PROJECT.into()));
        projects.extend(run.project()?.or_else(default));
        if projects.len() > MAX_PROJECTS {
            let what = format!("a body may name at most {MAX_PROJECTS} projects; send the others in another request");
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
    let projects = projects.into_iter().map(run::ProjectKey::into_ref).collect();
    let decoded_bytes = plain.len();
    Ok(AcceptedRequest {
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
pub fn read(frame: &Frame, limits: &Limits) -> Result<Contents, Refusal> {
    let head = &frame.head;
    let plain = body::decode(head.encoding, &frame.body, limits)?;
    let drafts = RawBody::of(head.route, &head.content_type, &plain, limits, json::checked_text)?;
    let mut contents = Contents {
        operations: Vec::with_capacity(drafts.runs.len()),
        decoded_bytes: plain.len(),
        ..Contents::default()
    };
    for run in &drafts.runs {
        let mut operation = run.to_operation()?;
        if operation.verb == Verb::Post {
            // A post defines location and time; missing values are filled in from its arrival.
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
