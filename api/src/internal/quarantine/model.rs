//! What the routes of the quarantine answer.

use serde::Serialize;
use serde_json::value::RawValue;
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_store::quarantine::{self as stored, Kind};
use towpath_traces::body::Encoding;
use towpath_traces::wal::{DamagedFrame, Frame};
use towpath_workflows::quarantine;

use crate::app::App;
use crate::errors::ApiError;

/// Maximum number of frames shown.
const FRAMES: usize = 1000;

/// Accepted trace data that could not be flushed: one request, or several requests of a workspace at one time.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineEntry)]
pub(crate) struct Entry {
    #[schema(value_type = Uuid)]
    id: QuarantineId,
    /// Workspace.
    #[schema(value_type = Uuid)]
    tenant_id: TenantId,
    #[schema(inline, value_type = KindName)]
    kind: &'static str,
    /// Why it could not be flushed.
    reason: String,
    /// The object with its frames.
    path: String,
    /// First byte of its frames in the object.
    #[schema(minimum = 0)]
    byte_offset: i64,
    /// Length of its frames in bytes.
    #[schema(minimum = 0)]
    bytes: i64,
    /// Decompressed size of its bodies; 0 if unknown.
    #[schema(minimum = 0)]
    decoded_bytes: i64,
    /// Number of operations, feedback and attachments.
    #[schema(minimum = 0)]
    items: i64,
    /// Project ids of the names in it, at the time of acceptance.
    #[schema(value_type = Object)]
    names: Box<RawValue>,
    /// Projects that it may affect; null for any in the workspace.
    #[schema(value_type = Option<Vec<Uuid>>)]
    projects: Option<Box<RawValue>>,
    /// First start time of affected trace runs; null if unknown.
    #[schema(value_type = Option<String>, format = DateTime)]
    first_start: Option<Timestamp>,
    /// Last start time of affected trace runs; null if unknown.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_start: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    /// When it entered quarantine.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// Why something is in quarantine, for the API description.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for `Kind`, which knows nothing of the API")]
enum KindName {
    /// The bytes are damaged.
    Damaged,
    /// The data is undamaged but cannot be merged or stored.
    Rejected,
    /// The object is missing.
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

/// A page of entries.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineEntries)]
pub(crate) struct Entries {
    /// By workspace, latest first.
    pub(crate) items: Vec<Entry>,
    /// Cursor of the next page; null on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// An entry with the headers of its frames.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineEntryDetail)]
pub(crate) struct EntryDetail {
    #[serde(flatten)]
    entry: Entry,
    /// Whether the object exists: `present`, `absent`, or `unknown` while the object store is unavailable.
    #[schema(inline, value_type = ObjectState)]
    object: &'static str,
    /// Its frames, the first 1,000.
    frames: Vec<FrameHead>,
}

impl EntryDetail {
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

/// The header of a frame. A damaged frame only has `damage`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineFrame)]
pub(crate) struct FrameHead {
    /// Index in the entry.
    #[schema(minimum = 0)]
    pub(crate) number: usize,
    /// Route of the request.
    pub(crate) route: Option<String>,
    /// `Content-Type` of the request.
    pub(crate) content_type: Option<String>,
    /// `Content-Encoding` of the request: `identity`, `gzip` or `zstd`.
    #[schema(value_type = Option<String>)]
    pub(crate) encoding: Option<Encoding>,
    /// Operations, feedback and attachments in it.
    #[schema(minimum = 0)]
    pub(crate) items: Option<u32>,
    /// Time of receipt.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) received_at: Option<Timestamp>,
    /// Size of the body as sent.
    #[schema(minimum = 0)]
    pub(crate) body_bytes: Option<usize>,
    /// Kind of damage.
    pub(crate) damage: Option<String>,
}

impl FrameHead {
    fn of(number: usize, frame: Result<Frame, DamagedFrame>) -> Self {
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

/// State of an entry's object.
pub(crate) struct Contents {
    /// `present`, `absent` or `unknown`.
    pub(crate) object: &'static str,
    pub(crate) frames: Vec<FrameHead>,
}

/// Reads the headers of an entry's frames. If the object store is unavailable, only they are missing.
pub(crate) async fn contents(app: &App, entry: &stored::Entry) -> Contents {
    let (object, frames) = match quarantine::frames(&app.objects, entry).await {
        Ok(Some(frames)) => ("present", frames),
        Ok(None) => ("absent", Vec::new()),
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                quarantine.id = %entry.id,
                "cannot read a quarantined object"
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

/// Quarantined data of a workspace.
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

/// Quarantined data by workspace.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineUsages)]
pub(crate) struct Usages {
    /// By workspace.
    pub(crate) items: Vec<Usage>,
}
