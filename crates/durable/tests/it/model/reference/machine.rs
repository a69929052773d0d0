//! The tested sequences.

use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

use super::{LEASE, Model, ModelStep};
use crate::model::puppet::Action;

impl Model {
    /// Signals to the handler of a claim.
    fn acts(&self, nth: usize) -> BoxedStrategy<Action> {
        let (used, number) = (self.claims[nth].used, self.acts);
        let lane = prop::option::of((0..2_usize, 1..3_u32));
        let model = self.clone();
        prop_oneof![
            4 => Just(Action::Step(used)),
            3 => Just(Action::Checkpoint(number)),
            3 => Just(Action::Effect(number)),
            1 => Just(Action::Renew),
            2 => Just(Action::Settle),
            2 => Just(Action::Done),
            2 => Just(Action::Fail),
            1 => Just(Action::Fatal),
            1 => Just(Action::Snooze),
            1 => Just(Action::HandBack),
            3 => (0..4_u32, lane).prop_map(move |(children, lane)| Action::Wait(children, model.places(lane))),
            1 => Just(Action::Vanish),
        ]
        .boxed()
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = ModelStep;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<ModelStep> {
        let lane = prop::option::of((0..2_usize, 1..3_u32));
        let delay = prop_oneof![3 => Just(0_u32), 1 => 1..3_u32];
        let deadline = prop_oneof![5 => Just(None), 1 => (1..8_u32).prop_map(Some)];
        let model = state.clone();
        let start = (0..3_usize, 0..2_i64, any::<bool>(), lane, delay, deadline).prop_map(
            move |(tenant, priority, kept, lane, delay, deadline)| ModelStep::Start {
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
            8 => (1..5_usize).prop_map(ModelStep::Claim),
            3 => Just(ModelStep::ClaimAlone),
            4 => prop_oneof![2 => 1..4_u32, 1 => Just(LEASE + 1)].prop_map(ModelStep::Advance),
            3 => Just(ModelStep::Rescue),
            4 => Just(ModelStep::Due),
            2 => Just(ModelStep::Overdue),
            1 => any::<bool>().prop_map(ModelStep::Pause),
            1 => Just(ModelStep::Prune),
        ];
        let there: Vec<usize> = (0..state.claims.len()).filter(|nth| state.claims[*nth].there).collect();
        // Claims that lost their job without knowing it.
        let stale: Vec<usize> = there.iter().copied().filter(|nth| !state.holds(*nth)).collect();
        let open: Vec<usize> = (0..state.jobs.len())
            .filter(|job| !state.jobs[*job].state.is_final())
            .collect();
        let mut all: Vec<(u32, BoxedStrategy<ModelStep>)> = vec![(6, always.boxed())];
        if !there.is_empty() {
            let model = state.clone();
            let act =
                select(there).prop_flat_map(move |nth| model.acts(nth).prop_map(move |act| ModelStep::Act(nth, act)));
            all.push((6, act.boxed()));
        }
        if !stale.is_empty() {
            let model = state.clone();
            let act =
                select(stale).prop_flat_map(move |nth| model.acts(nth).prop_map(move |act| ModelStep::Act(nth, act)));
            all.push((2, act.boxed()));
        }
        if !open.is_empty() {
            all.push((1, select(open).prop_map(ModelStep::Cancel).boxed()));
        }
        proptest::strategy::Union::new_weighted(all).boxed()
    }

    fn apply(mut state: Self, transition: &ModelStep) -> Self {
        match transition {
            ModelStep::Start {
                tenant,
                priority,
                kept,
                lane,
                delay,
                deadline,
            } => {
                state.start(*tenant, *priority, *kept, *lane, *delay, *deadline, None);
            }
            ModelStep::Claim(n) => state.claim(*n),
            ModelStep::ClaimAlone => state.claim_suspects(),
            ModelStep::Act(nth, act) => state.act(*nth, act),
            ModelStep::Cancel(job) => state.cancel(*job),
            ModelStep::Advance(ticks) => state.now += ticks,
            ModelStep::Rescue => state.rescue(),
            ModelStep::Due => state.due(),
            ModelStep::Overdue => state.overdue(),
            ModelStep::Pause(paused) => state.paused = *paused,
            ModelStep::Prune => state.prune(),
        }
        state
    }

    /// During shrinking, operations may lose their target.
    fn preconditions(state: &Self, transition: &ModelStep) -> bool {
        let grows = |lane: &Option<(usize, u32)>| state.places(*lane) == *lane;
        match transition {
            ModelStep::Start { lane, .. } => grows(lane),
            ModelStep::Cancel(job) => *job < state.jobs.len(),
            ModelStep::Act(nth, act) => {
                let claim = state.claims.get(*nth);
                claim.is_some_and(|claim| {
                    claim.there
                        && match act {
                            Action::Step(step) => *step == claim.used,
                            Action::Wait(_, lane) => grows(lane),
                            _ => true,
                        }
                })
            }
            _ => true,
        }
    }
}
