//! A revision of a deployment: from what was asked for to what serves.
//!
//! ```text
//! CREATING ─► database ─► AWAITING_BUILD ─► BUILDING: resolve, fetch, build ─► AWAITING_DEPLOY ─► DEPLOYING: check, switch ─► DEPLOYED
//!                 └─► an image, or an artifact that is there already ──────────────┘
//! ```
//! The lane of the deployment has one place: one revision at a time. Until the switch nothing of what serves is touched,
//! so a revision that fails, or is interrupted, leaves the old one serving. In the switch the old agent server stops
//! before the new one starts, because a deployment's database has one process; gateways hold requests meanwhile. When
//! the switch breaks off, whoever keeps deployments ([`keep_deployments`](crate::keep_deployments)) starts the old one
//! again: the placement still names it.

mod artifact;
mod deploy;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use towpath_compute::{Error, Log};
use towpath_domain::deployment::{DeploymentStatus, LogKind, RevisionStatus};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{DeploymentId, JobId, RevisionId, TenantId, failpoint};
use towpath_durable::{Again, Cancelled, Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::deployments::{self, Deployment};
use towpath_store::revisions::{self, Revision};
use towpath_store::{self as store, Tx, revision_keys};

use crate::deployment_log::{DeploymentLog, Owner};
use crate::hosting::{Hosting, ensure_key, lane_of};
use crate::world::room_on;
use crate::{World, metric};

/// Builds one revision and rolls it out.
#[derive(Debug, Serialize, Deserialize)]
pub struct BuildRevision {
    /// Its workspace.
    pub tenant: TenantId,
    /// Its deployment.
    pub deployment: DeploymentId,
    /// The revision.
    pub revision: RevisionId,
}

/// Where revisions of a deployment are built one after another, and where it is torn down.
#[must_use]
pub fn lane(deployment: DeploymentId) -> Lane {
    lane_of(deployment)
}

/// Records the job of a revision. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    revision: RevisionId,
) -> store::Result<JobId> {
    let input = BuildRevision {
        tenant,
        deployment,
        revision,
    };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane(deployment))).await
}

/// Stops the job of a revision with everything it started. Call it before the transaction's business writes.
///
/// # Errors
/// Those of the database.
pub async fn interrupt(tx: &mut Tx<'_>, job: JobId) -> store::Result<Cancelled> {
    towpath_durable::cancel(tx, job).await
}

impl Workflow for BuildRevision {
    const KIND: &'static str = "build_revision";
    const POOL: &'static str = crate::hosting::POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(4, Duration::from_secs(2), Duration::from_secs(30));
    // A revision that backs off must not be overtaken by the next one.
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self {
            tenant,
            deployment,
            revision,
        } = self;
        let hosting = world.hosting()?;
        let (deployment, revision) = world
            .store
            .read(async |tx| {
                let deployment = deployments::get(tx, tenant, deployment).await?;
                Ok((deployment, revisions::get(tx, tenant, revision).await?))
            })
            .await
            .retry()?;
        if revision.status.is_final() {
            return ctx.done();
        }
        let owner = Owner {
            tenant,
            deployment: deployment.id,
            revision: revision.id,
            kind: LogKind::Build,
        };
        let build = hosting.log(&world.store, owner, Vec::new());
        let work = Work {
            world,
            hosting,
            deployment: &deployment,
            revision: &revision,
            log: build.log(),
            lines: &build,
        };
        let outcome = work.perform(ctx).await;
        if let Err(failure) = &outcome {
            match failure {
                Failure::Fatal(cause) | Failure::TimedOut(cause) => work.log.error(cause.text()),
                Failure::Retry(cause) => work.log.warn(format!("{}; this is tried again", cause.text())),
                Failure::Cancelled => work.log.warn("interrupted"),
                Failure::Snooze(_) | Failure::Lost => {}
            }
        }
        // Whoever sees that the revision is over finds its last lines.
        build.flush().await;
        outcome
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> store::Result<()> {
        let &Self { tenant, revision, .. } = input;
        let written = match &ended {
            Ended::Failed(error) => revisions::fail(tx, tenant, revision, error).await,
            Ended::Cancelled => revisions::advance(tx, tenant, revision, RevisionStatus::Interrupted).await,
            Ended::TimedOut => revisions::fail(tx, tenant, revision, "the revision took longer than it may").await,
        };
        match written {
            Ok(_) => {
                let serves = revisions::get(tx, tenant, revision).await?.status == RevisionStatus::Deployed;
                if serves {
                    Ok(())
                } else {
                    revision_keys::revoke(tx, tenant, revision).await
                }
            }
            // The deployment is gone, and the revision with it.
            Err(store::Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn again(&self) -> Again {
        Again::Refused("the revision is over, and has told so; deploy it again, or make a new one")
    }
}

/// One attempt at a revision.
struct Work<'a> {
    world: &'a World,
    hosting: &'a Hosting,
    deployment: &'a Deployment,
    revision: &'a Revision,
    log: &'a Log,
    /// Where the lines of `log` go.
    lines: &'a DeploymentLog,
}

impl Work<'_> {
    async fn perform(&self, ctx: &mut Ctx) -> Outcome {
        let (tenant, revision) = (self.deployment.tenant_id, self.revision.id);
        let waits = self.revision.status.has_not_begun();
        if self.deployment.status == DeploymentStatus::AwaitingDelete || (waits && self.newer_exists().await?) {
            return ctx
                .settle(async |tx| {
                    revisions::advance(tx, tenant, revision, RevisionStatus::Skipped)
                        .await
                        .map(drop)
                })
                .await;
        }
        if self.revision.source.is_built() {
            room_on(&self.world.disks.data)?;
        }
        ctx.commit(async |tx| {
            ensure_key(tx, &self.world.sealer, self.deployment, self.revision).await?;
            deployments::ready(tx, tenant, self.deployment.id).await.map(drop)
        })
        .await?;
        failpoint::hit("deploy.provisioned");
        let is_built = self.revision.source.is_built();
        if !is_built && !self.hosting.backend.runs_images() {
            return self.refuse_image(ctx).await;
        }
        // Held until the revision serves: a deployment that is deleted, or a round of tidying, leaves the artifact alone.
        let (artifact, _using) = if is_built {
            self.artifact(ctx).await?
        } else {
            self.image(ctx).await?
        };
        if is_built {
            self.packages(ctx, &artifact).await?;
        }
        failpoint::hit("deploy.built");
        self.deploy(ctx, &artifact).await
    }

    async fn newer_exists(&self) -> Result<bool, Failure> {
        let (tenant, revision) = (self.deployment.tenant_id, self.revision.id);
        let newer = self
            .world
            .store
            .read(async |tx| revisions::newer_exists(tx, tenant, revision).await);
        newer.await.retry()
    }

    /// Moves the revision on, unless it is there or further already, as after an attempt that broke off.
    async fn advance(&self, ctx: &mut Ctx, to: RevisionStatus) -> Result<(), Failure> {
        let (tenant, revision) = (self.deployment.tenant_id, self.revision.id);
        ctx.commit(async |tx| revisions::advance(tx, tenant, revision, to).await.map(drop))
            .await
    }

    /// A step is over: its time stands in the log, and in the metrics.
    fn took(&self, step: &'static str, begun: Instant, log: &Log) {
        let seconds = begun.elapsed().as_secs_f64();
        metrics::histogram!(metric::DEPLOYMENT_STEP_SECONDS, "step" => step).record(seconds);
        log.info(format!("{step}: {seconds:.2} s"));
    }

    /// A log of how the revision is deployed, where no secret is said.
    fn deploy_log(&self) -> DeploymentLog {
        let owner = Owner {
            tenant: self.deployment.tenant_id,
            deployment: self.deployment.id,
            revision: self.revision.id,
            kind: LogKind::Deploy,
        };
        self.hosting.log(&self.world.store, owner, Vec::new())
    }

    async fn refuse_image(&self, ctx: &mut Ctx) -> Outcome {
        self.advance(ctx, RevisionStatus::AwaitingDeploy).await?;
        self.advance(ctx, RevisionStatus::Deploying).await?;
        let deploy = self.deploy_log();
        let why = format!(
            "no container backend is configured: this installation runs deployments as processes of its machine, and \
             cannot start the image of the source {}",
            self.revision.source.as_str()
        );
        deploy.log().error(&why);
        deploy.flush().await;
        Err(Failure::fatal(why))
    }

    /// What an error of compute means to the job. The reason carries the last lines of what failed.
    fn failed(&self, error: &Error, log: &Log) -> Failure {
        if matches!(error, Error::Cancelled) {
            return Failure::Cancelled;
        }
        let mut text = error.told();
        let tail = log.tail();
        if !tail.is_empty() {
            text = format!("{text}\n{}", tail.join("\n"));
        }
        if error.may_pass() {
            Failure::retry(text)
        } else {
            Failure::fatal(text)
        }
    }
}
