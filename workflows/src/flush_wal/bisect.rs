//! WAL segments are flushed together, and separately if that fails: by workspace, then by segment, then by frame. A
//! frame that cannot be flushed alone goes to quarantine, and the others are flushed without it.
//!
//! Temporary errors are retried. A workspace that keeps failing while others succeed is left out until the next
//! attempt, so that it does not delay them.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use object_store::path::Path;
use towpath_domain::{JobId, TenantId, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_store::wal_segments::{self, Bounds, WalSegment};
use towpath_store::{pending_patches, quarantine, segments};
use towpath_traces::flush::{self, FlushError, Options};

use crate::Services;
use crate::sweep_traces::pending;
use crate::{index_runs, write_intents};

/// One attempt of a flush.
pub(super) struct FlushAttempt {
    mark: JobId,
    /// Maximum decoded bytes of one flush.
    decoded_bytes: usize,
    /// Operations flushed so far, in all attempts.
    operations: u64,
    /// Workspaces left to the next attempt.
    pub(super) left_out: Vec<TenantId>,
    pub(super) failure: Option<Failure>,
}

/// Result of flushing some WAL segments.
enum FlushOutcome {
    /// Recorded. For a single segment that is not finished, the next frame. Of several segments, the last ones may be
    /// left for another round.
    Recorded { next: Option<i64> },
    /// Something among them cannot be flushed, for this reason.
    Rejected(String),
}

impl FlushAttempt {
    /// Flushes within `bounds` for a job whose segments have `mark`.
    pub(super) fn new(mark: JobId, operations: u64, bounds: Bounds) -> Self {
        Self {
            mark,
            decoded_bytes: usize::try_from(bounds.decoded_bytes).unwrap_or_default(),
            operations,
            left_out: Vec::new(),
            failure: None,
        }
    }

    /// Flushes WAL segments of several workspaces and records the result. Workspaces that fail on their own are left
    /// out.
    pub(super) async fn flush(
        &mut self,
        ctx: &mut Ctx,
        world: &Services,
        units: Vec<WalSegment>,
    ) -> Result<(), Failure> {
        let mut tenants: BTreeMap<TenantId, Vec<WalSegment>> = BTreeMap::new();
        for unit in units.iter().cloned() {
            tenants.entry(unit.tenant_id).or_default().push(unit);
        }
        match self.attempt(ctx, world, units, None).await {
            Ok(FlushOutcome::Recorded { .. }) => return Ok(()),
            Ok(FlushOutcome::Rejected(reason)) => {
                tracing::warn!(reason, "trace data cannot be flushed together; flushing it separately");
            }
            // At the first failure all wait: most outages are short, and separate attempts would show nothing new.
            Err(Failure::Retry(cause)) if ctx.failures() > 0 && tenants.len() > 1 => {
                tracing::warn!(cause = cause.text(), "flushing workspaces separately");
            }
            Err(failure) => return Err(failure),
        }
        for (tenant, units) in tenants {
            match self.flush_workspace(ctx, world, units).await {
                Ok(()) => {}
                Err(failure @ Failure::Retry(_)) => {
                    self.left_out.push(tenant);
                    self.failure = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    async fn flush_workspace(
        &mut self,
        ctx: &mut Ctx,
        world: &Services,
        units: Vec<WalSegment>,
    ) -> Result<(), Failure> {
        if let FlushOutcome::Recorded { .. } = self.attempt(ctx, world, units.clone(), None).await? {
            return Ok(());
        }
        for unit in units {
            self.flush_wal_segment(ctx, world, unit).await?;
        }
        Ok(())
    }

    /// Flushes a whole WAL segment, because the next one of its workspace must come after it.
    async fn flush_wal_segment(
        &mut self,
        ctx: &mut Ctx,
        world: &Services,
        mut unit: WalSegment,
    ) -> Result<(), Failure> {
        loop {
            match self.attempt(ctx, world, vec![unit.clone()], None).await? {
                FlushOutcome::Recorded { next: None } => return Ok(()),
                FlushOutcome::Recorded { next: Some(next) } => unit.frames_done = next,
                FlushOutcome::Rejected(_) => return self.flush_frames(ctx, world, unit).await,
            }
        }
    }

    /// Flushes a WAL segment frame by frame, each recorded separately.
    async fn flush_frames(&mut self, ctx: &mut Ctx, world: &Services, mut unit: WalSegment) -> Result<(), Failure> {
        loop {
            let number = unit.frames_done;
            match self.attempt(ctx, world, vec![unit.clone()], Some(number)).await? {
                FlushOutcome::Recorded { next: None } => return Ok(()),
                FlushOutcome::Recorded { next: Some(next) } => unit.frames_done = next,
                FlushOutcome::Rejected(reason) => {
                    self.quarantine(ctx, world, &unit, number, &reason).await?;
                    unit.frames_done = number + 1;
                }
            }
        }
    }

    async fn quarantine(
        &self,
        ctx: &mut Ctx,
        world: &Services,
        unit: &WalSegment,
        number: i64,
        reason: &str,
    ) -> Result<(), Failure> {
        let entry = flush::quarantine_frame(&world.store, &world.objects, unit, number, reason)
            .await
            .retry()?;
        let (mark, tenant, id) = (self.mark, unit.tenant_id, unit.id);
        let entries: Vec<_> = entry.into_iter().collect();
        for entry in &entries {
            tracing::error!(
                tenant.id = %tenant, quarantine.id = %entry.id, items = entry.items, reason,
                "accepted trace data cannot be flushed; moved it to quarantine"
            );
        }
        ctx.checkpoint(&self.operations, async |tx| {
            segments::abandon_of(tx, mark).await?;
            quarantine::put_all(tx, &entries).await?;
            wal_segments::advance(tx, mark, id, number + 1).await
        })
        .await
    }

    /// Flushes WAL segments together, or one frame of a segment, and records the result.
    async fn attempt(
        &mut self,
        ctx: &mut Ctx,
        world: &Services,
        units: Vec<WalSegment>,
        frame: Option<i64>,
    ) -> Result<FlushOutcome, Failure> {
        let mark = self.mark;
        let folded = self.flush_once(ctx, world, units, frame).await?;
        let folded = match folded {
            Ok(folded) => folded,
            Err(error) if error.blames_data() => return Ok(FlushOutcome::Rejected(reason(&error))),
            Err(error) => return Err(error).retry(),
        };
        failpoint::hit("fold.before_record");
        let operations = self.operations + folded.operations;
        let (mut refused, mut dropped) = (None, Vec::new());
        let recorded = ctx.checkpoint(&operations, async |tx| {
            let recorded = flush::record(tx, mark, &folded).await;
            if let Err(error) = &recorded
                && flush::refuses_data(error)
            {
                refused = Some(reason(error));
            }
            recorded?;
            let tenants = folded.pending_operations.iter().map(|waiting| waiting.tenant);
            dropped = pending_patches::trim(tx, tenants, world.sizes.pending).await?;
            Ok(())
        });
        match (recorded.await, refused) {
            (Ok(()), _) => pending::report(&dropped),
            (Err(_), Some(reason)) => return Ok(FlushOutcome::Rejected(reason)),
            (Err(failure), None) => return Err(failure),
        }
        failpoint::hit("fold.after_record");
        self.operations = operations;
        let tenants = folded.segments.iter().map(|segment| segment.tenant).collect();
        index_runs::ensure_due(ctx, world, tenants).await?;
        Ok(FlushOutcome::Recorded {
            next: folded.progress.map(|(_, next)| next),
        })
    }

    /// Flushes in the CPU pool. Write intents are recorded here, because only the job's holder writes.
    async fn flush_once(
        &self,
        ctx: &mut Ctx,
        world: &Services,
        units: Vec<WalSegment>,
        frame: Option<i64>,
    ) -> Result<Result<flush::FlushResult, FlushError<write_intents::IntentFailed>>, Failure> {
        let (store, objects) = (world.store.clone(), world.objects.clone());
        let options = Options {
            decoded_bytes: self.decoded_bytes,
            frame,
            ..Options::default()
        };
        let folded = write_intents::run_with_intents(ctx, &world.cpu_pool, self.mark, move |intend| async move {
            let intend = async |tenant, id, path: &Path| intend.record(tenant, id, path).await;
            let folding = flush::flush(&store, &objects, &units, &options, intend);
            AssertUnwindSafe(folding).catch_unwind().await.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(ToString::to_string);
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                Err(FlushError::Panicked(text.unwrap_or_default()))
            })
        });
        folded.await
    }
}

/// An error and its sources.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    towpath_durable::Cause::of(error).text().to_owned()
}
