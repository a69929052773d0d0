//! Threads compared with a model: random creates, runs with the four strategies, cancels, deletions, state updates,
//! copies and prunes, with workers that are lost or return their jobs, on real SQL and compared after each step.
//!
//! `TOWPATH_TEST_THREAD_STEPS` is the number of steps on each database (default 150), `TOWPATH_TEST_THREAD_SEED` the
//! seed. A failure prints the seed and the fewest steps found to reproduce it.

mod check;
mod reference;
mod stops;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use serde_json::{Map, json};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};
use towpath_domain::agent::{CancelAction, RunStatus, ThreadStatus};
use towpath_domain::{Clock, JobId, RunId, ThreadId, WorkerId};
use towpath_durable::Signal;
use towpath_runtime::{StateRef, Update};
use towpath_store::threads::{self, NewThread};
use towpath_store::{self as store, jobs};
use towpath_testing::Database;
use towpath_workflows::run_agent::{self, Target};
use towpath_workflows::thread_history;
use towpath_workflows::thread_state::{self, StateUpdate, UpdateError};

use self::reference::{Kind, Layer, Run, Thread};
use crate::environment::environment;
use crate::fixture::migrate;
use crate::random::Random;
use crate::server::Server;

const STEPS: u64 = 150;
const SEED: u64 = 20_260_501;
/// Number of threads; small, so that steps affect the same ones.
const THREADS: usize = 6;
/// Workers that may be lost with one run. A run that loses five fails.
const CRASHES: u32 = 3;
/// Steps between two checks of every table.
const LOOK: usize = 25;
/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// All have the same channels, so that each can continue a thread.
const GRAPHS: &str = r#"{"graphs": {
    "steps": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"append": {"log": "two"}}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "slow": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"sleep_ms": 3600000}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "asks": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"ask": {"kind": "script", "steps": [{"interrupt": "go on?", "into": "answer"}]}},
        "edges": [["__start__", "ask"]]}},
    "broken": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"one": {"kind": "script", "steps": [{"fail": {"type": "ValueError", "message": "it broke"}}]}},
        "edges": [["__start__", "one"]]}}
}}"#;

#[tokio::test]
async fn threads_follow_the_model_on_sqlite() {
    follow(async || Some(Server::with(Database::sqlite(migrate).await, Clock::system(), GRAPHS).await)).await;
}

#[tokio::test]
async fn threads_follow_the_model_on_postgres() {
    follow(async || {
        let database = Database::postgres(migrate).await?;
        Some(Server::with(database, Clock::system(), GRAPHS).await)
    })
    .await;
}

async fn follow(server: impl AsyncFn() -> Option<Server>) {
    let setting = |name: &str, default: u64| {
        let given = environment(name);
        given.map_or(default, |text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{name} is a number, and not {text}"))
        })
    };
    let seed = setting("TOWPATH_TEST_THREAD_SEED", SEED);
    let steps = usize::try_from(setting("TOWPATH_TEST_THREAD_STEPS", STEPS)).expect("a number that fits");
    let Some(first) = server().await else { return };
    let Some(mut bad) = play(first, seed, steps).await else {
        return;
    };
    // An error after some steps may already exist after fewer.
    let mut good = 0;
    while bad > good + 1 {
        let middle = good + (bad - good) / 2;
        let again = server().await.expect("the database was there before");
        match play(again, seed, middle).await {
            Some(sooner) => bad = sooner,
            None => good = middle,
        }
    }
    panic!(
        "the threads differ from the model, as said above; see it again with TOWPATH_TEST_THREAD_SEED={seed} \
         TOWPATH_TEST_THREAD_STEPS={bad}"
    );
}

/// Performs this number of steps and lets everything end. Returns the number of steps before an error.
async fn play(server: Server, seed: u64, steps: usize) -> Option<usize> {
    let taken = Rc::new(Cell::new(0));
    let counted = Rc::clone(&taken);
    let local = LocalSet::new();
    let playing = local.run_until(async move {
        let mut world = World::new(server, seed);
        for step in 1..=steps {
            counted.set(step);
            world.step().await;
            if step % LOOK == 0 {
                world.check_tables().await;
            }
        }
        world.rest().await;
    });
    let played = AssertUnwindSafe(playing).catch_unwind().await;
    played.is_err().then(|| taken.get())
}

/// A worker with a run of the graph `slow`.
struct RunningJob {
    job: JobId,
    worker: WorkerId,
    tell: watch::Sender<Signal>,
    task: JoinHandle<()>,
}

struct World {
    server: Rc<Server>,
    dice: Random,
    threads: Vec<Thread>,
    running_jobs: Vec<RunningJob>,
    /// The current step, for messages.
    last_step: String,
}

impl World {
    fn new(server: Server, seed: u64) -> Self {
        Self {
            server: Rc::new(server),
            dice: Random::new(seed),
            threads: Vec::new(),
            running_jobs: Vec::new(),
            last_step: String::new(),
        }
    }

    async fn step(&mut self) {
        match self.dice.below(100) {
            0..4 => self.create().await,
            4..34 => self.start().await,
            34..40 => self.start_stateless().await,
            40..62 => {
                self.claim().await;
            }
            62..70 => self.deliver().await,
            70..75 => self.crash().await,
            75..78 => self.hand_back().await,
            78..84 => self.cancel().await,
            84..88 => self.delete_run().await,
            88..90 => self.delete_thread().await,
            90..94 => self.update().await,
            94..97 => self.copy().await,
            _ => self.cut().await,
        }
        for at in 0..self.threads.len() {
            self.check(at).await;
        }
    }

    /// A thread that outlives its runs.
    fn some_thread(&mut self) -> Option<usize> {
        let kept: Vec<usize> = (0..self.threads.len())
            .filter(|&at| !self.threads[at].temporary)
            .collect();
        (!kept.is_empty()).then(|| *self.dice.pick(&kept))
    }

    fn is_held(&self, job: JobId) -> bool {
        self.running_jobs.iter().any(|held| held.job == job)
    }

    /// The open run of a job, if its thread still exists.
    fn find(&self, job: JobId) -> Option<(usize, RunId)> {
        self.threads.iter().enumerate().find_map(|(at, thread)| {
            let run = thread.open().find(|run| run.job == job)?;
            Some((at, run.id))
        })
    }

    async fn create(&mut self) {
        if self.threads.len() >= THREADS {
            return;
        }
        let id = ThreadId::new();
        self.last_step = format!("thread {id} was created");
        let new = NewThread {
            id,
            metadata: "{}",
            config: "{}",
            status: ThreadStatus::Idle,
            temporary: false,
            ttl: None,
        };
        let (server, tenant) = (&self.server, self.server.tenant);
        let made = server
            .store()
            .write(async |tx| threads::insert(tx, tenant, &new).await)
            .await;
        made.unwrap();
        self.threads.push(Thread::new(id, false));
    }

    async fn start(&mut self) {
        const STRATEGIES: [&str; 4] = ["reject", "enqueue", "interrupt", "rollback"];
        let known = self.some_thread();
        let new = self.threads.len() < THREADS && self.dice.one_in(5);
        let at = match known.filter(|_| !new) {
            Some(at) => at,
            None => {
                self.threads.push(Thread::new(ThreadId::new(), false));
                self.threads.len() - 1
            }
        };
        let kind = *self.dice.pick(&Kind::ALL);
        let strategy = *self.dice.pick(&STRATEGIES);
        let id = self.threads[at].id;
        self.last_step = format!(
            "a run of {} with strategy {strategy} was asked for on thread {id}",
            kind.graph()
        );
        let asked = json!({
            "multitask_strategy": strategy, "durability": "sync", "stream_resumable": self.dice.one_in(2),
        });
        let recorded = self
            .server
            .store()
            .write(async |tx| self.server.record(tx, Target::Existing(id), kind.graph(), &asked).await)
            .await;
        let in_the_way: Vec<RunId> = self.threads[at].open().map(|run| run.id).collect();
        if strategy == "reject" && !in_the_way.is_empty() {
            let refused = matches!(recorded, Err(store::Error::Rejected(_)));
            assert!(refused, "{}: {recorded:?}", self.last_step);
            return;
        }
        let run = recorded.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        self.threads[at].runs.push(Run {
            id: run.id,
            job: run.job_id,
            kind,
            over: None,
            cancel: None,
            claims: 0,
            crashes: 0,
        });
        match strategy {
            "interrupt" => self.stopped(at, &in_the_way, CancelAction::Interrupt).await,
            "rollback" => self.stopped(at, &in_the_way, CancelAction::Rollback).await,
            _ => {}
        }
    }

    async fn start_stateless(&mut self) {
        let kind = *self.dice.pick(&[Kind::Steps, Kind::Asks, Kind::Broken]);
        let id = ThreadId::new();
        self.last_step = format!("a stateless run of {} was asked for on thread {id}", kind.graph());
        let asked = json!({"stream_resumable": self.dice.one_in(2)});
        let recorded = self
            .server
            .store()
            .write(async |tx| self.server.record(tx, Target::New(id), kind.graph(), &asked).await)
            .await;
        let run = recorded.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        let mut thread = Thread::new(id, true);
        thread.runs.push(Run {
            id: run.id,
            job: run.job_id,
            kind,
            over: None,
            cancel: None,
            claims: 0,
            crashes: 0,
        });
        self.threads.push(thread);
    }

    /// Claims a run. A run that ends by itself is performed to its end. Returns whether there was one.
    async fn claim(&mut self) -> bool {
        let worker = WorkerId::new();
        let claimed = self.server.store().write(async |tx| {
            let claimer = jobs::ClaimRequest::new(run_agent::POOL, worker, 1);
            let claimed = jobs::claim(tx, &claimer).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
            jobs::claim_suspects(tx, &claimer).await
        });
        let Some(job) = claimed.await.unwrap().pop() else {
            return false;
        };
        let job_id = job.id;
        self.last_step = format!("job {job_id} was claimed");
        let Some((at, id)) = self.find(job_id) else {
            panic!("{}, and no open run is its", self.last_step);
        };
        let first = self.threads[at].open().next().map(|run| run.id);
        assert_eq!(first, Some(id), "{}, and another run comes before it", self.last_step);
        assert!(!self.is_held(job_id), "{}, and another worker has it", self.last_step);
        let run = self.threads[at].run(id);
        run.claims += 1;
        let kind = run.kind;
        self.last_step = format!("run {id} of {} was claimed", kind.graph());
        let (tell, told) = watch::channel(Signal::Run);
        let server = Rc::clone(&self.server);
        let task = tokio::task::spawn_local(async move {
            towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told).await;
        });
        if kind != Kind::Slow {
            self.ended(task).await;
            self.done(at, id).await;
            return true;
        }
        // Its input, its start and its first node are saved.
        let deadline = Instant::now() + PATIENCE;
        while self.new_ids(at).await.len() < 3 {
            assert!(!task.is_finished(), "{}, and it ended", self.last_step);
            assert!(
                Instant::now() < deadline,
                "{}, and its first node was not saved",
                self.last_step
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.running_jobs.push(RunningJob {
            job: job_id,
            worker,
            tell,
            task,
        });
        true
    }

    /// Waits until a worker has finished a run.
    async fn ended(&self, task: JoinHandle<()>) {
        let ended = tokio::time::timeout(PATIENCE, task).await;
        let ended = ended.unwrap_or_else(|_| panic!("{}, and its worker does not end", self.last_step));
        ended.expect("a worker does not panic");
    }

    /// A run ended by itself.
    async fn done(&mut self, at: usize, id: RunId) {
        if self.threads[at].temporary {
            self.threads.remove(at);
            return;
        }
        let kind = self.threads[at].run(id).kind;
        let (before, after) = (self.threads[at].log(), self.threads[at].log_after(kind));
        let made = self.absorb(at, Some(id), after.clone()).await;
        let thread = &mut self.threads[at];
        let (over, rest) = match kind {
            Kind::Steps | Kind::Slow => (RunStatus::Success, ThreadStatus::Idle),
            Kind::Asks => (RunStatus::Success, ThreadStatus::Interrupted),
            Kind::Broken => (RunStatus::Error, ThreadStatus::Error),
        };
        thread.run(id).over = Some(over);
        thread.rest = vec![rest];
        if kind == Kind::Broken {
            thread.shown.push(before);
        } else {
            thread.shown = vec![after];
        }
        if kind == Kind::Steps {
            assert_eq!(made, 4, "{}: its input and three supersteps", self.last_step);
        }
    }

    /// Checkpoints of a thread that the model does not know yet.
    async fn new_ids(&self, at: usize) -> BTreeSet<String> {
        let thread = &self.threads[at];
        let known = thread.ids();
        let found = self.server.checkpoints(thread.id).await;
        found.into_iter().filter(|id| !known.contains(id)).collect()
    }

    /// Adds the new checkpoints of a thread to the model. Returns their number.
    async fn absorb(&mut self, at: usize, owner: Option<RunId>, log: reference::Log) -> usize {
        let ids = self.new_ids(at).await;
        let count = ids.len();
        if count > 0 {
            self.threads[at].layers.push(Layer { owner, ids, log });
        }
        count
    }

    async fn update(&mut self) {
        let Some(at) = self.some_thread() else { return };
        let thread = &self.threads[at];
        let id = thread.id;
        if thread.latest_log().is_empty() {
            return;
        }
        self.last_step = format!("the state of thread {id} was updated");
        let values = json!({"log": ["by hand"]});
        let update = Update {
            values,
            as_node: Some("one".to_owned()),
            command: None,
        };
        let supersteps = [vec![update]];
        let update = StateUpdate {
            thread: id,
            at: StateRef::latest(id.0),
            supersteps: &supersteps,
            metadata: Map::new(),
            events_kept: self.server.world.settings.event_retention,
        };
        let graph = self.server.world.graphs.get("steps").expect("a graph of this file");
        let updated = thread_state::update(self.server.store(), self.server.tenant, &graph, &update).await;
        if thread.is_open() {
            let refused = matches!(updated, Err(UpdateError::Store(store::Error::Rejected(_))));
            assert!(refused, "{}: {updated:?}", self.last_step);
            return;
        }
        updated.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        let mut log = self.threads[at].log();
        log.push("by hand".to_owned());
        let made = self.absorb(at, None, log.clone()).await;
        assert_eq!(made, 1, "{}", self.last_step);
        let thread = &mut self.threads[at];
        thread.rest = vec![ThreadStatus::Interrupted];
        thread.shown = vec![log];
    }

    async fn copy(&mut self) {
        let Some(at) = self.some_thread() else { return };
        if self.threads.len() >= THREADS {
            return;
        }
        let (from, to) = (self.threads[at].id, ThreadId::new());
        self.last_step = format!("thread {from} was copied to {to}");
        let (server, tenant) = (&self.server, self.server.tenant);
        let copied = server
            .store()
            .write(async |tx| thread_history::copy(tx, tenant, from, to).await)
            .await;
        copied.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        let source = &self.threads[at];
        let mut copy = Thread::new(to, false);
        copy.rest.clone_from(&source.rest);
        copy.shown.clone_from(&source.shown);
        let log = source.latest_log();
        let there = self.server.checkpoints(from).await.len();
        self.threads.push(copy);
        let made = self.absorb(self.threads.len() - 1, None, log).await;
        assert_eq!(made, there, "{}", self.last_step);
    }

    async fn cut(&mut self) {
        let Some(at) = self.some_thread() else { return };
        let id = self.threads[at].id;
        self.last_step = format!("thread {id} was cut to its latest state");
        let (server, tenant) = (&self.server, self.server.tenant);
        let cut = server
            .store()
            .write(async |tx| thread_history::keep_latest(tx, tenant, id).await)
            .await;
        cut.unwrap_or_else(|error| panic!("{}: {error}", self.last_step));
        let thread = &mut self.threads[at];
        if thread.is_open() {
            return;
        }
        if let Some(mut last) = thread.layers.pop() {
            while last.ids.len() > 1 {
                last.ids.pop_first();
            }
            thread.layers = vec![last];
        }
    }
}
