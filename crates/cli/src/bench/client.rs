//! A client of an agent server, of this project or the official one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use reqwest::{Client as Http, Response};
use serde_json::{Value, json};

/// Runs that are recorded together.
pub const BACKGROUND: usize = 500;
/// Time limit of a response or a batch of runs.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A client that always sends the same run. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: Http,
    base: String,
    question: Value,
}

impl Client {
    /// A client of the server at `base` for one assistant and input.
    pub fn new(base: String, assistant: &str, input: &Value) -> anyhow::Result<Self> {
        Ok(Self {
            http: Http::builder().no_proxy().timeout(TIMEOUT).build()?,
            base,
            question: json!({"assistant_id": assistant, "input": input}),
        })
    }

    /// Runs without a thread, and waits for the result.
    pub async fn create_and_wait(self) -> anyhow::Result<()> {
        let answer: Value = self.post("/runs/wait", &self.question).await?.json().await?;
        ensure!(answer.get("__error__").is_none(), "a run failed: {answer}");
        Ok(())
    }

    /// Runs without a thread, and reads the stream to its end.
    pub async fn stream(self) -> anyhow::Result<()> {
        let stream = self.post("/runs/stream", &self.question).await?.bytes().await?;
        ensure!(stream.ends_with(b"\r\n\r\n"), "a stream broke off");
        Ok(())
    }

    /// Runs on a new thread, and waits for the result.
    pub async fn run_on_thread(&self) -> anyhow::Result<()> {
        let path = format!("/threads/{}/runs/wait", self.thread().await?);
        let answer: Value = self.post(&path, &self.question).await?.json().await?;
        ensure!(answer.get("__error__").is_none(), "a run failed: {answer}");
        Ok(())
    }

    /// Runs without a thread, and waits for the first event of the stream.
    pub async fn first_event(self) -> anyhow::Result<()> {
        self.event("").await
    }

    /// Runs without a thread, and waits for the first values: the graph has started.
    pub async fn first_values(self) -> anyhow::Result<()> {
        self.event("event: values").await
    }

    async fn event(&self, wanted: &str) -> anyhow::Result<()> {
        let mut answer = self.post("/runs/stream", &self.question).await?;
        let mut seen = Vec::new();
        loop {
            let chunk = answer.chunk().await?;
            seen.extend(chunk.context("a stream ended before the event that was waited for")?);
            if String::from_utf8_lossy(&seen).contains(wanted) {
                return Ok(());
            }
        }
    }

    /// Records many runs at once. Returns runs per second, from the first recording to the last end.
    pub async fn background(&self, runs: usize) -> anyhow::Result<f64> {
        let batch = Value::Array(vec![self.question.clone(); runs]);
        let started = Instant::now();
        self.post("/runs/batch", &batch).await?.bytes().await?;
        loop {
            let answer: Value = self.get("/metrics?format=json").await?.json().await?;
            let count = |name: &str| answer["queue"][name].as_u64();
            let open = count("n_pending")
                .zip(count("n_running"))
                .context("the server reports no queue")?;
            if open == (0, 0) {
                return Ok(runs as f64 / started.elapsed().as_secs_f64());
            }
            ensure!(started.elapsed() < TIMEOUT, "background runs have not ended: {open:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Creates a thread and returns its id.
    pub async fn thread(&self) -> anyhow::Result<String> {
        let made: Value = self.post("/threads", &json!({})).await?.json().await?;
        Ok(made["thread_id"].as_str().context("a thread has an id")?.to_owned())
    }

    /// A `GET` that must succeed.
    pub async fn get(&self, path: &str) -> anyhow::Result<Response> {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await?;
        Ok(answer.error_for_status()?)
    }

    /// A `POST` that must succeed.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        let answer = self.http.post(format!("{}{path}", self.base)).json(body).send().await?;
        Ok(answer.error_for_status()?)
    }
}
