//! Bodies of runs and of searches for runs.

use axum::extract::{FromRequest, Request};
use serde_json::{Value, json};
use towpath_domain::ThreadId;
use towpath_domain::agent::{Object, RunRequest};

use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::extract::{PathValue as _, parse_body, read_bytes, read_value};
use crate::extract::Object as JsonObject;

/// What a body of the Agent Protocol says beyond this API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolRun {
    /// The thread, which this API has in the path.
    pub thread: Option<ThreadId>,
}

/// Left with a request whose body was renamed and then judged by custom auth. Its thread is the judged one, whatever
/// the body says by now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedRun(pub Option<ProtocolRun>);

/// A run to start without a thread in the path.
pub(crate) struct RunBody {
    pub request: RunRequest,
    /// The body follows the Agent Protocol.
    pub protocol: Option<ProtocolRun>,
}

impl RunBody {
    pub fn thread(&self) -> Option<ThreadId> {
        self.protocol.and_then(|protocol| protocol.thread)
    }
}

impl FromRequest<AgentApp> for RunBody {
    type Rejection = AgentError;

    async fn from_request(mut request: Request, app: &AgentApp) -> Result<Self, AgentError> {
        let judged = request.extensions_mut().remove::<JudgedRun>();
        let bytes = read_bytes(request, app).await?;
        // Most bodies are read once, into the request.
        let protocol = match judged {
            Some(JudgedRun(protocol)) => protocol,
            None if names_agent(&bytes) => {
                let JsonObject(sent) = parse_body::<JsonObject<Object>>(bytes)?;
                let (renamed, protocol) = rename_run(sent)?;
                let request = read_value(Value::Object(renamed))?;
                return Ok(Self { request, protocol });
            }
            None => None,
        };
        let JsonObject(request) = parse_body::<JsonObject<RunRequest>>(bytes)?;
        Ok(Self { request, protocol })
    }
}

fn names_agent(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_ok_and(|text| text.contains("\"agent_id\""))
}

/// Renames the fields of a run in the Agent Protocol; leaves any other body as it is.
pub(in crate::agent) fn rename_run(mut body: Object) -> Result<(Object, Option<ProtocolRun>), AgentError> {
    if body.contains_key("assistant_id") {
        return Ok((body, None));
    }
    let Some(agent) = body.remove("agent_id") else {
        return Ok((body, None));
    };
    if !agent.is_string() {
        return Err(AgentError::invalid("agent_id: expected a string"));
    }
    body.insert("assistant_id".to_owned(), agent);
    let thread = match body.remove("thread_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(ThreadId::read(&text)?),
        Some(_) => return Err(AgentError::invalid("thread_id: expected a string")),
    };
    match body.remove("messages") {
        None | Some(Value::Null) => {}
        Some(messages @ Value::Array(_)) => add_messages(&mut body, messages)?,
        Some(_) => return Err(AgentError::invalid("messages: expected a list")),
    }
    body.entry("on_disconnect").or_insert_with(|| json!("cancel"));
    Ok((body, Some(ProtocolRun { thread })))
}

fn add_messages(body: &mut Object, messages: Value) -> Result<(), AgentError> {
    let input = body.entry("input").or_insert(Value::Null);
    if input.is_null() {
        *input = json!({});
    }
    let Value::Object(input) = input else {
        return Err(AgentError::invalid("input: expected an object beside messages"));
    };
    if input.contains_key("messages") {
        return Err(AgentError::invalid(
            "messages: input has messages, too; send one of them",
        ));
    }
    input.insert("messages".to_owned(), messages);
    Ok(())
}

/// Renames the field of a search for runs.
pub(in crate::agent) fn rename_search(mut body: Object) -> Object {
    if let Some(agent) = body.remove("agent_id") {
        body.entry("assistant_id").or_insert(agent);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(body: Value) -> Result<(Value, Option<ProtocolRun>), AgentError> {
        let Value::Object(body) = body else { panic!("an object") };
        rename_run(body).map(|(body, protocol)| (Value::Object(body), protocol))
    }

    #[test]
    fn bodies_of_the_protocol_are_renamed() {
        let thread = "0194fdc2-fa2f-7cc0-81d3-ff120745ac1d";
        let messages = json!([{"role": "user", "content": "hi"}]);
        let sent = json!({"agent_id": "a", "thread_id": thread, "input": {"n": 1}, "messages": messages,
                          "metadata": {"k": "v"}});
        let expected = json!({"assistant_id": "a", "input": {"n": 1, "messages": messages}, "metadata": {"k": "v"},
                              "on_disconnect": "cancel"});
        let thread = Some(ThreadId::read(thread).unwrap());
        assert_eq!(renamed(sent).unwrap(), (expected, Some(ProtocolRun { thread })));
        let sent = json!({"agent_id": "a", "messages": [], "input": null, "on_disconnect": "continue"});
        let expected = json!({"assistant_id": "a", "input": {"messages": []}, "on_disconnect": "continue"});
        assert_eq!(renamed(sent).unwrap(), (expected, Some(ProtocolRun { thread: None })));
    }

    #[test]
    fn other_bodies_stay_as_they_are() {
        for body in [
            json!({"assistant_id": "a", "agent_id": "b", "thread_id": 7, "messages": 7}),
            json!({"thread_id": 7, "messages": 7}),
        ] {
            assert_eq!(renamed(body.clone()).unwrap(), (body, None));
        }
    }

    #[test]
    fn wrong_values_are_named() {
        for (sent, expected) in [
            (json!({"agent_id": 7}), "agent_id: expected a string"),
            (json!({"agent_id": "a", "thread_id": 7}), "thread_id: expected a string"),
            (
                json!({"agent_id": "a", "thread_id": "x"}),
                "Invalid thread ID: must be a UUID",
            ),
            (json!({"agent_id": "a", "messages": {}}), "messages: expected a list"),
            (
                json!({"agent_id": "a", "messages": [], "input": "x"}),
                "input: expected an object beside messages",
            ),
            (
                json!({"agent_id": "a", "messages": [], "input": {"messages": []}}),
                "messages: input has messages, too; send one of them",
            ),
        ] {
            assert_eq!(renamed(sent.clone()).unwrap_err().detail(), expected, "{sent}");
        }
    }

    #[test]
    fn searches_are_renamed() {
        for (sent, expected) in [
            (
                json!({"agent_id": "a", "limit": 1}),
                json!({"assistant_id": "a", "limit": 1}),
            ),
            (
                json!({"agent_id": "a", "assistant_id": "b"}),
                json!({"assistant_id": "b"}),
            ),
            (json!({}), json!({})),
        ] {
            let Value::Object(sent) = sent else { panic!("an object") };
            assert_eq!(Value::Object(rename_search(sent)), expected);
        }
    }
}
