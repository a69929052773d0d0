//! `towpath bench agent`: what an agent server does for clients that wait for their answers.
//!
//! The clients share the machine with the server, and each waits for an answer before it asks again.

mod memory;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::python::{self, Bare};
use super::report::Report;
use super::server::{self, Child};
use crate::arguments::{BenchAgent, BenchGraph};
use crate::config::{Config, Inputs, Mode};

/// Clients at a time.
const CLIENTS: [usize; 3] = [1, 16, 64];
/// Runs that are recorded at once and waited for together.
const BACKGROUND: usize = 500;
/// Who works on threads at a time.
const THREAD_CLIENTS: usize = 16;
/// The longest a phase may take to come to its end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Clients of the Python graph.
const PYTHON_CLIENTS: [usize; 2] = [20, 64];
/// Processes of the Python graph: what one processor does is what is compared.
const PYTHON_HOSTS: usize = 1;

pub async fn run(options: &BenchAgent) -> anyhow::Result<()> {
    if options.graph == BenchGraph::Python {
        return python(options).await;
    }
    let child = match options.server {
        Some(_) => None,
        None => Some(Child::agent().await.context("starting a server of its own")?),
    };
    let base = match (&child, &options.server) {
        (Some(child), _) => child.base(),
        (None, Some(server)) => server.trim_end_matches('/').to_owned(),
        (None, None) => unreachable!("without a server one was started"),
    };
    let bench = Arc::new(Bench {
        http: Client::builder().no_proxy().timeout(PATIENCE).build()?,
        base,
        phase: Duration::from_secs(options.seconds),
        question: json!({
            "assistant_id": options.assistant,
            "input": {"messages": [{"role": "user", "content": "hello"}]},
        }),
    });
    let mut report = Report::default();
    let memory = |report: &mut Report, what: &str| {
        if let Some(mb) = child.as_ref().and_then(Child::memory_mb) {
            report.note(what, mb, "MB");
        }
    };
    memory(&mut report, "memory, idle");
    let measured = match (options.runs, &child) {
        (Some(runs), Some(child)) => memory::measure(&bench, child, runs, &mut report).await,
        _ => {
            let measured = bench.measure(&mut report).await;
            memory(&mut report, "memory, after");
            measured
        }
    };
    if let Some(child) = child {
        child.stop().await?;
    }
    measured?;
    report.print(options.output)
}

/// The Python graph: first on a process without a server, then through one.
async fn python(options: &BenchAgent) -> anyhow::Result<()> {
    let folder = server::folder()?;
    python::write(folder.path())?;
    let config = Config::load(&Inputs::of_process(Mode::Agent, Vec::new(), None))?;
    let python = python::interpreter(options.python.as_deref(), &config, folder.path()).await?;
    let phase = Duration::from_secs(options.seconds);
    let mut report = Report::default();
    let bare = Bare::start(&python, folder.path(), PYTHON_HOSTS).await?;
    let mut alone = Vec::new();
    for clients in PYTHON_CLIENTS {
        let seen = bare.closed(clients, phase).await?;
        seen.note(&mut report, &format!("process alone, {clients} at a time"), "runs/s");
        alone.push(seen.rate());
    }
    drop(bare);
    let child = Child::agent_in(folder, &python, PYTHON_HOSTS).await;
    let child = child.context("starting a server of its own")?;
    let bench = Arc::new(Bench {
        http: Client::builder().no_proxy().timeout(PATIENCE).build()?,
        base: child.base(),
        phase,
        question: json!({"assistant_id": "agent", "input": python::input()}),
    });
    let measured = async {
        for (clients, alone) in PYTHON_CLIENTS.into_iter().zip(alone) {
            let seen = bench.closed(clients, Bench::create_and_wait).await?;
            seen.note(&mut report, &format!("through the server, {clients} clients"), "runs/s");
            report.note(
                format!("of the process alone, {clients}"),
                100.0 * seen.rate() / alone,
                "%",
            );
        }
        let seen = bench.closed(1, Bench::first_event).await?;
        seen.note(&mut report, "first event, 1 client", "runs/s");
        anyhow::Ok(())
    };
    let measured = measured.await;
    child.stop().await?;
    measured?;
    report.print(options.output)
}

struct Bench {
    http: Client,
    base: String,
    phase: Duration,
    question: Value,
}

impl Bench {
    async fn measure(self: &Arc<Self>, report: &mut Report) -> anyhow::Result<()> {
        for clients in CLIENTS {
            let seen = self.closed(clients, Self::create_and_wait).await?;
            seen.note(report, &format!("create and wait, {clients} clients"), "runs/s");
        }
        let seen = self.closed(1, Self::first_event).await?;
        seen.note(report, "first event, 1 client", "runs/s");
        let rate = self.background().await?;
        report.note(format!("{BACKGROUND} background runs"), rate, "runs/s");
        let thread = self.thread().await?;
        let seen = self
            .closed(THREAD_CLIENTS, async |bench| bench.thread().await.map(drop))
            .await?;
        seen.note(report, "threads created, 16 clients", "1/s");
        let state = format!("/threads/{thread}/state");
        let seen = self
            .closed(THREAD_CLIENTS, {
                move |bench: Arc<Self>| {
                    let state = state.clone();
                    async move { bench.get(&state).await }
                }
            })
            .await?;
        seen.note(report, "thread state read, 16 clients", "1/s");
        let seen = self
            .closed(THREAD_CLIENTS, async |bench| {
                bench
                    .post("/threads/search", &json!({"limit": 10}))
                    .await?
                    .bytes()
                    .await?;
                Ok(())
            })
            .await?;
        seen.note(report, "threads searched, 16 clients", "1/s");
        Ok(())
    }

    /// `clients` that do `one` again and again for the length of a phase.
    async fn closed<F, Fut>(self: &Arc<Self>, clients: usize, one: F) -> anyhow::Result<Seen>
    where
        F: Fn(Arc<Self>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send,
    {
        // Connections and caches.
        one(self.clone()).await?;
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (bench, one) = (self.clone(), one.clone());
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < bench.phase {
                    let asked = Instant::now();
                    one(bench.clone()).await?;
                    latencies.push(asked.elapsed());
                }
                Ok::<_, anyhow::Error>(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        let took = started.elapsed();
        Ok(Seen::new(latencies, took))
    }

    async fn create_and_wait(self: Arc<Self>) -> anyhow::Result<()> {
        let answer: Value = self.post("/runs/wait", &self.question).await?.json().await?;
        ensure!(answer.get("__error__").is_none(), "a run failed: {answer}");
        Ok(())
    }

    async fn first_event(self: Arc<Self>) -> anyhow::Result<()> {
        let mut answer = self.post("/runs/stream", &self.question).await?;
        ensure!(answer.chunk().await?.is_some(), "a stream ended before its first event");
        Ok(())
    }

    /// From the first of them recorded to the last of them over.
    async fn background(&self) -> anyhow::Result<f64> {
        let batch = Value::Array(vec![self.question.clone(); BACKGROUND]);
        let started = Instant::now();
        self.post("/runs/batch", &batch).await?.bytes().await?;
        loop {
            let answer: Value = self
                .http
                .get(format!("{}/metrics?format=json", self.base))
                .send()
                .await?
                .error_for_status()?
                .json()
                .await?;
            let count = |name: &str| answer["queue"][name].as_u64();
            let open = count("n_pending")
                .zip(count("n_running"))
                .context("the server tells no queue")?;
            if open == (0, 0) {
                return Ok(BACKGROUND as f64 / started.elapsed().as_secs_f64());
            }
            ensure!(started.elapsed() < PATIENCE, "background runs are not over: {open:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn thread(&self) -> anyhow::Result<String> {
        let made: Value = self.post("/threads", &json!({})).await?.json().await?;
        Ok(made["thread_id"].as_str().context("a thread has an id")?.to_owned())
    }

    async fn get(&self, path: &str) -> anyhow::Result<()> {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await?;
        answer.error_for_status()?.bytes().await?;
        Ok(())
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        let answer = self.http.post(format!("{}{path}", self.base)).json(body).send().await?;
        Ok(answer.error_for_status()?)
    }
}

/// A phase.
pub(super) struct Seen {
    /// Sorted.
    latencies: Vec<Duration>,
    took: Duration,
}

impl Seen {
    /// What was seen of a phase that took so long.
    pub(super) fn new(mut latencies: Vec<Duration>, took: Duration) -> Self {
        latencies.sort_unstable();
        Self { latencies, took }
    }

    /// How many a second.
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    fn note(&self, report: &mut Report, what: &str, unit: &'static str) {
        report.note(what, self.rate(), unit);
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let at = ((self.latencies.len() as f64 * share) as usize).min(self.latencies.len().saturating_sub(1));
            let latency = self.latencies.get(at).copied().unwrap_or_default();
            report.note(format!("{what}, {name}"), latency.as_secs_f64() * 1000.0, "ms");
        }
    }
}
