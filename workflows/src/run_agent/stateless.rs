//! Stateless runs, recorded many at a time.

use std::sync::Arc;

use futures::future::BoxFuture;
use towpath_domain::agent::Object;
use towpath_domain::{TenantId, Timestamp};
use towpath_durable::{Along, Batch, Engine, NewJob};
use towpath_store::runs::Run;
use towpath_store::runs::temporary::{self, Temporary};
use towpath_store::threads::Ttl;
use towpath_store::{self as store, Store, Tx};

use super::POOL;
use super::start::{Drawn, NewRun, Target, draw_up, fresh, job_of, row_of};

/// A run on a thread of its own that goes with it, to be performed at once: nothing that is recorded already has a say in
/// it, so it is drawn up before its transaction, which it can share with others.
#[derive(Clone, Debug)]
pub struct Stateless {
    tenant: TenantId,
    job: NewJob<'static>,
    ttl: Option<Ttl>,
    drawn: Drawn,
}

impl Stateless {
    /// Draws it up, if it is one.
    ///
    /// # Errors
    /// What it is made of cannot be read.
    pub fn of(tenant: TenantId, new: NewRun<'_>, now: Timestamp) -> store::Result<Result<Self, NewRun<'_>>> {
        let Target::Own(thread) = new.thread else {
            return Ok(Err(new));
        };
        if !new.admitted.kwargs.temporary || !new.admitted.after.is_zero() || new.cron.is_some() {
            return Ok(Err(new));
        }
        let job = towpath_durable::ready(tenant, &job_of(tenant, &new, thread), now)?;
        let ttl = new.ttl;
        let drawn = draw_up(new, true, Object::new(), &Object::new(), job.id, now)?;
        Ok(Ok(Self {
            tenant,
            job,
            ttl,
            drawn,
        }))
    }

    /// Records them, all or none, and wakes who performs them.
    async fn start(tx: &mut Tx<'_>, all: &[&Self]) -> store::Result<()> {
        Self::insert(tx, all).await?;
        all.iter().for_each(|one| towpath_durable::recorded(tx, &one.job));
        Ok(())
    }

    async fn insert(tx: &mut Tx<'_>, all: &[&Self]) -> store::Result<()> {
        for of_tenant in all.chunk_by(|one, next| one.tenant == next.tenant) {
            let rows: Vec<Temporary<'_>> = of_tenant.iter().map(|one| one.rows()).collect();
            temporary::insert(tx, of_tenant[0].tenant, &rows).await?;
        }
        Ok(())
    }

    fn rows(&self) -> Temporary<'_> {
        let Drawn { metadata, config, run } = &self.drawn;
        Temporary {
            job: &self.job,
            thread: fresh(run.thread_id, metadata, config, true, self.ttl),
            run: row_of(run, None),
        }
    }
}

impl Along for Stateless {
    fn write<'a, 'c: 'a>(&'a self, tx: &'a mut Tx<'c>, all: &'a [Arc<dyn Along>]) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async move {
            let all: Vec<&Self> = towpath_durable::each(all).collect();
            Self::insert(tx, &all).await?;
            all.iter().for_each(|one| towpath_durable::counted(&one.job));
            Ok(())
        })
    }
}

/// Records stateless runs. Those that come while others are being written share the next transaction; where this process
/// claims them too, that is the one which claims.
pub struct Recorder {
    store: Store,
    engine: Option<Engine>,
    together: Batch<Arc<Stateless>, ()>,
}

impl Recorder {
    /// Records in this store, on the calling runtime; `engine` is that of this process's workers.
    #[must_use]
    pub fn new(store: Store, engine: Option<Engine>) -> Self {
        let together = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<Arc<Stateless>>>| {
                let store = store.clone();
                async move {
                    let all: Vec<&Stateless> = group.iter().map(|one| &**one).collect();
                    store.write(async |tx| Stateless::start(tx, &all).await).await?;
                    Ok(vec![(); group.len()])
                }
            }
        });
        Self {
            store,
            engine,
            together,
        }
    }

    /// Records a run; answers it as it is then.
    ///
    /// # Errors
    /// As every statement.
    pub async fn record(&self, run: Stateless) -> store::Result<Run> {
        let run = Arc::new(run);
        if let Some(engine) = &self.engine
            && engine.record_with_turn(POOL, run.clone()).await
        {
            return Ok(run.drawn.run.clone());
        }
        if let Some(_alone) = self.together.alone() {
            self.store.write(async |tx| Stateless::start(tx, &[&run]).await).await?;
        } else {
            self.together.call(Arc::clone(&run)).await?;
        }
        Ok(run.drawn.run.clone())
    }
}
