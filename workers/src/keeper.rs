//! Keeps the lease of this process alive, from an OS thread of its own with a connection of its own.
//!
//! No handler, however it blocks, no busy pool and no transaction of a job can keep a renewal waiting. When renewals fail, the
//! keeper stops the handlers by its own monotonic clock before the database would give their jobs to somebody else. A process
//! that lost its lease claims nothing until it has another one, under another id.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::WorkerId;
use towpath_durable::{Engine, Fenced, Signal};
use towpath_queue::{Cancels, Signal as Hint};
use towpath_store::workers::{self, Worker};
use towpath_store::{self as store, Dialect, Store, jobs, leases};

use crate::StartError;
use crate::claimer::safe_part;
use crate::held::Held;
use crate::metric;
use crate::peers::Peers;

pub(crate) struct Keeper {
    stop: CancellationToken,
    stopped: oneshot::Receiver<()>,
    held: Arc<Held>,
}

struct Work {
    store: Store,
    lease: Duration,
    held: Arc<Held>,
    peers: Arc<Peers>,
    /// Told in which pools jobs wait that are claimed alone.
    suspects: watch::Sender<Vec<String>>,
    draining: CancellationToken,
    stop: CancellationToken,
    state: RefCell<State>,
}

struct State {
    /// The worker by the id that it has or gets next.
    row: Worker,
    /// That id was tried, and nobody knows whether its lease began.
    tried: bool,
    /// Ids it had before, whose leases may still be in the database.
    lost: Vec<WorkerId>,
    /// Jobs that look like strays, and since when.
    strays: HashMap<Fenced, Instant>,
    /// When the database last said which jobs are this worker's.
    known: Instant,
}

/// Ids of the past that are remembered. Leases of older ones end by their time.
const PAST_IDS: usize = 16;

impl Keeper {
    pub(crate) fn start(
        engine: &Engine,
        held: Arc<Held>,
        peers: Arc<Peers>,
        row: Worker,
        suspects: watch::Sender<Vec<String>>,
        draining: CancellationToken,
        cancels: Cancels,
    ) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let (done, stopped) = oneshot::channel();
        let main_store = engine.store().clone();
        let lease = engine.settings().lease;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        // The connection belongs to the thread's runtime.
        let store = {
            let _inside = runtime.enter();
            main_store.apart(1).map_err(StartError::Store)?
        };
        let work = Work {
            store,
            lease,
            held: held.clone(),
            peers,
            suspects,
            draining,
            stop: stop.clone(),
            state: RefCell::new(State {
                row,
                tried: false,
                lost: Vec::new(),
                strays: HashMap::new(),
                known: Instant::now(),
            }),
        };
        std::thread::Builder::new()
            .name("leases".to_owned())
            .spawn(move || {
                runtime.block_on(work.keep(cancels));
                let _ = done.send(());
            })
            .map_err(StartError::Thread)?;
        Ok(Self { stop, stopped, held })
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.stopped).await;
    }
}

impl Drop for Keeper {
    /// Workers that are dropped without a drain give back what they have as far as they still can, and keep no lease
    /// alive behind anybody's back.
    fn drop(&mut self) {
        self.stop.cancel();
        self.held.tell_all(Signal::HandBack);
    }
}

impl Work {
    async fn keep(self, cancels: Cancels) {
        let mut cancels = Listener { cancels, lagged: false };
        let third = self.lease / 3;
        let mut next = Instant::now();
        loop {
            // Looked at often, so that a handler is stopped close to its moment.
            let glance = (Instant::now() + third / 10).min(next);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = cancels.next(&self.held) => {}
                () = tokio::time::sleep_until(glance.into()) => {}
            }
            self.end_overdue();
            // Signals may have been missed: the rows know.
            if std::mem::take(&mut cancels.lagged) {
                next = Instant::now();
            }
            if Instant::now() >= next {
                let began = Instant::now();
                let renewed = self
                    .with_glances(third, "renew the lease", &mut cancels, self.renew())
                    .await;
                metrics::histogram!(metric::RENEWAL_SECONDS).record(began.elapsed());
                let outcome = if renewed { "ok" } else { "failed" };
                metrics::counter!(metric::RENEWALS, "outcome" => outcome).increment(1);
                if renewed {
                    // Others may sit on what is asked here, so it has a limit of its own: the next renewal is in time all the same.
                    self.with_glances(third, "look after jobs", &mut cancels, self.look())
                        .await;
                }
                // A failed round is tried again soon: there are two more thirds of the lease to do it in. So is one that was
                // followed by the end of the lease.
                next = if renewed && self.held.current().is_some() {
                    began + third
                } else {
                    Instant::now() + third / 5
                };
            }
        }
    }

    /// Does something of at most `limit`, looking meanwhile whether handlers have to stop. Answers whether it went well.
    async fn with_glances(
        &self,
        limit: Duration,
        what: &'static str,
        cancels: &mut Listener,
        work: impl Future<Output = store::Result<()>>,
    ) -> bool {
        tokio::pin!(work);
        let give_up = tokio::time::sleep(limit);
        tokio::pin!(give_up);
        loop {
            tokio::select! {
                done = &mut work => return match done {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::warn!(error = %error, "cannot {what}");
                        false
                    }
                },
                () = &mut give_up => {
                    tracing::warn!(seconds = limit.as_secs_f64(), "it takes too long to {what}; trying anew");
                    return false;
                }
                // Many signals must not keep the clock from being looked at.
                () = cancels.next(&self.held) => self.end_overdue(),
                () = tokio::time::sleep(limit / 20) => self.end_overdue(),
            }
        }
    }

    /// Lets go of everything when the lease may be over by our own clock: nobody may have ended it in the database, but by the
    /// time we know, somebody may. Also when nobody could be asked for so long which jobs are others' by now: their handlers would
    /// go on beside those who took them over.
    fn end_overdue(&self) {
        let now = Instant::now();
        let Some(worker) = self.held.current() else { return };
        let (stopped, why) = if let Some(stopped) = self.held.end_overdue(now) {
            (stopped, "the lease could not be renewed in time")
        } else if self.until(self.state.borrow().known).is_some_and(|until| until <= now) {
            (
                self.held.end(worker),
                "the database could not be asked in time which jobs are still this worker's",
            )
        } else {
            return;
        };
        metrics::counter!(metric::GIVEN_UP).increment(stopped as u64);
        tracing::error!(worker.id = %worker, jobs = stopped, "{why}; the handlers were stopped");
        self.replace(worker);
    }

    /// A lease is lost, and its worker's id with it: what was claimed by that is taken back by whoever finds it.
    fn replace(&self, worker: WorkerId) {
        let mut state = self.state.borrow_mut();
        state.lost.push(worker);
        if state.lost.len() > PAST_IDS {
            state.lost.remove(0);
        }
        state.row.id = WorkerId::new();
        state.tried = false;
        state.strays.clear();
    }

    /// Extends the lease: one row, which no transaction of a job locks. Begins one where there is none.
    async fn renew(&self) -> store::Result<()> {
        let Some(worker) = self.held.current() else {
            return self.begin().await;
        };
        // Counted from before the statement: ours never seems longer than the database's.
        let started = Instant::now();
        let renew = self
            .store
            .write_one(async |tx| leases::renew(tx, worker, self.lease).await);
        if renew.await? {
            if let Some(until) = self.until(started) {
                self.held.renewed(worker, until);
            }
            return Ok(());
        }
        // We may have been stopped for a while, and look like the dead to whoever goes by the database's clock.
        let lost = self.held.end(worker);
        metrics::counter!(metric::LOST).increment(lost as u64);
        tracing::error!(worker.id = %worker, jobs = lost, "the lease was ended by somebody else; the handlers were stopped");
        self.replace(worker);
        self.begin().await
    }

    async fn begin(&self) -> store::Result<()> {
        let (tried, worker) = {
            let state = self.state.borrow();
            (state.tried, state.row.id)
        };
        // Its lease may have begun and ended meanwhile, and an id that lost its row never gets one again.
        if tried {
            self.replace(worker);
        }
        self.state.borrow_mut().tried = true;
        let started = Instant::now();
        let (row, lost) = {
            let state = self.state.borrow();
            (state.row.clone(), state.lost.clone())
        };
        let begun = self.store.write(async |tx| {
            let mut row = row.clone();
            row.draining |= self.draining.is_cancelled();
            for worker in &lost {
                // Nothing of ours works by it any more, so nobody has to wait for its time.
                leases::end(tx, *worker).await?;
                row.draining |= workers::replace(tx, *worker).await?;
            }
            let draining = workers::seen(tx, &row).await?;
            leases::begin(tx, row.id, self.lease).await?;
            Ok(draining)
        });
        if begun.await? {
            self.drain();
        }
        let mut state = self.state.borrow_mut();
        state.lost.clear();
        state.tried = false;
        state.known = started;
        drop(state);
        self.held.begin(row.id, self.until(started));
        Ok(())
    }

    /// Until when a lease surely runs that was begun or renewed then. On SQLite one process is all there is, and no lease is
    /// ended by time.
    fn until(&self, started: Instant) -> Option<Instant> {
        (self.store.dialect() == Dialect::Postgres).then(|| started + safe_part(self.lease))
    }

    /// Says that this worker is alive, and hears who else is, whether it should leave, which of its jobs were asked to stop or
    /// are others' by now, and which are held by nobody.
    async fn look(&self) -> store::Result<()> {
        let Some(worker) = self.held.current() else {
            return Ok(());
        };
        self.ask(worker).await?;
        let row = Worker {
            finished: self.held.finished(),
            ..self.state.borrow().row.clone()
        };
        if self.store.write_one(async |tx| workers::seen(tx, &row).await).await? {
            self.drain();
        }
        self.look_around(worker).await?;
        let at_work = self.store.read(async |tx| jobs::at_work(tx, worker).await).await?;
        let ours = at_work.iter().map(|row| Fenced {
            id: row.id,
            fence: row.fence,
        });
        for job in self.strays(&ours.collect()) {
            match towpath_durable::give_up(&self.store, job).await {
                Ok(true) => {
                    metrics::counter!(metric::STRAYS).increment(1);
                    tracing::warn!(job.id = %job.id, "a job was held by nobody here; gave it back");
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(job.id = %job.id, error = %error, "cannot give a job back yet that nobody holds here");
                }
            }
        }
        Ok(())
    }

    /// Hears who else is there, and in which pools jobs wait to be claimed alone.
    async fn look_around(&self, worker: WorkerId) -> store::Result<()> {
        // Others give their signs of life as often as this one.
        let window = workers::SEEN.max(self.lease);
        let shared = self.store.dialect() == Dialect::Postgres;
        let looked = self.store.read(async |tx| {
            let suspects = jobs::suspects(tx).await?;
            let alive = if shared {
                workers::alive(tx, window).await?
            } else {
                Vec::new()
            };
            Ok((suspects, alive))
        });
        let (suspects, alive) = looked.await?;
        if shared {
            self.peers.seen(worker, &alive);
        }
        if !suspects.is_empty() {
            self.suspects.send_replace(suspects);
        }
        Ok(())
    }

    /// Hears which of the jobs that are held here are still this worker's, and tells those that were asked to stop or are others'
    /// by now. By itself, so that nothing else that is asked keeps a handler going.
    async fn ask(&self, worker: WorkerId) -> store::Result<()> {
        let held = self.held.list(worker);
        let asked = Instant::now();
        let still_held = self
            .store
            .read(async |tx| jobs::still_held(tx, worker, &held).await)
            .await?;
        self.state.borrow_mut().known = asked;
        let mut ours = HashSet::with_capacity(still_held.len());
        for row in still_held {
            // A signal to stop may have been lost, or come before the job was known here.
            if row.cancel {
                self.held.tell(row.id, Signal::Cancel);
            }
            ours.insert(Fenced {
                id: row.id,
                fence: row.fence,
            });
        }
        for job in held.into_iter().filter(|job| !ours.contains(job)) {
            if self.held.lost(job) {
                metrics::counter!(metric::LOST).increment(1);
            }
        }
        Ok(())
    }

    /// Jobs that are this worker's in the database, and nobody's here: whoever performed one could not write down how that ended,
    /// or the answer to its claim was lost. The lease goes on, so nobody else would ever take them. They are told from jobs that
    /// are on their way by being found twice, with every claim over that was under way the first time.
    fn strays(&self, ours: &HashSet<Fenced>) -> Vec<Fenced> {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        state.strays.retain(|job, _| ours.contains(job) && !self.held.has(*job));
        let mut found = Vec::new();
        for job in ours.iter().filter(|job| !self.held.has(**job)) {
            let first = *state.strays.entry(*job).or_insert(now);
            if first < now && self.held.claimed_since(first) {
                found.push(*job);
            }
        }
        found
    }

    fn drain(&self) {
        if !self.draining.is_cancelled() {
            tracing::info!(worker.id = %self.state.borrow().row.id, "asked to drain; claiming nothing more");
            self.draining.cancel();
        }
    }
}

/// Signals that jobs are to stop.
struct Listener {
    cancels: Cancels,
    /// Some may have been missed.
    lagged: bool,
}

impl Listener {
    /// Passes the next signal on.
    async fn next(&mut self, held: &Held) {
        match self.cancels.next().await {
            Hint::Job(job) => held.tell(job, Signal::Cancel),
            Hint::Lagged => self.lagged = true,
        }
    }
}
