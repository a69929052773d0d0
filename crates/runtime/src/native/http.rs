//! A node that is a caller's HTTP service.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use towpath_outbound::Reply;

use super::http_client::{self, Events, Request};
use super::job::{NodeOutput, NodeStop, TaskContext};
use super::messages;
use super::template::{Template, as_text, at};
use super::tools::filled_url;
use crate::GraphError;

/// A call, as declared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Http {
    /// `${/pointer}` is filled from the state, escaped.
    url: String,
    #[serde(default = "post")]
    method: String,
    /// Values may have `${/pointer}` and `${env:NAME}`.
    #[serde(default)]
    headers: BTreeMap<String, Template>,
    /// Name of the secret for `Authorization: Bearer`.
    #[serde(default)]
    api_key_env: Option<String>,
    /// The state, without it.
    #[serde(default)]
    body: Option<Template>,
    #[serde(default)]
    reply: Format,
    /// Channel to a location in the answer (for a stream, in its last event) whose value is written to it.
    #[serde(default)]
    map: Option<BTreeMap<String, String>>,
    /// Place of a text in the answer that becomes an AI message.
    #[serde(default)]
    message: Option<String>,
    /// Location of the text in each event; the pieces are streamed as tokens and form an AI message.
    #[serde(default)]
    token: Option<String>,
    /// Channel that gets the list of a stream's events.
    #[serde(default)]
    events: Option<String>,
    #[serde(default = "five_minutes")]
    timeout_ms: u64,
}

/// How the answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// What its content type says.
    #[default]
    Auto,
    Json,
    Text,
    Sse,
    Ndjson,
}

fn post() -> String {
    "POST".to_owned()
}
const fn five_minutes() -> u64 {
    300_000
}

impl Http {
    pub(super) fn checked(self) -> Result<Self, String> {
        if !self.url.starts_with("http://") && !self.url.starts_with("https://") {
            return Err("`url` must be an http or https address".to_owned());
        }
        let places = self
            .map
            .iter()
            .flat_map(BTreeMap::values)
            .chain(&self.message)
            .chain(&self.token);
        for place in places {
            if !place.is_empty() && !place.starts_with('/') {
                return Err(format!("{place:?} is not a JSON pointer; it must begin with /"));
            }
        }
        Ok(self)
    }

    /// Channels it writes by name.
    pub(super) fn channels(&self) -> impl Iterator<Item = &str> {
        self.map
            .iter()
            .flat_map(BTreeMap::keys)
            .chain(&self.events)
            .map(String::as_str)
    }

    /// Whether it writes messages.
    pub(super) const fn speaks(&self) -> bool {
        self.message.is_some() || self.token.is_some()
    }

    pub(super) async fn run(&self, job: &TaskContext<'_>) -> Result<NodeOutput, NodeStop> {
        let body = match (&self.body, self.method.as_str()) {
            (Some(body), _) => Some(body.fill(job.input)),
            (None, "GET" | "HEAD" | "DELETE") => None,
            (None, _) => Some(job.input.value().clone()),
        };
        let url = filled_url(&self.url, job.input);
        let request = Request {
            method: &self.method,
            url: &url,
            headers: &self.headers,
            bearer: self.api_key_env.as_deref(),
            body: body.as_ref(),
            accept: match self.reply {
                Format::Auto => "application/json, text/event-stream, application/x-ndjson, text/plain;q=0.8",
                Format::Json => "application/json",
                Format::Text => "text/plain, */*;q=0.5",
                Format::Sse => "text/event-stream",
                Format::Ndjson => "application/x-ndjson",
            },
            limit: Duration::from_millis(self.timeout_ms),
        };
        let reply = request.send(job, job.input).await?;
        if !reply.status().is_success() {
            let status = reply.status().as_u16();
            let text = http_client::excerpt(reply).await;
            return Err(GraphError::new("HTTPError", format!("{status} {text}")).into());
        }
        let format = match self.reply {
            Format::Auto => match http_client::content_type(&reply).as_str() {
                "text/event-stream" => Format::Sse,
                "application/x-ndjson" | "application/jsonl" | "application/x-jsonlines" => Format::Ndjson,
                kind if kind == "application/json" || kind.ends_with("+json") => Format::Json,
                _ => Format::Text,
            },
            given => given,
        };
        let update = match format {
            Format::Sse | Format::Ndjson => self.stream(job, reply, format).await?,
            _ => self.whole(job, reply, format).await?,
        };
        Ok(NodeOutput::update(Value::Object(update)))
    }

    async fn whole(
        &self,
        job: &TaskContext<'_>,
        reply: Reply,
        format: Format,
    ) -> Result<Map<String, Value>, GraphError> {
        let body = reply
            .bytes(http_client::LONGEST)
            .await
            .map_err(|error| http_client::connection(&error))?;
        let answer = if format == Format::Text {
            Value::from(String::from_utf8_lossy(&body).into_owned())
        } else if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)
                .map_err(|error| GraphError::new("ValueError", format!("the answer is not JSON: {error}")))?
        };
        let mut update = self.mapped(job, &answer);
        if let Some(text) = self.message.as_deref().and_then(|place| at(&answer, place)) {
            let model = job.speech();
            update.insert(
                "messages".to_owned(),
                json!([messages::ai(&model.message_id, &as_text(text))]),
            );
        }
        Ok(update)
    }

    async fn stream(
        &self,
        job: &TaskContext<'_>,
        reply: Reply,
        format: Format,
    ) -> Result<Map<String, Value>, GraphError> {
        let mut events = Events::new(reply);
        let model = job.speech();
        let (mut text, mut all, mut last) = (String::new(), Vec::new(), Value::Null);
        loop {
            let data = match format {
                Format::Sse => events.event().await?.map(|(_, data)| data),
                _ => events.line().await?,
            };
            let Some(data) = data else { break };
            if data == "[DONE]" {
                break;
            }
            if data.trim().is_empty() {
                continue;
            }
            let event: Value = serde_json::from_str(&data).unwrap_or(Value::String(data));
            let piece = self.token.as_deref().and_then(|place| at(&event, place)).map(as_text);
            match piece {
                Some(piece) => {
                    text.push_str(&piece);
                    let chunk = messages::ai_chunk(&model.message_id, &piece, false);
                    job.token(&model, &chunk, || messages::ai(&model.message_id, &text));
                }
                None => job.custom(&event),
            }
            if self.events.is_some() {
                all.push(event.clone());
            }
            last = event;
            if !events.ready() {
                job.run.sink.flush().await?;
            }
        }
        let mut update = self.mapped(job, &last);
        if self.token.is_some() {
            job.token(&model, &messages::ai_chunk(&model.message_id, "", true), || {
                messages::ai(&model.message_id, &text)
            });
            update.insert("messages".to_owned(), json!([messages::ai(&model.message_id, &text)]));
        }
        if let Some(key) = &self.events {
            update.insert(key.clone(), Value::from(all));
        }
        Ok(update)
    }

    /// Which parts of an answer are written. Without `map`: everything to the channel `reply` if it exists, and an
    /// object's entries to the channels of the same names.
    fn mapped(&self, job: &TaskContext<'_>, answer: &Value) -> Map<String, Value> {
        let mut update = Map::new();
        if let Some(map) = &self.map {
            for (key, place) in map {
                update.insert(key.clone(), at(answer, place).cloned().unwrap_or_default());
            }
            return update;
        }
        if self.speaks() {
            return update;
        }
        if let Some(fields) = answer.as_object() {
            for (key, value) in fields.iter().filter(|(key, _)| job.plan.sort(key).is_some()) {
                update.insert(key.clone(), value.clone());
            }
        }
        if !update.contains_key("reply") && job.plan.sort("reply").is_some() {
            update.insert("reply".to_owned(), answer.clone());
        }
        update
    }
}
