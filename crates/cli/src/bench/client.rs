//! A client of an agent server, ours or the official one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use reqwest::{Client as Http, Response};
use serde_json::{Value, json};

/// The longest an answer, or a batch of runs, may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at the queue.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A client; what it asks is always the same. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: Http,
    base: String,
    /// Body of a run that is created.
    question: Value,
}

impl Client {
    /// Asks the server at `base` to run an assistant on an input.
    ///
    /// # Errors
    /// There is no TLS.
    pub fn new(base: String, assistant: &str, input: &Value) -> anyhow::Result<Self> {
        Ok(Self {
            http: Http::builder().no_proxy().timeout(PATIENCE).build()?,
            base,
            question: json!({"assistant_id": assistant, "input": input}),
        })
    }

    /// A run without a thread, waited for.
    ///
    /// # Errors
    /// The server refuses it, or it fails.
    pub async fn create_and_wait(self) -> anyhow::Result<()> {
        let answer: Value = self.post("/runs/wait", &self.question).await?.json().await?;
        ensure!(answer.get("__error__").is_none(), "a run failed: {answer}");
        Ok(())
    }

    /// A run without a thread, streamed to its end.
    ///
    /// # Errors
    /// The server refuses it, or the stream breaks off.
    pub async fn stream(self) -> anyhow::Result<()> {
        let stream = self.post("/runs/stream", &self.question).await?.bytes().await?;
        ensure!(stream.ends_with(b"\r\n\r\n"), "a stream broke off");
        Ok(())
    }

    /// A run on a thread that is made for it and kept, waited for.
    ///
    /// # Errors
    /// The server refuses it, or it fails.
    pub async fn on_a_thread(&self) -> anyhow::Result<()> {
        let path = format!("/threads/{}/runs/wait", self.thread().await?);
        let answer: Value = self.post(&path, &self.question).await?.json().await?;
        ensure!(answer.get("__error__").is_none(), "a run failed: {answer}");
        Ok(())
    }

    /// A run without a thread, until the first event of its stream.
    ///
    /// # Errors
    /// The server refuses it, or there is none.
    pub async fn first_event(self) -> anyhow::Result<()> {
        self.event("").await
    }

    /// A run without a thread, until the first values: the graph has begun.
    ///
    /// # Errors
    /// The server refuses it, or there are none.
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

    /// Records so many runs at once; how many a second, from the first of them recorded to the last of them over.
    ///
    /// # Errors
    /// The server refuses them, or does not come to their end.
    pub async fn background(&self, runs: usize) -> anyhow::Result<f64> {
        let batch = Value::Array(vec![self.question.clone(); runs]);
        let started = Instant::now();
        self.post("/runs/batch", &batch).await?.bytes().await?;
        loop {
            let answer: Value = self.get("/metrics?format=json").await?.json().await?;
            let count = |name: &str| answer["queue"][name].as_u64();
            let open = count("n_pending")
                .zip(count("n_running"))
                .context("the server tells no queue")?;
            if open == (0, 0) {
                return Ok(runs as f64 / started.elapsed().as_secs_f64());
            }
            ensure!(started.elapsed() < PATIENCE, "background runs are not over: {open:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Makes a thread; its id.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn thread(&self) -> anyhow::Result<String> {
        let made: Value = self.post("/threads", &json!({})).await?.json().await?;
        Ok(made["thread_id"].as_str().context("a thread has an id")?.to_owned())
    }

    /// A `GET` that has to succeed.
    ///
    /// # Errors
    /// It does not.
    pub async fn get(&self, path: &str) -> anyhow::Result<Response> {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await?;
        Ok(answer.error_for_status()?)
    }

    /// A `POST` that has to succeed.
    ///
    /// # Errors
    /// It does not.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        let answer = self.http.post(format!("{}{path}", self.base)).json(body).send().await?;
        Ok(answer.error_for_status()?)
    }
}
