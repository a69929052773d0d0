//! The second half: check beside what serves, then switch.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towpath_compute::{Launch, Log, Standby};
use towpath_domain::deployment::{LogKind, RevisionStatus};
use towpath_domain::failpoint;
use towpath_durable::{Ctx, Failure, Outcome, Verdict as _};
use towpath_store::{self as store, deployments, placements, revisions};

use super::Work;
use crate::hosting::revoke_older_keys;

/// After gateways are told to wait and before the old agent server is: a request that had read its address by then has
/// connected, and drains with it.
const SETTLE: Duration = Duration::from_millis(100);

impl Work<'_> {
    pub(super) async fn deploy(&self, ctx: &mut Ctx, artifact: &str) -> Outcome {
        self.advance(ctx, RevisionStatus::AwaitingDeploy).await?;
        self.advance(ctx, RevisionStatus::Deploying).await?;
        let (launch, log) = self
            .hosting
            .launch(self.world, self.deployment, self.revision, artifact, LogKind::Deploy)
            .await?;
        let cancel = ctx.cancelled();
        let lines = log.log();
        if let Err(failure) = self.check_database().await {
            lines.error(failure.to_string());
            self.tell(&failure, lines);
            log.flush().await;
            return Err(failure);
        }
        if let Some(text) = self.without_effect()? {
            lines.warn(text);
        }
        lines.info("checking the revision beside what serves");
        let begun = Instant::now();
        // Says what the check says, until it serves.
        let (later, loud) = lines.muted();
        let backend = &self.hosting.backend;
        let checked = ctx.step("check", async || {
            let checked = backend.check(&launch, lines, &cancel).await;
            checked.map_err(|error| self.failed(&error, lines))
        });
        let standby = async {
            let standby = backend.stand_by(&launch, &later, &cancel).await;
            standby.map_err(|error| self.failed(&error, &later))
        };
        // Together: both load the graphs, which is what takes long.
        let both = async {
            tokio::pin!(checked, standby);
            tokio::select! {
                checked = &mut checked => {
                    checked?;
                    standby.await
                }
                // When neither is well, the one whose lines are heard says why.
                standby = &mut standby => {
                    checked.await?;
                    standby
                }
            }
        };
        let switched = match both.await {
            Ok(standby) => {
                failpoint::hit("deploy.checked");
                self.took("check", begun, lines);
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

    /// Before anything is started: a new revision goes on with the deployment's database, or not at all.
    async fn check_database(&self) -> Result<(), Failure> {
        let (tenant, deployment) = (self.deployment.tenant_id, self.deployment.id);
        let store = &self.world.store;
        let read = store.read(async |tx| placements::get(tx, tenant, deployment).await);
        match read.await.retry()? {
            Some(placement) => self.hosting.check_database(&placement).await,
            None => Ok(()),
        }
    }

    /// What is asked for and cannot be had: kept, answered, and said here.
    fn without_effect(&self) -> Result<Option<String>, Failure> {
        let sizes = self.revision.source_config().fatal()?.resource_spec.unwrap_or_default();
        let honoured = self.hosting.backend.honours();
        let mut names = sizes.asked_for();
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
        // Dropped last: whoever is told finds the lock free.
        let _nudge = Nudge(self.hosting);
        let _lock = self.hosting.lock(deployment).await;
        let serves = ctx
            .commit(async |tx| placements::switching(tx, tenant, deployment).await)
            .await?;
        failpoint::hit("deploy.switching");
        if serves {
            log.info("the switch begins: requests wait, the old revision drains");
            tokio::time::sleep(SETTLE).await;
        }
        loud.cancel();
        let started = self.hosting.backend.replace(launch, standby, log, &cancel).await;
        let state = started.map_err(|error| self.failed(&error, log))?;
        failpoint::hit("deploy.replaced");
        let former = self.hosting.former_key(deployment);
        let named = self.hosting.backend.name_database(deployment).await;
        let settled = match named {
            Ok(database) => {
                ctx.settle(async |tx| {
                    let moved = revisions::advance(tx, tenant, revision, RevisionStatus::Deployed).await?
                        && deployments::activate(tx, tenant, deployment, revision).await?;
                    if !moved {
                        // Interrupted, or being deleted: whoever did that has cancelled this job, which shows next.
                        return Err(store::Error::Stale);
                    }
                    let (artifact, address) = (&launch.artifact, &state.address);
                    placements::put(tx, tenant, deployment, revision, artifact, address, &database).await?;
                    // What served before has drained, and has ended.
                    revoke_older_keys(tx, self.deployment, revision, former.as_ref()).await
                })
                .await
            }
            Err(error) => Err(self.failed(&error, log)),
        };
        if settled.is_ok() {
            self.hosting.forget_former_key(deployment);
            self.took("switch", begun, log);
            log.info(format!("revision {revision} serves"));
        } else {
            // The placement names the old revision still; it is started again from there.
            self.hosting.backend.stop(deployment).await;
        }
        settled
    }

    fn tell(&self, failure: &Failure, log: &Log) {
        if !matches!(failure, Failure::Lost | Failure::Snooze(_)) {
            log.warn("the revision does not serve; what served before goes on");
        }
    }
}

/// Whoever keeps deployments looks when this is dropped, also when the job is dropped where it stands.
struct Nudge<'a>(&'a crate::hosting::Hosting);

impl Drop for Nudge<'_> {
    fn drop(&mut self) {
        self.0.nudge();
    }
}
