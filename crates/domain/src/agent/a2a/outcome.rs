//! What a run left to its task.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::part::Part;

/// What a run left: kept with its task, because the thread goes on and its state changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// What the assistant answered.
    Answer(Vec<Part>),
    /// What it asks before it goes on.
    Question(Vec<Interrupt>),
    /// Why it failed.
    Failure(String),
}

/// A question of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Its id.
    pub id: Option<String>,
    /// What is asked.
    pub value: Value,
    /// How an answer looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
}

impl Outcome {
    /// Of a run that ended well, with this state.
    #[must_use]
    pub fn answer(values: &Value) -> Self {
        let Some(messages) = values.get("messages").and_then(Value::as_array) else {
            return Self::Answer(vec![Part::Data { data: values.clone() }]);
        };
        let turn = messages.iter().rposition(|message| speaker(message) == Speaker::User);
        let turn = &messages[turn.map_or(0, |at| at + 1)..];
        let mut replies = turn.iter().rev().map(reply);
        let parts = replies.find(|parts| !parts.is_empty());
        Self::Answer(parts.unwrap_or_else(|| vec![Part::Text { text: String::new() }]))
    }

    /// Of a run that waits: interrupts by task, as threads keep them.
    #[must_use]
    pub fn question(interrupts: &Value) -> Self {
        let tasks = interrupts.as_object().into_iter().flatten();
        let all = tasks.filter_map(|(_, list)| list.as_array()).flatten();
        Self::Question(all.map(Interrupt::of).collect())
    }

    /// Of a run that failed with an error as callers see it: `{error, message}`.
    #[must_use]
    pub fn failure(error: &Value) -> Self {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let (sort, message) = (text("error"), text("message"));
        Self::Failure(match (sort, message) {
            ("", message) => message.to_owned(),
            (sort, "") => sort.to_owned(),
            (sort, message) => format!("{sort}: {message}"),
        })
    }

    /// What the status of the task says.
    #[must_use]
    pub(super) fn said(&self) -> Vec<Part> {
        match self {
            Self::Answer(_) => Vec::new(),
            Self::Failure(why) => vec![Part::Text { text: why.clone() }],
            Self::Question(asked) if asked.is_empty() => vec![Part::Text {
                text: "The task waits before its next step. A message to it lets it go on.".to_owned(),
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

    /// Name, description and parts of the artifact that it is.
    #[must_use]
    pub(super) fn artifact(&self) -> Option<(&'static str, &'static str, Vec<Part>)> {
        match self {
            Self::Answer(parts) => Some(("Assistant Response", "What the assistant answered", parts.clone())),
            Self::Question(asked) if !asked.is_empty() => {
                let parts = asked.iter().map(|interrupt| Part::Data { data: json!(interrupt) });
                Some((
                    "Interrupt",
                    "What the assistant asks before it goes on",
                    parts.collect(),
                ))
            }
            Self::Question(_) | Self::Failure(_) => None,
        }
    }
}

impl Interrupt {
    fn of(interrupt: &Value) -> Self {
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

/// Who speaks in a message of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    /// The caller.
    User,
    /// The assistant.
    Agent,
    /// Tools and systems: callers do not hear them.
    Other,
}

pub(super) fn speaker(message: &Value) -> Speaker {
    let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("role")) {
        ("human" | "HumanMessage" | "HumanMessageChunk", _) | (_, "user" | "human") => Speaker::User,
        ("ai" | "AIMessage" | "AIMessageChunk", _) | (_, "assistant" | "ai" | "agent") => Speaker::Agent,
        _ => Speaker::Other,
    }
}

/// What the assistant says in a message of a graph; nothing of messages of others.
#[must_use]
pub fn reply(message: &Value) -> Vec<Part> {
    match (speaker(message), message.get("content")) {
        (Speaker::Agent, Some(content)) => Part::of_content(content),
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
        assert_eq!(Outcome::answer(&values), Outcome::Answer(vec![text("new")]));
        let silent = json!({"messages": [{"type": "ai", "content": "old"}, {"type": "human", "content": "q"}]});
        assert_eq!(Outcome::answer(&silent), Outcome::Answer(vec![text("")]));
        let other = json!({"log": ["a"]});
        assert_eq!(
            Outcome::answer(&other),
            Outcome::Answer(vec![Part::Data { data: other }])
        );
    }

    #[test]
    fn questions_and_failures_are_said() {
        let interrupts = json!({"task": [{"id": "i", "value": {"question": "go on?"}}]});
        let question = Outcome::question(&interrupts);
        assert_eq!(
            question.said(),
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
        let failure = Outcome::failure(&json!({"error": "ValueError", "message": "it broke"}));
        assert_eq!(failure.said(), [text("ValueError: it broke")]);
        assert_eq!(failure.artifact(), None);
        assert_eq!(Outcome::question(&json!({})).said().len(), 1);
    }
}
