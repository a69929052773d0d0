//! Which sequences are tried.

use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

use super::{LEASE, Model, Move};
use crate::model::puppet::Act;

impl Model {
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
            3 => Just(Move::ClaimAlone),
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
            Move::ClaimAlone => state.claim_alone(),
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
