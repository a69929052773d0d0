//! What the routes of the quarantine answer.

use serde::Serialize;
use serde_json::value::RawValue;
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_store::quarantine::{self as stored, Kind};
use towpath_traces::body::Encoding;
use towpath_traces::wal::{Damage, Frame};
use towpath_workflows::quarantine;

use crate::app::App;
use crate::errors::ApiError;

/// Frames that are shown of one entry.
const FRAMES: usize = 1000;

/// Accepted trace data that could not be folded: a request, or what a workspace sent in several at one time.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineEntry)]
pub(crate) struct Entry {
    #[schema(value_type = Uuid)]
    id: QuarantineId,
    /// Its workspace.
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    #[schema(inline, value_type = KindName)]
    kind: &'static str,
    /// Why it could not be folded.
    reason: String,
    /// The object that holds its frames.
    path: String,
    /// The first byte of its frames there.
    #[schema(minimum = 0)]
    byte_offset: i64,
    /// Length of its frames in bytes.
    #[schema(minimum = 0)]
    bytes: i64,
    /// Size of its bodies once unpacked; 0 where that is not known.
    #[schema(minimum = 0)]
    decoded_bytes: i64,
    /// Operations, feedback and attachments that are missing without it.
    #[schema(minimum = 0)]
    items: i64,
    /// What the names of projects in it meant when it was accepted.
    #[schema(value_type = Object)]
    names: Box<RawValue>,
    /// The projects that it may touch; null is any of the workspace.
    #[schema(value_type = Option<Vec<Uuid>>)]
    projects: Option<Box<RawValue>>,
    /// The first start of a trace run that it may touch; null where that is not known.
    #[schema(value_type = Option<String>, format = DateTime)]
    first_start: Option<Timestamp>,
    /// The last start of a trace run that it may touch; null where that is not known.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_start: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    /// When it came into quarantine.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// Why something is in quarantine, for the API description.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for `Kind`, which knows nothing of the API")]
enum KindName {
    /// Its bytes are not those that were accepted.
    Damaged,
    /// It is as it was accepted, and cannot be merged or stored.
    Rejected,
    /// Its object is not in the object store.
    Missing,
}

impl TryFrom<stored::Entry> for Entry {
    type Error = ApiError;

    fn try_from(entry: stored::Entry) -> Result<Self, ApiError> {
        let json = |column, text| {
            RawValue::from_string(text).map_err(|_| towpath_store::Error::corrupt("quarantine", column, entry.id))
        };
        Ok(Self {
            id: entry.id,
            tenant_id: entry.tenant_id,
            kind: Kind::as_str(entry.kind),
            reason: entry.reason,
            path: entry.path,
            byte_offset: entry.byte_offset,
            bytes: entry.bytes,
            decoded_bytes: entry.decoded_bytes,
            items: entry.items,
            names: json("names", entry.names)?,
            projects: entry.projects.map(|text| json("projects", text)).transpose()?,
            first_start: entry.first_start,
            last_start: entry.last_start,
            accepted_at: entry.accepted_at,
            created_at: entry.created_at,
        })
    }
}

/// A piece of a list of entries.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineEntries)]
pub(crate) struct Entries {
    /// By workspace, the latest first.
    pub(crate) items: Vec<Entry>,
    /// Where the list goes on; null at its end.
    pub(crate) next_cursor: Option<String>,
}

/// An entry with what the heads of its frames say.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineEntryDetail)]
pub(crate) struct EntryDetail {
    #[serde(flatten)]
    entry: Entry,
    /// Whether the object is there: `present`, `absent`, or `unknown` while the object store does not answer.
    #[schema(inline, value_type = ObjectState)]
    object: &'static str,
    /// Its frames, the first 1,000.
    frames: Vec<FrameHead>,
}

impl EntryDetail {
    /// # Errors
    /// The row cannot be read.
    pub(crate) fn new(entry: stored::Entry, contents: Contents) -> Result<Self, ApiError> {
        Ok(Self {
            entry: entry.try_into()?,
            object: contents.object,
            frames: contents.frames,
        })
    }
}

/// Whether an object is there, for the API description.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for three texts")]
enum ObjectState {
    Present,
    Absent,
    Unknown,
}

/// What is known of a body beside its bytes. Of a damaged frame that is only the damage.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineFrame)]
pub(crate) struct FrameHead {
    /// Its place in the entry, counted from 0.
    #[schema(minimum = 0)]
    pub(crate) number: usize,
    /// The route it came by.
    pub(crate) route: Option<String>,
    /// `Content-Type` of the request.
    pub(crate) content_type: Option<String>,
    /// `Content-Encoding` of the request: `identity`, `gzip` or `zstd`.
    #[schema(value_type = Option<String>)]
    pub(crate) encoding: Option<Encoding>,
    /// Operations, feedback and attachments in it.
    #[schema(minimum = 0)]
    pub(crate) items: Option<u32>,
    /// When it came.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) received_at: Option<Timestamp>,
    /// Size of the body as sent.
    #[schema(minimum = 0)]
    pub(crate) body_bytes: Option<usize>,
    /// What is wrong with it.
    pub(crate) damage: Option<String>,
}

impl FrameHead {
    fn of(number: usize, frame: Result<Frame, Damage>) -> Self {
        match frame {
            Ok(Frame { head, body }) => Self {
                number,
                route: Some(head.route.to_string()),
                content_type: Some(head.content_type),
                encoding: Some(head.encoding),
                items: Some(head.items),
                received_at: Some(head.received_at),
                body_bytes: Some(body.len()),
                damage: None,
            },
            Err(damage) => Self {
                number,
                route: None,
                content_type: None,
                encoding: None,
                items: damage.items,
                received_at: None,
                body_bytes: None,
                damage: Some(damage.to_string()),
            },
        }
    }
}

/// What lies in the object store of an entry.
pub(crate) struct Contents {
    /// `present`, `absent` or `unknown`.
    pub(crate) object: &'static str,
    pub(crate) frames: Vec<FrameHead>,
}

/// Reads the heads of an entry's frames. An object store that is away hides only them.
pub(crate) async fn contents(app: &App, entry: &stored::Entry) -> Contents {
    let (object, frames) = match quarantine::frames(&app.objects, entry).await {
        Ok(Some(frames)) => ("present", frames),
        Ok(None) => ("absent", Vec::new()),
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                quarantine.id = %entry.id,
                "a quarantined object cannot be read"
            );
            ("unknown", Vec::new())
        }
    };
    let frames = frames.into_iter().take(FRAMES).enumerate();
    Contents {
        object,
        frames: frames.map(|(number, frame)| FrameHead::of(number, frame)).collect(),
    }
}

/// What a workspace has in quarantine.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineUsage)]
pub(crate) struct Usage {
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    #[schema(minimum = 0)]
    entries: i64,
    /// Operations, feedback and attachments in them.
    #[schema(minimum = 0)]
    items: i64,
    /// Bytes of their frames.
    #[schema(minimum = 0)]
    bytes: i64,
}

impl From<stored::Usage> for Usage {
    fn from(usage: stored::Usage) -> Self {
        Self {
            tenant_id: usage.tenant_id,
            entries: usage.entries,
            items: usage.items,
            bytes: usage.bytes,
        }
    }
}

/// What workspaces have in quarantine.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineUsages)]
pub(crate) struct Usages {
    /// By workspace.
    pub(crate) items: Vec<Usage>,
}
