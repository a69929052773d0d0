//! Claims jobs of one pool, as many as there are free slots, and writes those that ended with nothing but their own row
//! and what goes along.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use rand::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use towpath_domain::WorkerId;
use towpath_durable::{Endings, Engine, Fenced, Joining};
use towpath_queue::Wakes;
use towpath_store::jobs::{self, Turned};
use towpath_store::{self as store, Dialect, Tx};

use crate::held::Held;
use crate::metric::{self, Slots};
use crate::rota::Rota;
use crate::{Assignment, Finished, Place};

/// The most one turn claims, and the most it records; more slots are filled by several.
const LARGEST: usize = 256;

/// The longest a free slot waits for company.
const LONGEST_WAIT: Duration = Duration::from_millis(5);

pub(crate) struct Claimer {
    pub(crate) engine: Engine,
    pub(crate) pool: String,
    pub(crate) worker: WorkerId,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) slots: usize,
    pub(crate) taken: Slots,
    pub(crate) held: Arc<Held>,
    pub(crate) assignments: mpsc::Sender<Vec<Assignment>>,
    /// Jobs that ended with nothing to write but their own row. While there is a backlog, writing those and claiming
    /// the next ones is one transaction: one commit where there would be two.
    pub(crate) finished: mpsc::Receiver<Finished>,
    /// Jobs of this pool that are recorded in this process: with its next turn.
    pub(crate) joining: mpsc::Receiver<Joining>,
    pub(crate) wakes: Wakes,
    pub(crate) fallback: Duration,
    pub(crate) draining: CancellationToken,
}

/// What the next turn has to do with.
#[derive(Default)]
struct Hand {
    finished: Vec<Finished>,
    permits: Vec<OwnedSemaphorePermit>,
    joining: Vec<Joining>,
}

impl Hand {
    fn len(&self) -> usize {
        self.finished.len() + self.permits.len()
    }
}

impl Claimer {
    pub(crate) async fn run(mut self) {
        self.work().await;
        self.taken.close();
        // Whoever records from now on does it alone; those who wait are told by being dropped, also who was just asking.
        self.joining.close();
        while self.joining.recv().await.is_some() {}
        // Whoever finishes from now on writes alone.
        self.finished.close();
        while let Some(finished) = self.finished.recv().await {
            self.complete_apart(finished);
        }
    }

    async fn work(&mut self) {
        // Where the last claim ended, the next begins.
        let mut rota = Rota::new(self.engine.store().dialect());
        let mut trouble = Duration::ZERO;
        // How long the last claim took, if it left a backlog behind.
        let mut backlog = None;
        // Nothing is claimed before then, unless something wakes this pool.
        let mut rest = None;
        loop {
            let mut hand = Hand::default();
            let rested = tokio::time::sleep_until(rest.unwrap_or_else(tokio::time::Instant::now));
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                Some(finished) = self.finished.recv() => hand.finished.push(finished),
                // After trouble nothing is tried before its time, and who is dropped records alone: its caller hears of it.
                Some(joining) = self.joining.recv() => {
                    if rest.is_some() && !trouble.is_zero() {
                        continue;
                    }
                    hand.joining.push(joining);
                }
                // No wake counts either: it would only repeat it.
                _ = self.wakes.next(), if rest.is_some() && trouble.is_zero() => {
                    rest = None;
                    continue;
                }
                () = rested, if rest.is_some() => {
                    rest = None;
                    continue;
                }
                // Permits before the claim: a job that is claimed starts at once. Without one no wake is read either.
                permit = self.permits.clone().acquire_owned(), if rest.is_none() => hand.permits.extend(permit),
            }
            let joins = rest.is_none() || trouble.is_zero();
            let claims = rest.is_none() || !hand.joining.is_empty();
            self.gather(&mut hand, claims, joins, backlog).await;
            let woken = trouble.is_zero() && self.wakes.next().now_or_never().is_some();
            let nothing_new = rest.is_some() && !woken && hand.joining.is_empty();
            if self.draining.is_cancelled() || nothing_new {
                self.complete(hand.finished).await;
                continue;
            }
            rest = None;
            let wanted = hand.len();
            let started = Instant::now();
            let turned = self.turn(&hand, &mut rota).await;
            metrics::histogram!(metric::CLAIM_SECONDS, "pool" => self.pool.clone()).record(started.elapsed());
            match turned {
                Ok(turned) => {
                    trouble = Duration::ZERO;
                    for joining in hand.joining.drain(..) {
                        let _ = joining.done.send(());
                    }
                    // Each tenant gets an equal share, so that many of them leave some slots free.
                    if wanted > 0 {
                        let took = started.elapsed();
                        let more = rota.claimed(&turned.claimed, wanted, took);
                        backlog = (turned.claimed.len() * 2 > wanted).then_some(took);
                        rest = (turned.claimed.is_empty() && !more).then(|| self.rest(self.fallback));
                    }
                    self.hand_out(hand, turned, started).await;
                }
                Err(error) => {
                    let brought = !hand.finished.is_empty() || !hand.joining.is_empty();
                    // Whoever waits for it records alone.
                    drop(hand.joining);
                    hand.finished
                        .into_iter()
                        .for_each(|finished| self.complete_apart(finished));
                    if brought && !error.is_transient() {
                        // What one of them writes was refused. That is its own affair: the next turn is without it.
                        continue;
                    }
                    trouble = (trouble * 2).clamp(Duration::from_millis(100), Duration::from_secs(2));
                    rest = Some(self.rest(trouble));
                    tracing::warn!(pool = self.pool, error = %error, retry_ms = trouble.as_millis(), "cannot claim");
                }
            }
        }
    }

    /// Takes what else is there: jobs that finished, and free slots if there is to be a claim.
    ///
    /// While there is a backlog, a turn of one job costs as much as a turn of many. So it waits for half of the slots
    /// then, but no longer than the last turn took: slots that long jobs hold are not waited for.
    async fn gather(&mut self, hand: &mut Hand, claims: bool, joins: bool, backlog: Option<Duration>) {
        let most = LARGEST.min(self.slots);
        // Tasks that are ready to run may be about to finish too: a few turns of the runtime, for as long as each
        // brings somebody.
        loop {
            let before = (hand.len(), hand.joining.len());
            tokio::task::yield_now().await;
            while hand.len() < most
                && let Ok(finished) = self.finished.try_recv()
            {
                hand.finished.push(finished);
            }
            while joins
                && hand.joining.len() < LARGEST
                && let Ok(joining) = self.joining.try_recv()
            {
                hand.joining.push(joining);
            }
            while claims
                && hand.len() < most
                && let Ok(permit) = self.permits.clone().try_acquire_owned()
            {
                hand.permits.push(permit);
            }
            if (hand.len(), hand.joining.len()) == before || hand.len() == most {
                break;
            }
        }
        // Who only records has no slot to wait for.
        if let Some(patience) = backlog.filter(|_| claims && hand.len() > 0) {
            let half = async {
                while hand.len() < self.slots.min(LARGEST) / 2 {
                    tokio::select! {
                        Some(finished) = self.finished.recv() => hand.finished.push(finished),
                        permit = self.permits.clone().acquire_owned() => hand.permits.extend(permit),
                    }
                }
            };
            // What came by then is in the hand either way.
            let _ = tokio::time::timeout(patience.min(LONGEST_WAIT), half).await;
        }
    }

    /// Writes the finished jobs and claims as many as there are slots then.
    async fn turn(&self, hand: &Hand, rota: &mut Rota) -> store::Result<Turned> {
        let store = self.engine.store();
        let wanted = i64::try_from(hand.len()).unwrap_or(i64::MAX);
        let endings = Endings::of(hand.finished.iter().map(|finished| finished.bare.ending()));
        let Endings { held, lanes, .. } = &endings;
        // Who gets the place of one that ended may be older than what was claimed last.
        rota.advance(!lanes.is_empty());
        let claimer = jobs::Claimer {
            after: rota.after(),
            marks: rota.marks(),
            ..jobs::Claimer::new(&self.pool, self.worker, self.engine.settings().lease, wanted)
        };
        let turn = async |tx: &mut Tx<'_>| {
            // First, so that they are claimed with the others.
            towpath_durable::write_along(tx, hand.joining.iter().map(|one| Arc::clone(&one.along)).collect()).await?;
            if wanted == 0 {
                return Ok(Turned {
                    missed: Vec::new(),
                    claimed: Vec::new(),
                });
            }
            if held.is_empty() {
                let claimed = jobs::claim(tx, &claimer).await?;
                return Ok(Turned {
                    missed: Vec::new(),
                    claimed,
                });
            }
            let turned = jobs::turn(tx, held, lanes, &claimer).await?;
            endings.write_along(tx, |job| !turned.missed.contains(&job)).await?;
            Ok(turned)
        };
        if endings.are_one_statement() && hand.joining.is_empty() {
            store.write_one(turn).await
        } else {
            store.write(turn).await
        }
    }

    /// Starts what was claimed, on the slots of what is finished and on those that were free.
    async fn hand_out(&self, mut hand: Hand, turned: Turned, started: Instant) {
        metrics::counter!(metric::CLAIMED, "pool" => self.pool.clone()).increment(turned.claimed.len() as u64);
        let store = self.engine.store();
        // The lease is counted from before the statement: ours never seems longer than the database's. On SQLite this
        // process is all there is, and its leases are not rescued by time.
        let lease = self.engine.settings().lease;
        let until = (store.dialect() == Dialect::Postgres).then(|| started + safe_part(lease));
        let now = store.clock().now();
        let wait = metrics::histogram!(metric::WAIT, "pool" => self.pool.clone());
        let vacated: Vec<_> = hand
            .finished
            .iter_mut()
            .map(|finished| finished.place.vacate())
            .collect();
        let free = hand.permits.into_iter().map(|permit| self.taken.take(permit));
        let assigned: Vec<_> = turned
            .claimed
            .into_iter()
            .zip(vacated.into_iter().flatten().chain(free))
            .map(|(job, slot)| {
                wait.record(now.since(job.run_at));
                let fenced = Fenced {
                    id: job.id,
                    fence: job.fence,
                };
                let signal = self.held.add(fenced, until);
                let place = Place {
                    held: self.held.clone(),
                    job: fenced,
                    pool: self.pool.clone(),
                    slot: Some(slot),
                };
                Assignment { job, signal, place }
            })
            .collect();
        // There is room: each turn brings at least one job, and the channel has a place for each slot.
        if !assigned.is_empty() && self.assignments.send(assigned).await.is_err() {
            tracing::error!(
                pool = self.pool,
                "the runtime of this pool is gone; the leases of its jobs will end"
            );
        }
        self.settle(hand.finished, &turned.missed);
    }

    /// Writes the finished jobs while there is nothing to claim.
    async fn complete(&self, finished: Vec<Finished>) {
        let endings = Endings::of(finished.iter().map(|finished| finished.bare.ending()));
        match endings.complete(self.engine.store()).await {
            Ok(hit) if hit.len() == endings.held.len() => self.settle(finished, &[]),
            Ok(hit) => {
                let missed: Vec<Fenced> = endings.held.into_iter().filter(|job| !hit.contains(job)).collect();
                self.settle(finished, &missed);
            }
            Err(_) => finished.into_iter().for_each(|finished| self.complete_apart(finished)),
        }
    }

    /// Lets go of jobs whose rows are written. Those that were `missed` have an end of their own to write.
    fn settle(&self, finished: Vec<Finished>, missed: &[Fenced]) {
        for Finished { bare, place } in finished {
            if missed.contains(&bare.ending().job) {
                let engine = self.engine.clone();
                tokio::spawn(async move {
                    bare.missed(&engine).await;
                    drop(place);
                });
            } else {
                bare.completed();
            }
        }
    }

    /// Has a finished job written without the others: with them it could not be, or nobody claims any more.
    fn complete_apart(&self, finished: Finished) {
        let engine = self.engine.clone();
        tokio::spawn(async move {
            let Finished { bare, place } = finished;
            bare.complete(&engine).await;
            drop(place);
        });
    }

    /// Until when to do nothing.
    fn rest(&self, span: Duration) -> tokio::time::Instant {
        tokio::time::Instant::now() + span.mul_f64(rand::rng().random_range(0.5..1.5))
    }
}

/// How much of a lease its holder counts on: a tenth is left for what lies between two clocks and two hosts.
pub(crate) fn safe_part(lease: Duration) -> Duration {
    lease - lease / 10
}
