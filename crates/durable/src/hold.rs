//! Locking a job and whatever changes with it, in the one order everybody uses, and moving it.
//!
//! A job's lane, its parent and its open descendants can all change when it moves. They are read first without locks
//! (lane and parent of a job never change), locked in order, and looked at again once locked.

use std::collections::BTreeMap;

use towpath_domain::JobId;
use towpath_domain::job::{Ended, JobState};
use towpath_store::jobs::{self, Claimed, Job, Move};
use towpath_store::{self as store, Tx, attempts, lanes};

use crate::lane::Lane;
use crate::metric;
use crate::workflow::Ends;

/// Descendants looked at in one transaction. An export has one child per day; this is 270 years of them.
const FAMILY: i64 = 100_000;

/// Locked jobs. Their lanes are locked too, but not kept: a closure may start jobs in them, so whoever needs one
/// reads it again, which costs nothing while the lock is ours.
pub(crate) struct Hold {
    jobs: BTreeMap<JobId, Job>,
}

impl Hold {
    /// Locks `id`, its parent, its lane and `more` lanes; with `family` also its open descendants and their lanes.
    /// `None` when there is no such job.
    pub(crate) async fn take(tx: &mut Tx<'_>, id: JobId, more: &[Lane], family: bool) -> store::Result<Option<Self>> {
        if !family {
            let Some(wanted) = Wanted::find(tx, id, more, false).await? else {
                return Ok(None);
            };
            return wanted.lock(tx).await;
        }
        // A parent may record children between the look and the locks. Then it is done again: locking them now
        // would break the order.
        jobs::mark(tx).await?;
        loop {
            let Some(wanted) = Wanted::find(tx, id, more, true).await? else {
                return Ok(None);
            };
            let family = wanted.family.clone();
            let hold = wanted.lock(tx).await?;
            if !jobs::grew(tx, &family).await? {
                return Ok(hold);
            }
            jobs::let_go(tx).await?;
        }
    }

    /// As [`Hold::take`], for the job's holder: refused as stale unless it runs at `fence`.
    pub(crate) async fn fenced(tx: &mut Tx<'_>, job: jobs::Fenced, more: &[Lane], family: bool) -> store::Result<Self> {
        let mut wanted = Wanted::find(tx, job.id, more, family)
            .await?
            .ok_or(store::Error::Stale)?;
        // Only the holder records children, and this is the holder or nobody: no children, no growth. Grandchildren
        // are recorded by others.
        let hold = if family && wanted.family.len() > 1 {
            Self::take(tx, job.id, more, true).await?
        } else {
            wanted.family.clear();
            wanted.lock(tx).await?
        };
        hold.ok_or(store::Error::Stale)?.at(job)
    }

    /// As [`Hold::fenced`] without the family, for a job as it was claimed: its lane and its parent never change, so
    /// they need no look.
    pub(crate) async fn claimed(tx: &mut Tx<'_>, job: &Claimed, more: &[Lane]) -> store::Result<Self> {
        let mut wanted = Wanted::new(job.id, more);
        wanted.parent = job.parent_id;
        wanted.join(job.lane.clone());
        let hold = wanted.lock(tx).await?;
        hold.ok_or(store::Error::Stale)?.at(jobs::Fenced {
            id: job.id,
            fence: job.fence,
        })
    }

    fn at(self, job: jobs::Fenced) -> store::Result<Self> {
        let row = self.job(job.id);
        if row.state == JobState::Running && row.fence == job.fence {
            Ok(self)
        } else {
            Err(store::Error::Stale)
        }
    }

    pub(crate) fn job(&self, id: JobId) -> &Job {
        self.jobs
            .get(&id)
            .expect("take() answers None unless the job is among the locked rows")
    }

    /// Ends the job: its business rows through `end`, its lane place, its parent, its open children.
    /// With `ended` absent the job succeeded and its workflow has written its own rows.
    pub(crate) async fn finish(
        &mut self,
        tx: &mut Tx<'_>,
        id: JobId,
        ended: Option<Ended>,
        dead: bool,
    ) -> store::Result<()> {
        let job = self.job(id).clone();
        let state = ended.as_ref().map_or(JobState::Succeeded, Ended::state);
        let error = match &ended {
            Some(Ended::Failed(error)) => Some(error.clone()),
            _ => job.error.clone(),
        };
        if let Some(ended) = ended {
            let ends = tx
                .attached::<Ends>()
                .ok_or_else(|| store::Error::corrupt("job", "kind", id))?;
            ends.end(tx, &job, ended).await?;
        }
        let mut to = Move::of(&job, state);
        to.lane_held = false;
        to.error = error;
        to.dead = dead;
        // A holder that is still at work must find its fence gone.
        to.fence += i64::from(job.state == JobState::Running);
        jobs::apply(tx, &job, &to).await?;
        self.moved(id, &to);
        self.leave_lane(tx, &job).await?;
        Box::pin(self.cancel_children(tx, id)).await?;
        self.tell_parent(tx, &job, state).await?;
        if dead {
            metrics::counter!(metric::DEAD, "kind" => job.kind.clone()).increment(1);
        }
        metrics::counter!(metric::FINISHED, "pool" => job.pool, "kind" => job.kind,
                          "outcome" => state.as_str())
        .increment(1);
        Ok(())
    }

    /// Cancels the job: over at once when it is queued or waits, marked and signalled when it runs. What is already
    /// over stays as it is.
    pub(crate) async fn cancel(&mut self, tx: &mut Tx<'_>, id: JobId) -> store::Result<()> {
        let job = self.job(id);
        if job.state.is_final() {
            return Ok(());
        }
        if job.state == JobState::Running {
            jobs::mark_cancel(tx, id).await?;
            tx.signal_cancel(id);
            return Box::pin(self.cancel_children(tx, id)).await;
        }
        self.finish(tx, id, Some(Ended::Cancelled), false).await
    }

    /// Takes the job off its worker into `to`. Gives up its lane place when `to` says so.
    pub(crate) async fn move_to(&mut self, tx: &mut Tx<'_>, id: JobId, to: Move) -> store::Result<()> {
        let job = self.job(id).clone();
        jobs::apply(tx, &job, &to).await?;
        self.moved(id, &to);
        if to.state == JobState::Ready {
            tx.wake(&job.pool);
        }
        if job.lane_held && !to.lane_held {
            self.leave_lane(tx, &job).await?;
        }
        Ok(())
    }

    /// Gives a due job its place: ready if its lane has one free, else blocked in its turn.
    pub(crate) async fn enter(&mut self, tx: &mut Tx<'_>, id: JobId) -> store::Result<()> {
        let job = self.job(id).clone();
        let mut to = Move::of(&job, JobState::Ready);
        if let Some(key) = job.lane.as_ref().filter(|_| !job.lane_held) {
            // A lane with an open job is never pruned, and `start` made it.
            let mut lane = lanes::lock_existing(tx, key)
                .await?
                .ok_or_else(|| store::Error::corrupt("lane", "key", key))?;
            if job.lane_seq.is_none() {
                jobs::set_lane_seq(tx, id, lane.next_seq).await?;
                lane.next_seq += 1;
            }
            if lane.held < lane.places {
                lane.held += 1;
                to.lane_held = true;
            } else {
                to.state = JobState::Blocked;
                metrics::counter!(metric::BLOCKED, "pool" => job.pool.clone()).increment(1);
            }
            lanes::save(tx, &lane).await?;
        }
        self.move_to(tx, id, to).await
    }

    /// Notes that a job that was over is open again, as [`jobs::revive`] wrote it.
    pub(crate) fn revived(&mut self, id: JobId) {
        let row = self.jobs.get_mut(&id).expect("only locked jobs are revived");
        row.state = JobState::Scheduled;
        row.lane_seq = None;
        row.deadline_at = None;
        row.cancel_at = None;
        row.failures = 0;
        row.lost_leases = 0;
        row.dead = false;
        row.finished_at = None;
    }

    /// Counts the failure that is about to end the job; `finish` writes it.
    pub(crate) fn count_failure(&mut self, id: JobId, error: &str) {
        if let Some(row) = self.jobs.get_mut(&id) {
            row.failures += 1;
            row.error = Some(error.to_owned());
        }
    }

    /// A place for a job about to be recorded: its number, and whether it may start.
    pub(crate) async fn reserve(tx: &mut Tx<'_>, lane: &Lane) -> store::Result<(i64, bool)> {
        let mut row = lanes::lock(tx, &lane.key, lane.places).await?;
        if lane.places > row.places {
            // Those who wait come first.
            row.places = lane.places;
            for promoted in lanes::promote(tx, &mut row).await? {
                tx.wake(&promoted.pool);
            }
        }
        row.places = lane.places;
        let seq = row.next_seq;
        row.next_seq += 1;
        let free = row.held < row.places;
        row.held += i64::from(free);
        lanes::save(tx, &row).await?;
        Ok((seq, free))
    }

    async fn leave_lane(&mut self, tx: &mut Tx<'_>, job: &Job) -> store::Result<()> {
        let Some(key) = job.lane.as_ref().filter(|_| job.lane_held) else {
            return Ok(());
        };
        for promoted in lanes::leave(tx, key).await? {
            tx.wake(&promoted.pool);
            // It may be one of ours, and about to leave the lane again.
            if let Some(row) = self.jobs.get_mut(&promoted.id) {
                row.state = JobState::Ready;
                row.lane_held = true;
            }
        }
        Ok(())
    }

    async fn tell_parent(&mut self, tx: &mut Tx<'_>, child: &Job, state: JobState) -> store::Result<()> {
        let Some(parent) = child.parent_id.and_then(|id| self.jobs.get(&id)).cloned() else {
            return Ok(());
        };
        if parent.state.is_final() {
            return Ok(());
        }
        let badly = state != JobState::Succeeded;
        jobs::child_over(tx, parent.id, badly).await?;
        let row = self.jobs.get_mut(&parent.id).expect("cloned from there");
        row.open_children -= 1;
        row.bad_children += i64::from(badly);
        if row.state == JobState::Waiting && (row.open_children == 0 || badly) {
            let to = Move::of(row, JobState::Ready);
            self.move_to(tx, parent.id, to).await?;
        } else if row.state == JobState::Ready {
            // A worker that looked while the row was locked passed it by.
            tx.wake(&parent.pool);
        }
        Ok(())
    }

    async fn cancel_children(&mut self, tx: &mut Tx<'_>, id: JobId) -> store::Result<()> {
        let mut children: Vec<(bool, JobId)> = self
            .jobs
            .values()
            .filter(|job| job.parent_id == Some(id) && !job.state.is_final())
            .map(|job| (job.lane_held, job.id))
            .collect();
        // Those without a place first, or each place given up would promote one that is about to end too.
        children.sort_unstable();
        for (_, child) in children {
            self.cancel(tx, child).await?;
        }
        Ok(())
    }

    /// What was written to a locked row, so that a second look in this transaction sees it.
    fn moved(&mut self, id: JobId, to: &Move) {
        let row = self.jobs.get_mut(&id).expect("only locked jobs are moved");
        row.state = to.state;
        row.lane_held = to.lane_held;
        row.attempt = to.attempt;
        row.failures = to.failures;
        row.lost_leases = to.lost_leases;
        row.fence = to.fence;
        row.error.clone_from(&to.error);
        row.worker_id = None;
        row.lease_until = None;
    }
}

/// What is to be locked, found without locks.
struct Wanted {
    id: JobId,
    /// Lanes, with their places where the caller knows them.
    lanes: BTreeMap<String, Option<i64>>,
    /// The job and its open descendants.
    family: Vec<JobId>,
    parent: Option<JobId>,
}

impl Wanted {
    fn new(id: JobId, more: &[Lane]) -> Self {
        Self {
            id,
            lanes: more.iter().map(|lane| (lane.key.clone(), Some(lane.places))).collect(),
            family: vec![id],
            parent: None,
        }
    }

    fn join(&mut self, lane: Option<String>) {
        if let Some(lane) = lane {
            self.lanes.entry(lane).or_default();
        }
    }

    async fn find(tx: &mut Tx<'_>, id: JobId, more: &[Lane], family: bool) -> store::Result<Option<Self>> {
        let Some(job) = jobs::get(tx, id).await? else {
            return Ok(None);
        };
        let mut wanted = Self::new(id, more);
        wanted.parent = job.parent_id;
        wanted.join(job.lane);
        if family {
            let mut next = vec![id];
            while let Some(parent) = next.pop() {
                for child in jobs::children(tx, parent, true, FAMILY).await? {
                    wanted.family.push(child.id);
                    next.push(child.id);
                    wanted.join(child.lane);
                }
            }
        }
        Ok(Some(wanted))
    }

    /// Lanes sorted by key, then jobs sorted by id.
    async fn lock(self, tx: &mut Tx<'_>) -> store::Result<Option<Hold>> {
        for (key, places) in &self.lanes {
            match places {
                Some(places) => drop(lanes::lock(tx, key, *places).await?),
                None => lanes::hold(tx, key).await?,
            }
        }
        let mut ids = self.family;
        ids.push(self.id);
        ids.extend(self.parent);
        let jobs: BTreeMap<_, _> = jobs::lock(tx, &ids)
            .await?
            .into_iter()
            .map(|job| (job.id, job))
            .collect();
        Ok(jobs.contains_key(&self.id).then_some(Hold { jobs }))
    }
}

/// Records how an attempt of a locked job ended.
pub(crate) async fn note_attempt(
    tx: &mut Tx<'_>,
    job: &Job,
    outcome: &'static str,
    failure: Option<i64>,
    error: &str,
) -> store::Result<()> {
    let attempt = attempts::Attempt {
        fence: job.fence,
        outcome: outcome.to_owned(),
        failure,
        error: error.to_owned(),
        worker_id: job.worker_id,
        at: tx.now(),
    };
    attempts::record(tx, job.id, &attempt).await
}
