//! The outcome of a run for its task.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::part::Part;

/// The outcome of a run. Stored with the task, because the state of the thread changes later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The response of the assistant.
    Answer(Vec<Part>),
    /// A response that needs no task: a message is answered with it alone.
    Message(Vec<Part>),
    /// The questions it asks before it continues.
    Question(Vec<Interrupt>),
    Failure(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interrupt {
    pub id: Option<String>,
    pub value: Value,
    /// The expected shape of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
}

/// Size limit of a stored outcome.
const MAX_BYTES: usize = 1 << 20;
/// Interrupts that are kept of an outcome above the size limit.
const MAX_INTERRUPTS: usize = 100;
const TOO_LARGE: &str = "The output exceeds 1 MiB. Read it from the state of the thread.";

impl Outcome {
    /// The outcome of a successful run with this final state.
    #[must_use]
    pub fn from_values(values: &Value) -> Self {
        let Some(messages) = values.get("messages").and_then(Value::as_array) else {
            return Self::Answer(vec![Part::Data { data: values.clone() }]);
        };
        let turn = messages
            .iter()
            .rposition(|message| message_role(message) == MessageRole::User);
        let turn = &messages[turn.map_or(0, |at| at + 1)..];
        let mut replies = turn.iter().rev().map(|message| (message, reply_parts(message)));
        match replies.find(|(_, parts)| !parts.is_empty()) {
            Some((message, parts)) if needs_no_task(message) => Self::Message(parts),
            Some((_, parts)) => Self::Answer(parts),
            None => Self::Answer(vec![Part::Text { text: String::new() }]),
        }
    }

    /// The outcome of an interrupted run; interrupts by task, as threads store them.
    #[must_use]
    pub fn from_interrupts(interrupts: &Value) -> Self {
        let tasks = interrupts.as_object().into_iter().flatten();
        let all = tasks.filter_map(|(_, list)| list.as_array()).flatten();
        Self::Question(all.map(Interrupt::from_value).collect())
    }

    /// The outcome of a failed run, from `{error, message}`.
    #[must_use]
    pub fn from_error(error: &Value) -> Self {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let (sort, message) = (text("error"), text("message"));
        Self::Failure(match (sort, message) {
            ("", message) => message.to_owned(),
            (sort, "") => sort.to_owned(),
            (sort, message) => format!("{sort}: {message}"),
        })
    }

    /// As JSON that can be read back. A value that is nested too deeply for that becomes its text; an outcome of more
    /// than 1 MiB is replaced by a note.
    ///
    /// # Panics
    /// Never: an outcome has text keys only.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = self.encode();
        if json.len() <= MAX_BYTES && !is_readable(&json) {
            json = self.flattened().encode();
        }
        if json.len() > MAX_BYTES {
            json = self.shortened().encode();
        }
        json
    }

    fn encode(&self) -> String {
        serde_json::to_string(self).expect("an outcome with text keys is JSON")
    }

    /// Replaces values that cannot be read back with their text.
    fn flattened(&self) -> Self {
        match self {
            Self::Answer(parts) => Self::Answer(parts.iter().map(flattened_part).collect()),
            Self::Message(parts) => Self::Message(parts.iter().map(flattened_part).collect()),
            Self::Question(interrupts) => Self::Question(interrupts.iter().map(Interrupt::flattened).collect()),
            Self::Failure(_) => self.clone(),
        }
    }

    fn shortened(&self) -> Self {
        match self {
            Self::Answer(_) | Self::Message(_) => Self::Answer(vec![Part::Text {
                text: TOO_LARGE.to_owned(),
            }]),
            Self::Question(interrupts) => {
                let kept = interrupts.iter().take(MAX_INTERRUPTS).map(|interrupt| Interrupt {
                    id: interrupt.id.clone().filter(|id| id.len() <= 256),
                    value: json!(TOO_LARGE),
                    response_schema: None,
                });
                Self::Question(kept.collect())
            }
            Self::Failure(text) => Self::Failure(text.chars().take(MAX_BYTES / 16).collect()),
        }
    }

    /// The parts of the status message.
    #[must_use]
    pub(super) fn message_parts(&self) -> Vec<Part> {
        match self {
            Self::Answer(_) | Self::Message(_) => Vec::new(),
            Self::Failure(why) => vec![Part::Text { text: why.clone() }],
            Self::Question(asked) if asked.is_empty() => vec![Part::Text {
                text: "The task is paused before its next step. Send it a message to continue.".to_owned(),
            }],
            Self::Question(asked) => asked
                .iter()
                .map(|interrupt| match &interrupt.value {
                    Value::String(text) => Part::Text { text: text.clone() },
                    data => Part::Data { data: data.clone() },
                })
                .collect(),
        }
    }

    /// Name, description and parts of the artifact.
    #[must_use]
    pub(super) fn artifact(&self) -> Option<(&'static str, &'static str, Vec<Part>)> {
        match self {
            Self::Answer(parts) | Self::Message(parts) => {
                Some(("Assistant Response", "The response of the assistant", parts.clone()))
            }
            Self::Question(asked) if !asked.is_empty() => {
                let parts = asked.iter().map(|interrupt| Part::Data { data: json!(interrupt) });
                Some((
                    "Interrupt",
                    "The input that the assistant needs to continue",
                    parts.collect(),
                ))
            }
            Self::Question(_) | Self::Failure(_) => None,
        }
    }
}

/// Whether the graph says so of a message of the assistant.
fn needs_no_task(message: &Value) -> bool {
    message.pointer("/additional_kwargs/a2a/response") == Some(&json!("message"))
}

fn is_readable(json: &str) -> bool {
    serde_json::from_str::<Outcome>(json).is_ok()
}

fn flattened_part(part: &Part) -> Part {
    match part {
        Part::Data { data } if !is_readable(&Outcome::Answer(vec![part.clone()]).encode()) => {
            Part::Text { text: data.to_string() }
        }
        part => part.clone(),
    }
}

impl Interrupt {
    fn flattened(&self) -> Self {
        if is_readable(&Outcome::Question(vec![self.clone()]).encode()) {
            return self.clone();
        }
        let text = |value: &Value| json!(value.to_string());
        Self {
            id: self.id.clone(),
            value: text(&self.value),
            response_schema: self.response_schema.as_ref().map(text),
        }
    }

    fn from_value(interrupt: &Value) -> Self {
        Self {
            id: interrupt.get("id").and_then(Value::as_str).map(str::to_owned),
            value: interrupt.get("value").cloned().unwrap_or_default(),
            response_schema: interrupt
                .get("response_schema")
                .filter(|schema| !schema.is_null())
                .cloned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageRole {
    User,
    /// The assistant.
    Agent,
    /// Tools and system messages, which callers do not see.
    Other,
}

pub(super) fn message_role(message: &Value) -> MessageRole {
    let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("role")) {
        ("human" | "HumanMessage" | "HumanMessageChunk", _) | (_, "user" | "human") => MessageRole::User,
        ("ai" | "AIMessage" | "AIMessageChunk", _) | (_, "assistant" | "ai" | "agent") => MessageRole::Agent,
        _ => MessageRole::Other,
    }
}

/// The parts of an assistant's message; none for messages of other roles.
#[must_use]
pub fn reply_parts(message: &Value) -> Vec<Part> {
    match (message_role(message), message.get("content")) {
        (MessageRole::Agent, Some(content)) => Part::from_content(content),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Part {
        Part::Text { text: text.to_owned() }
    }

    #[test]
    fn the_answer_is_the_last_thing_said_in_this_turn() {
        let values = json!({"messages": [
            {"type": "ai", "content": "old"}, {"type": "human", "content": "q"},
            {"type": "ai", "content": "new"}, {"type": "tool", "content": "inside"}, {"type": "ai", "content": ""},
        ]});
        assert_eq!(Outcome::from_values(&values), Outcome::Answer(vec![text("new")]));
        let silent = json!({"messages": [{"type": "ai", "content": "old"}, {"type": "human", "content": "q"}]});
        assert_eq!(Outcome::from_values(&silent), Outcome::Answer(vec![text("")]));
        let other = json!({"log": ["a"]});
        assert_eq!(
            Outcome::from_values(&other),
            Outcome::Answer(vec![Part::Data { data: other }])
        );
    }

    #[test]
    fn a_graph_may_answer_without_a_task() {
        let values = |response: &str| {
            json!({"messages": [
                {"type": "human", "content": "q"},
                {"type": "ai", "content": "a", "additional_kwargs": {"a2a": {"response": response}}},
            ]})
        };
        let message = Outcome::from_values(&values("message"));
        assert_eq!(message, Outcome::Message(vec![text("a")]));
        assert_eq!(serde_json::from_str::<Outcome>(&message.to_json()).unwrap(), message);
        assert!(message.artifact().is_some());
        assert_eq!(Outcome::from_values(&values("task")), Outcome::Answer(vec![text("a")]));
    }

    #[test]
    fn what_is_kept_can_be_read_back() {
        for depth in 115..=127 {
            let state = (0..depth).fold(json!("core"), |inner, _| json!({ "in": inner }));
            let interrupts = json!({"task": [{"id": "i", "value": state}]});
            for outcome in [Outcome::from_values(&state), Outcome::from_interrupts(&interrupts)] {
                let kept = outcome.to_json();
                let read = serde_json::from_str::<Outcome>(&kept);
                let read = read.unwrap_or_else(|error| panic!("{depth} levels: {error}"));
                if depth == 127 {
                    assert_ne!(read, outcome, "it became a text");
                    assert!(kept.contains("core"));
                }
            }
        }
        let shallow = Outcome::from_values(&json!({"log": ["a"]}));
        assert_eq!(serde_json::from_str::<Outcome>(&shallow.to_json()).unwrap(), shallow);
    }

    #[test]
    fn what_is_too_large_is_replaced_by_a_note() {
        let large = "x".repeat(MAX_BYTES + 1);
        for outcome in [
            Outcome::from_values(&json!({"log": large})),
            Outcome::from_interrupts(&json!({"task": [{"id": "i", "value": large}]})),
            Outcome::from_error(&json!({"error": "ValueError", "message": large})),
        ] {
            let kept = outcome.to_json();
            assert!(kept.len() <= MAX_BYTES, "{} bytes", kept.len());
            assert!(serde_json::from_str::<Outcome>(&kept).is_ok());
        }
    }

    #[test]
    fn questions_and_failures_are_said() {
        let interrupts = json!({"task": [{"id": "i", "value": {"question": "go on?"}}]});
        let question = Outcome::from_interrupts(&interrupts);
        assert_eq!(
            question.message_parts(),
            [Part::Data {
                data: json!({"question": "go on?"})
            }]
        );
        let (name, _, parts) = question.artifact().unwrap();
        assert_eq!(name, "Interrupt");
        assert_eq!(
            parts,
            [Part::Data {
                data: json!({"id": "i", "value": {"question": "go on?"}})
            }]
        );
        let failure = Outcome::from_error(&json!({"error": "ValueError", "message": "it broke"}));
        assert_eq!(failure.message_parts(), [text("ValueError: it broke")]);
        assert_eq!(failure.artifact(), None);
        assert_eq!(Outcome::from_interrupts(&json!({})).message_parts().len(), 1);
    }
}
