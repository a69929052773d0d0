//! The model: the effect of each operation on jobs and lanes, in memory and without SQL.

mod clock;
mod ends;
mod holder;
mod machine;

use std::collections::{BTreeMap, BTreeSet};

use towpath_domain::job::{JobState, SUSPECT};

use super::puppet::Action;

/// In ticks.
pub const LEASE: u32 = 4;
pub const GRACE: u32 = 1;

#[derive(Clone, Debug)]
pub struct Job {
    pub tenant: usize,
    pub priority: i64,
    pub kept: bool,
    pub state: JobState,
    pub run_at: u32,
    pub deadline: Option<u32>,
    pub lane: Option<usize>,
    pub seq: Option<i64>,
    pub held: bool,
    pub parent: Option<usize>,
    pub open: i64,
    pub bad: i64,
    pub attempt: i64,
    pub failures: i64,
    pub lost: i64,
    pub fence: i64,
    /// The claim that holds it, numbered over all jobs.
    pub worker: Option<usize>,
    pub marked: bool,
    pub dead: bool,
    pub cursor: Option<u32>,
    /// Recorded steps and the fence of each.
    pub steps: BTreeMap<u32, i64>,
    pub bodies: BTreeMap<u32, u32>,
    /// Fence and outcome of attempts that did not succeed.
    pub notes: BTreeMap<i64, &'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub places: i64,
    pub held: i64,
    pub next: i64,
}

/// A claim, valid or not.
#[derive(Clone, Debug)]
pub struct Claim {
    pub job: usize,
    pub fence: i64,
    pub worker: usize,
    /// Whether its handler still exists.
    pub there: bool,
    /// Failed children at that time.
    bad: i64,
    /// Whether a completion changes only its own row; decided at the claim.
    bare: bool,
    /// Steps it has used, and those it found at the first read.
    used: u32,
    journal: Option<BTreeSet<u32>>,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub now: u32,
    pub jobs: Vec<Job>,
    pub lanes: BTreeMap<usize, Lane>,
    pub paused: bool,
    pub claims: Vec<Claim>,
    /// End of the lease of each worker; `None` after the end. Each claim has its own worker.
    pub leases: Vec<Option<u32>>,
    /// Job, name and fence of committed rows; no job for those of `end`.
    pub effects: BTreeMap<(Option<usize>, String, i64), u32>,
    /// Counter of the signals.
    acts: u32,
}

#[derive(Clone, Debug)]
pub enum ModelStep {
    Start {
        tenant: usize,
        priority: i64,
        kept: bool,
        lane: Option<(usize, u32)>,
        delay: u32,
        deadline: Option<u32>,
    },
    Claim(usize),
    ClaimAlone,
    Act(usize, Action),
    Cancel(usize),
    Advance(u32),
    Rescue,
    Due,
    Overdue,
    Pause(bool),
    Prune,
}

impl Model {
    fn note(&mut self, job: usize, what: &'static str) {
        let fence = self.jobs[job].fence;
        self.jobs[job].notes.entry(fence).or_insert(what);
    }

    fn effect(&mut self, job: Option<usize>, what: String, fence: i64) {
        *self.effects.entry((job, what, fence)).or_default() += 1;
    }

    fn lane(&mut self, lane: usize, places: u32) -> &mut Lane {
        self.lanes.entry(lane).or_insert(Lane {
            places: i64::from(places),
            held: 0,
            next: 1,
        })
    }

    /// Lanes only grow here: a shrinking lane may be over its limit for a while.
    pub fn places(&self, lane: Option<(usize, u32)>) -> Option<(usize, u32)> {
        lane.map(|(lane, places)| {
            let now = self.lanes.get(&lane).map_or(1, |row| row.places);
            (lane, places.max(u32::try_from(now).unwrap()))
        })
    }

    fn promote(&mut self, lane: usize) {
        loop {
            let row = self.lanes.get_mut(&lane).unwrap();
            if row.held >= row.places {
                return;
            }
            let blocked = (0..self.jobs.len())
                .filter(|job| self.jobs[*job].lane == Some(lane) && self.jobs[*job].state == JobState::Blocked);
            let Some(next) = blocked.min_by_key(|job| (self.jobs[*job].seq, *job)) else {
                return;
            };
            row.held += 1;
            self.jobs[next].state = self.ready(next);
            self.jobs[next].held = true;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what can be said of a start")]
    fn start(
        &mut self,
        tenant: usize,
        priority: i64,
        kept: bool,
        lane: Option<(usize, u32)>,
        delay: u32,
        deadline: Option<u32>,
        parent: Option<usize>,
    ) {
        let (mut seq, mut held) = (None, false);
        let mut state = if delay > 0 {
            JobState::Scheduled
        } else {
            JobState::Ready
        };
        if let Some((lane, places)) = lane {
            let row = self.lane(lane, places);
            if delay == 0 {
                row.places = i64::from(places);
                self.promote(lane);
                let row = self.lane(lane, places);
                seq = Some(row.next);
                row.next += 1;
                held = row.held < row.places;
                row.held += i64::from(held);
                if !held {
                    state = JobState::Blocked;
                }
            }
        }
        self.jobs.push(Job {
            tenant,
            priority,
            kept,
            state,
            run_at: self.now + delay,
            deadline: deadline.map(|after| self.now + after),
            lane: lane.map(|(lane, _)| lane),
            seq,
            held,
            parent,
            open: 0,
            bad: 0,
            attempt: 0,
            failures: 0,
            lost: 0,
            fence: 0,
            worker: None,
            marked: false,
            dead: false,
            cursor: None,
            steps: BTreeMap::new(),
            bodies: BTreeMap::new(),
            notes: BTreeMap::new(),
        });
    }

    /// State of a job that could be claimed: a suspect stays `scheduled` until it is claimed alone.
    fn ready(&self, job: usize) -> JobState {
        if self.jobs[job].lost < i64::from(SUSPECT) {
            JobState::Ready
        } else {
            JobState::Scheduled
        }
    }

    /// Whether a job waits to be claimed alone, or would if it were due.
    fn is_alone(&self, job: usize) -> bool {
        let row = &self.jobs[job];
        row.state == JobState::Scheduled && row.lost >= i64::from(SUSPECT) && (row.lane.is_none() || row.held)
    }

    fn claim_suspects(&mut self) {
        let due = (0..self.jobs.len()).filter(|job| self.is_alone(*job) && self.jobs[*job].run_at <= self.now);
        let next = due.min_by_key(|job| (self.jobs[*job].run_at, *job));
        self.take(next.filter(|_| !self.paused).into_iter().collect());
    }

    fn claim(&mut self, n: usize) {
        if self.paused {
            self.take(Vec::new());
            return;
        }
        let ready: Vec<usize> = (0..self.jobs.len())
            .filter(|job| self.jobs[*job].state == JobState::Ready)
            .collect();
        let tenants: BTreeSet<usize> = ready.iter().map(|job| self.jobs[*job].tenant).collect();
        let turn: Vec<usize> = tenants.into_iter().take(n).collect();
        let key = |job: &usize| (-self.jobs[*job].priority, self.jobs[*job].run_at, *job);
        let mut picked = Vec::new();
        for tenant in &turn {
            let mut theirs: Vec<usize> = ready
                .iter()
                .copied()
                .filter(|job| self.jobs[*job].tenant == *tenant)
                .collect();
            theirs.sort_by_key(key);
            picked.extend(theirs.into_iter().take((n / turn.len()).max(1)));
        }
        picked.sort_by_key(key);
        self.take(picked);
    }

    /// A new worker gets these jobs.
    fn take(&mut self, picked: Vec<usize>) {
        let worker = self.leases.len();
        self.leases.push(Some(self.now + LEASE));
        let mut overdue = Vec::new();
        for job in picked {
            let (now, row) = (self.now, &mut self.jobs[job]);
            row.state = JobState::Running;
            row.attempt += 1;
            row.fence += 1;
            row.worker = Some(worker);
            let bare = row.parent.is_none() && row.open == 0;
            let (fence, over) = (row.fence, row.deadline.is_some_and(|deadline| deadline <= now));
            let bad = row.bad;
            self.claims.push(Claim {
                job,
                fence,
                worker,
                bad,
                there: !over,
                bare,
                used: 0,
                journal: (fence == 1).then(BTreeSet::new),
            });
            if over {
                overdue.push(job);
            }
        }
        // All are claimed before the first handler sees that its time is over.
        for job in overdue {
            self.note(job, "timed_out");
            self.finish(job, JobState::TimedOut, false);
        }
    }
}
