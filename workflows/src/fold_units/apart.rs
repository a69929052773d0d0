//! Units are folded together, and apart where that fails: by workspace, then unit by unit, then frame by frame. A frame that
//! cannot be folded alone goes to quarantine, and the others are folded without it.
//!
//! What fails because something does not answer is tried again. A workspace that goes on failing while others do not is
//! left out until the next attempt, so that it keeps nobody waiting.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use object_store::path::Path;
use towpath_domain::{JobId, TenantId, failpoint};
use towpath_durable::{Ctx, Failure, Verdict};
use towpath_store::units::{self, Bounds, Unit};
use towpath_store::{pending_patches, quarantine, segments};
use towpath_traces::fold::{self, FoldError, Options};

use crate::World;
use crate::sweep_traces::pending;
use crate::{index_runs, intents};

/// One attempt of a fold.
pub(super) struct Apart {
    mark: JobId,
    /// Decoded bytes that are folded at once.
    decoded_bytes: usize,
    /// Operations folded so far, by all attempts.
    operations: u64,
    /// Workspaces whose units wait for the next attempt.
    pub(super) left_out: Vec<TenantId>,
    /// Why.
    pub(super) failure: Option<Failure>,
}

/// How folding some units went.
enum Folded {
    /// It is recorded. Of a single unit that is not done with, the number of the frame to go on with. Of several units
    /// the last ones may be left for another round.
    Recorded { next: Option<i64> },
    /// Something among them cannot be folded, for this reason.
    Spoilt(String),
}

impl Apart {
    /// Of a job whose units and segments bear `mark`. It folds as much at once as `bounds` say.
    pub(super) fn new(mark: JobId, operations: u64, bounds: Bounds) -> Self {
        Self {
            mark,
            decoded_bytes: usize::try_from(bounds.decoded_bytes).unwrap_or_default(),
            operations,
            left_out: Vec::new(),
            failure: None,
        }
    }

    /// Folds units of several workspaces, and records that.
    ///
    /// # Errors
    /// The job cannot go on. Workspaces that failed by themselves are left out instead.
    pub(super) async fn fold(&mut self, ctx: &mut Ctx, world: &World, units: Vec<Unit>) -> Result<(), Failure> {
        let mut tenants: BTreeMap<TenantId, Vec<Unit>> = BTreeMap::new();
        for unit in units.iter().cloned() {
            tenants.entry(unit.tenant_id).or_default().push(unit);
        }
        match self.attempt(ctx, world, units, None).await {
            Ok(Folded::Recorded { .. }) => return Ok(()),
            Ok(Folded::Spoilt(reason)) => {
                tracing::warn!(reason, "trace data cannot be folded together; it is folded apart");
            }
            // At first everybody waits: most outages are over soon, and nothing is learnt from a second look.
            Err(Failure::Retry(cause)) if ctx.failures() > 0 && tenants.len() > 1 => {
                tracing::warn!(cause = cause.text(), "workspaces are folded apart");
            }
            Err(failure) => return Err(failure),
        }
        for (tenant, units) in tenants {
            match self.fold_workspace(ctx, world, units).await {
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

    async fn fold_workspace(&mut self, ctx: &mut Ctx, world: &World, units: Vec<Unit>) -> Result<(), Failure> {
        if let Folded::Recorded { .. } = self.attempt(ctx, world, units.clone(), None).await? {
            return Ok(());
        }
        for unit in units {
            self.fold_unit(ctx, world, unit).await?;
        }
        Ok(())
    }

    /// Folds all of a unit: the next one of its workspace has to come after it.
    async fn fold_unit(&mut self, ctx: &mut Ctx, world: &World, mut unit: Unit) -> Result<(), Failure> {
        loop {
            match self.attempt(ctx, world, vec![unit.clone()], None).await? {
                Folded::Recorded { next: None } => return Ok(()),
                Folded::Recorded { next: Some(next) } => unit.frames_done = next,
                Folded::Spoilt(_) => return self.fold_frames(ctx, world, unit).await,
            }
        }
    }

    /// Folds a unit frame by frame, each recorded by itself.
    async fn fold_frames(&mut self, ctx: &mut Ctx, world: &World, mut unit: Unit) -> Result<(), Failure> {
        loop {
            let number = unit.frames_done;
            match self.attempt(ctx, world, vec![unit.clone()], Some(number)).await? {
                Folded::Recorded { next: None } => return Ok(()),
                Folded::Recorded { next: Some(next) } => unit.frames_done = next,
                Folded::Spoilt(reason) => {
                    self.quarantine(ctx, world, &unit, number, &reason).await?;
                    unit.frames_done = number + 1;
                }
            }
        }
    }

    async fn quarantine(
        &self,
        ctx: &mut Ctx,
        world: &World,
        unit: &Unit,
        number: i64,
        reason: &str,
    ) -> Result<(), Failure> {
        let entry = fold::quarantine_frame(&world.store, &world.objects, unit, number, reason)
            .await
            .retry()?;
        let (mark, tenant, id) = (self.mark, unit.tenant_id, unit.id);
        let entries: Vec<_> = entry.into_iter().collect();
        for entry in &entries {
            tracing::error!(
                tenant.id = %tenant, quarantine.id = %entry.id, items = entry.items, reason,
                "accepted trace data cannot be folded; it is in quarantine"
            );
        }
        ctx.checkpoint(&self.operations, async |tx| {
            segments::abandon_of(tx, mark).await?;
            quarantine::put_all(tx, &entries).await?;
            units::advance(tx, mark, id, number + 1).await
        })
        .await
    }

    /// Folds units together, or one frame of a unit, and records that.
    async fn attempt(
        &mut self,
        ctx: &mut Ctx,
        world: &World,
        units: Vec<Unit>,
        frame: Option<i64>,
    ) -> Result<Folded, Failure> {
        let mark = self.mark;
        let folded = self.fold_once(ctx, world, units, frame).await?;
        let folded = match folded {
            Ok(folded) => folded,
            Err(error) if error.blames_data() => return Ok(Folded::Spoilt(reason(&error))),
            Err(error) => return Err(error).retry(),
        };
        failpoint::hit("fold.before_record");
        let operations = self.operations + folded.operations;
        let (mut refused, mut dropped) = (None, Vec::new());
        let recorded = ctx.checkpoint(&operations, async |tx| {
            let recorded = fold::record(tx, mark, &folded).await;
            if let Err(error) = &recorded
                && fold::refuses_data(error)
            {
                refused = Some(reason(error));
            }
            recorded?;
            let tenants = folded.waiting.iter().map(|waiting| waiting.tenant);
            dropped = pending_patches::trim(tx, tenants, world.sizes.pending).await?;
            Ok(())
        });
        match (recorded.await, refused) {
            (Ok(()), _) => pending::report(&dropped),
            (Err(_), Some(reason)) => return Ok(Folded::Spoilt(reason)),
            (Err(failure), None) => return Err(failure),
        }
        failpoint::hit("fold.after_record");
        self.operations = operations;
        let tenants = folded.segments.iter().map(|segment| segment.tenant).collect();
        index_runs::ensure_due(ctx, world, tenants).await?;
        Ok(Folded::Recorded {
            next: folded.progress.map(|(_, next)| next),
        })
    }

    /// Folds on the heavy runtime. Intents come back here to be written down: only the job's holder writes.
    async fn fold_once(
        &self,
        ctx: &mut Ctx,
        world: &World,
        units: Vec<Unit>,
        frame: Option<i64>,
    ) -> Result<Result<fold::Folded, FoldError<intents::Interrupted>>, Failure> {
        let (store, objects) = (world.store.clone(), world.objects.clone());
        let options = Options {
            decoded_bytes: self.decoded_bytes,
            frame,
            ..Options::default()
        };
        let folded = intents::with(ctx, &world.heavy, self.mark, move |intend| async move {
            let intend = async |tenant, id, path: &Path| intend.ask(tenant, id, path).await;
            let folding = fold::fold(&store, &objects, &units, &options, intend);
            AssertUnwindSafe(folding).catch_unwind().await.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<&str>().map(ToString::to_string);
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                Err(FoldError::Panicked(text.unwrap_or_default()))
            })
        });
        folded.await
    }
}

/// An error and its sources.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    towpath_durable::Cause::of(error).text().to_owned()
}
