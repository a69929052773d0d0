//! Locking a job and whatever changes with it, in the one order everybody uses, and moving it.
//!
//! A job's lane, its parent and its open descendants can all change when it moves. They are read first without locks
//! (lane and parent of a job never change), locked in order, and looked at again once locked.

mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use towpath_domain::JobId;
use towpath_domain::job::{Ended, JobState, SUSPECT};
use towpath_store::jobs::{self, Claimed, Job, Move};
use towpath_store::{self as store, Tx, attempts, lanes};

use self::wanted::Wanted;
use crate::lane::Lane;
use crate::metric;
use crate::workflow::Ends;

/// Locked jobs. Their lanes are locked too, but not kept: a closure may start jobs in them, so whoever needs one
/// reads it again, which costs nothing while the lock is ours.
pub(crate) struct Hold {
    jobs: BTreeMap<JobId, Job>,
}

impl Hold {
    /// Locks `id`, its parent, its lane and `more` lanes; with `family` also its open descendants and their lanes.
    /// `None` when there is no such job.
    pub(crate) async fn take(tx: &mut Tx<'_>, id: JobId, more: &[Lane], family: bool) -> store::Result<Option<Self>> {
        let hold = if family {
            Self::families(tx, &[id], more).await?
        } else {
            match Wanted::find(tx, id, more).await? {
                Some(wanted) => wanted.lock(tx).await?,
                None => return Ok(None),
            }
        };
        Ok(hold.jobs.contains_key(&id).then_some(hold))
    }

    /// Locks those of `ids` that there are, their parents, their open descendants, and the lanes of all these with `more`.
    pub(crate) async fn families(tx: &mut Tx<'_>, ids: &[JobId], more: &[Lane]) -> store::Result<Self> {
        // A parent may record children between the look and the locks. Then it is done again: locking them now
        // would break the order.
        jobs::mark(tx).await?;
        loop {
            let wanted = Wanted::find_families(tx, ids, more).await?;
            let family = wanted.family.clone();
            let hold = wanted.lock(tx).await?;
            if !jobs::grew(tx, &family).await? {
                jobs::keep(tx).await?;
                return Ok(hold);
            }
            jobs::let_go(tx).await?;
        }
    }

    /// As [`Hold::take`], for the job's holder: refused as stale unless it runs at `fence`.
    pub(crate) async fn fenced(tx: &mut Tx<'_>, job: jobs::Fenced, more: &[Lane], family: bool) -> store::Result<Self> {
        let mut wanted = if family {
            Wanted::find_families(tx, &[job.id], more).await?
        } else {
            let found = Wanted::find(tx, job.id, more).await?;
            found.ok_or(store::Error::Stale)?
        };
        // Only the holder records children, and this is the holder or nobody: no children, no growth. Grandchildren
        // are recorded by others.
        let hold = if wanted.family.len() > 1 {
            Self::families(tx, &[job.id], more).await?
        } else {
            wanted.family = vec![job.id];
            wanted.lock(tx).await?
        };
        hold.at(job)
    }

    /// As [`Hold::fenced`] without the family, for a job as it was claimed: its lane and its parent never change, so
    /// they need no look.
    pub(crate) async fn claimed(tx: &mut Tx<'_>, job: &Claimed, more: &[Lane]) -> store::Result<Self> {
        let mut wanted = Wanted::new(&[job.id], more);
        wanted.parents.extend(job.parent_id);
        wanted.join(job.lane.clone());
        wanted.lock(tx).await?.at(jobs::Fenced {
            id: job.id,
            fence: job.fence,
        })
    }

    fn at(self, job: jobs::Fenced) -> store::Result<Self> {
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
        if let Some(lane) = job.lane.as_ref().filter(|_| job.lane_held) {
            self.leave_lane(tx, lane, 1).await?;
        }
        let open = |child: &&Job| child.parent_id == Some(id) && !child.state.is_final();
        let children: Vec<JobId> = self.jobs.values().filter(open).map(|child| child.id).collect();
        self.cancel(tx, &children).await?;
        if let Some(parent) = job.parent_id {
            self.tell_parent(tx, parent, 1, i64::from(state != JobState::Succeeded))
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

    /// Cancels jobs with everything they started: over at once where they are queued or wait, marked and signalled where
    /// they run. What is already over stays as it is. As many statements for ten thousand jobs as for one, but for those of
    /// their lanes.
    pub(crate) async fn cancel(&mut self, tx: &mut Tx<'_>, ids: &[JobId]) -> store::Result<()> {
        let open = self.open_families(ids);
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

    /// These jobs and their descendants as far as they are open, parents before their children.
    fn open_families(&self, ids: &[JobId]) -> Vec<Job> {
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
            // What is over has ended its children with it.
            if !job.state.is_final() && seen.insert(job.id) {
                next.extend(children.remove(&job.id).unwrap_or_default());
                open.push(job.clone());
            }
        }
        open
    }

    /// Ends jobs as cancelled that are on no worker.
    async fn end_cancelled(&mut self, tx: &mut Tx<'_>, resting: &[Job]) -> store::Result<()> {
        let ends = tx
            .attached::<Ends>()
            .ok_or_else(|| store::Error::corrupt("job", "kind", resting[0].id))?;
        ends.end_all(tx, resting, &Ended::Cancelled).await?;
        let held: Vec<jobs::Fenced> = resting
            .iter()
            .map(|job| jobs::Fenced {
                id: job.id,
                fence: job.fence,
            })
            .collect();
        jobs::cancel_all(tx, &held).await?;
        let mut places: BTreeMap<&str, i64> = BTreeMap::new();
        let mut over: BTreeMap<JobId, i64> = BTreeMap::new();
        let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for job in resting {
            let mut to = Move::of(job, JobState::Cancelled);
            to.lane_held = false;
            self.moved(job.id, &to);
            if let Some(lane) = job.lane.as_deref().filter(|_| job.lane_held) {
                *places.entry(lane).or_default() += 1;
            }
            if let Some(parent) = job.parent_id {
                *over.entry(parent).or_default() += 1;
            }
            *kinds.entry((&job.pool, &job.kind)).or_default() += 1;
        }
        // All of them are over by now, so none of these is given a place again.
        for (lane, places) in places {
            self.leave_lane(tx, lane, places).await?;
        }
        for (parent, over) in over {
            self.tell_parent(tx, parent, over, over).await?;
        }
        for ((pool, kind), jobs) in kinds {
            metrics::counter!(metric::FINISHED, "pool" => pool.to_owned(), "kind" => kind.to_owned(),
                              "outcome" => JobState::Cancelled.as_str())
            .increment(jobs);
        }
        Ok(())
    }

    /// Takes the job off its worker into `to`. Gives up its lane place when `to` says so. A job that lost two leases is not made
    /// ready: it is claimed as it is, alone.
    pub(crate) async fn move_to(&mut self, tx: &mut Tx<'_>, id: JobId, mut to: Move) -> store::Result<()> {
        let job = self.job(id).clone();
        if to.state == JobState::Ready && to.lost_leases >= i64::from(SUSPECT) {
            to.state = JobState::Scheduled;
        }
        jobs::apply(tx, &job, &to).await?;
        self.moved(id, &to);
        if to.state == JobState::Ready {
            tx.wake(&job.pool);
        }
        if let Some(lane) = job.lane.as_ref().filter(|_| job.lane_held && !to.lane_held) {
            self.leave_lane(tx, lane, 1).await?;
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
        let place = Self::place(tx, &mut row, lane.places).await?;
        lanes::save(tx, &row).await?;
        Ok(place)
    }

    /// The same for many jobs: their places, in the order of their lanes as given. The same number of statements for all of
    /// them, but where a lane has more places than before.
    pub(crate) async fn reserve_all(tx: &mut Tx<'_>, wanted: &[Lane]) -> store::Result<Vec<(i64, bool)>> {
        let keys: BTreeMap<_, _> = wanted.iter().map(|lane| (lane.key.clone(), lane.places)).collect();
        let keys: Vec<(String, i64)> = keys.into_iter().collect();
        let rows = lanes::lock_all(tx, &keys).await?;
        let mut rows: BTreeMap<String, lanes::Lane> = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let mut places = Vec::with_capacity(wanted.len());
        for lane in wanted {
            let row = rows
                .get_mut(&lane.key)
                .ok_or_else(|| store::Error::corrupt("lane", "key", &lane.key))?;
            places.push(Self::place(tx, row, lane.places).await?);
        }
        let rows: Vec<_> = rows.into_values().collect();
        lanes::save_all(tx, &rows).await?;
        Ok(places)
    }

    async fn place(tx: &mut Tx<'_>, row: &mut lanes::Lane, places: i64) -> store::Result<(i64, bool)> {
        if places > row.places {
            // Those who wait come first.
            row.places = places;
            for promoted in lanes::promote(tx, row).await? {
                tx.wake(&promoted.pool);
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
            tx.wake(&promoted.pool);
            // It may be one of ours, and about to leave the lane again.
            if let Some(row) = self.jobs.get_mut(&promoted.id) {
                row.state = if row.lost_leases < i64::from(SUSPECT) {
                    JobState::Ready
                } else {
                    JobState::Scheduled
                };
                row.lane_held = true;
            }
        }
        Ok(())
    }

    /// Tells a parent that so many of its children are over, unless it is not among the locked jobs. One that is over itself only
    /// counts them.
    async fn tell_parent(&mut self, tx: &mut Tx<'_>, parent: JobId, over: i64, badly: i64) -> store::Result<()> {
        let Some(row) = self.jobs.get_mut(&parent) else {
            return Ok(());
        };
        jobs::children_over(tx, parent, over, badly).await?;
        row.open_children -= over;
        row.bad_children += badly;
        if row.state == JobState::Waiting && (row.open_children == 0 || badly > 0) {
            let to = Move::of(row, JobState::Ready);
            self.move_to(tx, parent, to).await?;
        } else if row.state == JobState::Ready {
            // A worker that looked while the row was locked passed it by.
            tx.wake(&row.pool);
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
        if to.state.is_final() {
            row.cancel_at = None;
        }
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
