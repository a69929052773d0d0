//! A graph that does a given amount of work: for measurements.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::job::{NodeOutput, NodeStop, TaskContext};
use super::messages;

/// The amount of work; all fields but `steps` apply to each node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bench {
    /// Nodes, one after the other.
    #[serde(default = "one")]
    steps: u32,
    /// Bytes of text it writes into the state.
    #[serde(default)]
    payload_bytes: usize,
    /// Tokens it streams.
    #[serde(default)]
    chunks: u32,
    /// CPU time it burns, in microseconds.
    #[serde(default)]
    spin_us: u64,
    /// Time it waits, in milliseconds.
    #[serde(default)]
    sleep_ms: u64,
}

const fn one() -> u32 {
    1
}

impl Bench {
    /// The nodes it stands for.
    pub(super) fn nodes(&self) -> Vec<(String, Self)> {
        (1..=self.steps.clamp(1, 1000))
            .map(|at| (format!("step_{at}"), self.clone()))
            .collect()
    }

    pub(super) async fn run(&self, job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
        if self.sleep_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.sleep_ms)).await;
        }
        spin(self.spin_us);
        if self.chunks > 0 && job.wants_tokens() {
            let model = job.speech();
            let mut text = String::new();
            for at in 1..=self.chunks {
                text.push_str("word ");
                let chunk = messages::ai_chunk(&model.message_id, "word ", at == self.chunks);
                job.token(&model, &chunk, || messages::ai(&model.message_id, &text));
                job.run.sink.flush().await?;
            }
        }
        let count = job.input.get("count").and_then(Value::as_u64).unwrap_or(0) + 1;
        let mut update = json!({"count": count});
        if self.payload_bytes > 0 {
            update["payload"] = Value::from("x".repeat(self.payload_bytes));
        }
        Ok(NodeOutput::update(update))
    }
}

/// Burns CPU time.
pub(super) fn spin(micros: u64) {
    let begin = Instant::now();
    let long = Duration::from_micros(micros);
    while micros > 0 && begin.elapsed() < long {
        std::hint::spin_loop();
    }
}
