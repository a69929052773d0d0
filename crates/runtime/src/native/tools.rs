//! Tools a model may call: HTTP endpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::http_client::{self, Request};
use super::job::{NodeOutput, NodeStop, TaskContext};
use super::messages;
use super::template::{Template, as_text, at};
use crate::GraphError;

/// The tools of a react graph.
#[derive(Clone, Debug)]
pub(super) struct Tools(Vec<Tool>);

/// A tool: its description for the model, and its HTTP call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    name: String,
    #[serde(default)]
    description: String,
    /// JSON schema of the arguments.
    #[serde(default = "no_arguments")]
    parameters: Value,
    /// `${/argument}` is filled, escaped.
    url: String,
    #[serde(default = "post")]
    method: String,
    #[serde(default)]
    headers: BTreeMap<String, Template>,
    /// Filled from the arguments; by default they are the body (or the query, for GET and DELETE).
    #[serde(default)]
    body: Option<Template>,
    /// What of a JSON answer the model sees.
    #[serde(default)]
    result: Option<String>,
    #[serde(default = "a_minute")]
    timeout_ms: u64,
}

fn no_arguments() -> Value {
    json!({"type": "object", "properties": {}})
}
fn post() -> String {
    "POST".to_owned()
}
const fn a_minute() -> u64 {
    60_000
}

impl Tools {
    pub(super) fn new(tools: Vec<Tool>) -> Result<Self, String> {
        for (at, tool) in tools.iter().enumerate() {
            if tool.name.is_empty() || tools[..at].iter().any(|other| other.name == tool.name) {
                return Err(format!("tool {:?}: names must be unique and not empty", tool.name));
            }
            if !tool.url.starts_with("http://") && !tool.url.starts_with("https://") {
                return Err(format!("tool {:?}: `url` must be an http or https address", tool.name));
            }
        }
        Ok(Self(tools))
    }

    /// As the model's request offers them.
    pub(super) fn offered(&self) -> Vec<Value> {
        let offered = |tool: &Tool| {
            let function = json!({
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            });
            json!({"type": "function", "function": function})
        };
        self.0.iter().map(offered).collect()
    }

    /// One call if the task was sent one; else every call of the last message.
    pub(super) async fn run(&self, job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
        let calls: Vec<&Value> = match job.input.get("tool_call") {
            Some(call) => vec![call],
            None => {
                let last = job
                    .input
                    .get("messages")
                    .and_then(Value::as_array)
                    .and_then(|list| list.last());
                last.map(|last| open_calls(last).collect()).unwrap_or_default()
            }
        };
        let calls = calls.into_iter().map(|call| self.call(job, call));
        let answers = futures::future::try_join_all(calls).await?;
        Ok(NodeOutput::update(json!({"messages": answers})))
    }

    /// A failure becomes the tool's result, so that the model can react.
    async fn call(&self, job: &TaskContext<'_>, call: &Value) -> Result<Value, NodeStop> {
        let name = call["name"].as_str().unwrap_or_default();
        let id = call["id"].as_str().unwrap_or_default();
        let Some(tool) = self.0.iter().find(|tool| tool.name == name) else {
            let names: Vec<&str> = self.0.iter().map(|tool| tool.name.as_str()).collect();
            let text = format!("Error: {name} is not a valid tool, try one of [{}].", names.join(", "));
            return Ok(messages::tool_failure(name, id, &text));
        };
        job.stream_tool_event(
            &json!({"event": "tool-started", "tool_call_id": id, "tool_name": name, "input": call["args"]}),
        );
        // It may take a while.
        job.run.sink.flush().await?;
        let answer = match tool.call(job, &call["args"]).await {
            Ok(text) => {
                let message = messages::tool_answer(name, id, &text);
                job.stream_tool_event(&json!({"event": "tool-finished", "tool_call_id": id, "output": message}));
                message
            }
            Err(error) => {
                job.stream_tool_event(
                    &json!({"event": "tool-error", "tool_call_id": id, "message": error.to_string()}),
                );
                messages::tool_failure(name, id, &format!("Error: {error}"))
            }
        };
        Ok(answer)
    }
}

impl Tool {
    async fn call(&self, job: &TaskContext<'_>, args: &Value) -> Result<String, GraphError> {
        let in_query = matches!(self.method.as_str(), "GET" | "DELETE" | "HEAD");
        let mut url = filled_url(&self.url, args);
        let body = match &self.body {
            Some(body) => Some(body.fill(args)),
            None if in_query => {
                url = with_query(&url, args, &self.url)?;
                None
            }
            None => Some(args.clone()),
        };
        let request = Request {
            method: &self.method,
            url: &url,
            headers: &self.headers,
            bearer: None,
            body: body.as_ref(),
            accept: "application/json, text/*;q=0.9, */*;q=0.5",
            limit: Duration::from_millis(self.timeout_ms),
        };
        let reply = request.send(job, args).await?;
        if !reply.status().is_success() {
            let status = reply.status().as_u16();
            return Err(GraphError::new(
                "HTTPError",
                format!("{status} {}", http_client::excerpt(reply).await),
            ));
        }
        let body = reply
            .bytes(1 << 20)
            .await
            .map_err(|error| http_client::connection(&error))?;
        let text = String::from_utf8_lossy(&body).into_owned();
        Ok(match &self.result {
            Some(pointer) => {
                let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
                at(&parsed, pointer).map(as_text).unwrap_or_default()
            }
            None => text,
        })
    }
}

/// The calls of a message that wants some.
pub(super) fn open_calls(message: &Value) -> impl Iterator<Item = &Value> {
    message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Fills `${/pointer}`, escaped for a URL.
pub(super) fn filled_url(url: &str, from: &Value) -> String {
    let mut filled = String::new();
    let mut rest = url;
    while let Some(begin) = rest.find("${/") {
        let Some(length) = rest[begin..].find('}') else { break };
        filled.push_str(&rest[..begin]);
        let value = at(from, &rest[begin + 2..begin + length])
            .map(as_text)
            .unwrap_or_default();
        filled.extend(url::form_urlencoded::byte_serialize(value.as_bytes()));
        rest = &rest[begin + length + 1..];
    }
    filled.push_str(rest);
    filled
}

/// Adds what the URL does not name already.
fn with_query(url: &str, args: &Value, declared: &str) -> Result<String, GraphError> {
    let mut parsed =
        url::Url::parse(url).map_err(|error| GraphError::new("ValueError", format!("the tool's address: {error}")))?;
    let rest: Vec<(&String, &Value)> = args
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| !declared.contains(&format!("${{/{key}}}")))
        .collect();
    if !rest.is_empty() {
        let mut query = parsed.query_pairs_mut();
        for (key, value) in rest {
            query.append_pair(key, &as_text(value));
        }
    }
    Ok(parsed.into())
}
