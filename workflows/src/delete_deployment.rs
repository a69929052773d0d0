//! Tears a deployment down: its agent server, its database, its artifacts, its rows.

use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{DeploymentId, JobId, TenantId};
use towpath_durable::{Again, Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_store::{self as store, Tx, access, deployments, revision_keys, source_uploads};

use crate::hosting::lane_of;
use crate::{World, delete_project, images};

/// Tears down one deployment.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeleteDeployment {
    /// Its workspace.
    pub tenant: TenantId,
    /// The deployment.
    pub deployment: DeploymentId,
}

/// Records the job. It waits for a build that is being stopped. Call it before the transaction's business writes: it
/// locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> store::Result<JobId> {
    let input = DeleteDeployment { tenant, deployment };
    towpath_durable::start(tx, &input, Start::new(tenant).lane(lane_of(deployment))).await
}

impl Workflow for DeleteDeployment {
    const KIND: &'static str = "delete_deployment";
    const POOL: &'static str = crate::hosting::POOL;
    // What cannot be removed today may be tomorrow: a deployment must not stay half there.
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_secs(1), Duration::from_secs(300));
    const KEEP_PLACE: bool = true;
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, deployment } = self;
        let hosting = world.hosting()?;
        let _lock = hosting.lock(deployment).await;
        // First: the former key goes with the folder it lies in.
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
        ctx.settle_final(async |tx| deployments::forget(tx, tenant, deployment).await.map(drop))
            .await
    }

    /// The deployment waits for its end as long as it is there; an operator may have the job performed again.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }

    fn again(&self) -> Again {
        Again::Allowed(Some(lane_of(self.deployment)))
    }
}

impl DeleteDeployment {
    /// The tracing project goes first, where that was asked for, in a transaction of its own: it locks the jobs of the
    /// project's schedules, which a transaction that holds this job's row already may not. Whoever does it, it was
    /// asked for, so no fence is needed.
    async fn delete_project(&self, world: &World) -> Result<(), Failure> {
        let &Self { tenant, deployment } = self;
        let deleted = world.store.write(async |tx| {
            let found = match deployments::get(tx, tenant, deployment).await {
                // An attempt before this one came to its end.
                Err(store::Error::NotFound) => return Ok(()),
                found => found?,
            };
            if !found.delete_tracing_project {
                return Ok(());
            }
            match delete_project::delete(tx, tenant, found.project_id).await {
                // Somebody deleted it before.
                Err(store::Error::NotFound) => Ok(()),
                deleted => deleted,
            }
        });
        deleted.await.retry()
    }
}
