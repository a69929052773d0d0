//! HTTP for nodes: headers with secrets, bodies read as lines or as server-sent events.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use towpath_outbound::{Call, CallError, Reply};

use super::job::TaskContext;
use super::template::Template;
use crate::GraphError;

/// An answer, or an event of one, that is longer is an error.
pub(super) const LONGEST: usize = 32 << 20;

/// What a declaration says about a call.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) url: &'a str,
    pub(super) headers: &'a BTreeMap<String, Template>,
    /// A secret for `Authorization: Bearer`.
    pub(super) bearer: Option<&'a str>,
    pub(super) body: Option<&'a Value>,
    pub(super) accept: &'static str,
    pub(super) limit: Duration,
}

impl Request<'_> {
    /// Makes the call. `state` fills the holes of headers.
    pub(super) async fn send(&self, job: &TaskContext<'_>, state: &Value) -> Result<Reply, GraphError> {
        let guard = job
            .run
            .services
            .guard()
            .ok_or_else(|| GraphError::new("RuntimeError", "calls to other servers are disabled on this server"))?;
        let mut headers = http::HeaderMap::new();
        let mut set = |name: &str, value: &str| -> Result<(), GraphError> {
            let wrong = || GraphError::new("ValueError", format!("header {name:?} has an invalid name or value"));
            let name = http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let mut value = http::HeaderValue::from_str(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(name, value);
            Ok(())
        };
        set("accept", self.accept)?;
        if self.body.is_some() {
            set("content-type", "application/json")?;
        }
        if let Some(secret) = self.bearer {
            set("authorization", &format!("Bearer {}", job.secret(secret)?))?;
        }
        for (name, value) in self.headers {
            set(name, &with_secrets(&value.fill_text(state), job)?)?;
        }
        let body = match self.body {
            Some(body) => {
                Bytes::from(serde_json::to_vec(body).map_err(|error| GraphError::new("ValueError", error.to_string()))?)
            }
            None => Bytes::new(),
        };
        let method = http::Method::from_bytes(self.method.as_bytes())
            .map_err(|_| GraphError::new("ValueError", format!("unknown method {:?}", self.method)))?;
        let call = Call {
            method,
            url: self.url.to_owned(),
            headers,
            body,
            limit: self.limit,
        };
        guard.call(call).await.map_err(|error| connection(&error))
    }
}

/// Fills `${env:NAME}` with secrets.
fn with_secrets(text: &str, job: &TaskContext<'_>) -> Result<String, GraphError> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("${env:") {
        let Some(length) = rest[begin..].find('}') else { break };
        filled.push_str(&rest[..begin]);
        filled.push_str(&job.secret(&rest[begin + 6..begin + length])?);
        rest = &rest[begin + length + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}

pub(super) fn connection(error: &CallError) -> GraphError {
    let class = match error {
        CallError::Refused(_) => "PermissionError",
        CallError::TimedOut => "TimeoutError",
        CallError::Failed(_) => "ConnectionError",
        CallError::TooLong(_) => "ValueError",
    };
    GraphError::new(class, error.to_string())
}

/// A body as server-sent events, or as lines.
pub(super) struct Events {
    reply: Reply,
    buffer: Vec<u8>,
    /// How much of the buffer has no line end in it.
    searched: usize,
    ended: bool,
}

impl Events {
    pub(super) const fn new(reply: Reply) -> Self {
        Self {
            reply,
            buffer: Vec::new(),
            searched: 0,
            ended: false,
        }
    }

    /// Whether another line is here already.
    pub(super) fn ready(&self) -> bool {
        self.buffer[self.searched..].contains(&b'\n')
    }

    /// The next line without its end; `None` after the last.
    pub(super) async fn line(&mut self) -> Result<Option<String>, GraphError> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
                let end = self.searched + at;
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                self.searched = 0;
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            self.searched = self.buffer.len();
            if self.ended {
                self.searched = 0;
                let rest = std::mem::take(&mut self.buffer);
                return Ok((!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned()));
            }
            match self.reply.chunk().await.map_err(|error| connection(&error))? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => self.ended = true,
            }
            if self.buffer.len() > LONGEST {
                return Err(connection(&CallError::TooLong(LONGEST)));
            }
        }
    }

    /// The next event: its name (empty if it has none) and its data; `None` after the last.
    pub(super) async fn event(&mut self) -> Result<Option<(String, String)>, GraphError> {
        let (mut name, mut data) = (String::new(), Vec::new());
        while let Some(line) = self.line().await? {
            if line.is_empty() {
                if !data.is_empty() {
                    return Ok(Some((name, data.join("\n"))));
                }
                name.clear();
            } else if let Some(value) = field(&line, "data") {
                data.push(value.to_owned());
            } else if let Some(value) = field(&line, "event") {
                value.clone_into(&mut name);
            }
        }
        Ok((!data.is_empty()).then(|| (name, data.join("\n"))))
    }
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = line.strip_prefix(name)?.strip_prefix(':')?;
    Some(value.strip_prefix(' ').unwrap_or(value))
}

/// What kind of body an answer says it has.
pub(super) fn content_type(reply: &Reply) -> String {
    let value = reply
        .headers()
        .get("content-type")
        .and_then(|value| value.to_str().ok());
    let value = value.unwrap_or_default().split(';').next().unwrap_or_default();
    value.trim().to_ascii_lowercase()
}

/// The beginning of a foreign answer, for an error text.
pub(super) async fn excerpt(reply: Reply) -> String {
    let body = reply.bytes(1 << 20).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let told = serde_json::from_str::<Value>(&text).ok().and_then(|body| {
        let error = body
            .get("error")
            .or_else(|| body.get("detail"))
            .or_else(|| body.get("message"))?;
        let message = error.get("message").unwrap_or(error);
        Some(super::template::as_text(message))
    });
    told.unwrap_or_else(|| text.into_owned()).chars().take(500).collect()
}
