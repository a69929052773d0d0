//! A bulk export: plans its day partitions, waits for them, writes the manifest.
//!
//! ```text
//! CREATED ─► RUNNING ─► wait: flush unflushed data ─► wait: compact closed days where that pays
//!                       ─► plan: pin segments, one export run per UTC day ─► wait: parts
//!                                         a part ended badly ─► FAILED    │
//!                                       manifest, written last ─► COMPLETED
//! ```
//! The flush is a barrier: everything that the workspace sent before the export began is in a segment before segments
//! are pinned. It covers all projects, because a patch belongs to the project of its trace run. From then on, all
//! attempts of all parts read the same rows.

mod manifest;
mod plan;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::export::{ExportSpec, ExportStatus, Limits};
use towpath_domain::job::{EndReason, JobState, RetryPolicy};
use towpath_domain::{DestinationId, ExportId, ProjectId, Rejection, Shard, TenantId, Timestamp, failpoint};
use towpath_durable::{Child, Ctx, Failure, IntoFailure, Lane, Outcome, RetryDecision, Start, Workflow};
use towpath_store::exports::{self, Export, NewExport, runs};
use towpath_store::{self as store, Tx, destinations, jobs, projects, quarantine, wal_segments};

use crate::Services;
use crate::clean_export::{self, CleanExport};
use crate::compact_day::CompactDay;
use crate::export_part::ExportPart;
use crate::flush_wal::{self, Barrier, FlushWal};

#[derive(Debug, Serialize, Deserialize)]
pub struct RunExport {
    pub tenant: TenantId,
    pub export: ExportId,
}

/// The lane of a workspace's exports.
#[must_use]
pub fn lane(tenant: TenantId, limits: &Limits) -> Lane {
    Lane::new(format!("exports:{tenant}"), limits.per_workspace)
}

/// Records an export of `range` and its job.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    limits: &Limits,
    content: &ExportSpec,
    range: Range<Timestamp>,
) -> store::Result<Export> {
    check(tx, tenant, content).await?;
    let export = record(tx, tenant, limits, content, range, None).await?;
    keep_destination(tx, tenant, content).await?;
    Ok(export)
}

fn missing(noun: &'static str) -> impl FnOnce(store::Error) -> store::Error {
    move |error| match error {
        store::Error::NotFound => Rejection::not_found(noun).into(),
        other => other,
    }
}

/// Locks the destination of a new export or schedule until the commit, so that a concurrent deletion sees and ends it.
/// Called after the locks of jobs.
///
/// A rejection if the destination does not exist.
pub(crate) async fn keep_destination(tx: &mut Tx<'_>, tenant: TenantId, content: &ExportSpec) -> store::Result<()> {
    let held = destinations::hold(tx, tenant, content.destination).await;
    held.map_err(missing("destination"))
}

/// Checks that the destination and the project exist.
///
/// A rejection that names the missing one.
pub async fn check_references(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    destination: DestinationId,
    project: ProjectId,
) -> store::Result<()> {
    destinations::get(tx, tenant, destination)
        .await
        .map_err(missing("destination"))?;
    projects::get(tx, tenant, project)
        .await
        .map(drop)
        .map_err(missing("tracing project"))
}

/// Like [`check_references`].
pub(crate) async fn check(tx: &mut Tx<'_>, tenant: TenantId, content: &ExportSpec) -> store::Result<()> {
    check_references(tx, tenant, content.destination, content.project).await
}

/// Records an export and its job; `source` is the schedule that spawns it.
///
/// [`store::Error::Conflict`] if its source has already spawned one with that start.
pub(crate) async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    limits: &Limits,
    content: &ExportSpec,
    range: Range<Timestamp>,
    source: Option<ExportId>,
) -> store::Result<Export> {
    let id = ExportId::new();
    let how = Start::new(tenant).lane(lane(tenant, limits));
    let job = towpath_durable::start(tx, &RunExport { tenant, export: id }, how).await?;
    let new = NewExport {
        id,
        content,
        start_time: range.start,
        end_time: range.end,
        source,
        job,
    };
    exports::insert(tx, tenant, new).await
}

/// Cancels an export with its jobs. A cancelled export stays as it is.
///
/// [`store::Error::NotFound`], and a rejection of `status` if the export has ended in another way.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId) -> store::Result<Export> {
    let export = exports::get(tx, tenant, id).await?;
    if !export.status.is_final() {
        // First, because it takes the locks. Running jobs are signalled and end by themselves; their rows show the new
        // status at once.
        towpath_durable::cancel(tx, export.job_id).await?;
        exports::finish(tx, tenant, id, ExportStatus::Cancelled, None).await?;
        runs::cancel_open(tx, tenant, &[id]).await?;
    }
    let export = exports::get(tx, tenant, id).await?;
    match export.status {
        ExportStatus::Cancelled => Ok(export),
        other => Err(Rejection::rule(
            "status",
            format!("the export is {} and cannot be cancelled", other.as_str()),
        )
        .into()),
    }
}

impl Workflow for RunExport {
    const KIND: &'static str = "run_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(20, Duration::from_secs(1), Duration::from_secs(60));
    // The next export must not overtake one that backs off: the workspace would exceed its limit.
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, export: id } = self;
        let export = world
            .store
            .read(async |tx| exports::get(tx, tenant, id).await)
            .await
            .retry()?;
        if export.status.is_final() {
            // Its destination was deleted, and this job is about to be cancelled.
            return Err(Failure::Cancelled);
        }
        let children = ctx.children().await?;
        // A day whose compaction failed is exported as it is.
        let needed = |child: &&Child| child.kind != CompactDay::KIND;
        if let Some(ended_badly) = children
            .iter()
            .filter(needed)
            .find(|child| child.state.is_final() && child.state != JobState::Succeeded)
        {
            return self.fail(ctx, ended_badly).await;
        }
        if children.iter().any(|child| !child.state.is_final()) {
            return ctx.wait(&[], async |_| Ok(())).await;
        }
        if export.planned {
            return self.complete(ctx, world, &export).await;
        }
        if export.status == ExportStatus::Created {
            let job = ctx.job();
            ctx.commit(async |tx| {
                let missing = missing_operations(tx, &export).await?;
                exports::running(tx, tenant, id, missing).await?;
                // From here, not from the request: waiting for a slot does not count.
                let deadline = jobs::db_now(tx).await?.plus(world.exports.export);
                jobs::set_deadline(tx, job, deadline).await
            })
            .await?;
            failpoint::hit("export.running");
        }
        let folded = children.iter().any(|child| child.kind == FlushWal::KIND);
        let open = world
            .store
            .read(async |tx| wal_segments::last_open(tx, tenant).await)
            .await
            .retry()?;
        if let (false, Some(last_seq)) = (folded, open) {
            let barrier = Barrier { tenant, last_seq };
            let job = ctx.job();
            return ctx
                .wait(&[flush_wal::lane(Shard::of(tenant))], async |tx| {
                    flush_wal::start_for(tx, job, barrier).await
                })
                .await;
        }
        if !children.iter().any(|child| child.kind == CompactDay::KIND) {
            let days = self.worth_compacting(world, &export).await?;
            if !days.is_empty() {
                return self.compact_first(ctx, days).await;
            }
        }
        self.plan(ctx, world, &export).await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        Self::end_all(tx, std::slice::from_ref(input), &ended).await
    }

    /// All exports to a destination end together when it is deleted.
    async fn end_all(tx: &mut Tx<'_>, inputs: &[Self], ended: &EndReason) -> store::Result<()> {
        let mut tenants: BTreeMap<TenantId, Vec<ExportId>> = BTreeMap::new();
        for input in inputs {
            tenants.entry(input.tenant).or_default().push(input.export);
        }
        for (tenant, ids) in tenants {
            end_exports(tx, tenant, &ids, ended).await?;
        }
        Ok(())
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Refused("the export has ended; create a new export of the same range")
    }
}

async fn end_exports(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportId], ended: &EndReason) -> store::Result<()> {
    let over = match ended {
        EndReason::Cancelled => None,
        EndReason::Failed(error) => Some((ExportStatus::Failed, error.as_str())),
        EndReason::TimedOut => Some((ExportStatus::TimedOut, "the export exceeded its time limit")),
    };
    match over {
        None => exports::cancel_all(tx, tenant, ids).await?,
        Some((status, error)) => {
            for id in ids {
                exports::finish(tx, tenant, *id, status, Some(error)).await?;
            }
        }
    }
    runs::cancel_open(tx, tenant, ids).await?;
    // A manifest marks an export as complete, and these may have been interrupted right after writing it.
    let written = exports::with_a_manifest(tx, tenant, ids).await?;
    let clean: Vec<_> = written
        .into_iter()
        .map(|export| CleanExport::manifest(tenant, export))
        .collect();
    clean_export::start_all(tx, tenant, &clean).await
}

/// Operations in quarantine that may belong to the project and the range of an export.
async fn missing_operations(tx: &mut Tx<'_>, export: &Export) -> store::Result<i64> {
    let (tenant, project) = (export.tenant_id, export.project_id);
    quarantine::missing(tx, tenant, project, export.start_time, export.end_time).await
}

impl RunExport {
    /// Fails at once, even if other parts are running; finished files stay.
    async fn fail(&self, ctx: &mut Ctx, child: &Child) -> Outcome {
        let &Self { tenant, export } = self;
        let error = child.error.as_deref().unwrap_or(child.state.as_str());
        let what = if child.kind == ExportPart::KIND {
            "an export run"
        } else {
            "flushing the data sent before it"
        };
        let error = format!("{what} failed: {error}");
        ctx.settle(async |tx| {
            exports::finish(tx, tenant, export, ExportStatus::Failed, Some(&error)).await?;
            // Their jobs are cancelled with this one.
            runs::cancel_open(tx, tenant, &[export]).await
        })
        .await
    }
}
