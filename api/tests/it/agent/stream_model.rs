//! Readers of every kind against a random history of runs: each gets what the log says, once and in order, and is told when
//! something was lost. The runs are streamed by hand: frames are published and logged a little later, workers die with what they
//! did not log, runs are cancelled. Some readers are in another process, on the way to which what is published gets lost.
//!
//! `TOWPATH_TEST_STREAM_STEPS` is the number of steps on each database (default 480; `long` is 100,000),
//! `TOWPATH_TEST_STREAM_SEED` the seed. A failure names the seed of the round that shows it alone.

mod check;

use std::time::{Duration, Instant};

use axum::Router;
use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use towpath_domain::agent::frame::{self, END, RunEnd};
use towpath_domain::agent::{EventId, Frame, RunStatus, ThreadStatus};
use towpath_domain::{RunId, ThreadId};
use towpath_queue::Queue;
use towpath_store::run_events::{self, NewBatch};
use towpath_store::{runs, threads};

use super::{Agent, OpenResponse, on_both_databases};
use crate::environment::environment;
use crate::random::Random;

on_both_databases!(readers_get_what_the_log_says);

const STEPS: u64 = 480;
const LONG: u64 = 100_000;
const SEED: u64 = 20_260_502;
/// Steps on one thread.
const ROUND: u64 = 40;
/// Rounds beside each other.
const BESIDE: usize = 8;
/// A worker logs what it published so long ago. Readers of a thread wait a second for it.
const SOON: Duration = Duration::from_millis(200);
/// Of what is published to the other process, one in so many is lost.
const LOST: u64 = 4;

async fn readers_get_what_the_log_says(agent: Agent) {
    let number = |name: &str, text: &str| -> u64 {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, and not {text}"))
    };
    let steps = match environment("TOWPATH_TEST_STREAM_STEPS").as_deref() {
        None => STEPS,
        Some("long") => LONG,
        Some(text) => number("TOWPATH_TEST_STREAM_STEPS", text),
    };
    let seed = environment("TOWPATH_TEST_STREAM_SEED").map_or(SEED, |text| number("TOWPATH_TEST_STREAM_SEED", &text));
    let queue = Queue::local();
    let other = OtherProcess {
        router: agent.beside_on(&queue),
        queue,
    };
    let seeds: Vec<u64> = (0..steps.div_ceil(ROUND)).map(|nth| seed + nth).collect();
    for some in seeds.chunks(BESIDE) {
        join_all(some.iter().map(|&seed| Round::play(&agent, &other, seed))).await;
    }
}

/// Another process, with hints of its own.
struct OtherProcess {
    queue: Queue,
    router: Router,
}

/// What a reader got.
#[derive(Debug, PartialEq, Eq)]
enum ReaderEvent {
    /// The frame of this number.
    Frame(i64),
    /// It was told that something was lost.
    Cut,
    /// A run is over.
    Done(RunId),
}

/// What becomes of a hint on its way to the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Arrives,
    /// Left to the dice.
    Open,
    Lost,
}

/// From where a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadFrom {
    Start,
    After(i64),
    Now,
}

enum Task {
    Events(JoinHandle<Vec<ReaderEvent>>),
    /// Reads nothing until all is over.
    Slow(OpenResponse),
    /// Waits for the state that a run leaves.
    Answer(JoinHandle<Value>),
}

struct ReaderTask {
    /// For messages.
    name: String,
    /// The run, by its place among those of the round; all of them if absent.
    run: Option<usize>,
    since: ReadFrom,
    task: Task,
}

/// A frame that was published.
struct PublishedFrame {
    /// Rises over all frames of the round.
    n: i64,
    attempt: i64,
    logged: bool,
}

struct RunModel {
    id: RunId,
    /// Its frames are logged.
    logged: bool,
    attempt: i64,
    /// Of its last frame within the attempt.
    number: i64,
    frames: Vec<PublishedFrame>,
    /// Published by the attempt at work, and not logged yet.
    pending: Vec<String>,
    /// Since when that waits.
    waits_since: Option<Instant>,
    over: Option<RunStatus>,
}

struct Round<'a> {
    agent: &'a Agent,
    other: &'a OtherProcess,
    dice: Random,
    /// For messages.
    name: String,
    thread: ThreadId,
    /// Milliseconds of ids are this and the number of their frame.
    base: i64,
    n: i64,
    runs: Vec<RunModel>,
    readers: Vec<ReaderTask>,
    /// The run at whose end readers of the thread leave.
    last: watch::Sender<Option<RunId>>,
}

impl<'a> Round<'a> {
    async fn play(agent: &'a Agent, other: &'a OtherProcess, seed: u64) {
        let mut round = Self {
            agent,
            other,
            dice: Random::new(seed),
            name: format!("TOWPATH_TEST_STREAM_SEED={seed} TOWPATH_TEST_STREAM_STEPS={ROUND}"),
            thread: agent.thread().await,
            base: agent.store.clock().now().micros() / 1000,
            n: 0,
            runs: Vec::new(),
            readers: Vec::new(),
            last: watch::Sender::new(None),
        };
        for _ in 0..ROUND {
            round.step().await;
        }
        if round.is_at_work() {
            round.end(Delivery::Open).await;
        }
        // Every reader of the thread hears of this one, and the hole shows it that something was lost.
        round.begin(Some(true)).await;
        let last = round.current().id;
        round.last.send_replace(Some(last));
        round.emit(Delivery::Lost);
        round.log().await;
        round.emit(Delivery::Arrives);
        round.end(Delivery::Arrives).await;
        round.check().await;
    }

    fn is_at_work(&self) -> bool {
        self.runs.last().is_some_and(|run| run.over.is_none())
    }

    fn current(&mut self) -> &mut RunModel {
        self.runs.last_mut().expect("a run was begun")
    }

    async fn step(&mut self) {
        if !self.is_at_work() {
            return self.begin(None).await;
        }
        let waits_since = self.current().waits_since;
        if waits_since.is_some_and(|since| since.elapsed() >= SOON) {
            self.log().await;
        }
        match self.dice.below(100) {
            0..45 => {
                for _ in 0..=self.dice.below(3) {
                    self.emit(Delivery::Open);
                }
            }
            45..60 => self.log().await,
            60..66 => self.kill(),
            66..86 => self.read().await,
            86..94 => self.end(Delivery::Open).await,
            94..97 => self.cancel().await,
            _ => tokio::task::yield_now().await,
        }
    }

    /// One of the two processes, and its name.
    fn process(&mut self) -> (Router, &'static str) {
        if self.dice.one_in(2) {
            (self.other.router.clone(), "of another process")
        } else {
            (self.agent.router.clone(), "of the worker's process")
        }
    }

    /// Records a run, perhaps with its reader.
    async fn begin(&mut self, logged: Option<bool>) {
        let logged = logged.unwrap_or_else(|| self.dice.one_in(2));
        let mut made = RunModel {
            id: RunId::new(),
            logged,
            attempt: 1,
            number: 0,
            frames: Vec::new(),
            pending: Vec::new(),
            waits_since: None,
            over: None,
        };
        let resumable = json!({"stream_resumable": logged});
        if self.dice.one_in(2) {
            made.id = self.agent.record(self.thread, &resumable).await;
            self.runs.push(made);
            return;
        }
        let (router, process) = self.process();
        let path = format!("/threads/{}/runs/stream", self.thread);
        let body = json!({"assistant_id": "steps", "input": {"log": []}, "stream_resumable": logged});
        let open = OpenResponse::new(&router, Method::POST, &path, None, &body).await;
        made.id = open.place().1;
        self.runs.push(made);
        let name = format!("{}: the reader {process} that began run {}", self.name, self.runs.len());
        let task = Task::Events(tokio::spawn(follow(open, FollowPlan::default())));
        self.readers.push(ReaderTask {
            name,
            run: Some(self.runs.len() - 1),
            since: ReadFrom::Start,
            task,
        });
    }

    /// Publishes a frame. On the way to the other process it may get lost.
    fn emit(&mut self, delivery: Delivery) {
        self.n += 1;
        let (n, base) = (self.n, self.base);
        let run = self.current();
        run.number += 1;
        let text = Frame {
            run: Some(run.id),
            attempt: run.attempt,
            number: run.number,
            id: id(base, n),
            event: "values",
            data: &json!({"n": n}).to_string(),
        }
        .encode();
        run.frames.push(PublishedFrame {
            n,
            attempt: run.attempt,
            logged: false,
        });
        run.pending.push(text.clone());
        run.waits_since.get_or_insert_with(Instant::now);
        self.publish(text, delivery);
    }

    fn publish(&mut self, text: String, delivery: Delivery) {
        let arrives = match delivery {
            Delivery::Arrives => true,
            Delivery::Open => !self.dice.one_in(LOST),
            Delivery::Lost => false,
        };
        if arrives {
            self.other.queue.publish(self.thread, text.clone());
        }
        self.agent.queue.publish(self.thread, text);
    }

    /// The worker logs what it published.
    async fn log(&mut self) {
        if self.current().logged {
            self.write(None).await;
        }
    }

    /// Logs what waits, and the end of the run where it ends.
    async fn write(&mut self, end: Option<&str>) {
        let (agent, thread, base, n) = (self.agent, self.thread, self.base, self.n);
        let run = self.runs.last_mut().expect("a run was begun");
        let mut text = String::new();
        run.pending.iter().for_each(|one| frame::append(&mut text, one));
        let pending = i64::try_from(run.pending.len()).expect("a few");
        let last = run.frames.last().map_or(0, |sent| sent.n);
        let (id_of_run, attempt, number, logged) = (run.id, run.attempt, run.number, run.logged);
        let batch = (logged && pending > 0).then(|| NewBatch {
            run: Some(id_of_run),
            attempt,
            first: number - pending + 1,
            last: number,
            last_id: id(base, last),
            frames: &text,
            expires_at: None,
        });
        let mut of_end = String::new();
        if let Some(end) = end {
            frame::append(&mut of_end, end);
        }
        let ended = (logged && end.is_some()).then(|| NewBatch {
            run: Some(id_of_run),
            attempt: 0,
            first: 0,
            last: 0,
            last_id: EventId { seq: 1, ..id(base, n) },
            frames: &of_end,
            expires_at: None,
        });
        let batches: Vec<NewBatch<'_>> = batch.into_iter().chain(ended).collect();
        let values = json!({"n": n}).to_string();
        agent
            .store
            .write(async |tx| {
                if end.is_some() {
                    let left = threads::ThreadOutcome {
                        state: Some((values.as_str(), "{}")),
                        error: None,
                    };
                    runs::finish(tx, agent.tenant, id_of_run, RunStatus::Success).await?;
                    threads::settle(tx, agent.tenant, thread, ThreadStatus::Idle, &left).await?;
                }
                run_events::append_all(tx, agent.tenant, thread, &batches).await
            })
            .await
            .unwrap();
        let waited = usize::try_from(pending).expect("a few");
        run.pending.clear();
        run.waits_since = None;
        if logged {
            run.frames
                .iter_mut()
                .rev()
                .take(waited)
                .for_each(|sent| sent.logged = true);
        }
    }

    /// The worker dies with what it did not log, and another one begins.
    fn kill(&mut self) {
        let run = self.current();
        if run.number > 0 {
            run.pending.clear();
            run.waits_since = None;
            run.attempt += 1;
            run.number = 0;
        }
    }

    async fn end(&mut self, delivery: Delivery) {
        let (n, base) = (self.n, self.base);
        let run = self.current();
        let end = RunEnd {
            status: Some(RunStatus::Success),
            attempt: run.attempt,
            last: run.number,
            values: None,
            error: None,
        };
        let text = Frame {
            run: Some(run.id),
            attempt: 0,
            number: 0,
            id: EventId { seq: 1, ..id(base, n) },
            event: END,
            data: &json!(end).to_string(),
        }
        .encode();
        self.write(Some(&text)).await;
        self.current().over = Some(RunStatus::Success);
        self.publish(text, delivery);
    }

    /// Somebody cancels the run, which this process ends. The other one hears nothing of it.
    async fn cancel(&mut self) {
        let (thread, run) = (self.thread, self.current().id);
        let path = format!("/threads/{thread}/runs/{run}/cancel");
        let status = self.agent.post(&path, &json!({})).await.status;
        assert!(status.is_success(), "{}: {path}: {status}", self.name);
        let run = self.current();
        run.pending.clear();
        run.over = Some(RunStatus::Interrupted);
    }

    /// A reader comes.
    async fn read(&mut self) {
        let (router, process) = self.process();
        let (thread, at) = (self.thread, self.runs.len() - 1);
        let (run, is_logged) = (self.runs[at].id, self.runs[at].logged);
        let of_run = format!("/threads/{thread}/runs/{run}");
        let (kind, is_slow) = (self.dice.below(5), self.dice.one_in(4));
        let mut since = ReadFrom::Now;
        if kind == 0 || is_logged {
            since = *self.dice.pick(&[ReadFrom::Start, ReadFrom::After(0), ReadFrom::Now]);
        }
        if kind == 0 && since == ReadFrom::Now {
            since = ReadFrom::Start;
        }
        if matches!(since, ReadFrom::After(_)) {
            // It had a frame that was logged.
            let among: Vec<i64> = self
                .runs
                .iter()
                .enumerate()
                .filter(|(nth, made)| made.logged && (kind == 0 || *nth == at))
                .flat_map(|(_, made)| made.frames.iter().filter(|sent| sent.logged).map(|sent| sent.n))
                .collect();
            since = if among.is_empty() {
                ReadFrom::Start
            } else {
                ReadFrom::After(*self.dice.pick(&among))
            };
        }
        let header = match since {
            ReadFrom::Start => Some("-".to_owned()),
            ReadFrom::After(n) => Some(id(self.base, n).to_string()),
            ReadFrom::Now => None,
        };
        let named = |what: &str| format!("{}: {what} {process}, since {since:?}, run {}", self.name, at + 1);
        let reading = match kind {
            0 => {
                let path = format!("/threads/{thread}/stream");
                let open = OpenResponse::stream(&router, &path, header.as_deref()).await;
                let how = FollowPlan {
                    until: Some(self.last.subscribe()),
                    ..FollowPlan::default()
                };
                let task = if is_slow {
                    Task::Slow(open)
                } else {
                    Task::Events(tokio::spawn(follow(open, how)))
                };
                ReaderTask {
                    name: named("the reader of the thread"),
                    run: None,
                    since,
                    task,
                }
            }
            1 => {
                let path = format!("{of_run}/join");
                let open = OpenResponse::stream(&router, &path, None).await;
                ReaderTask {
                    name: named("who waits"),
                    run: Some(at),
                    since: ReadFrom::Now,
                    task: Task::Answer(tokio::spawn(open.json())),
                }
            }
            _ => {
                let path = format!("{of_run}/stream");
                let open = OpenResponse::stream(&router, &path, header.as_deref()).await;
                let comes_back = is_logged && !is_slow && kind == 2;
                let mut how = FollowPlan::default();
                if comes_back {
                    how.breaks = vec![3, 1];
                    how.resume = Some((router.clone(), path, self.base));
                }
                let task = if is_slow {
                    Task::Slow(open)
                } else {
                    Task::Events(tokio::spawn(follow(open, how)))
                };
                let what = match (is_slow, comes_back) {
                    (true, _) => "the slow reader",
                    (_, true) => "the reader that comes back",
                    _ => "the reader",
                };
                ReaderTask {
                    name: named(what),
                    run: Some(at),
                    since,
                    task,
                }
            }
        };
        self.readers.push(reading);
    }
}

fn id(base: i64, n: i64) -> EventId {
    EventId { ms: base + n, seq: 0 }
}

/// How a stream is read.
#[derive(Default)]
struct FollowPlan {
    /// The reader leaves after so many frames, each time.
    breaks: Vec<usize>,
    /// Where it comes back to.
    resume: Option<(Router, String, i64)>,
    /// The stream is read to the end of this run, once that is known; else to its own end.
    until: Option<watch::Receiver<Option<RunId>>>,
}

async fn follow(mut open: OpenResponse, mut how: FollowPlan) -> Vec<ReaderEvent> {
    let (mut got, mut had) = (Vec::new(), 0);
    while let Some((event, data)) = open.next().await {
        match event.as_str() {
            "values" => {
                let n = data["n"].as_i64().expect("the number of a frame");
                got.push(ReaderEvent::Frame(n));
                had += 1;
                if let Some((router, path, base)) = &how.resume
                    && how.breaks.last() == Some(&had)
                {
                    open = OpenResponse::stream(router, path, Some(&id(*base, n).to_string())).await;
                    how.breaks.pop();
                    had = 0;
                }
            }
            "error" => {
                assert_eq!(data["error"], "StreamCut", "{data}");
                got.push(ReaderEvent::Cut);
            }
            "metadata" if data["status"] == "run_done" => {
                let run = data["run_id"].as_str().and_then(|id| id.parse().ok());
                let run: RunId = run.expect("the id of a run");
                got.push(ReaderEvent::Done(run));
                if how.until.as_ref().is_some_and(|until| *until.borrow() == Some(run)) {
                    break;
                }
            }
            _ => {}
        }
    }
    got
}
