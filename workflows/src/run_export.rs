//! A bulk export: plans its day partitions, waits for them, writes the manifest.
//!
//! ```text
//! CREATED ─► RUNNING ─► wait: fold what is open ─► wait: compact closed days where that pays
//!                       ─► plan: pin segments, one export run per UTC day ─► wait: parts
//!                                         a part ended badly ─► FAILED    │
//!                                       manifest, written last ─► COMPLETED
//! ```
//! The fold is a barrier: whatever of the workspace was acknowledged before the export began is in a segment before
//! segments are pinned. It need not name the project: a patch goes to where its trace run lies. From then on all attempts
//! of all parts read the same rows.

mod manifest;
mod plan;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::export::{Content, ExportStatus, Limits};
use towpath_domain::job::{Ended, JobState, RetryPolicy};
use towpath_domain::{DestinationId, ExportId, ProjectId, Rejection, Shard, TenantId, Timestamp, failpoint};
use towpath_durable::{Again, Child, Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::exports::{self, Export, NewExport, runs};
use towpath_store::{self as store, Tx, destinations, jobs, projects, quarantine, units};

use crate::World;
use crate::clean_export::{self, CleanExport};
use crate::compact_day::CompactDay;
use crate::export_part::ExportPart;
use crate::fold_units::{self, Barrier, FoldUnits};

/// Runs one bulk export.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunExport {
    /// Its workspace.
    pub tenant: TenantId,
    /// The export.
    pub export: ExportId,
}

/// Which exports of a workspace are at work.
#[must_use]
pub fn lane(tenant: TenantId, limits: &Limits) -> Lane {
    Lane::new(format!("exports:{tenant}"), limits.per_workspace)
}

/// Records an export of `range` and its job.
///
/// # Errors
/// No such destination or project; those of the database.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    limits: &Limits,
    content: &Content,
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

/// Keeps the destination of what was just recorded until that is committed: whoever deletes it sees that then, and ends it.
/// Called behind the locks of jobs.
///
/// # Errors
/// A rejection when the destination is gone; those of the database.
pub(crate) async fn keep_destination(tx: &mut Tx<'_>, tenant: TenantId, content: &Content) -> store::Result<()> {
    let held = destinations::hold(tx, tenant, content.destination).await;
    held.map_err(missing("destination"))
}

/// Whether there are such a destination and such a project.
///
/// # Errors
/// A rejection that says which is missing; those of the database.
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

/// As [`check_references`].
pub(crate) async fn check(tx: &mut Tx<'_>, tenant: TenantId, content: &Content) -> store::Result<()> {
    check_references(tx, tenant, content.destination, content.project).await
}

/// Records an export and its job; `source` is the schedule that spawns it.
///
/// # Errors
/// [`store::Error::Conflict`] when its source has spawned one of that start before; those of the database.
pub(crate) async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    limits: &Limits,
    content: &Content,
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

/// Cancels an export with everything it has under way. One that is cancelled already stays as it is.
///
/// # Errors
/// [`store::Error::NotFound`], and a rejection of `status` when the export is over in any other way.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId) -> store::Result<Export> {
    let export = exports::get(tx, tenant, id).await?;
    if !export.status.is_final() {
        // First: it takes the locks. Jobs that run are told to stop and end by themselves; their rows say it now.
        towpath_durable::cancel(tx, export.job_id).await?;
        exports::finish(tx, tenant, id, ExportStatus::Cancelled, None).await?;
        runs::cancel_open(tx, tenant, &[id]).await?;
    }
    let export = exports::get(tx, tenant, id).await?;
    match export.status {
        ExportStatus::Cancelled => Ok(export),
        other => Err(Rejection::rule("status", format!("the export is {} and stays so", other.as_str())).into()),
    }
}

impl Workflow for RunExport {
    const KIND: &'static str = "run_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(20, Duration::from_secs(1), Duration::from_secs(60));
    // An export that backs off must not be overtaken by the next one: the workspace would have one more at work.
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
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
        // A day that could not be compacted is exported as it is.
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
                // Counted from here, not from the request: waiting for a place is not the export's fault.
                let deadline = jobs::db_now(tx).await?.plus(world.exports.export);
                jobs::set_deadline(tx, job, deadline).await
            })
            .await?;
            failpoint::hit("export.running");
        }
        let folded = children.iter().any(|child| child.kind == FoldUnits::KIND);
        let open = world
            .store
            .read(async |tx| units::last_open(tx, tenant).await)
            .await
            .retry()?;
        if let (false, Some(last_seq)) = (folded, open) {
            let barrier = Barrier { tenant, last_seq };
            let job = ctx.job();
            return ctx
                .wait(&[fold_units::lane(Shard::of(tenant))], async |tx| {
                    fold_units::start_for(tx, job, barrier).await
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

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> store::Result<()> {
        Self::end_all(tx, std::slice::from_ref(input), &ended).await
    }

    /// All exports to a destination end together when it is deleted.
    async fn end_all(tx: &mut Tx<'_>, inputs: &[Self], ended: &Ended) -> store::Result<()> {
        let mut tenants: BTreeMap<TenantId, Vec<ExportId>> = BTreeMap::new();
        for input in inputs {
            tenants.entry(input.tenant).or_default().push(input.export);
        }
        for (tenant, ids) in tenants {
            end_exports(tx, tenant, &ids, ended).await?;
        }
        Ok(())
    }

    fn again(&self) -> Again {
        Again::Refused("the export is over, and has told so; create a new export of the same range")
    }
}

async fn end_exports(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportId], ended: &Ended) -> store::Result<()> {
    let over = match ended {
        Ended::Cancelled => None,
        Ended::Failed(error) => Some((ExportStatus::Failed, error.as_str())),
        Ended::TimedOut => Some((ExportStatus::TimedOut, "the export took longer than an export may")),
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
    // A manifest says that an export is complete, and these may have been interrupted right behind it.
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
    /// Fails at once, whatever its other parts are doing; finished files stay.
    async fn fail(&self, ctx: &mut Ctx, child: &Child) -> Outcome {
        let &Self { tenant, export } = self;
        let error = child.error.as_deref().unwrap_or(child.state.as_str());
        let what = if child.kind == ExportPart::KIND {
            "an export run"
        } else {
            "folding what came in before it"
        };
        let error = format!("{what} ended badly: {error}");
        ctx.settle(async |tx| {
            exports::finish(tx, tenant, export, ExportStatus::Failed, Some(&error)).await?;
            // Their jobs are cancelled with this one.
            runs::cancel_open(tx, tenant, &[export]).await
        })
        .await
    }
}
