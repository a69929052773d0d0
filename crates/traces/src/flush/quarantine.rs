//! Quarantine: data that cannot be flushed are stored under `quarantine/` in the format of a WAL segment, so that the
//! flush can be repeated.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, QuarantineId, TenantId, Timestamp};
use towpath_store::Store;
use towpath_store::quarantine::{Entry, Kind};
use towpath_store::wal_segments::WalSegment;
use uuid::Uuid;

use super::source::{self, NumberedFrame, WalSegmentReader};
use super::{MergeError, store_fills_in};
use crate::accept::{self, Contents};
use crate::body::Limits;
use crate::objects::{Objects, ObjectsError};
use crate::wal::frame;

/// Where the frames of an entry are.
#[must_use]
pub fn quarantine_path(tenant: TenantId, id: QuarantineId) -> Path {
    Path::from(format!("quarantine/{tenant}/{id}.unit"))
}

/// What the names of projects in a WAL segment mean.
type Names = BTreeMap<String, ProjectId>;

/// Copies the frame of this number, which cannot be flushed because of `reason`. `None` if the WAL segment has no such
/// frame.
pub async fn quarantine_frame(
    store: &Store,
    objects: &Objects,
    unit: &WalSegment,
    number: i64,
    reason: &str,
) -> Result<Option<Entry>, MergeError> {
    let names = source::Names::of(store, std::slice::from_ref(unit))
        .await?
        .of_segment(unit.id);
    let bytes = WalSegmentReader::new(objects, std::slice::from_ref(unit))
        .bytes(0, unit)
        .await?;
    let found = source::frames(unit, bytes).find(|frame| frame.number == number);
    match found {
        Some(frame) => Ok(Some(quarantine_frames(objects, unit, &names, &frame, reason).await?)),
        None => Ok(None),
    }
}

/// Copies a frame, and says what may be missing without it.
pub(super) async fn quarantine_frames(
    objects: &Objects,
    unit: &WalSegment,
    names: &Names,
    frame: &NumberedFrame,
    reason: &str,
) -> Result<Entry, ObjectsError> {
    // The same for every attempt, so that a repeated one leaves a single copy.
    let id = QuarantineId(Uuid::new_v5(&unit.id.0, &frame.number.to_be_bytes()));
    let path = quarantine_path(unit.tenant_id, id);
    let (kind, pieces, items, contents) = match &frame.frame {
        Ok(known) => {
            let contents = accept::read(known, &Limits::NONE).ok();
            let pieces = frame::write(std::iter::once(known));
            (Kind::Rejected, pieces, i64::from(known.head.items), contents)
        }
        Err(damage) => {
            // If even their number is lost, that of the WAL segment counts.
            let items = damage.items.map_or(unit.operations, i64::from);
            let pieces = frame::single_segment_object(damage.bytes.clone());
            (Kind::Damaged, pieces, items, None)
        }
    };
    let bytes = pieces.iter().skip(1).map(Bytes::len).sum::<usize>();
    let touched = contents
        .as_ref()
        .and_then(|contents| affected_projects(contents, names));
    let decoded_bytes = contents.map_or(0, |contents| contents.decoded_bytes);
    objects.put(&path, pieces).await?;
    let (projects, starts) = touched.unzip();
    Ok(Entry {
        id,
        tenant_id: unit.tenant_id,
        kind,
        reason: reason.to_owned(),
        path: path.into(),
        byte_offset: i64::try_from(frame::FIRST).unwrap_or_default(),
        bytes: int(bytes),
        decoded_bytes: int(decoded_bytes),
        items,
        names: json(names),
        projects: projects.map(|projects| json(&projects)),
        first_start: starts.map(|(first, _)| first),
        last_start: starts.map(|(_, last)| last),
        accepted_at: unit.created_at,
        created_at: store_fills_in(),
    })
}

/// An entry for a whole WAL segment whose object is not there.
pub(super) fn missing(unit: &WalSegment, names: &Names) -> Entry {
    Entry {
        id: QuarantineId(Uuid::new_v5(&unit.id.0, b"missing")),
        tenant_id: unit.tenant_id,
        kind: Kind::Missing,
        reason: "its object is missing in the object store".to_owned(),
        path: unit.path.clone(),
        byte_offset: unit.byte_offset,
        bytes: unit.bytes,
        decoded_bytes: unit.decoded_bytes,
        items: unit.operations,
        names: json(names),
        projects: None,
        first_start: None,
        last_start: None,
        accepted_at: unit.created_at,
        created_at: store_fills_in(),
    }
}

/// The projects and starts that a body may affect; `None` if an operation refers to the location of its trace run.
fn affected_projects(contents: &Contents, names: &Names) -> Option<(BTreeSet<ProjectId>, (Timestamp, Timestamp))> {
    if !contents.feedback.is_empty() || !contents.attachments.is_empty() {
        return None;
    }
    let mut projects = BTreeSet::new();
    let mut starts: Option<(Timestamp, Timestamp)> = None;
    for operation in &contents.operations {
        // A patch may belong to a trace run that is elsewhere.
        if operation.verb == crate::operation::Verb::Patch {
            return None;
        }
        let start = operation.sort_time()?;
        projects.insert(match operation.project.as_ref()? {
            ProjectRef::Id(id) => *id,
            ProjectRef::Name(name) => *names.get(name)?,
        });
        starts = Some(starts.map_or((start, start), |(first, last)| (first.min(start), last.max(start))));
    }
    Some((projects, starts?))
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("names and ids are always JSON")
}

fn int(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
