//! The second half: check beside what serves, then switch.

use std::time::Duration;

use towpath_compute::Log;
use towpath_domain::deployment::RevisionStatus;
use towpath_domain::failpoint;
use towpath_durable::{Ctx, Failure, Outcome};
use towpath_store::{self as store, deployments, placements, revisions};

use super::Work;

/// After gateways are told to wait and before the old agent server is: a request that had read its address by then has
/// connected, and drains with it.
const SETTLE: Duration = Duration::from_millis(100);

impl Work<'_> {
    pub(super) async fn deploy(&self, ctx: &mut Ctx, artifact: &str) -> Outcome {
        self.advance(ctx, RevisionStatus::AwaitingDeploy).await?;
        self.advance(ctx, RevisionStatus::Deploying).await?;
        let _using = self.hosting.using(artifact);
        let (launch, log) = self
            .hosting
            .launch(self.world, self.deployment, self.revision, artifact)?;
        let cancel = ctx.cancelled();
        log.log().info("checking the revision beside what serves");
        let checked = ctx.step("check", async || {
            let checked = self.hosting.backend.check(&launch, log.log(), &cancel).await;
            checked.map_err(|error| self.failed(&error, log.log()))
        });
        if let Err(failure) = checked.await {
            self.tell(&failure, log.log());
            log.flush().await;
            return Err(failure);
        }
        failpoint::hit("deploy.checked");

        let switched = self.switch(ctx, &launch, log.log()).await;
        if let Err(failure) = &switched {
            self.tell(failure, log.log());
        }
        log.flush().await;
        switched
    }

    async fn switch(&self, ctx: &mut Ctx, launch: &towpath_compute::Launch, log: &Log) -> Outcome {
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
        let started = self.hosting.backend.replace(launch, log, &cancel).await;
        let state = started.map_err(|error| self.failed(&error, log))?;
        failpoint::hit("deploy.replaced");
        let settled = ctx
            .settle(async |tx| {
                let moved = revisions::advance(tx, tenant, revision, RevisionStatus::Deployed).await?
                    && deployments::activate(tx, tenant, deployment, revision).await?;
                if !moved {
                    // Interrupted, or being deleted: whoever did that has cancelled this job, which shows next.
                    return Err(store::Error::Stale);
                }
                placements::put(tx, tenant, deployment, revision, &launch.artifact, &state.address).await
            })
            .await;
        if settled.is_ok() {
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
