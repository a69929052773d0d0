//! The rollout: check the revision next to the running one, then switch.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towpath_compute::{Launch, Log, Standby};
use towpath_domain::deployment::{LogKind, RevisionStatus};
use towpath_domain::failpoint;
use towpath_durable::{Ctx, Failure, IntoFailure as _, Outcome};
use towpath_store::{self as store, deployments, placements, revisions};

use super::BuildAttempt;
use crate::deployment_host::revoke_older_keys;

/// Pause between telling gateways to wait and draining the old agent server, so that requests with its address have
/// connected and drain with it.
const SWITCH_PAUSE: Duration = Duration::from_millis(100);

impl BuildAttempt<'_> {
    pub(super) async fn deploy(&self, ctx: &mut Ctx, artifact: &str) -> Outcome {
        self.advance(ctx, RevisionStatus::AwaitingDeploy).await?;
        self.advance(ctx, RevisionStatus::Deploying).await?;
        let (launch, log) = self
            .hosting
            .launch(
                &self.world.store,
                &self.world.sealer,
                self.deployment,
                self.revision,
                artifact,
                LogKind::Deploy,
            )
            .await?;
        let cancel = ctx.cancelled();
        let lines = log.log();
        if let Err(failure) = self.check_database().await {
            lines.error(failure.to_string());
            self.tell(&failure, lines);
            log.flush().await;
            return Err(failure);
        }
        if let Some(text) = self.unsupported_resources()? {
            lines.warn(text);
        }
        lines.info("checking the revision while the old one serves");
        let begun = Instant::now();
        // Its lines are muted until it serves, because they repeat those of the check.
        let (later, loud) = lines.muted();
        let backend = &self.hosting.backend;
        let checked = ctx.step("check", async || {
            let checked = backend.check(&launch, lines, &cancel).await;
            checked.map_err(|error| self.failure_of(&error, lines))
        });
        let standby = async {
            let standby = backend.stand_by(&launch, &later, &cancel).await;
            standby.map_err(|error| self.failure_of(&error, &later))
        };
        // Concurrently: both load the graphs, which takes most of the time.
        let both = async {
            tokio::pin!(checked, standby);
            tokio::select! {
                checked = &mut checked => {
                    checked?;
                    standby.await
                }
                // If neither is healthy, the error of the one with logged lines is reported.
                standby = &mut standby => {
                    checked.await?;
                    standby
                }
            }
        };
        let switched = match both.await {
            Ok(standby) => {
                failpoint::hit("deploy.checked");
                self.record_step_duration("check", begun, lines);
                self.switch(ctx, &launch, (standby, &loud), lines).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &switched {
            self.tell(failure, lines);
        }
        log.flush().await;
        failpoint::hit("deploy.settled");
        switched
    }

    /// Before anything starts: a new revision must use the deployment's existing database.
    async fn check_database(&self) -> Result<(), Failure> {
        let (tenant, deployment) = (self.deployment.tenant_id, self.deployment.id);
        let store = &self.world.store;
        let read = store.read(async |tx| placements::get(tx, tenant, deployment).await);
        match read.await.retry()? {
            Some(placement) => self.hosting.check_database(&placement).await,
            None => Ok(()),
        }
    }

    /// Requested resources that are stored but not enforced here.
    fn unsupported_resources(&self) -> Result<Option<String>, Failure> {
        let sizes = self.revision.source_config().fatal()?.resource_spec.unwrap_or_default();
        let honoured = self.hosting.backend.honours();
        let mut names = sizes.requested_settings();
        names.retain(|name| !honoured.contains(&name.as_str()));
        let text = || {
            format!(
                "resource_spec: without effect where this deployment runs: {}",
                names.join(", ")
            )
        };
        Ok((!names.is_empty()).then(text))
    }

    async fn switch(
        &self,
        ctx: &mut Ctx,
        launch: &Launch,
        (standby, loud): (Standby, &CancellationToken),
        log: &Log,
    ) -> Outcome {
        let begun = Instant::now();
        let (tenant, deployment, revision) = (self.deployment.tenant_id, self.deployment.id, self.revision.id);
        let cancel = ctx.cancelled();
        // Dropped last, so that the reconciler finds the lock free.
        let _nudge = ReconcileOnDrop(self.hosting);
        let _lock = self.hosting.lock(deployment).await;
        let serves = ctx
            .commit(async |tx| placements::switching(tx, tenant, deployment).await)
            .await?;
        failpoint::hit("deploy.switching");
        if serves {
            log.info("switching: requests wait, the old revision drains");
            tokio::time::sleep(SWITCH_PAUSE).await;
        }
        loud.cancel();
        let started = self.hosting.backend.replace(launch, standby, log, &cancel).await;
        let state = started.map_err(|error| self.failure_of(&error, log))?;
        failpoint::hit("deploy.replaced");
        let former = self.hosting.former_key(deployment);
        let named = self.hosting.backend.name_database(deployment).await;
        let settled = match named {
            Ok(database) => {
                ctx.settle(async |tx| {
                    let moved = revisions::advance(tx, tenant, revision, RevisionStatus::Deployed).await?
                        && deployments::activate(tx, tenant, deployment, revision).await?;
                    if !moved {
                        // Interrupted or being deleted, which has cancelled this job; the next call reports it.
                        return Err(store::Error::Stale);
                    }
                    let (artifact, address) = (&launch.artifact, &state.address);
                    placements::put(tx, tenant, deployment, revision, artifact, address, &database).await?;
                    // The old agent server has drained and ended.
                    revoke_older_keys(tx, self.deployment, revision, former.as_ref()).await
                })
                .await
            }
            Err(error) => Err(self.failure_of(&error, log)),
        };
        if settled.is_ok() {
            self.hosting.forget_former_key(deployment);
            self.record_step_duration("switch", begun, log);
            log.info(format!("revision {revision} serves"));
        } else {
            // The placement still names the old revision; the reconciler restarts it from there.
            self.hosting.backend.stop(deployment).await;
        }
        settled
    }

    fn tell(&self, failure: &Failure, log: &Log) {
        if !matches!(failure, Failure::Lost | Failure::Snooze(_)) {
            log.warn("the revision does not serve; the old revision continues");
        }
    }
}

/// Triggers the reconciler when dropped, also when the job is dropped.
struct ReconcileOnDrop<'a>(&'a crate::deployment_host::DeploymentHost);

impl Drop for ReconcileOnDrop<'_> {
    fn drop(&mut self) {
        self.0.request_reconcile();
    }
}
