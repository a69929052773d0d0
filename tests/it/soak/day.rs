//! The load of one round, and what was acknowledged of it.

use std::cell::{Cell, RefCell};

use futures::StreamExt;
use reqwest::Method;
use towpath_tests::{GeneratedProject, Random, generate_for, until};
use uuid::Uuid;

use super::client::{Client, Findings, PATIENCE, Request};
use super::disturbance::Disturbance;
use super::exports::{Exports, PROJECT};
use super::traces::TraceRun;
use super::{crons, edge_cases, items, runs, traces};

/// Requests of the load at the same time.
const AT_ONCE: usize = 6;
/// Trees of trace runs that come as multipart bodies: four runs each.
const TREES: usize = 8;
/// How often each other step is taken in a round. As many in every round, so that rounds compare.
const STEPS: [(Step, usize); 13] = [
    (Step::Batch, 2),
    (Step::Single, 3),
    (Step::Wait, 3),
    (Step::Background, 3),
    (Step::Kept, 1),
    (Step::Conversation, 2),
    (Step::Stream, 2),
    (Step::Cancel, 2),
    (Step::DeleteThread, 2),
    (Step::Cron, 5),
    (Step::Item, 5),
    (Step::OddRequest, 14),
    (Step::Legal, 4),
];

/// A piece of the load.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A generated multipart body, by its number.
    Body(usize),
    /// An export of everything generated, once all of it is acknowledged.
    Export,
    /// Trace runs in a batch, and a change of one.
    Batch,
    /// A trace run by itself, its change, and feedback.
    Single,
    /// A stateless run that is waited for.
    Wait,
    /// A stateless run that no one waits for.
    Background,
    /// The same, with its thread kept.
    Kept,
    /// A thread with several runs.
    Conversation,
    /// A run on a thread, streamed.
    Stream,
    /// A run that is cancelled.
    Cancel,
    /// A thread that is deleted with a run at work.
    DeleteThread,
    /// A cron that is due soon.
    Cron,
    /// An item that is written, and perhaps deleted.
    Item,
    /// A request that makes no sense, or means harm.
    OddRequest,
    /// A request that is unusual and right.
    Legal,
}

#[derive(Default)]
pub struct AcknowledgedWork {
    pub traces: Vec<TraceRun>,
    pub conversations: Vec<runs::Conversation>,
    /// Ids of stateless runs.
    pub stateless_runs: Vec<String>,
    /// Thread and run.
    pub cancelled: Vec<(Uuid, String)>,
    pub deleted_threads: Vec<Uuid>,
    pub crons: Vec<String>,
    pub items: Vec<items::Item>,
    pub exports: Vec<String>,
    /// Stateless runs whose waiting client was answered without their state.
    pub without_state: usize,
}

/// One round's day.
pub struct Day<'s> {
    pub number: usize,
    pub disturbance: Disturbance,
    pub platform: &'s Client,
    pub agents: &'s Client,
    pub findings: &'s Findings,
    pub exports: &'s Exports,
    /// When it began, in microseconds.
    pub now: i64,
    pub generated: GeneratedProject,
    pub acknowledged: RefCell<AcknowledgedWork>,
    steps_done: Cell<usize>,
    bodies_acknowledged: Cell<usize>,
}

impl<'s> Day<'s> {
    pub fn new(
        (number, disturbance): (usize, Disturbance),
        (platform, agents): (&'s Client, &'s Client),
        findings: &'s Findings,
        exports: &'s Exports,
        (now, today): (i64, i64),
        seed: u64,
    ) -> Self {
        Self {
            number,
            disturbance,
            platform,
            agents,
            findings,
            exports,
            now,
            generated: generate_for(PROJECT, today, seed, TREES, 1),
            acknowledged: RefCell::default(),
            steps_done: Cell::new(0),
            bodies_acknowledged: Cell::new(0),
        }
    }

    /// Notes something that is wrong.
    pub fn wrong(&self, what: &str) {
        self.findings
            .note(format!("round {}, {}: {what}", self.number, self.disturbance));
    }

    /// The steps in a random order, each with a seed of its own: what they do does not depend on how they interleave.
    /// Bodies are first, since an export waits for them.
    pub fn plan(&self, dice: &mut Random) -> Vec<(Step, u64)> {
        let mut steps: Vec<Step> = STEPS
            .iter()
            .flat_map(|&(step, count)| std::iter::repeat_n(step, count))
            .collect();
        if self.number.is_multiple_of(2) {
            steps.push(Step::Export);
        }
        for at in (1..steps.len()).rev() {
            steps.swap(at, dice.index(at + 1));
        }
        let bodies = (0..self.generated.bodies.len()).map(Step::Body);
        bodies.chain(steps).map(|step| (step, dice.next_u64())).collect()
    }

    /// Takes all steps, a few at a time.
    pub async fn load(&self, steps: Vec<(Step, u64)>) {
        futures::stream::iter(steps)
            .map(|(step, seed)| self.take(step, seed))
            .buffer_unordered(AT_ONCE)
            .collect::<()>()
            .await;
    }

    /// Returns when a good part of the load is done.
    pub async fn under_way(&self) {
        until("the load to be under way", PATIENCE, async || {
            (self.steps_done.get() >= 2 * AT_ONCE).then_some(())
        })
        .await;
    }

    async fn take(&self, step: Step, seed: u64) {
        let dice = &mut Random::new(seed);
        match step {
            Step::Body(at) => self.send_body(at).await,
            Step::Export => self.export().await,
            Step::Batch => traces::batch(self, dice).await,
            Step::Single => traces::single(self, dice).await,
            Step::Wait => runs::wait(self, dice).await,
            Step::Background => runs::background(self, dice).await,
            Step::Kept => runs::kept(self, dice).await,
            Step::Conversation => runs::conversation(self, dice).await,
            Step::Stream => runs::stream(self, dice).await,
            Step::Cancel => runs::cancel(self, dice).await,
            Step::DeleteThread => runs::delete_thread(self, dice).await,
            Step::Cron => crons::make(self, dice).await,
            Step::Item => items::write(self, dice).await,
            Step::OddRequest => edge_cases::request(self, dice).await,
            Step::Legal => edge_cases::legal(self, dice).await,
        }
        self.steps_done.set(self.steps_done.get() + 1);
    }

    async fn send_body(&self, at: usize) {
        let body = &self.generated.bodies[at];
        let mut request = Request::raw(Method::POST, "/runs/multipart", body.bytes.clone());
        for (name, value) in &body.headers {
            request = request.header(name, value);
        }
        self.platform.insist(&request, &[202]).await;
        self.bodies_acknowledged.set(self.bodies_acknowledged.get() + 1);
    }

    async fn export(&self) {
        until("every body to be acknowledged", PATIENCE, async || {
            (self.bodies_acknowledged.get() == self.generated.bodies.len()).then_some(())
        })
        .await;
        let key = format!("round {}", self.number);
        if let Some(export) = self.exports.ask(self.platform, &self.generated, &key).await {
            self.acknowledged.borrow_mut().exports.push(export);
        }
    }

    /// Whether everything that was acknowledged is what it must be, once work has come to rest.
    pub async fn check(&self) {
        let told = self.acknowledged.take();
        runs::check(self, &told).await;
        traces::check(self, &told).await;
        items::check(self, &told).await;
        *self.acknowledged.borrow_mut() = told;
    }
}

/// A random id, the same every time.
pub fn uuid(dice: &mut Random) -> Uuid {
    let bits = (u128::from(dice.next_u64()) << 64) | u128::from(dice.next_u64());
    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
}
