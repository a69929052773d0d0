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

/// The most bytes that are kept of an outcome.
const MOST_BYTES: usize = 1 << 20;
/// The most interrupts that are kept of a question that is too large.
const MOST_INTERRUPTS: usize = 100;
const TOO_LARGE: &str = "This has more than 1 MiB. The state of the thread holds it.";

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

    /// As JSON that can be read back. A value that is nested too deeply for that becomes its text; an outcome of more than 1 MiB is
    /// replaced by a note.
    ///
    /// # Panics
    /// Never: an outcome has text keys only.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = self.write();
        if json.len() <= MOST_BYTES && !is_readable(&json) {
            json = self.flattened().write();
        }
        if json.len() > MOST_BYTES {
            json = self.shortened().write();
        }
        json
    }

    fn write(&self) -> String {
        serde_json::to_string(self).expect("an outcome with text keys is JSON")
    }

    /// Values that cannot be read back are replaced by their text.
    fn flattened(&self) -> Self {
        match self {
            Self::Answer(parts) => Self::Answer(parts.iter().map(flattened_part).collect()),
            Self::Question(interrupts) => Self::Question(interrupts.iter().map(Interrupt::flattened).collect()),
            Self::Failure(_) => self.clone(),
        }
    }

    fn shortened(&self) -> Self {
        match self {
            Self::Answer(_) => Self::Answer(vec![Part::Text {
                text: TOO_LARGE.to_owned(),
            }]),
            Self::Question(interrupts) => {
                let kept = interrupts.iter().take(MOST_INTERRUPTS).map(|interrupt| Interrupt {
                    id: interrupt.id.clone().filter(|id| id.len() <= 256),
                    value: json!(TOO_LARGE),
                    response_schema: None,
                });
                Self::Question(kept.collect())
            }
            Self::Failure(text) => Self::Failure(text.chars().take(MOST_BYTES / 16).collect()),
        }
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

fn is_readable(json: &str) -> bool {
    serde_json::from_str::<Outcome>(json).is_ok()
}

fn flattened_part(part: &Part) -> Part {
    match part {
        Part::Data { data } if !is_readable(&Outcome::Answer(vec![part.clone()]).write()) => {
            Part::Text { text: data.to_string() }
        }
        part => part.clone(),
    }
}

impl Interrupt {
    fn flattened(&self) -> Self {
        if is_readable(&Outcome::Question(vec![self.clone()]).write()) {
            return self.clone();
        }
        let text = |value: &Value| json!(value.to_string());
        Self {
            id: self.id.clone(),
            value: text(&self.value),
            response_schema: self.response_schema.as_ref().map(text),
        }
    }

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
    fn what_is_kept_can_be_read_back() {
        for depth in 115..=127 {
            let state = (0..depth).fold(json!("core"), |inner, _| json!({ "in": inner }));
            let interrupts = json!({"task": [{"id": "i", "value": state}]});
            for outcome in [Outcome::answer(&state), Outcome::question(&interrupts)] {
                let kept = outcome.to_json();
                let read = serde_json::from_str::<Outcome>(&kept);
                let read = read.unwrap_or_else(|error| panic!("{depth} levels: {error}"));
                if depth == 127 {
                    assert_ne!(read, outcome, "it became a text");
                    assert!(kept.contains("core"));
                }
            }
        }
        let shallow = Outcome::answer(&json!({"log": ["a"]}));
        assert_eq!(serde_json::from_str::<Outcome>(&shallow.to_json()).unwrap(), shallow);
    }

    #[test]
    fn what_is_too_large_is_replaced_by_a_note() {
        let large = "x".repeat(MOST_BYTES + 1);
        for outcome in [
            Outcome::answer(&json!({"log": large})),
            Outcome::question(&json!({"task": [{"id": "i", "value": large}]})),
            Outcome::failure(&json!({"error": "ValueError", "message": large})),
        ] {
            let kept = outcome.to_json();
            assert!(kept.len() <= MOST_BYTES, "{} bytes", kept.len());
            assert!(serde_json::from_str::<Outcome>(&kept).is_ok());
        }
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
