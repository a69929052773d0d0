//! Keeps leases alive, from an OS thread of its own with a connection of its own.
//!
//! No handler, however it blocks, and no busy pool can keep a renewal waiting. When renewals fail, the keeper stops
//! the handlers by its own monotonic clock before the database would give their jobs to somebody else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use towpath_durable::{Engine, Signal};
use towpath_queue::{Cancels, Signal as Hint};
use towpath_store::workers::{self, Worker};
use towpath_store::{self as store, Dialect, Store, jobs};

use crate::StartError;
use crate::claimer::safe_part;
use crate::held::Held;
use crate::metric;
use crate::peers::Peers;

/// Leases renewed in one statement.
const CHUNK: usize = 1000;

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
    row: Worker,
    draining: CancellationToken,
    stop: CancellationToken,
}

impl Keeper {
    pub(crate) fn start(
        engine: &Engine,
        held: Arc<Held>,
        peers: Arc<Peers>,
        row: Worker,
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
            row,
            draining,
            stop: stop.clone(),
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
    async fn keep(self, mut cancels: Cancels) {
        let third = self.lease / 3;
        let mut next = Instant::now();
        loop {
            // Looked at often, so that a handler is stopped close to its moment.
            let glance = (Instant::now() + third / 10).min(next);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                hint = cancels.next() => match hint {
                    Hint::Job(job) => self.held.tell(job, Signal::Cancel),
                    // Signals may have been missed: the rows know.
                    Hint::Lagged => next = Instant::now(),
                },
                () = tokio::time::sleep_until(glance.into()) => {}
            }
            self.stop_overdue();
            if Instant::now() >= next {
                let began = Instant::now();
                let renewed = self.with_glances(third, self.round()).await;
                metrics::histogram!(metric::RENEWAL_SECONDS).record(began.elapsed());
                let outcome = if renewed { "ok" } else { "failed" };
                metrics::counter!(metric::RENEWALS, "outcome" => outcome).increment(1);
                // A failed round is tried again soon: there are two more thirds of the lease to do it in.
                next = Instant::now() + if renewed { third } else { third / 5 };
            }
        }
    }

    /// Runs a round of at most `limit`, looking meanwhile whether handlers have to stop. Answers whether it went well.
    async fn with_glances(&self, limit: Duration, round: impl Future<Output = store::Result<()>>) -> bool {
        tokio::pin!(round);
        let give_up = tokio::time::sleep(limit);
        tokio::pin!(give_up);
        loop {
            tokio::select! {
                done = &mut round => return match done {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::warn!(error = %error, "cannot renew leases");
                        false
                    }
                },
                () = &mut give_up => {
                    tracing::warn!(seconds = limit.as_secs_f64(), "renewing leases takes too long; trying anew");
                    return false;
                }
                () = tokio::time::sleep(limit / 20) => self.stop_overdue(),
            }
        }
    }

    fn stop_overdue(&self) {
        let stopped = self.held.stop_overdue(Instant::now());
        if stopped > 0 {
            metrics::counter!(metric::GIVEN_UP).increment(stopped as u64);
            tracing::error!(
                jobs = stopped,
                "leases could not be renewed in time; their handlers were stopped"
            );
        }
    }

    /// Renews every lease, says that this worker is alive, and hears who else is and whether it should leave.
    async fn round(&self) -> store::Result<()> {
        // On SQLite one process is all there is: no lease of its own boot is rescued by time, so none is renewed. The
        // rows are looked at all the same: a signal to stop may have come before the job was known here.
        let renews = self.store.dialect() == Dialect::Postgres;
        for chunk in self.held.list().chunks(CHUNK) {
            let started = Instant::now();
            let ours = if renews {
                self.store
                    .write_one(async |tx| jobs::renew(tx, chunk, self.lease).await)
                    .await?
            } else {
                self.store.read(async |tx| jobs::look(tx, chunk).await).await?
            };
            let until = started + safe_part(self.lease);
            let ours: HashMap<_, _> = ours.into_iter().map(|row| (row.id, row.cancel)).collect();
            for job in chunk {
                match ours.get(&job.id) {
                    None => {
                        if self.held.lost(*job) {
                            metrics::counter!(metric::LOST).increment(1);
                        }
                    }
                    Some(cancel) => {
                        if renews {
                            self.held.renewed(*job, until);
                        }
                        if *cancel {
                            self.held.tell(job.id, Signal::Cancel);
                        }
                    }
                }
            }
        }
        if renews {
            // Others give their signs of life as often as this one.
            let window = workers::SEEN.max(self.lease);
            match self.store.read(async |tx| workers::alive(tx, window).await).await {
                Ok(alive) => self.peers.seen(self.row.id, &alive),
                Err(error) => tracing::debug!(error = %error, "cannot read who else works"),
            }
        }
        let row = Worker {
            finished: self.held.finished(),
            ..self.row.clone()
        };
        if self.store.write_one(async |tx| workers::seen(tx, &row).await).await? && !self.draining.is_cancelled() {
            tracing::info!(worker.id = %self.row.id, "asked to drain; claiming nothing more");
            self.draining.cancel();
        }
        Ok(())
    }
}
