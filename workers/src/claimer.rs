//! The pace of one pool: claims as many jobs as there are free slots, and writes those that ended with nothing but their
//! own row and what goes along.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use rand::Rng;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::WorkerId;
use towpath_durable::{Endings, Engine, Fenced, Joining};
use towpath_queue::Wakes;
use towpath_store::Dialect;
use towpath_store::jobs::Turned;

use crate::held::{Held, Lease};
use crate::metric::{self, Slots};
use crate::peers::Peers;
use crate::rota::Rota;
use crate::turn::{self, Hand, Over};
use crate::{Assignment, Finished, Place};

/// The most one turn claims, and the most it records; more slots are filled by several.
const LARGEST: usize = 256;

/// The longest a free slot waits for company while no turn is under way: slots that long jobs hold are not waited for.
const LONGEST_WAIT: Duration = Duration::from_millis(5);

/// How long nothing is tried without a lease, unless one begins.
const NO_LEASE: Duration = Duration::from_millis(500);

/// Fewer slots are filled by one turn at a time. With 16 two turns are faster than one; with less than that it was not measured.
const FEW_SLOTS: usize = 8;

pub(crate) struct Claimer {
    pub(crate) engine: Engine,
    pub(crate) pool: String,
    pub(crate) permits: Arc<Semaphore>,
    /// One slot is wanted by a job that is performed alone, see `suspects.rs`.
    pub(crate) spare: Arc<AtomicBool>,
    pub(crate) slots: usize,
    pub(crate) taken: Slots,
    pub(crate) held: Arc<Held>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) assignments: mpsc::Sender<Vec<Assignment>>,
    /// Jobs that ended with nothing to write but their own row. While there is a backlog, writing those and claiming
    /// the next ones is one transaction: one commit where there would be two.
    pub(crate) finished: mpsc::Receiver<Finished>,
    /// Jobs of this pool that are recorded in this process: with its next turn.
    pub(crate) joining: mpsc::Receiver<Joining>,
    pub(crate) wakes: Wakes,
    /// Told when a lease begins.
    pub(crate) leased: watch::Receiver<Option<Lease>>,
    pub(crate) fallback: Duration,
    pub(crate) draining: CancellationToken,
}

/// What the turns so far say about the next one.
struct Pace {
    /// Where the last claim ended, the next begins.
    rota: Rota,
    /// How long nothing was tried after the last error.
    trouble: Duration,
    /// How long the last turn took, if it left a backlog behind.
    backlog: Option<Duration>,
    /// Nothing is claimed before then, unless something wakes this pool.
    rest: Option<tokio::time::Instant>,
    /// Of the turns under way, or of those that ended last, two were so at once. What one of them did not find the other may
    /// have had, or made ready.
    overlapped: bool,
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
        let mut pace = Pace {
            rota: Rota::new(self.engine.store().dialect()),
            trouble: Duration::ZERO,
            backlog: None,
            rest: None,
            overlapped: false,
        };
        let mut hand = Hand::default();
        let mut under_way = FuturesUnordered::new();
        loop {
            let overlaps = self.overlaps(&pace);
            let (most, enough) = self.sizes(overlaps);
            if under_way.is_empty() {
                if !self.wait(&mut hand, &mut pace).await {
                    if self.draining.is_cancelled() {
                        return;
                    }
                    continue;
                }
                let joins = pace.rest.is_none() || pace.trouble.is_zero();
                let claims = pace.rest.is_none() || !hand.joining.is_empty();
                self.gather(&mut hand, most, claims, joins).await;
                // Who only records has no slot to wait for.
                if let Some(patience) = pace.backlog.filter(|_| claims && hand.slots() > 0) {
                    // What came by then is in the hand either way.
                    let _ = tokio::time::timeout(patience.min(LONGEST_WAIT), self.fill(&mut hand, enough)).await;
                }
                let woken = pace.trouble.is_zero() && self.wakes.next().now_or_never().is_some();
                let nothing_new = pace.rest.is_some() && !woken && hand.joining.is_empty();
                if self.draining.is_cancelled() || nothing_new {
                    self.complete(std::mem::take(&mut hand).finished).await;
                    continue;
                }
                pace.overlapped = false;
            } else {
                let another = under_way.len() == 1 && overlaps && !self.draining.is_cancelled();
                tokio::select! {
                    biased;
                    Some(over) = under_way.next() => {
                        self.conclude(over, &mut pace).await;
                        continue;
                    }
                    () = self.fill(&mut hand, enough), if another => {}
                }
                self.gather(&mut hand, most, true, true).await;
                if self.draining.is_cancelled() {
                    // What is in the hand is written once the other turn is over.
                    continue;
                }
                pace.overlapped = true;
            }
            let Some(worker) = self.held.worker() else {
                // Nothing is claimed without a lease. Whoever waits to be recorded is told by being dropped.
                self.complete(std::mem::take(&mut hand).finished).await;
                pace.rest = Some(self.rest(NO_LEASE));
                continue;
            };
            pace.rest = None;
            let hand = std::mem::take(&mut hand);
            let claiming = self.held.claiming();
            under_way.push(turn::begin(
                &self.engine,
                &self.pool,
                (worker, claiming),
                hand,
                usize::from(self.spare.load(Ordering::Relaxed)),
                &mut pace.rota,
            ));
        }
    }

    /// Whether a turn may begin while another is under way. With a backlog it may: otherwise the database waits while jobs run,
    /// and slots wait while it works. Where several workers share a pool the database has the turns of the others, and smaller
    /// ones only cost it more (a sixth, with two workers of 64 slots). SQLite has one writer.
    fn overlaps(&self, pace: &Pace) -> bool {
        pace.backlog.is_some()
            && pace.rest.is_none()
            && pace.trouble.is_zero()
            && self.slots >= FEW_SLOTS
            && self.engine.store().dialect() == Dialect::Postgres
            && !self.peers.serve(&self.pool)
    }

    /// How many slots the next turn is for at most, and how many are worth one while there is a backlog: a turn of one job
    /// costs as much as a turn of many then.
    fn sizes(&self, overlaps: bool) -> (usize, usize) {
        let slots = if overlaps { self.slots / 2 } else { self.slots };
        let most = slots.min(LARGEST);
        (most, most / 2)
    }

    /// Waits for something to do, unless the hand has something already. Answers whether there is.
    async fn wait(&mut self, hand: &mut Hand, pace: &mut Pace) -> bool {
        if hand.slots() > 0 {
            return true;
        }
        let rest = pace.rest;
        let rested = tokio::time::sleep_until(rest.unwrap_or_else(tokio::time::Instant::now));
        tokio::select! {
            biased;
            () = self.draining.cancelled() => return false,
            Some(finished) = self.finished.recv() => hand.finished.push(finished),
            // After trouble nothing is tried before its time, and who is dropped records alone: its caller hears of it.
            Some(joining) = self.joining.recv() => {
                if rest.is_some() && !pace.trouble.is_zero() {
                    return false;
                }
                hand.joining.push(joining);
            }
            // No wake counts either: it would only repeat it.
            _ = self.wakes.next(), if rest.is_some() && pace.trouble.is_zero() => {
                pace.rest = None;
                return false;
            }
            _ = self.leased.changed(), if rest.is_some() => {
                pace.rest = None;
                return false;
            }
            () = rested, if rest.is_some() => {
                pace.rest = None;
                return false;
            }
            // Permits before the claim: a job that is claimed starts at once. Without one no wake is read either.
            permit = self.permits.clone().acquire_owned(), if rest.is_none() => hand.permits.extend(permit),
        }
        true
    }

    /// Takes what else is there: jobs that finished, and free slots if there is to be a claim.
    async fn gather(&mut self, hand: &mut Hand, most: usize, claims: bool, joins: bool) {
        // Tasks that are ready to run may be about to finish too: a few turns of the runtime, for as long as each
        // brings somebody.
        loop {
            let before = (hand.slots(), hand.joining.len());
            tokio::task::yield_now().await;
            while hand.slots() < most
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
                && hand.slots() < most
                && let Ok(permit) = self.permits.clone().try_acquire_owned()
            {
                hand.permits.push(permit);
            }
            if (hand.slots(), hand.joining.len()) == before || hand.slots() >= most {
                break;
            }
        }
    }

    /// Waits until the hand has so many slots, however long that takes: whoever waits has a limit of its own.
    async fn fill(&mut self, hand: &mut Hand, enough: usize) {
        while hand.slots() < enough {
            tokio::select! {
                Some(finished) = self.finished.recv() => hand.finished.push(finished),
                permit = self.permits.clone().acquire_owned() => hand.permits.extend(permit),
            }
        }
    }

    /// Draws what follows from a turn, and starts what it claimed.
    async fn conclude(&self, over: Over, pace: &mut Pace) {
        let Over {
            mut hand,
            by: (worker, _claiming),
            wanted,
            outset,
            took,
            turned,
        } = over;
        metrics::histogram!(metric::CLAIM_SECONDS, "pool" => self.pool.clone()).record(took);
        match turned {
            Ok(turned) => {
                pace.trouble = Duration::ZERO;
                for joining in hand.joining.drain(..) {
                    let _ = joining.done.send(());
                }
                if wanted > 0 {
                    let more = pace.rota.claimed(&outset, &turned.claimed, wanted, took) || pace.overlapped;
                    // Each tenant gets an equal share, so that many of them leave some slots free.
                    pace.backlog = (turned.claimed.len() * 2 > wanted).then_some(took);
                    pace.rest = (turned.claimed.is_empty() && !more).then(|| self.rest(self.fallback));
                }
                self.hand_out(hand, turned, worker).await;
            }
            Err(error) => {
                pace.rota.failed();
                let brought = !hand.finished.is_empty() || !hand.joining.is_empty();
                // Whoever waits for it records alone.
                drop(hand.joining);
                hand.finished
                    .into_iter()
                    .for_each(|finished| self.complete_apart(finished));
                if brought && !error.is_transient() {
                    // What one of them writes was refused. That is its own affair: the next turn is without it.
                    return;
                }
                pace.trouble = (pace.trouble * 2).clamp(Duration::from_millis(100), Duration::from_secs(2));
                pace.rest = Some(self.rest(pace.trouble));
                tracing::warn!(pool = self.pool, error = %error, retry_ms = pace.trouble.as_millis(), "cannot claim");
            }
        }
    }

    /// Starts what was claimed by the lease of `worker`, on the slots of what is finished and on those that were free.
    async fn hand_out(&self, mut hand: Hand, turned: Turned, worker: WorkerId) {
        metrics::counter!(metric::CLAIMED, "pool" => self.pool.clone()).increment(turned.claimed.len() as u64);
        let now = self.engine.store().clock().now();
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
                let signal = self.held.add(fenced, worker);
                let place = Place {
                    held: self.held.clone(),
                    job: fenced,
                    pool: self.pool.clone(),
                    slot: Some(slot),
                    _alone: None,
                };
                Assignment { job, signal, place }
            })
            .collect();
        // There is room: each message brings at least one job, and the channel has a place for each slot.
        if !assigned.is_empty() && self.assignments.send(assigned).await.is_err() {
            tracing::error!(
                pool = self.pool,
                "the runtime of this pool is gone; its jobs will be given back"
            );
        }
        self.settle(hand.finished, &turned.missed);
    }

    /// Writes the finished jobs while there is nothing to claim.
    async fn complete(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
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
