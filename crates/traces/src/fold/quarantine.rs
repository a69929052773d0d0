//! What cannot be folded is put aside under `quarantine/`, in the format of a unit, so that it can be folded again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, QuarantineId, TenantId, Timestamp};
use towpath_store::Store;
use towpath_store::quarantine::{Entry, Kind};
use towpath_store::units::Unit;
use uuid::Uuid;

use super::source::{self, NumberedFrame, Source};
use super::{InnerError, store_fills_in};
use crate::accept::{self, Contents};
use crate::body::Limits;
use crate::objects::{Objects, ObjectsError};
use crate::wal::unit;

/// Where the frames of an entry lie.
#[must_use]
pub fn quarantine_path(tenant: TenantId, id: QuarantineId) -> Path {
    Path::from(format!("quarantine/{tenant}/{id}.unit"))
}

/// What the names of projects in a unit mean.
type Names = BTreeMap<String, ProjectId>;

/// Copies the frame of this number, which cannot be folded for `reason`. `None` where the unit has no such frame.
///
/// # Errors
/// The unit cannot be read, or the copy not written.
pub async fn quarantine_frame(
    store: &Store,
    objects: &Objects,
    unit: &Unit,
    number: i64,
    reason: &str,
) -> Result<Option<Entry>, InnerError> {
    let names = source::Names::of(store, std::slice::from_ref(unit))
        .await?
        .of_unit(unit.id);
    let bytes = Source::new(objects, std::slice::from_ref(unit)).bytes(0, unit).await?;
    let found = source::frames(unit, bytes).find(|frame| frame.number == number);
    match found {
        Some(frame) => Ok(Some(put_aside(objects, unit, &names, &frame, reason).await?)),
        None => Ok(None),
    }
}

/// Copies a frame, and says what may be missing without it.
pub(super) async fn put_aside(
    objects: &Objects,
    unit: &Unit,
    names: &Names,
    frame: &NumberedFrame,
    reason: &str,
) -> Result<Entry, ObjectsError> {
    // The same for every attempt, so that one that is repeated leaves one copy.
    let id = QuarantineId(Uuid::new_v5(&unit.id.0, &frame.number.to_be_bytes()));
    let path = quarantine_path(unit.tenant_id, id);
    let (kind, pieces, items, contents) = match &frame.frame {
        Ok(known) => {
            let contents = accept::read(known, &Limits::NONE).ok();
            let pieces = unit::write(std::iter::once(known));
            (Kind::Rejected, pieces, i64::from(known.head.items), contents)
        }
        Err(damage) => {
            // Where not even their number is left, what the unit has counts.
            let items = damage.items.map_or(unit.operations, i64::from);
            let pieces = unit::alone(damage.bytes.clone());
            (Kind::Damaged, pieces, items, None)
        }
    };
    let bytes = pieces.iter().skip(1).map(Bytes::len).sum::<usize>();
    let touched = contents.as_ref().and_then(|contents| touched(contents, names));
    let decoded_bytes = contents.map_or(0, |contents| contents.decoded_bytes);
    objects.put(&path, pieces).await?;
    let (projects, starts) = touched.unzip();
    Ok(Entry {
        id,
        tenant_id: unit.tenant_id,
        kind,
        reason: reason.to_owned(),
        path: path.into(),
        byte_offset: i64::try_from(unit::FIRST).unwrap_or_default(),
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

/// An entry for a whole unit whose object is not there.
pub(super) fn missing(unit: &Unit, names: &Names) -> Entry {
    Entry {
        id: QuarantineId(Uuid::new_v5(&unit.id.0, b"missing")),
        tenant_id: unit.tenant_id,
        kind: Kind::Missing,
        reason: "its object is not in the object store".to_owned(),
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

/// The projects and the starts that a body may touch; `None` where an operation leaves them to the trace run.
fn touched(contents: &Contents, names: &Names) -> Option<(BTreeSet<ProjectId>, (Timestamp, Timestamp))> {
    if !contents.feedback.is_empty() || !contents.attachments.is_empty() {
        return None;
    }
    let mut projects = BTreeSet::new();
    let mut starts: Option<(Timestamp, Timestamp)> = None;
    for operation in &contents.operations {
        // A patch may belong to a trace run that lies elsewhere.
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
