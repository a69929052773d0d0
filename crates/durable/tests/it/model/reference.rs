//! The model: what each thing that can happen does to jobs and lanes, in memory and without any SQL.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;
use towpath_domain::job::{JobState, MAX_LOST_LEASES};

use super::puppet::{Act, RETRIES};

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
    pub lease: Option<u32>,
    pub marked: bool,
    pub dead: bool,
    pub cursor: Option<u32>,
    /// Recorded steps and the fence of each.
    pub steps: BTreeMap<u32, i64>,
    pub bodies: BTreeMap<u32, u32>,
    /// Fence and outcome of attempts that did not end well.
    pub notes: BTreeMap<i64, &'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub places: i64,
    pub held: i64,
    pub next: i64,
}

/// A claim somebody was given, whether or not it still counts.
#[derive(Clone, Debug)]
pub struct Claim {
    pub job: usize,
    pub fence: i64,
    /// Its handler is still there.
    pub there: bool,
    /// Nothing but its own row changes when it just completes; decided when it was claimed.
    bare: bool,
    /// Steps it has used, and those it found when it first looked.
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
    /// Job, name and fence of committed rows; no job for those of `end`.
    pub effects: BTreeMap<(Option<usize>, String, i64), u32>,
    /// Numbers whatever is told.
    acts: u32,
}

#[derive(Clone, Debug)]
pub enum Move {
    Start {
        tenant: usize,
        priority: i64,
        kept: bool,
        lane: Option<(usize, u32)>,
        delay: u32,
        deadline: Option<u32>,
    },
    Claim(usize),
    Act(usize, Act),
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

    /// Lanes only grow here: a lane that shrinks is over its limit for a while, and rightly so.
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
            self.jobs[next].state = JobState::Ready;
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
            lease: None,
            marked: false,
            dead: false,
            cursor: None,
            steps: BTreeMap::new(),
            bodies: BTreeMap::new(),
            notes: BTreeMap::new(),
        });
    }

    fn claim(&mut self, n: usize) {
        if self.paused {
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
        let mut overdue = Vec::new();
        for job in picked {
            let (now, row) = (self.now, &mut self.jobs[job]);
            row.state = JobState::Running;
            row.attempt += 1;
            row.fence += 1;
            row.lease = Some(now + LEASE);
            let bare = row.lane.is_none() && row.parent.is_none() && row.open == 0;
            let (fence, over) = (row.fence, row.deadline.is_some_and(|deadline| deadline <= now));
            self.claims.push(Claim {
                job,
                fence,
                there: !over,
                bare,
                used: 0,
                journal: (fence == 1).then(BTreeSet::new),
            });
            if over {
                overdue.push(job);
            }
        }
        // All are claimed before the first handler sees that its time is up.
        for job in overdue {
            self.note(job, "timed_out");
            self.finish(job, JobState::TimedOut, false);
        }
    }

    /// Off its worker into another state; gives up the lane place unless it keeps it.
    fn leave(&mut self, job: usize, state: JobState, keeps: bool) {
        let row = &mut self.jobs[job];
        row.state = state;
        row.lease = None;
        if row.held && !keeps {
            row.held = false;
            let lane = row.lane.unwrap();
            self.lanes.get_mut(&lane).unwrap().held -= 1;
            self.promote(lane);
        }
    }

    fn finish(&mut self, job: usize, state: JobState, dead: bool) {
        if state != JobState::Succeeded {
            self.effect(None, state.as_str().to_owned(), 0);
        }
        let row = &mut self.jobs[job];
        row.fence += i64::from(row.state == JobState::Running);
        row.dead = dead;
        self.leave(job, state, false);
        self.cancel_children(job);
        let Some(parent) = self.jobs[job].parent else { return };
        let row = &mut self.jobs[parent];
        if !row.state.is_final() {
            let badly = state != JobState::Succeeded;
            row.open -= 1;
            row.bad += i64::from(badly);
            if row.state == JobState::Waiting && (row.open == 0 || badly) {
                row.state = JobState::Ready;
            }
        }
    }

    fn cancel_children(&mut self, job: usize) {
        let open =
            |model: &Self, child: usize| model.jobs[child].parent == Some(job) && !model.jobs[child].state.is_final();
        let mut children: Vec<usize> = (0..self.jobs.len()).filter(|child| open(self, *child)).collect();
        children.sort_by_key(|child| (self.jobs[*child].held, *child));
        for child in children {
            self.cancel(child);
        }
    }

    fn cancel(&mut self, job: usize) {
        match self.jobs[job].state {
            state if state.is_final() => {}
            JobState::Running => {
                self.jobs[job].marked = true;
                self.cancel_children(job);
            }
            _ => self.finish(job, JobState::Cancelled, false),
        }
    }

    fn rescue(&mut self) {
        let mut expired: Vec<usize> = (0..self.jobs.len())
            .filter(|job| self.jobs[*job].lease.is_some_and(|lease| lease < self.now))
            .collect();
        expired.sort_by_key(|job| (self.jobs[*job].lease, *job));
        for job in expired {
            if self.jobs[job].state != JobState::Running {
                continue;
            }
            self.note(job, "lost");
            let lost = self.jobs[job].lost + 1;
            if self.jobs[job].marked {
                self.finish(job, JobState::Cancelled, false);
            } else if lost > i64::from(MAX_LOST_LEASES) {
                self.finish(job, JobState::Failed, true);
            } else {
                self.jobs[job].lost = lost;
                self.jobs[job].fence += 1;
                self.leave(job, JobState::Ready, true);
            }
        }
    }

    fn due(&mut self) {
        let mut due: Vec<usize> = (0..self.jobs.len())
            .filter(|job| self.jobs[*job].state == JobState::Scheduled && self.jobs[*job].run_at <= self.now)
            .collect();
        due.sort_by_key(|job| (self.jobs[*job].run_at, *job));
        for job in due {
            let row = &mut self.jobs[job];
            row.state = JobState::Ready;
            let Some(lane) = row.lane.filter(|_| !row.held) else {
                continue;
            };
            let places = self
                .lanes
                .get_mut(&lane)
                .expect("a lane with an open job is not pruned");
            if row.seq.is_none() {
                row.seq = Some(places.next);
                places.next += 1;
            }
            if places.held < places.places {
                places.held += 1;
                row.held = true;
            } else {
                row.state = JobState::Blocked;
            }
        }
    }

    fn overdue(&mut self) {
        let mut overdue: Vec<usize> = (0..self.jobs.len())
            .filter(|job| self.jobs[*job].deadline.is_some_and(|deadline| deadline <= self.now))
            .collect();
        overdue.sort_by_key(|job| (self.jobs[*job].deadline, *job));
        for job in overdue {
            let row = &self.jobs[job];
            let grace = if row.state == JobState::Running { GRACE } else { 0 };
            if !row.state.is_final() && self.now >= row.deadline.unwrap() + grace {
                self.finish(job, JobState::TimedOut, false);
            }
        }
    }

    fn holds(&self, nth: usize) -> bool {
        let Claim { job, fence, .. } = self.claims[nth];
        self.jobs[job].state == JobState::Running && self.jobs[job].fence == fence
    }

    fn act(&mut self, nth: usize, act: &Act) {
        self.acts += 1;
        let Claim { job, fence, .. } = self.claims[nth];
        let ours = self.holds(nth);
        let marked = self.jobs[job].marked;
        match act {
            Act::Vanish => self.claims[nth].there = false,
            Act::Renew => {
                if ours {
                    self.jobs[job].lease = Some(self.now + LEASE);
                }
            }
            Act::Step(step) => self.step(nth, *step, ours),
            Act::Checkpoint(_) | Act::Effect(_) if ours && !marked => {
                if let Act::Checkpoint(to) = act {
                    self.jobs[job].cursor = Some(*to);
                    self.jobs[job].lost = 0;
                    self.effect(Some(job), format!("checkpoint {to}"), fence);
                } else if let Act::Effect(effect) = act {
                    self.effect(Some(job), format!("effect {effect}"), fence);
                }
            }
            _ => {
                self.claims[nth].there = false;
                if ours && marked {
                    self.note(job, "cancelled");
                    self.finish(job, JobState::Cancelled, false);
                } else if ours {
                    self.end(nth, act);
                }
            }
        }
    }

    /// A step that is in the journal is skipped, whoever asks; a new one is recorded for the holder only.
    fn step(&mut self, nth: usize, step: u32, ours: bool) {
        let Claim { job, fence, .. } = self.claims[nth];
        self.claims[nth].used += 1;
        let known: BTreeSet<u32> = self.jobs[job].steps.keys().copied().collect();
        let journal = self.claims[nth].journal.get_or_insert(known);
        if journal.contains(&step) {
            return;
        }
        *self.jobs[job].bodies.entry(step).or_default() += 1;
        if ours {
            self.jobs[job].steps.entry(step).or_insert(fence);
            self.jobs[job].lost = 0;
        } else {
            self.claims[nth].there = false;
        }
    }

    /// An attempt of the holder ends.
    fn end(&mut self, nth: usize, act: &Act) {
        let Claim { job, fence, bare, .. } = self.claims[nth];
        let keeps = self.jobs[job].kept;
        match act {
            Act::Settle => {
                self.effect(Some(job), "settled".to_owned(), fence);
                self.finish(job, JobState::Succeeded, false);
            }
            Act::Done => {
                // Written together with others, without touching the fence, where nothing else changes.
                self.finish(job, JobState::Succeeded, false);
                self.jobs[job].fence -= i64::from(bare);
            }
            Act::Fail | Act::Fatal => {
                self.note(job, "failed");
                self.jobs[job].failures += 1;
                if *act == Act::Fatal || self.jobs[job].failures > i64::from(RETRIES) {
                    self.finish(job, JobState::Failed, true);
                } else {
                    self.jobs[job].run_at = self.now + 1;
                    self.leave(job, JobState::Scheduled, keeps);
                }
            }
            Act::Snooze => {
                self.jobs[job].attempt -= 1;
                self.jobs[job].run_at = self.now + 1;
                self.leave(job, JobState::Scheduled, keeps);
            }
            Act::HandBack => {
                self.jobs[job].attempt -= 1;
                self.jobs[job].fence += 1;
                self.leave(job, JobState::Ready, true);
            }
            Act::Wait(children, lane) => {
                if let Some((lane, places)) = lane {
                    // Locked, so made, even when nobody enters it.
                    self.lane(*lane, *places);
                }
                let tenant = self.jobs[job].tenant;
                for _ in 0..*children {
                    self.start(tenant, 0, false, *lane, 0, None, Some(job));
                }
                let open = self
                    .jobs
                    .iter()
                    .filter(|child| child.parent == Some(job) && !child.state.is_final())
                    .count();
                let row = &mut self.jobs[job];
                row.open = i64::try_from(open).unwrap();
                row.attempt -= 1;
                row.lost = 0;
                self.leave(job, if open == 0 { JobState::Ready } else { JobState::Waiting }, true);
            }
            _ => unreachable!("{act:?}"),
        }
    }

    fn prune(&mut self) {
        let jobs = &self.jobs;
        self.lanes.retain(|lane, row| {
            row.held > 0 || jobs.iter().any(|job| job.lane == Some(*lane) && !job.state.is_final())
        });
    }

    /// What the handler of a claim may be told.
    fn acts(&self, nth: usize) -> BoxedStrategy<Act> {
        let (used, number) = (self.claims[nth].used, self.acts);
        let lane = prop::option::of((0..2_usize, 1..3_u32));
        let model = self.clone();
        prop_oneof![
            4 => Just(Act::Step(used)),
            3 => Just(Act::Checkpoint(number)),
            3 => Just(Act::Effect(number)),
            1 => Just(Act::Renew),
            2 => Just(Act::Settle),
            2 => Just(Act::Done),
            2 => Just(Act::Fail),
            1 => Just(Act::Fatal),
            1 => Just(Act::Snooze),
            1 => Just(Act::HandBack),
            3 => (0..4_u32, lane).prop_map(move |(children, lane)| Act::Wait(children, model.places(lane))),
            1 => Just(Act::Vanish),
        ]
        .boxed()
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Move;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Move> {
        let lane = prop::option::of((0..2_usize, 1..3_u32));
        let delay = prop_oneof![3 => Just(0_u32), 1 => 1..3_u32];
        let deadline = prop_oneof![5 => Just(None), 1 => (1..8_u32).prop_map(Some)];
        let model = state.clone();
        let start = (0..3_usize, 0..2_i64, any::<bool>(), lane, delay, deadline).prop_map(
            move |(tenant, priority, kept, lane, delay, deadline)| Move::Start {
                tenant,
                priority,
                kept,
                lane: model.places(lane),
                delay,
                deadline,
            },
        );
        let always = prop_oneof![
            8 => start,
            8 => (1..5_usize).prop_map(Move::Claim),
            4 => prop_oneof![2 => 1..4_u32, 1 => Just(LEASE + 1)].prop_map(Move::Advance),
            3 => Just(Move::Rescue),
            4 => Just(Move::Due),
            2 => Just(Move::Overdue),
            1 => any::<bool>().prop_map(Move::Pause),
            1 => Just(Move::Prune),
        ];
        let there: Vec<usize> = (0..state.claims.len()).filter(|nth| state.claims[*nth].there).collect();
        // Those that believe they hold a job and do not.
        let stale: Vec<usize> = there.iter().copied().filter(|nth| !state.holds(*nth)).collect();
        let open: Vec<usize> = (0..state.jobs.len())
            .filter(|job| !state.jobs[*job].state.is_final())
            .collect();
        let mut all: Vec<(u32, BoxedStrategy<Move>)> = vec![(6, always.boxed())];
        if !there.is_empty() {
            let model = state.clone();
            let act = select(there).prop_flat_map(move |nth| model.acts(nth).prop_map(move |act| Move::Act(nth, act)));
            all.push((6, act.boxed()));
        }
        if !stale.is_empty() {
            let model = state.clone();
            let act = select(stale).prop_flat_map(move |nth| model.acts(nth).prop_map(move |act| Move::Act(nth, act)));
            all.push((2, act.boxed()));
        }
        if !open.is_empty() {
            all.push((1, select(open).prop_map(Move::Cancel).boxed()));
        }
        proptest::strategy::Union::new_weighted(all).boxed()
    }

    fn apply(mut state: Self, transition: &Move) -> Self {
        match transition {
            Move::Start {
                tenant,
                priority,
                kept,
                lane,
                delay,
                deadline,
            } => {
                state.start(*tenant, *priority, *kept, *lane, *delay, *deadline, None);
            }
            Move::Claim(n) => state.claim(*n),
            Move::Act(nth, act) => state.act(*nth, act),
            Move::Cancel(job) => state.cancel(*job),
            Move::Advance(ticks) => state.now += ticks,
            Move::Rescue => state.rescue(),
            Move::Due => state.due(),
            Move::Overdue => state.overdue(),
            Move::Pause(paused) => state.paused = *paused,
            Move::Prune => state.prune(),
        }
        state
    }

    /// While a failing sequence is made smaller, moves lose what they were about.
    fn preconditions(state: &Self, transition: &Move) -> bool {
        let grows = |lane: &Option<(usize, u32)>| state.places(*lane) == *lane;
        match transition {
            Move::Start { lane, .. } => grows(lane),
            Move::Cancel(job) => *job < state.jobs.len(),
            Move::Act(nth, act) => {
                let claim = state.claims.get(*nth);
                claim.is_some_and(|claim| {
                    claim.there
                        && match act {
                            Act::Step(step) => *step == claim.used,
                            Act::Wait(_, lane) => grows(lane),
                            _ => true,
                        }
                })
            }
            _ => true,
        }
    }
}
