//! Locks a job and the rows that change with it, in the common lock order, and moves it.
//!
//! A job's lane, parent and open descendants can change with it. They are first read without locks (lane and parent of
//! a job never change), then locked in order, and checked again.

mod lock_set;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use towpath_domain::job::{EndReason, JobState, ReadyJob, SUSPECT};
use towpath_domain::{JobId, Timestamp};
use towpath_store::jobs::{self, ClaimedJob, Job, JobTransition};
use towpath_store::{self as store, Tx, attempts, lanes};

use self::lock_set::LockSet;
use crate::lane::Lane;
use crate::metric;
use crate::workflow::EndHandlers;

/// Locked jobs. Their lanes are locked but not kept here: a closure may start jobs in them, so lanes are read again
/// when needed, which is cheap under the lock.
pub(crate) struct LockedJobs {
    jobs: BTreeMap<JobId, Job>,
}

impl LockedJobs {
    /// Locks `id`, its parent, its lane and `more` lanes; with `family` also its open descendants and their lanes.
    /// `None` if there is no such job.
    pub(crate) async fn lock(tx: &mut Tx<'_>, id: JobId, more: &[Lane], family: bool) -> store::Result<Option<Self>> {
        let hold = if family {
            Self::lock_families(tx, &[id], more).await?
        } else {
            match LockSet::for_job(tx, id, more).await? {
                Some(wanted) => wanted.lock(tx).await?,
                None => return Ok(None),
            }
        };
        Ok(hold.jobs.contains_key(&id).then_some(hold))
    }

    /// Locks the existing ones of `ids`, their parents, their open descendants, and the lanes of all of these with
    /// `more`.
    pub(crate) async fn lock_families(tx: &mut Tx<'_>, ids: &[JobId], more: &[Lane]) -> store::Result<Self> {
        // A parent may record children between the read and the locks. Then everything is repeated: locking them now
        // would break the order.
        jobs::savepoint(tx).await?;
        loop {
            let wanted = LockSet::for_families(tx, ids, more).await?;
            let family = wanted.family.clone();
            let hold = wanted.lock(tx).await?;
            if !jobs::has_new_children(tx, &family).await? {
                jobs::release_savepoint(tx).await?;
                return Ok(hold);
            }
            jobs::rollback_to_savepoint(tx).await?;
        }
    }

    /// Like [`LockedJobs::lock`], for the job's holder: stale unless the job runs at `fence`.
    pub(crate) async fn lock_fenced(
        tx: &mut Tx<'_>,
        job: jobs::JobFence,
        more: &[Lane],
        family: bool,
    ) -> store::Result<Self> {
        let mut wanted = if family {
            LockSet::for_families(tx, &[job.id], more).await?
        } else {
            let found = LockSet::for_job(tx, job.id, more).await?;
            found.ok_or(store::Error::Stale)?
        };
        // Only the holder records children, and this is the holder or the call fails, so a family without children
        // cannot grow. Grandchildren are recorded by others.
        let hold = if wanted.family.len() > 1 {
            Self::lock_families(tx, &[job.id], more).await?
        } else {
            wanted.family = vec![job.id];
            wanted.lock(tx).await?
        };
        hold.check_fence(job)
    }

    /// Like [`LockedJobs::lock_fenced`] without the family, for a claimed job: its lane and its parent never change, so
    /// no read is needed.
    pub(crate) async fn lock_claimed(tx: &mut Tx<'_>, job: &ClaimedJob, more: &[Lane]) -> store::Result<Self> {
        let mut wanted = LockSet::new(&[job.id], more);
        wanted.parents.extend(job.parent_id);
        wanted.add_lane(job.lane.clone());
        wanted.lock(tx).await?.check_fence(jobs::JobFence {
            id: job.id,
            fence: job.fence,
        })
    }

    fn check_fence(self, job: jobs::JobFence) -> store::Result<Self> {
        match self.jobs.get(&job.id) {
            Some(row) if row.state == JobState::Running && row.fence == job.fence => Ok(self),
            _ => Err(store::Error::Stale),
        }
    }

    pub(crate) fn job(&self, id: JobId) -> &Job {
        self.jobs
            .get(&id)
            .expect("take() answers None unless the job is among the locked rows")
    }

    /// Ends the job: its business rows through `end`, its lane slot, its parent, its open children. Without `ended` the
    /// job succeeded, and its workflow has written its own rows.
    pub(crate) async fn finish(
        &mut self,
        tx: &mut Tx<'_>,
        id: JobId,
        ended: Option<EndReason>,
        dead: bool,
    ) -> store::Result<()> {
        let job = self.job(id).clone();
        let state = ended.as_ref().map_or(JobState::Succeeded, EndReason::state);
        let error = match &ended {
            Some(EndReason::Failed(error)) => Some(error.clone()),
            _ => job.error.clone(),
        };
        if let Some(ended) = ended {
            let ends = tx
                .attached::<EndHandlers>()
                .ok_or_else(|| store::Error::corrupt("job", "kind", id))?;
            ends.end(tx, &job, ended).await?;
        }
        let mut to = JobTransition::of(&job, state);
        to.lane_held = false;
        to.error = error;
        to.dead = dead;
        // A holder that is still running must find its fence outdated.
        to.fence += i64::from(job.state == JobState::Running);
        jobs::apply(tx, &job, &to).await?;
        self.apply_move(id, &to);
        if let Some(lane) = job.lane.as_ref().filter(|_| job.lane_held) {
            self.leave_lane(tx, lane, 1).await?;
        }
        let open = |child: &&Job| child.parent_id == Some(id) && !child.state.is_final();
        let children: Vec<JobId> = self.jobs.values().filter(open).map(|child| child.id).collect();
        self.cancel(tx, &children).await?;
        if let Some(parent) = job.parent_id {
            self.notify_parent(tx, parent, 1, i64::from(state != JobState::Succeeded))
                .await?;
        }
        if dead {
            metrics::counter!(metric::DEAD, "kind" => job.kind.clone()).increment(1);
        }
        metrics::counter!(metric::FINISHED, "pool" => job.pool, "kind" => job.kind,
                          "outcome" => state.as_str())
        .increment(1);
        Ok(())
    }

    /// Cancels jobs with their open descendants: queued or waiting ones end at once, running ones are marked and
    /// signalled. Ended jobs stay as they are. The number of statements does not depend on the number of jobs, except
    /// for their lanes.
    pub(crate) async fn cancel(&mut self, tx: &mut Tx<'_>, ids: &[JobId]) -> store::Result<()> {
        let open = self.open_descendants(ids);
        let (running, resting): (Vec<Job>, Vec<Job>) = open.into_iter().partition(|job| job.state == JobState::Running);
        if !running.is_empty() {
            let running: Vec<JobId> = running.into_iter().map(|job| job.id).collect();
            jobs::mark_cancel_all(tx, &running).await?;
            for id in running {
                tx.signal_cancel(id);
            }
        }
        if resting.is_empty() {
            return Ok(());
        }
        self.end_cancelled(tx, &resting).await
    }

    /// Open jobs among these and their descendants, parents before their children.
    fn open_descendants(&self, ids: &[JobId]) -> Vec<Job> {
        let mut children: HashMap<JobId, Vec<&Job>> = HashMap::new();
        for job in self.jobs.values().filter(|job| !job.state.is_final()) {
            if let Some(parent) = job.parent_id {
                children.entry(parent).or_default().push(job);
            }
        }
        let mut seen = BTreeSet::new();
        let mut next: VecDeque<&Job> = ids.iter().filter_map(|id| self.jobs.get(id)).collect();
        let mut open = Vec::new();
        while let Some(job) = next.pop_front() {
            // A finished job has ended its children.
            if !job.state.is_final() && seen.insert(job.id) {
                next.extend(children.remove(&job.id).unwrap_or_default());
                open.push(job.clone());
            }
        }
        open
    }

    /// Ends jobs as cancelled that no worker holds.
    async fn end_cancelled(&mut self, tx: &mut Tx<'_>, resting: &[Job]) -> store::Result<()> {
        let ends = tx
            .attached::<EndHandlers>()
            .ok_or_else(|| store::Error::corrupt("job", "kind", resting[0].id))?;
        ends.end_all(tx, resting, &EndReason::Cancelled).await?;
        let held: Vec<jobs::JobFence> = resting
            .iter()
            .map(|job| jobs::JobFence {
                id: job.id,
                fence: job.fence,
            })
            .collect();
        jobs::cancel_all(tx, &held).await?;
        let mut places: BTreeMap<&str, i64> = BTreeMap::new();
        let mut over: BTreeMap<JobId, i64> = BTreeMap::new();
        let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for job in resting {
            let mut to = JobTransition::of(job, JobState::Cancelled);
            to.lane_held = false;
            self.apply_move(job.id, &to);
            if let Some(lane) = job.lane.as_deref().filter(|_| job.lane_held) {
                *places.entry(lane).or_default() += 1;
            }
            if let Some(parent) = job.parent_id {
                *over.entry(parent).or_default() += 1;
            }
            *kinds.entry((&job.pool, &job.kind)).or_default() += 1;
        }
        // All of them have ended, so none of them gets a slot again.
        for (lane, places) in places {
            self.leave_lane(tx, lane, places).await?;
        }
        for (parent, over) in over {
            self.notify_parent(tx, parent, over, over).await?;
        }
        for ((pool, kind), jobs) in kinds {
            metrics::counter!(metric::FINISHED, "pool" => pool.to_owned(), "kind" => kind.to_owned(),
                              "outcome" => JobState::Cancelled.as_str())
            .increment(jobs);
        }
        Ok(())
    }

    /// Moves the job off its worker into `to`, and releases its lane slot if `to` requires it. A job that lost two
    /// leases is not made ready: it is claimed alone.
    pub(crate) async fn move_to(&mut self, tx: &mut Tx<'_>, id: JobId, mut to: JobTransition) -> store::Result<()> {
        let job = self.job(id).clone();
        if to.state == JobState::Ready && to.lost_leases >= i64::from(SUSPECT) {
            to.state = JobState::Scheduled;
        }
        jobs::apply(tx, &job, &to).await?;
        self.apply_move(id, &to);
        if to.state == JobState::Ready {
            tx.ready(ready_job(&job, to.run_at));
        }
        if let Some(lane) = job.lane.as_ref().filter(|_| job.lane_held && !to.lane_held) {
            self.leave_lane(tx, lane, 1).await?;
        }
        Ok(())
    }

    /// Lets a due job enter its lane: ready if a slot is free, else blocked in order.
    pub(crate) async fn enter(&mut self, tx: &mut Tx<'_>, id: JobId) -> store::Result<()> {
        let job = self.job(id).clone();
        let mut to = JobTransition::of(&job, JobState::Ready);
        if let Some(key) = job.lane.as_ref().filter(|_| !job.lane_held) {
            // A lane with an open job is never pruned, and `start` created it.
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

    /// Records that a finished job is open again, as [`jobs::revive`] wrote it.
    pub(crate) fn reset_for_retry(&mut self, id: JobId) {
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

    /// Reserves a position for a job to be recorded: its number, and whether it may start.
    pub(crate) async fn reserve(tx: &mut Tx<'_>, lane: &Lane) -> store::Result<(i64, bool)> {
        let mut row = lanes::lock(tx, &lane.key, lane.limit).await?;
        let place = Self::allocate_lane_slot(tx, &mut row, lane.limit).await?;
        lanes::save(tx, &row).await?;
        Ok(place)
    }

    /// Like `reserve` for many jobs, in the order of `wanted`. The number of statements is constant, except for lanes
    /// whose limit rises.
    pub(crate) async fn reserve_all(tx: &mut Tx<'_>, wanted: &[Lane]) -> store::Result<Vec<(i64, bool)>> {
        let keys: BTreeMap<_, _> = wanted.iter().map(|lane| (lane.key.clone(), lane.limit)).collect();
        let keys: Vec<(String, i64)> = keys.into_iter().collect();
        let rows = lanes::lock_all(tx, &keys).await?;
        let mut rows: BTreeMap<String, lanes::Lane> = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let mut places = Vec::with_capacity(wanted.len());
        for lane in wanted {
            let row = rows
                .get_mut(&lane.key)
                .ok_or_else(|| store::Error::corrupt("lane", "key", &lane.key))?;
            places.push(Self::allocate_lane_slot(tx, row, lane.limit).await?);
        }
        let rows: Vec<_> = rows.into_values().collect();
        lanes::save_all(tx, &rows).await?;
        Ok(places)
    }

    async fn allocate_lane_slot(tx: &mut Tx<'_>, row: &mut lanes::Lane, places: i64) -> store::Result<(i64, bool)> {
        if places > row.places {
            // Waiting jobs come first.
            row.places = places;
            for promoted in lanes::promote(tx, row).await? {
                tx.ready(promoted.into());
            }
        }
        row.places = places;
        let seq = row.next_seq;
        row.next_seq += 1;
        let free = row.held < row.places;
        row.held += i64::from(free);
        Ok((seq, free))
    }

    async fn leave_lane(&mut self, tx: &mut Tx<'_>, lane: &str, places: i64) -> store::Result<()> {
        for promoted in lanes::leave(tx, lane, places).await? {
            // It may be one of the locked jobs, about to leave the lane again.
            if let Some(row) = self.jobs.get_mut(&promoted.id) {
                row.state = if row.lost_leases < i64::from(SUSPECT) {
                    JobState::Ready
                } else {
                    JobState::Scheduled
                };
                row.lane_held = true;
            }
            tx.ready(promoted.into());
        }
        Ok(())
    }

    /// Tells a parent that this many of its children have ended, if it is among the locked jobs. A finished parent only
    /// counts them.
    async fn notify_parent(&mut self, tx: &mut Tx<'_>, parent: JobId, over: i64, badly: i64) -> store::Result<()> {
        let Some(row) = self.jobs.get_mut(&parent) else {
            return Ok(());
        };
        jobs::count_ended_children(tx, parent, over, badly).await?;
        row.open_children -= over;
        row.bad_children += badly;
        if row.state == JobState::Waiting && (row.open_children == 0 || badly > 0) {
            let to = JobTransition::of(row, JobState::Ready);
            self.move_to(tx, parent, to).await?;
        } else if row.state == JobState::Ready {
            // A worker that scanned while the row was locked skipped it.
            tx.ready(ready_job(row, None));
        }
        Ok(())
    }

    /// Applies a write to the locked copy, so that later reads in this transaction see it.
    fn apply_move(&mut self, id: JobId, to: &JobTransition) {
        let row = self.jobs.get_mut(&id).expect("only locked jobs are moved");
        row.state = to.state;
        row.lane_held = to.lane_held;
        row.attempt = to.attempt;
        row.failures = to.failures;
        row.lost_leases = to.lost_leases;
        row.fence = to.fence;
        row.error.clone_from(&to.error);
        row.worker_id = None;
        if to.state.is_final() {
            row.cancel_at = None;
        }
    }
}

/// What workers are told of a job that is ready, at a new due time if it got one.
fn ready_job(job: &Job, run_at: Option<Timestamp>) -> ReadyJob {
    ReadyJob {
        pool: job.pool.clone(),
        tenant: job.tenant_id,
        priority: job.priority,
        run_at: run_at.unwrap_or(job.run_at),
        id: job.id,
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
