//! A fold under way: what bodies hold is sorted to where it goes.

use object_store::path::Path;
use towpath_domain::{SegmentId, TenantId, TraceRunId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::pending_patches::{self, PatchSize};
use towpath_store::{Error, Store};

use super::groups::Groups;
use super::places::{Placement, Places};
use super::{FoldError, Folded, InnerError, Options, Waiting, attachment_path, store_fills_in};
use crate::accept::{self, Contents};
use crate::objects::Objects;
use crate::operation::Operation;

/// A body as it was accepted.
#[derive(Debug)]
pub struct Body {
    /// Its sender's workspace.
    pub tenant: TenantId,
    /// The number of its first item in the order of acceptance. Items are numbered in the order of the fields of
    /// [`Contents`].
    pub first: i64,
    /// What it holds.
    pub contents: Contents,
}

impl Body {
    pub fn operations(&self) -> impl Iterator<Item = (TenantId, &Operation)> {
        let operations = self.contents.operations.iter();
        operations.map(|operation| (self.tenant, operation))
    }
}

/// Bodies that are merged together, so that the places of their trace runs are looked up at once.
#[derive(Default)]
pub struct Bodies {
    bodies: Vec<Body>,
    operations: usize,
    bytes: usize,
}

impl Bodies {
    /// Operations whose places are looked up at once.
    const OPERATIONS: usize = 4096;
    /// Decoded bytes that wait for that at most.
    const BYTES: usize = 8 << 20;

    pub fn push(&mut self, body: Body) {
        self.operations += body.contents.operations.len();
        self.bytes += body.contents.decoded_bytes;
        self.bodies.push(body);
    }

    /// With at most `bytes` of rows in memory.
    pub fn are_enough(&self, bytes: usize) -> bool {
        self.operations >= Self::OPERATIONS || self.bytes >= bytes.min(Self::BYTES)
    }

    pub fn take(&mut self) -> Vec<Body> {
        std::mem::take(self).bodies
    }
}

/// Rows in the making, and what lies beside them.
pub struct Merge<'a> {
    store: &'a Store,
    /// Where segments and attachments go.
    objects: &'a Objects,
    places: Places<'a>,
    groups: Groups,
    /// Bytes of what is kept for the record: operations that wait, feedback, attachments without their files.
    kept: usize,
    /// What was done so far.
    pub folded: Folded,
}

impl<'a> Merge<'a> {
    /// `segments` holds the segments of earlier folds, `objects` takes those of this one.
    pub fn new(store: &'a Store, segments: &'a Objects, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            places: Places::new(store, segments),
            groups: Groups::default(),
            kept: 0,
            folded: Folded::default(),
        }
    }

    /// About how many bytes of memory it takes until it is recorded, beside rows, which can be flushed.
    pub fn held(&self) -> usize {
        self.kept + self.places.bytes()
    }

    /// Sorts what bodies hold to where it goes. Bodies come in order of acceptance.
    pub async fn take_in(&mut self, bodies: Vec<Body>) -> Result<(), InnerError> {
        self.places.look_up(&bodies).await?;
        for Body {
            tenant,
            first,
            contents,
        } in bodies
        {
            let mut seq = first;
            for operation in contents.operations {
                self.folded.operations += 1;
                match self.places.place(tenant, &operation).await? {
                    Placement::At(place) => self.groups.add(tenant, place, operation, seq),
                    Placement::Unknown => self.wait(Waiting { tenant, seq, operation }),
                    Placement::Deleted => self.folded.dropped += 1,
                }
                seq += 1;
            }
            for feedback in contents.feedback {
                self.keep_feedback(tenant, feedback, seq);
                seq += 1;
            }
            for attachment in contents.attachments {
                self.keep_attachment(tenant, attachment, seq).await?;
                seq += 1;
            }
        }
        Ok(())
    }

    fn wait(&mut self, waiting: Waiting) {
        self.kept += waiting.weight();
        self.folded.waiting.push(waiting);
    }

    fn keep_feedback(&mut self, tenant: TenantId, feedback: accept::Feedback, seq: i64) {
        let row = Feedback {
            tenant_id: tenant,
            id: feedback.id,
            run_id: feedback.run,
            key: storable(feedback.key),
            body: storable(feedback.body),
            seq,
            created_at: store_fills_in(),
            modified_at: None,
            deleted: false,
        };
        self.kept += row.key.len() + row.body.len() + size_of::<Feedback>();
        self.folded.feedback.push(row);
    }

    async fn keep_attachment(
        &mut self,
        tenant: TenantId,
        attachment: accept::Attachment,
        seq: i64,
    ) -> Result<(), InnerError> {
        let path = attachment_path(tenant, attachment.run, &attachment.name, seq);
        let bytes = attachment.data.len();
        self.objects.put(&path, vec![attachment.data]).await?;
        let row = Attachment {
            tenant_id: tenant,
            run_id: attachment.run,
            name: storable(attachment.name),
            content_type: storable(attachment.content_type),
            path: path.into(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            seq,
            created_at: store_fills_in(),
        };
        self.kept += row.name.len() + row.content_type.len() + row.path.len() + size_of::<Attachment>();
        self.folded.attachments.push(row);
        Ok(())
    }

    /// Applies what came before the operation that placed its trace run.
    pub fn apply_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.folded.waiting) {
            match self.places.of(waiting.tenant, waiting.operation.id) {
                Some(place) => {
                    self.kept = self.kept.saturating_sub(waiting.weight());
                    self.groups.add(waiting.tenant, place, waiting.operation, waiting.seq);
                }
                None => self.folded.waiting.push(waiting),
            }
        }
    }

    /// The trace runs that this fold placed, in lists that are looked up at once.
    pub fn placed(&mut self) -> Vec<(TenantId, Vec<TraceRunId>)> {
        let placed = self.places.take_placed().into_iter();
        let lists = placed.flat_map(|(tenant, runs)| {
            let lists: Vec<_> = runs.chunks(4096).map(|runs| (tenant, runs.to_vec())).collect();
            lists
        });
        lists.collect()
    }

    /// What earlier folds have put aside for these trace runs. It may be much, so it is [taken up](Self::take_up) in pages.
    pub async fn put_aside(&self, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<PatchSize>, InnerError> {
        let sizes = self
            .store
            .read(async |tx| pending_patches::for_runs(tx, tenant, runs).await)
            .await?;
        Ok(sizes)
    }

    /// Applies what was put aside for trace runs that have a place now.
    pub async fn take_up(&mut self, tenant: TenantId, page: &[PatchSize]) -> Result<(), InnerError> {
        let found = self
            .store
            .read(async |tx| pending_patches::read(tx, tenant, page).await)
            .await?;
        for patch in found {
            let operation: Operation = serde_json::from_str(&patch.operation)
                .map_err(|_| Error::corrupt("pending_patch", "operation", patch.seq))?;
            if let Some(place) = self.places.of(tenant, patch.run_id) {
                self.folded.taken_up.push((tenant, patch.run_id, patch.seq));
                self.groups.add(tenant, place, operation, patch.seq);
            }
        }
        Ok(())
    }

    /// Writes segments, once as much lies here as `options` say.
    pub async fn flush<E>(
        &mut self,
        options: &Options,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
    ) -> Result<(), FoldError<E>> {
        // What is kept leaves less room for rows. It leaves some, or each look-up would make a segment.
        let room = options.flush_bytes.saturating_sub(self.kept);
        let room = room.max(options.flush_bytes / 8);
        if self.groups.bytes() > room || self.groups.count() > options.segment_groups {
            self.flush_all(options, intend).await?;
        }
        Ok(())
    }

    /// Writes segments of all that lies here.
    pub async fn flush_all<E>(
        &mut self,
        options: &Options,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
    ) -> Result<(), FoldError<E>> {
        let groups = std::mem::take(&mut self.groups);
        groups
            .write(self.objects, options.segment_groups, intend, &mut self.folded)
            .await
    }
}

/// Text that PostgreSQL can keep. Every text from a body passes through here before a statement binds it.
fn storable(text: String) -> String {
    match memchr::memchr(0, text.as_bytes()) {
        None => text,
        Some(_) => text.replace('\0', "\u{fffd}"),
    }
}
