//! Stateless runs, recorded many at a time.

use std::sync::Arc;

use towpath_domain::agent::Object;
use towpath_domain::{TenantId, Timestamp};
use towpath_durable::{Batch, NewJob};
use towpath_store::runs::Run;
use towpath_store::runs::temporary::{self, Temporary};
use towpath_store::threads::Ttl;
use towpath_store::{self as store, Store, Tx};

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

    /// Records them: all, or none.
    async fn start(tx: &mut Tx<'_>, all: &[Arc<Self>]) -> store::Result<()> {
        for of_tenant in all.chunk_by(|one, next| one.tenant == next.tenant) {
            let rows: Vec<Temporary<'_>> = of_tenant.iter().map(|one| one.rows()).collect();
            temporary::insert(tx, of_tenant[0].tenant, &rows).await?;
        }
        all.iter().for_each(|one| towpath_durable::recorded(tx, &one.job));
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

/// Records stateless runs. Those that come while others are being written share the next transaction.
pub struct Recorder {
    store: Store,
    together: Batch<Arc<Stateless>, ()>,
}

impl Recorder {
    /// Records in this store, on the calling runtime.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let together = Batch::new({
            let store = store.clone();
            move |group: Arc<Vec<Arc<Stateless>>>| {
                let store = store.clone();
                async move {
                    store.write(async |tx| Stateless::start(tx, &group).await).await?;
                    Ok(vec![(); group.len()])
                }
            }
        });
        Self { store, together }
    }

    /// Records a run; answers it as it is then.
    ///
    /// # Errors
    /// As every statement.
    pub async fn record(&self, run: Stateless) -> store::Result<Run> {
        let run = Arc::new(run);
        if let Some(_alone) = self.together.alone() {
            let one = std::slice::from_ref(&run);
            self.store.write(async |tx| Stateless::start(tx, one).await).await?;
        } else {
            self.together.call(Arc::clone(&run)).await?;
        }
        Ok(run.drawn.run.clone())
    }
}
