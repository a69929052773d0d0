//! Calls to chat models over the OpenAI chat completions API.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use towpath_outbound::Reply;

use super::http_client::{self, Events, Request};
use super::job::{NodeOutput, NodeStop, TaskContext};
use super::messages;
use super::template::Template;
use crate::{GraphError, ids};

/// A chat call, as declared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Llm {
    #[serde(default = "openai")]
    provider: String,
    base_url: String,
    model: String,
    /// Name of the secret; no `Authorization` without it.
    #[serde(default)]
    api_key_env: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, Template>,
    /// Put before the messages.
    #[serde(default)]
    system: Option<Template>,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    max_tokens: Option<u64>,
    /// Tools in OpenAI's form, offered as they are.
    #[serde(default)]
    tools: Vec<Value>,
    /// More fields of the request.
    #[serde(default)]
    extra: Map<String, Value>,
    #[serde(default = "yes")]
    stream: bool,
    #[serde(default = "ten_minutes")]
    timeout_ms: u64,
    /// Tries after a failure before the first token.
    #[serde(default = "two")]
    max_retries: u32,
}

fn openai() -> String {
    "openai-compatible".to_owned()
}
const fn yes() -> bool {
    true
}
const fn ten_minutes() -> u64 {
    600_000
}
const fn two() -> u32 {
    2
}

impl Llm {
    pub(super) fn checked(self) -> Result<Self, String> {
        if self.provider != "openai-compatible" {
            return Err(format!(
                "unknown provider {:?}: expected openai-compatible",
                self.provider
            ));
        }
        if !self.base_url.starts_with("http://") && !self.base_url.starts_with("https://") {
            return Err("`base_url` must be an http or https address".to_owned());
        }
        Ok(self)
    }

    /// Offers tools beside those declared here.
    pub(super) fn offer(&mut self, tools: Vec<Value>) {
        self.tools.extend(tools);
    }

    pub(super) async fn run(&self, job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
        let mut asked: Vec<Value> = Vec::new();
        if let Some(system) = &self.system {
            asked.push(json!({"role": "system", "content": system.fill_text(job.input)}));
        }
        let history = job.input.get("messages").and_then(Value::as_array);
        let history = history.map(Vec::as_slice).unwrap_or_default();
        asked.extend(history.iter().map(to_openai));
        let model = job.model_starts(&self.model, history, self.temperature);
        let mut tries = 0;
        let answer = loop {
            let reply = self.call(job, &asked).await;
            let (error, pause) = match reply {
                Ok(reply) if reply.status().is_success() => break self.read(job, &model, reply).await?,
                Ok(reply) => {
                    let pause = retry_after(&reply);
                    let again = matches!(reply.status().as_u16(), 408 | 409 | 429 | 500..);
                    let error = refused(reply).await;
                    if !again {
                        return Err(error.into());
                    }
                    (error, pause)
                }
                Err(error) if matches!(error.class.as_str(), "ConnectionError" | "TimeoutError") => (error, None),
                Err(error) => return Err(error.into()),
            };
            if tries >= self.max_retries {
                return Err(error.into());
            }
            tries += 1;
            let pause = pause.unwrap_or_else(|| Duration::from_millis(250 << tries.min(6)));
            tokio::time::sleep(pause.min(Duration::from_secs(30))).await;
        };
        job.model_ends(&model, &answer);
        Ok(NodeOutput::update(json!({"messages": [answer]})))
    }

    async fn call(&self, job: &TaskContext<'_>, asked: &[Value]) -> Result<Reply, GraphError> {
        let mut body = Map::from_iter([
            ("model".to_owned(), Value::from(self.model.as_str())),
            ("messages".to_owned(), Value::from(asked)),
        ]);
        if self.stream {
            body.insert("stream".to_owned(), Value::from(true));
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        if let Some(temperature) = self.temperature {
            body.insert("temperature".to_owned(), Value::from(temperature));
        }
        if let Some(max) = self.max_tokens {
            body.insert("max_tokens".to_owned(), Value::from(max));
        }
        if !self.tools.is_empty() {
            body.insert("tools".to_owned(), Value::from(self.tools.clone()));
        }
        body.extend(self.extra.clone());
        let body = Value::Object(body);
        let request = Request {
            method: "POST",
            url: &format!("{}/chat/completions", self.base_url.trim_end_matches('/')),
            headers: &self.headers,
            bearer: self.api_key_env.as_deref(),
            body: Some(&body),
            accept: if self.stream {
                "text/event-stream"
            } else {
                "application/json"
            },
            limit: Duration::from_millis(self.timeout_ms),
        };
        request.send(job, job.input).await
    }

    async fn read(&self, job: &TaskContext<'_>, model: &ModelCall, reply: Reply) -> Result<Value, GraphError> {
        if http_client::content_type(&reply) == "text/event-stream" {
            return stream(job, model, Events::new(reply)).await;
        }
        let body = reply
            .bytes(http_client::LONGEST)
            .await
            .map_err(|error| http_client::connection(&error))?;
        let body: Value = serde_json::from_slice(&body)
            .map_err(|error| GraphError::new("ValueError", format!("the model's answer is not JSON: {error}")))?;
        let choice = body.pointer("/choices/0");
        let choice = choice.ok_or_else(|| GraphError::new("ValueError", "the model's answer has no choice"))?;
        let mut answer = ModelAnswer::default();
        answer.add_delta(&choice["message"]);
        answer.finish(choice, &body);
        Ok(answer.message(&model.message_id))
    }
}

/// A call that is under way.
pub(super) struct ModelCall {
    pub(super) id: String,
    pub(super) message_id: String,
    pub(super) name: String,
    /// Metadata of its tokens.
    pub(super) metadata: Option<Box<serde_json::value::RawValue>>,
}

async fn stream(job: &TaskContext<'_>, model: &ModelCall, mut events: Events) -> Result<Value, GraphError> {
    let mut answer = ModelAnswer::default();
    while let Some((_, data)) = events.event().await? {
        if data == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(&data)
            .map_err(|error| GraphError::new("ValueError", format!("the model's stream is not JSON: {error}")))?;
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            let message = error.get("message").unwrap_or(error);
            return Err(GraphError::new("APIError", super::template::as_text(message)));
        }
        let choice = chunk.pointer("/choices/0").cloned().unwrap_or_default();
        let delta = &choice["delta"];
        let piece = answer.add_delta(delta);
        answer.finish(&choice, &chunk);
        if job.wants_tokens() && (piece.told || choice["finish_reason"].is_string() || chunk["usage"].is_object()) {
            let mut told = messages::ai_chunk(&model.message_id, &piece.text, false);
            if !piece.calls.is_empty() {
                told["tool_call_chunks"] = Value::from(piece.calls);
            }
            if chunk["usage"].is_object() {
                told["usage_metadata"] = answer.usage.clone();
            }
            if choice["finish_reason"].is_string() {
                told["response_metadata"] = Value::Object(answer.metadata.clone());
            }
            job.token(model, &told, || answer.message(&model.message_id));
            if !events.ready() {
                job.run.sink.flush().await?;
            }
        }
    }
    if job.wants_tokens() {
        let last = messages::ai_chunk(&model.message_id, "", true);
        job.token(model, &last, || answer.message(&model.message_id));
        job.run.sink.flush().await?;
    }
    Ok(answer.message(&model.message_id))
}

/// An answer as it grows.
#[derive(Default)]
struct ModelAnswer {
    text: String,
    /// By the provider's index: id, name, arguments.
    calls: BTreeMap<u64, (String, String, String)>,
    extra: Map<String, Value>,
    metadata: Map<String, Value>,
    usage: Value,
}

/// What one delta brought.
struct Delta {
    text: String,
    calls: Vec<Value>,
    told: bool,
}

impl ModelAnswer {
    fn add_delta(&mut self, delta: &Value) -> Delta {
        let text = delta
            .get("content")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        self.text.push_str(&text);
        for key in ["refusal", "reasoning_content"] {
            if let Some(more) = delta.get(key).and_then(Value::as_str) {
                let held = self.extra.entry(key).or_insert_with(|| Value::from(""));
                *held = Value::from(format!("{}{more}", held.as_str().unwrap_or_default()));
            }
        }
        let mut calls = Vec::new();
        for (at, call) in delta
            .get("tool_calls")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let index = call.get("index").and_then(Value::as_u64).unwrap_or(at as u64);
            let part = |pointer: &str| call.pointer(pointer).and_then(Value::as_str);
            let (id, name, arguments) = self.calls.entry(index).or_default();
            id.push_str(part("/id").filter(|_| id.is_empty()).unwrap_or_default());
            name.push_str(part("/function/name").unwrap_or_default());
            arguments.push_str(part("/function/arguments").unwrap_or_default());
            calls.push(json!({
                "name": part("/function/name"), "args": part("/function/arguments"), "id": part("/id"), "index": index,
                "type": "tool_call_chunk",
            }));
        }
        Delta {
            told: !text.is_empty() || !calls.is_empty(),
            text,
            calls,
        }
    }

    fn finish(&mut self, choice: &Value, body: &Value) {
        if let Some(reason) = choice.get("finish_reason").filter(|reason| reason.is_string()) {
            self.metadata.insert("finish_reason".to_owned(), reason.clone());
            if let Some(name) = body.get("model").filter(|name| name.is_string()) {
                self.metadata.insert("model_name".to_owned(), name.clone());
            }
        }
        if let Some(usage) = body.get("usage").filter(|usage| usage.is_object()) {
            let count = |key: &str| usage.get(key).and_then(Value::as_u64).unwrap_or(0);
            let (input, output) = (count("prompt_tokens"), count("completion_tokens"));
            let total = usage
                .get("total_tokens")
                .and_then(Value::as_u64)
                .unwrap_or(input + output);
            self.usage = json!({"input_tokens": input, "output_tokens": output, "total_tokens": total});
        }
    }

    fn message(&self, id: &str) -> Value {
        let (mut calls, mut invalid) = (Vec::new(), Vec::new());
        for (id, name, arguments) in self.calls.values() {
            let text = if arguments.is_empty() { "{}" } else { arguments };
            match serde_json::from_str::<Value>(text) {
                Ok(args) if args.is_object() => {
                    calls.push(json!({"name": name, "args": args, "id": id, "type": "tool_call"}));
                }
                _ => invalid.push(json!({
                    "name": name, "args": arguments, "id": id, "error": null, "type": "invalid_tool_call",
                })),
            }
        }
        let mut message = messages::ai(id, &self.text);
        message["tool_calls"] = Value::from(calls);
        message["invalid_tool_calls"] = Value::from(invalid);
        message["usage_metadata"] = self.usage.clone();
        message["additional_kwargs"] = Value::Object(self.extra.clone());
        message["response_metadata"] = Value::Object(self.metadata.clone());
        message
    }
}

impl ModelCall {
    pub(super) fn new(name: &str, metadata: Option<Box<serde_json::value::RawValue>>) -> Self {
        let id = ids::message();
        Self {
            message_id: format!("run--{id}"),
            id,
            name: name.to_owned(),
            metadata,
        }
    }
}

fn to_openai(message: &Value) -> Value {
    let role = match message["type"].as_str() {
        Some("human") => "user",
        Some("ai") => "assistant",
        Some("system") => message["additional_kwargs"]["__openai_role__"]
            .as_str()
            .unwrap_or("system"),
        Some(other) => other,
        None => "user",
    };
    let mut out = json!({"role": role, "content": message["content"]});
    if let Some(name) = message["name"].as_str() {
        out["name"] = Value::from(name);
    }
    if let Some(id) = message["tool_call_id"].as_str() {
        out["tool_call_id"] = Value::from(id);
    }
    let calls = message["tool_calls"].as_array().filter(|calls| !calls.is_empty());
    if let Some(calls) = calls {
        out["tool_calls"] = calls
            .iter()
            .map(|call| {
                let function = json!({"name": call["name"], "arguments": call["args"].to_string()});
                json!({"id": call["id"], "type": "function", "function": function})
            })
            .collect();
        if message["content"].as_str() == Some("") {
            out["content"] = Value::Null;
        }
    }
    out
}

fn retry_after(reply: &Reply) -> Option<Duration> {
    let seconds = reply.headers().get("retry-after")?.to_str().ok()?.parse::<f64>().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

async fn refused(reply: Reply) -> GraphError {
    let status = reply.status().as_u16();
    let class = match status {
        400 => "BadRequestError",
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        422 => "UnprocessableEntityError",
        429 => "RateLimitError",
        500.. => "InternalServerError",
        _ => "APIStatusError",
    };
    GraphError::new(
        class,
        format!("Error code: {status} - {}", http_client::excerpt(reply).await),
    )
}
