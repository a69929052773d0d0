//! The echo graph: one AI message that repeats the last human text, streamed word by word.

use serde_json::{Value, json};

use super::job::{NodeOutput, NodeStop, TaskContext};
use super::messages;

pub(super) async fn run(job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
    let history = job.input.get("messages").and_then(Value::as_array);
    let last = history.and_then(|list| {
        let human = list.iter().rev().find(|message| message["type"] == "human");
        human.or_else(|| list.last())
    });
    let text = last.map(messages::text).unwrap_or_default();
    let model = job.speech();
    if job.wants_tokens() {
        let mut told = 0;
        for word in text.split_inclusive(' ') {
            told += word.len();
            let chunk = messages::ai_chunk(&model.message_id, word, told == text.len());
            job.token(&model, &chunk, || messages::ai(&model.message_id, &text[..told]));
        }
        job.run.sink.flush().await?;
    }
    Ok(NodeOutput::update(
        json!({"messages": [messages::ai(&model.message_id, &text)]}),
    ))
}
