//! Deletes a deployment: its agent server, its database, its artifacts and its rows.

use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{DeploymentId, JobId, TenantId};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, RetryDecision, Settlement, Start, Workflow};
use towpath_store::{self as store, Tx, access, deployments, revision_keys, source_uploads};

use crate::deployment_host::lane_of;
use crate::{Services, delete_project, images};

#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteDeployment {
    pub tenant: TenantId,
    pub deployment: DeploymentId,
}

/// Records the job, which waits until a running build has stopped. Call it before the transaction's business writes: it
/// locks the lane.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> store::Result<JobId> {
    let input = DeleteDeployment { tenant, deployment };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(deployment))).await
}

impl Workflow for DeleteDeployment {
    const KIND: &'static str = "delete_deployment";
    const POOL: &'static str = crate::deployment_host::POOL;
    // Retried for days, so that no deployment stays half deleted.
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, deployment } = self;
        let hosting = world.deployment_host()?;
        let _lock = hosting.lock(deployment).await;
        // Read first, because the key file is deleted with its folder.
        let former = hosting.former_key(deployment);
        ctx.commit(async |tx| {
            revision_keys::revoke_all(tx, tenant, deployment, None).await?;
            match &former {
                Some(key) => access::revoke_secret(tx, key).await,
                None => Ok(()),
            }
        })
        .await?;
        hosting.backend.remove(deployment).await.retry()?;
        hosting.remove(&world.store, tenant, deployment).await?;
        let archives = world
            .store
            .read(async |tx| source_uploads::paths(tx, tenant, deployment).await)
            .await
            .retry()?;
        for archive in archives {
            world.objects.delete(&Path::parse(archive).fatal()?).await.retry()?;
        }
        let images = Path::from(images::folder(tenant, deployment));
        world.objects.delete_below(&images).await.retry()?;
        self.delete_project(world).await?;
        ctx.settle_as(Settlement::irrevocable(), async |tx| {
            deployments::forget(tx, tenant, deployment).await.map(drop)
        })
        .await
    }

    /// The deployment keeps its status; an operator may retry the job.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(lane_of(self.deployment)))
    }
}

impl DeleteDeployment {
    /// Deletes the tracing project first, if requested, in a separate transaction: it locks the jobs of the project's
    /// schedules, which a transaction that holds this job's row must not do. It needs no fence, because it may happen
    /// in any attempt.
    async fn delete_project(&self, world: &Services) -> Result<(), Failure> {
        let &Self { tenant, deployment } = self;
        let deleted = world.store.write(async |tx| {
            let found = match deployments::get(tx, tenant, deployment).await {
                // An earlier attempt has deleted the deployment.
                Err(store::Error::NotFound) => return Ok(()),
                found => found?,
            };
            if !found.delete_tracing_project {
                return Ok(());
            }
            match delete_project::delete(tx, tenant, found.project_id).await {
                // It was deleted before.
                Err(store::Error::NotFound) => Ok(()),
                deleted => deleted,
            }
        });
        deleted.await.retry()
    }
}
