//! Where jobs are looked up.

use axum::extract::FromRef;
use towpath_domain::{JobId, RunId};
use towpath_store::{self as store, Store, jobs as stored, runs};

use crate::app::App;

/// The database whose jobs are seen: that of the platform, or of an agent server.
#[derive(Clone)]
pub(crate) struct JobStores {
    pub(crate) store: Store,
    /// Of the agent server in the same process.
    pub(crate) agents: Option<Store>,
}

impl JobStores {
    /// Where a job is, and which one is meant: a run of an agent server stands for the job that does it, for its id is
    /// what callers of graphs know.
    pub(crate) async fn find_job(&self, id: JobId) -> store::Result<(Store, JobId)> {
        for store in [&self.store].into_iter().chain(&self.agents) {
            let found = store.read(async |tx| {
                Ok(match stored::get(tx, id).await? {
                    Some(job) => Some(job.id),
                    None => runs::job_of(tx, RunId(id.0)).await?,
                })
            });
            if let Some(found) = found.await? {
                return Ok((store.clone(), found));
            }
        }
        Ok((self.store.clone(), id))
    }
}

impl FromRef<App> for JobStores {
    fn from_ref(app: &App) -> Self {
        Self {
            store: app.store.clone(),
            agents: app.agents.clone(),
        }
    }
}
