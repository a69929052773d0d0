//! A flush in progress: distributes the content of bodies to its destinations.

use object_store::path::Path;
use towpath_domain::{SegmentId, TenantId, TraceRunId};
use towpath_store::feedback::{Attachment, Feedback};
use towpath_store::pending_patches::{self, PatchSize};
use towpath_store::{Error, Store};

use super::groups::Groups;
use super::locations::{OperationTarget, RunLocations};
use super::{FlushError, FlushResult, MergeError, Options, PendingOperation, attachment_path, store_fills_in};
use crate::accept::{self, Contents};
use crate::objects::Objects;
use crate::operation::Operation;
use crate::prices::PriceBook;

/// A body as it was accepted.
#[derive(Debug)]
pub struct Body {
    /// Its sender's workspace.
    pub tenant: TenantId,
    /// The number of its first item in the order of acceptance. Items are numbered in the order of the fields of
    /// [`Contents`].
    pub first: i64,
    /// The size of its files.
    pub contents: Contents,
}

impl Body {
    pub fn operations(&self) -> impl Iterator<Item = (TenantId, &Operation)> {
        let operations = self.contents.operations.iter();
        operations.map(|operation| (self.tenant, operation))
    }
}

/// Bodies that are merged together, so that their locations are looked up at once.
#[derive(Default)]
pub struct BodyBatch {
    bodies: Vec<Body>,
    operations: usize,
    bytes: usize,
}

impl BodyBatch {
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
    pub fn is_full(&self, bytes: usize) -> bool {
        self.operations >= Self::OPERATIONS || self.bytes >= bytes.min(Self::BYTES)
    }

    pub fn take(&mut self) -> Vec<Body> {
        std::mem::take(self).bodies
    }
}

/// Rows in progress, and what is beside them.
pub struct Merge<'a> {
    store: &'a Store,
    /// Where segments and attachments go.
    objects: &'a Objects,
    prices: &'a PriceBook,
    locations: RunLocations<'a>,
    groups: Groups,
    /// Bytes kept until the record: waiting operations, feedback, attachments without their files.
    retained_bytes: usize,
    /// What was done so far.
    pub result: FlushResult,
}

impl<'a> Merge<'a> {
    /// `segments` holds the segments of earlier flushes and the prices, `objects` receives the new ones.
    pub fn new(store: &'a Store, segments: &'a Objects, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            prices: segments.prices(),
            locations: RunLocations::new(store, segments),
            groups: Groups::default(),
            retained_bytes: 0,
            result: FlushResult::default(),
        }
    }

    /// Estimated memory until the record, without rows, which can be written earlier.
    pub fn memory_bytes(&self) -> usize {
        self.retained_bytes + self.locations.bytes()
    }

    /// Merges bodies, which come in order of acceptance.
    pub async fn add_bodies(&mut self, bodies: Vec<Body>) -> Result<(), MergeError> {
        self.locations.preload(&bodies).await?;
        for Body {
            tenant,
            first,
            contents,
        } in bodies
        {
            let mut seq = first;
            for operation in contents.operations {
                self.result.operations += 1;
                match self.locations.target(tenant, &operation).await? {
                    OperationTarget::Run(place) => self.groups.add(tenant, place, operation, seq),
                    OperationTarget::Unknown => self.defer(PendingOperation { tenant, seq, operation }),
                    OperationTarget::Deleted => self.result.dropped += 1,
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

    fn defer(&mut self, waiting: PendingOperation) {
        self.retained_bytes += waiting.weight();
        self.result.pending_operations.push(waiting);
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
        self.retained_bytes += row.key.len() + row.body.len() + size_of::<Feedback>();
        self.result.feedback.push(row);
    }

    async fn keep_attachment(
        &mut self,
        tenant: TenantId,
        attachment: accept::Attachment,
        seq: i64,
    ) -> Result<(), MergeError> {
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
        self.retained_bytes += row.name.len() + row.content_type.len() + row.path.len() + size_of::<Attachment>();
        self.result.attachments.push(row);
        Ok(())
    }

    /// Applies operations that came before the one that located their trace run.
    pub fn apply_deferred(&mut self) {
        for waiting in std::mem::take(&mut self.result.pending_operations) {
            match self.locations.cached(waiting.tenant, waiting.operation.id) {
                Some(place) => {
                    self.retained_bytes = self.retained_bytes.saturating_sub(waiting.weight());
                    self.groups.add(waiting.tenant, place, waiting.operation, waiting.seq);
                }
                None => self.result.pending_operations.push(waiting),
            }
        }
    }

    /// The trace runs that this flush located, in batches for lookups.
    pub fn take_new_runs(&mut self) -> Vec<(TenantId, Vec<TraceRunId>)> {
        let placed = self.locations.take_new_runs().into_iter();
        let lists = placed.flat_map(|(tenant, runs)| {
            let lists: Vec<_> = runs.chunks(4096).map(|runs| (tenant, runs.to_vec())).collect();
            lists
        });
        lists.collect()
    }

    /// Pending operations from earlier flushes for these trace runs. They may be many, so they are [taken
    /// up](Self::apply_pending) in pages.
    pub async fn pending_patches(&self, tenant: TenantId, runs: &[TraceRunId]) -> Result<Vec<PatchSize>, MergeError> {
        let sizes = self
            .store
            .read(async |tx| pending_patches::for_runs(tx, tenant, runs).await)
            .await?;
        Ok(sizes)
    }

    /// Applies pending operations for trace runs that now have a location.
    pub async fn apply_pending(&mut self, tenant: TenantId, page: &[PatchSize]) -> Result<(), MergeError> {
        let found = self
            .store
            .read(async |tx| pending_patches::read(tx, tenant, page).await)
            .await?;
        for patch in found {
            let operation: Operation = serde_json::from_str(&patch.operation)
                .map_err(|_| Error::corrupt("pending_patch", "operation", patch.seq))?;
            if let Some(place) = self.locations.cached(tenant, patch.run_id) {
                self.result.resolved_patches.push((tenant, patch.run_id, patch.seq));
                self.groups.add(tenant, place, operation, patch.seq);
            }
        }
        Ok(())
    }

    /// Writes segments, once as much is here as `options` say.
    pub async fn flush<E>(
        &mut self,
        options: &Options,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
    ) -> Result<(), FlushError<E>> {
        // Kept data reduce the room for rows, but never to nothing, or each lookup would create a segment.
        let room = options.segment_bytes.saturating_sub(self.retained_bytes);
        let room = room.max(options.segment_bytes / 8);
        if self.groups.bytes() > room || self.groups.count() > options.segment_groups {
            self.flush_all(options, intend).await?;
        }
        Ok(())
    }

    /// Writes segments of all that is here.
    pub async fn flush_all<E>(
        &mut self,
        options: &Options,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
    ) -> Result<(), FlushError<E>> {
        let groups = std::mem::take(&mut self.groups);
        groups
            .write(
                self.store,
                self.objects,
                self.prices,
                options.segment_groups,
                intend,
                &mut self.result,
            )
            .await
    }
}

/// Text that PostgreSQL can store. Every text from a body passes through here before it is bound.
fn storable(text: String) -> String {
    match memchr::memchr(0, text.as_bytes()) {
        None => text,
        Some(_) => text.replace('\0', "\u{fffd}"),
    }
}
