//! Runs of agent servers while processes stand still.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use futures::StreamExt;
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgConnection;
use towpath_tests::{Api, World, until};

use super::Freezes;
use super::barrier::Barrier;
use crate::final_state;
use crate::kill::graphs::{LONG, SHORT, log, quick_walk, slow_walk, steps, text};
use crate::load::{PATIENCE, ask};

/// Runs at work at a freeze, each longer than that.
const WALKS: usize = 6;
/// Runs that wait behind another one of their thread, and are cancelled with it.
const QUEUED: usize = 8;
/// Requests at a time that look at what became of runs.
const READERS: usize = 8;
/// A slow walk and the process that performs it.
const WALKING: &str = "SELECT w.pid FROM job j JOIN worker w ON w.id = j.worker_id JOIN run r ON r.job_id = j.id
    WHERE j.state = 'running' AND r.status = 'pending' AND r.metadata LIKE '%\"slow\":true%'
    LIMIT 1 FOR UPDATE OF j SKIP LOCKED";

/// Lets processes stand still one after another, and looks at what became of the runs.
pub async fn drill(world: &World, freezes: &mut Freezes<'_>) {
    let load = Load {
        apis: &world.apis,
        accepted: RefCell::default(),
        cancelled: RefCell::default(),
        over: Cell::new(false),
    };
    let freezing = async {
        load.walks().await;
        freezes.worker(WALKING).await;
        load.walks().await;
        load.cancel(world, freezes).await;
        load.walks().await;
        load.delayed().await;
        freezes.scheduler().await;
        load.walks().await;
        freezes.slow_line().await;
        load.over.set(true);
    };
    tokio::join!(load.run(), freezing);
    load.settles(world).await;
}

/// A run that the server said it has recorded.
struct AcceptedRun {
    run: String,
    /// Whether its thread stays.
    kept: bool,
    /// Supersteps that its log has to have.
    length: u32,
}

struct Load<'w> {
    apis: &'w [Api],
    accepted: RefCell<Vec<AcceptedRun>>,
    /// Runs that a caller may have cancelled, and whether that was acknowledged.
    cancelled: RefCell<BTreeMap<String, bool>>,
    over: Cell<bool>,
}

impl Load<'_> {
    /// Starts runs through each process until it is over.
    async fn run(&self) {
        let clients = self.apis.iter().map(async |api| {
            tokio::join!(self.on_threads(api), self.stateless(api));
        });
        join_all(clients).await;
    }

    /// Runs on threads of their own, each awaited.
    async fn on_threads(&self, api: &Api) {
        while !self.over.get() {
            let path = new_thread(api).await;
            let run = self.start(api, &format!("{path}/runs"), steps(), SHORT).await;
            ask(api, Method::GET, &format!("{path}/runs/{run}/join"), None).await;
        }
    }

    async fn stateless(&self, api: &Api) {
        while !self.over.get() {
            ask(api, Method::POST, "/runs/wait", Some(steps())).await;
            for completion in ["delete", "keep"] {
                let mut body = steps();
                body["on_completion"] = json!(completion);
                self.start(api, "/runs", body, SHORT).await;
            }
        }
    }

    async fn walks(&self) {
        for _ in 0..WALKS {
            let path = new_thread(self.quiet()).await;
            self.start(self.quiet(), &format!("{path}/runs"), slow_walk(), LONG)
                .await;
        }
    }

    /// A run that becomes due while the scheduler is stopped.
    async fn delayed(&self) {
        let mut body = steps();
        body["after_seconds"] = json!(1);
        body["on_completion"] = json!("keep");
        self.start(self.quiet(), "/runs", body, SHORT).await;
    }

    /// Cancels the runs of a thread, one at work and others behind it, and stops the process in the middle of that.
    /// Meanwhile another process takes one more run for the thread.
    async fn cancel(&self, world: &World, freezes: &mut Freezes<'_>) {
        let [quiet, stopped] = self.apis else {
            panic!("two processes serve the API")
        };
        let path = new_thread(quiet).await;
        let runs_path = format!("{path}/runs");
        let mut runs = vec![record(quiet, &runs_path, slow_walk()).await];
        for _ in 0..QUEUED {
            runs.push(record(quiet, &runs_path, quick_walk()).await);
        }
        let runs: Vec<String> = runs.iter().map(|run| text(run, "run_id")).collect();
        let mut barrier = Barrier::new(world).await;
        barrier.close_at_run(runs.last().expect("some were recorded")).await;
        let body = json!({"thread_id": path.trim_start_matches("/threads/"), "run_ids": runs});
        let request = stopped.request(Method::POST, "/runs/cancel", Some(&body));
        let one_more = record(quiet, &runs_path, quick_walk());
        let (answer, one_more) = freezes.api(barrier, request, one_more).await;
        // Whatever else it was answered: the database has ended the transaction, so nothing was cancelled.
        let acknowledged = answer.is_ok_and(|reply| reply.status == 204);
        let mut cancelled = self.cancelled.borrow_mut();
        cancelled.extend(runs.into_iter().map(|run| (run, acknowledged)));
        cancelled.insert(text(&one_more, "run_id"), false);
    }

    /// Records a run that has to end well.
    async fn start(&self, api: &Api, path: &str, body: Value, length: u32) -> String {
        let kept = body["on_completion"] != "delete";
        let run = text(&record(api, path, body).await, "run_id");
        self.accepted.borrow_mut().push(AcceptedRun {
            run: run.clone(),
            kept,
            length,
        });
        run
    }

    /// The process that is never stopped.
    fn quiet(&self) -> &Api {
        &self.apis[0]
    }

    /// Every accepted run has ended well, once: by the API, and by the tables.
    async fn settles(&self, world: &World) {
        let database = world.database.as_ref().expect("a cluster has a database");
        let mut tables = database.connect().await;
        until("every run to be over", PATIENCE, async || {
            (count(&mut tables, "SELECT count(*) FROM run WHERE status = 'pending'").await == 0).then_some(())
        })
        .await;
        final_state::settles(world).await;

        let accepted = self.accepted.take();
        assert!(accepted.len() > 2 * WALKS, "only {} runs were accepted", accepted.len());
        let kept = accepted.iter().filter(|accepted| accepted.kept);
        let kept = kept.map(|accepted| (accepted.run.as_str(), false));
        let cancelled = self.cancelled.take();
        let looked_up: Vec<(&str, bool)> = kept
            .chain(
                cancelled
                    .iter()
                    .map(|(run, acknowledged)| (run.as_str(), *acknowledged)),
            )
            .collect();
        let looking = futures::stream::iter(looked_up).map(async |(run, acknowledged)| {
            let run = ask(self.quiet(), Method::GET, &format!("/runs/{run}"), None).await;
            let well = run["status"] == "success" || (acknowledged && run["status"] == "interrupted");
            assert!(well, "cancelled: {acknowledged}, {run}");
        });
        looking.buffer_unordered(READERS).collect::<()>().await;

        let states = states(&mut tables).await;
        let jobs = jobs(&mut tables).await;
        for AcceptedRun { run, kept, length } in &accepted {
            assert_eq!(
                jobs.get(run),
                Some(&vec!["succeeded".to_owned()]),
                "jobs of the run {run}"
            );
            let state = states.get(run);
            assert_eq!(state.is_some(), *kept, "whether the thread of the run {run} is there");
            if let Some((state, runs)) = state {
                // A request whose answer was lost was made again.
                assert_eq!(state["log"], log(*length, *runs), "the run {run}, one of {runs}");
            }
        }
        let forks = count(&mut tables, FORKS).await;
        assert_eq!(forks, 0, "supersteps of threads with one run that were saved twice");
    }
}

/// Supersteps that two attempts saved.
const FORKS: &str = "SELECT count(*) FROM (
    SELECT 1 FROM checkpoints
    WHERE thread_id IN (SELECT thread_id::text FROM run GROUP BY thread_id HAVING count(*) = 1)
    GROUP BY thread_id, checkpoint_ns, metadata ->> 'step' HAVING count(*) > 1) twice";

/// The path of a new thread.
async fn new_thread(api: &Api) -> String {
    let thread = ask(api, Method::POST, "/threads", Some(json!({}))).await;
    format!("/threads/{}", text(&thread, "thread_id"))
}

async fn record(api: &Api, path: &str, body: Value) -> Value {
    ask(api, Method::POST, path, Some(body)).await
}

async fn count(tables: &mut PgConnection, question: &'static str) -> i64 {
    let counted = sqlx::query_scalar(question).fetch_one(tables).await;
    counted.unwrap_or_else(|error| panic!("{question}: {error}"))
}

/// The states of the threads that are still there, by their runs, and how many runs each thread had.
async fn states(tables: &mut PgConnection) -> BTreeMap<String, (Value, i64)> {
    let rows: Result<Vec<(String, Option<String>, i64)>, _> = sqlx::query_as(
        "SELECT r.id::text, t.current_values, (SELECT count(*) FROM run o WHERE o.thread_id = t.id)
         FROM run r JOIN thread t ON t.id = r.thread_id",
    )
    .fetch_all(tables)
    .await;
    let read = |state: Option<String>| state.and_then(|state| serde_json::from_str::<Value>(&state).ok());
    let rows = rows.expect("the tables are there").into_iter();
    rows.map(|(run, state, runs)| (run, (read(state).unwrap_or_default(), runs)))
        .collect()
}

/// How the jobs of each run ended.
async fn jobs(tables: &mut PgConnection) -> BTreeMap<String, Vec<String>> {
    let rows: Result<Vec<(String, String)>, _> = sqlx::query_as(
        "SELECT input::jsonb ->> 'run', state FROM job WHERE kind = 'run_agent'
         UNION ALL SELECT input::jsonb ->> 'run', state FROM job_history WHERE kind = 'run_agent'",
    )
    .fetch_all(tables)
    .await;
    let mut jobs = BTreeMap::<String, Vec<String>>::new();
    for (run, state) in rows.expect("the tables are there") {
        jobs.entry(run).or_default().push(state);
    }
    jobs
}
