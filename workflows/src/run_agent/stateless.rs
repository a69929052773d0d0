//! Stateless runs, recorded many at a time.

use std::sync::Arc;

use futures::future::BoxFuture;
use towpath_domain::agent::Object;
use towpath_domain::{TenantId, Timestamp};
use towpath_durable::{Batch, BatchedWrite, Engine, NewJob};
use towpath_store::runs::Run;
use towpath_store::runs::stateless::{self, NewStatelessRun};
use towpath_store::threads::{NewThread, Ttl};
use towpath_store::{self as store, Store, Tx};

use super::job::POOL;
use super::start::{NewRun, RunDraft, Target, busy_thread, draft_run, job_of, row_of};

/// A run on its own temporary thread that starts at once. It does not depend on recorded data, so it is prepared before
/// its transaction, which it can share with others.
#[derive(Clone, Debug)]
pub struct StatelessRun {
    tenant: TenantId,
    job: NewJob<'static>,
    ttl: Option<Ttl>,
    draft: RunDraft,
}

impl StatelessRun {
    /// Prepares the run, if it is stateless.
    pub fn prepare(tenant: TenantId, new: NewRun<'_>, now: Timestamp) -> store::Result<Result<Self, NewRun<'_>>> {
        let Target::New(thread) = new.thread else {
            return Ok(Err(new));
        };
        if !new.admitted.kwargs.temporary || !new.admitted.after.is_zero() || new.cron.is_some() {
            return Ok(Err(new));
        }
        let job = towpath_durable::ready(tenant, &job_of(tenant, &new, thread), now)?;
        let ttl = new.ttl;
        let drawn = draft_run(new, true, Object::new(), &Object::new(), job.id, now)?;
        Ok(Ok(Self {
            tenant,
            job,
            ttl,
            draft: drawn,
        }))
    }

    /// Records all or none of them, and wakes their workers.
    async fn start(tx: &mut Tx<'_>, all: &[&Self]) -> store::Result<()> {
        Self::insert(tx, all).await?;
        all.iter()
            .for_each(|one| towpath_durable::record_started_metrics(tx, &one.job));
        Ok(())
    }

    async fn insert(tx: &mut Tx<'_>, all: &[&Self]) -> store::Result<()> {
        for of_tenant in all.chunk_by(|one, next| one.tenant == next.tenant) {
            let rows: Vec<NewStatelessRun<'_>> = of_tenant.iter().map(|one| one.rows()).collect();
            stateless::insert(tx, of_tenant[0].tenant, &rows).await?;
        }
        Ok(())
    }

    fn rows(&self) -> NewStatelessRun<'_> {
        let RunDraft { metadata, config, run } = &self.draft;
        NewStatelessRun {
            job: &self.job,
            thread: NewThread {
                metadata,
                config,
                temporary: true,
                ..busy_thread(run.thread_id, self.ttl)
            },
            run: row_of(run, None),
        }
    }
}

impl BatchedWrite for StatelessRun {
    fn write<'a, 'c: 'a>(
        &'a self,
        tx: &'a mut Tx<'c>,
        all: &'a [Arc<dyn BatchedWrite>],
    ) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async move {
            let all: Vec<&Self> = towpath_durable::of_type(all).collect();
            Self::insert(tx, &all).await?;
            all.iter().for_each(|one| towpath_durable::count_started(&one.job));
            Ok(())
        })
    }
}

/// Records stateless runs. Concurrent ones share the next transaction; if this process also claims them, that is the
/// claim's transaction.
pub struct Recorder {
    store: Store,
    engine: Option<Engine>,
    batch: Batch<Arc<StatelessRun>, ()>,
}

impl Recorder {
    /// Records in this store, on the calling runtime; `engine` is that of this process's workers.
    #[must_use]
    pub fn new(store: Store, engine: Option<Engine>) -> Self {
        let together = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<Arc<StatelessRun>>>| {
                let store = store.clone();
                async move {
                    let all: Vec<&StatelessRun> = group.iter().map(|one| &**one).collect();
                    store.write(async |tx| StatelessRun::start(tx, &all).await).await?;
                    Ok(vec![(); group.len()])
                }
            }
        });
        Self {
            store,
            engine,
            batch: together,
        }
    }

    /// Records a run, and returns it.
    pub async fn record(&self, run: StatelessRun) -> store::Result<Run> {
        let run = Arc::new(run);
        if let Some(engine) = &self.engine
            && engine.record_with_next_claim(POOL, run.clone()).await
        {
            return Ok(run.draft.run.clone());
        }
        if let Some(_alone) = self.batch.try_exclusive() {
            self.store
                .write(async |tx| StatelessRun::start(tx, &[&run]).await)
                .await?;
        } else {
            self.batch.call(Arc::clone(&run)).await?;
        }
        Ok(run.draft.run.clone())
    }
}
