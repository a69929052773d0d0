//! Builds a revision of a deployment and rolls it out.
//!
//! ```text
//! CREATING ─► database ─► AWAITING_BUILD ─► BUILDING: resolve, fetch, build ─► AWAITING_DEPLOY ─► DEPLOYING: check, switch ─► DEPLOYED
//!                 └─► an image, or an existing artifact ──────────────┘
//! ```
//! The lane of the deployment has one slot, so one revision is in progress at a time. Until the switch the running
//! revision is not touched, so a failed or interrupted revision leaves it serving. In the switch the old agent server
//! stops before the new one starts, because a deployment's database allows one process; gateways hold requests
//! meanwhile. If the switch is interrupted, the [reconciler](crate::reconcile_deployments) restarts the old one, which
//! the placement still names.

mod artifact;
mod deploy;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use towpath_compute::{Error, Log};
use towpath_domain::deployment::{DeploymentStatus, LogKind, RevisionStatus};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{DeploymentId, JobId, RevisionId, TenantId, failpoint};
use towpath_durable::{CancelOutcome, Ctx, Failure, IntoFailure, Lane, Outcome, RetryDecision, Start, Workflow};
use towpath_store::deployments::{self, Deployment};
use towpath_store::revisions::{self, Revision};
use towpath_store::{self as store, Tx, revision_keys};

use crate::deployment_host::{DeploymentHost, ensure_key, lane_of};
use crate::deployment_log::{DeploymentLog, LogOwner};
use crate::services::require_disk_space;
use crate::{Services, metric};

#[derive(Debug, Serialize, Deserialize)]
pub struct BuildRevision {
    pub tenant: TenantId,
    pub deployment: DeploymentId,
    pub revision: RevisionId,
}

/// The lane in which revisions of a deployment are built, and in which it is deleted.
#[must_use]
pub fn lane(deployment: DeploymentId) -> Lane {
    lane_of(deployment)
}

/// Records the job of a revision. Call it before the transaction's business writes: it locks the lane.
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

/// Cancels the job of a revision with its children. Call it before the transaction's business writes.
pub async fn interrupt(tx: &mut Tx<'_>, job: JobId) -> store::Result<CancelOutcome> {
    towpath_durable::cancel(tx, job).await
}

impl Workflow for BuildRevision {
    const KIND: &'static str = "build_revision";
    const POOL: &'static str = crate::deployment_host::POOL;
    const RETRY: RetryPolicy = RetryPolicy::doubling(4, Duration::from_secs(2), Duration::from_secs(30));
    // The next revision must not overtake one that backs off.
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self {
            tenant,
            deployment,
            revision,
        } = self;
        let hosting = world.deployment_host()?;
        let (deployment, revision) = world
            .store
            .read(async |tx| {
                let deployment = deployments::get(tx, tenant, deployment).await?;
                Ok((deployment, revisions::get(tx, tenant, revision).await?))
            })
            .await
            .retry()?;
        if revision.status.is_final() {
            return ctx.complete();
        }
        let owner = LogOwner {
            tenant,
            deployment: deployment.id,
            revision: revision.id,
            kind: LogKind::Build,
        };
        let build = hosting.log(&world.store, owner, Vec::new());
        let work = BuildAttempt {
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
                Failure::Retry(cause) => work.log.warn(format!("{}; retrying", cause.text())),
                Failure::Cancelled => work.log.warn("interrupted"),
                Failure::Snooze(_) | Failure::Lost => {}
            }
        }
        // Clients that see the end of the revision find its last lines.
        build.flush().await;
        outcome
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        let &Self { tenant, revision, .. } = input;
        let written = match &ended {
            EndReason::Failed(error) => revisions::fail(tx, tenant, revision, error).await,
            EndReason::Cancelled => revisions::advance(tx, tenant, revision, RevisionStatus::Interrupted).await,
            EndReason::TimedOut => revisions::fail(tx, tenant, revision, "the revision exceeded its time limit").await,
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
            // The deployment was deleted with its revisions.
            Err(store::Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Refused("the revision has ended; deploy it again or create a new one")
    }
}

struct BuildAttempt<'a> {
    world: &'a Services,
    hosting: &'a DeploymentHost,
    deployment: &'a Deployment,
    revision: &'a Revision,
    log: &'a Log,
    /// Receives the lines of `log`.
    lines: &'a DeploymentLog,
}

impl BuildAttempt<'_> {
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
            require_disk_space(&self.world.disks.data)?;
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
        // Held until the revision serves, so that neither a deletion nor a clean-up removes the artifact.
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

    /// Advances the revision, unless an interrupted attempt has done so.
    async fn advance(&self, ctx: &mut Ctx, to: RevisionStatus) -> Result<(), Failure> {
        let (tenant, revision) = (self.deployment.tenant_id, self.revision.id);
        ctx.commit(async |tx| revisions::advance(tx, tenant, revision, to).await.map(drop))
            .await
    }

    /// Records the duration of a step in the log and the metrics.
    fn record_step_duration(&self, step: &'static str, begun: Instant, log: &Log) {
        let seconds = begun.elapsed().as_secs_f64();
        metrics::histogram!(metric::DEPLOYMENT_STEP_SECONDS, "step" => step).record(seconds);
        log.info(format!("{step}: {seconds:.2} s"));
    }

    /// A deploy log of the revision with masked secrets.
    fn deploy_log(&self) -> DeploymentLog {
        let owner = LogOwner {
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

    /// Maps a compute error to a failure. The reason contains the last lines of what failed.
    fn failure_of(&self, error: &Error, log: &Log) -> Failure {
        if matches!(error, Error::Cancelled) {
            return Failure::Cancelled;
        }
        let mut text = error.user_message();
        let tail = log.tail();
        if !tail.is_empty() {
            text = format!("{text}\n{}", tail.join("\n"));
        }
        if error.is_transient() {
            Failure::retry(text)
        } else {
            Failure::fatal(text)
        }
    }
}
