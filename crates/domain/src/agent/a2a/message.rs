//! Messages: read from requests, and turned into the input of a run or the answer to an interrupt.

use serde_json::{Map, Value, json};

use super::part::Part;
use super::refusal::{Code, Refusal};
use super::{Dialect, TaskId};
use crate::ThreadId;
use crate::agent::Object;

/// The most parts of a message.
const MOST_PARTS: usize = 100;
/// The longest id that a client gives.
const LONGEST_ID: usize = 256;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client.
    User,
    /// The assistant.
    Agent,
}

impl Role {
    /// Reads it, in either version.
    fn read(value: Option<&Value>) -> Result<Self, Refusal> {
        match value.and_then(Value::as_str) {
            Some("user" | "ROLE_USER") => Ok(Self::User),
            Some("agent" | "ROLE_AGENT") => Ok(Self::Agent),
            _ => Err(Refusal::params(
                "message.role: expected ROLE_USER or ROLE_AGENT (user or agent)",
            )),
        }
    }

    const fn write(self, dialect: Dialect) -> &'static str {
        match (self, dialect) {
            (Self::User, Dialect::V03) => "user",
            (Self::User, Dialect::V10) => "ROLE_USER",
            (Self::Agent, Dialect::V03) => "agent",
            (Self::Agent, Dialect::V10) => "ROLE_AGENT",
        }
    }
}

/// What a client or an assistant says at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its id, which the sender made.
    pub id: String,
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub parts: Vec<Part>,
    /// The context that it names.
    pub context: Option<ThreadId>,
    /// The task that it names, as text: one that is none is not found.
    pub task: Option<String>,
}

impl Message {
    /// Reads the message of a request.
    ///
    /// # Errors
    /// It names the field that is missing or wrong.
    pub fn read(value: Option<&Value>) -> Result<Self, Refusal> {
        let Some(Value::Object(message)) = value else {
            return Err(Refusal::params("message: expected an object"));
        };
        let id = match named(message, "messageId")? {
            Some(id) if id.len() <= LONGEST_ID => id,
            Some(_) => {
                let text = format!("message.messageId: expected at most {LONGEST_ID} bytes");
                return Err(Refusal::params(text));
            }
            None => return Err(Refusal::params("message.messageId: field required")),
        };
        let role = Role::read(message.get("role"))?;
        let parts = match message.get("parts") {
            Some(Value::Array(parts)) if (1..=MOST_PARTS).contains(&parts.len()) => parts,
            _ => {
                let text = format!("message.parts: expected a list of 1 to {MOST_PARTS} parts");
                return Err(Refusal::params(text));
            }
        };
        let parts = parts
            .iter()
            .enumerate()
            .map(|(nth, part)| Part::read(part, &format!("message.parts.{nth}")));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let context = named(message, "contextId")?.map(|text| {
            let id = text.parse::<ThreadId>();
            id.map_err(|_| Refusal::params("message.contextId: must be a UUID, or absent for a new context"))
        });
        Ok(Self {
            id,
            role,
            parts,
            context: context.transpose()?,
            task: named(message, "taskId")?,
        })
    }

    /// Whether the graph must have messages to take it.
    #[must_use]
    pub fn needs_messages(&self) -> bool {
        self.parts.iter().any(|part| !matches!(part, Part::Data { .. }))
    }

    /// The input of a run: its text and files as a message, its data as further fields.
    ///
    /// # Errors
    /// A part of data that is no object, or that has messages beside text or files.
    pub fn input(&self, task: TaskId) -> Result<Object, Refusal> {
        let mut input = Object::new();
        if self.needs_messages() {
            let role = match self.role {
                Role::User => "human",
                Role::Agent => "assistant",
            };
            let message = json!({
                "role": role, "content": self.content(), "id": self.id,
                "additional_kwargs": {"a2a": {"task_id": task.to_string()}},
            });
            input.insert("messages".to_owned(), json!([message]));
        }
        let data = self.data()?;
        if input.contains_key("messages") && data.contains_key("messages") {
            return Err(Refusal::params(
                "message.parts: expected either text and files, or a part of data with messages, not both",
            ));
        }
        input.extend(data);
        Ok(input)
    }

    /// The answer to what an interrupted run asked: the `resume` of a part of data, else the text, else the data.
    ///
    /// # Errors
    /// It says several things, or only files.
    pub fn resume(&self) -> Result<Value, Refusal> {
        let mut answers = self.parts.iter().filter_map(|part| match part {
            Part::Data { data } => data.get("resume"),
            _ => None,
        });
        if let Some(answer) = answers.next() {
            return match answers.next() {
                None => Ok(answer.clone()),
                Some(_) => Err(Refusal::params(
                    "message.parts: expected one part of data with resume, not several",
                )),
            };
        }
        if let Some(text) = self.text() {
            return Ok(json!(text));
        }
        let data = self.data()?;
        if data.is_empty() {
            return Err(Refusal::new(
                Code::ContentTypeNotSupported,
                "message.parts: expected text or data, which answers what the task asked",
            ));
        }
        Ok(Value::Object(data))
    }

    /// As a message of an answer.
    #[must_use]
    pub fn write(&self, dialect: Dialect, task: TaskId) -> Value {
        written(dialect, &self.id, self.role, &self.parts, task)
    }

    fn text(&self) -> Option<String> {
        let texts: Vec<&str> = self
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Text { text } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Text alone is a text, as simple graphs expect it.
    fn content(&self) -> Value {
        let files = self.parts.iter().any(|part| matches!(part, Part::File { .. }));
        match self.text() {
            Some(text) if !files => json!(text),
            _ => self.parts.iter().filter_map(Part::block).collect(),
        }
    }

    fn data(&self) -> Result<Object, Refusal> {
        let mut all = Object::new();
        for (nth, part) in self.parts.iter().enumerate() {
            match part {
                Part::Data {
                    data: Value::Object(data),
                } => all.extend(data.clone()),
                Part::Data { .. } => {
                    return Err(Refusal::new(
                        Code::ContentTypeNotSupported,
                        format!("message.parts.{nth}.data: expected an object"),
                    ));
                }
                _ => {}
            }
        }
        Ok(all)
    }
}

/// A message of an answer.
pub(super) fn written(dialect: Dialect, id: &str, role: Role, parts: &[Part], task: TaskId) -> Value {
    let parts: Vec<Value> = parts.iter().map(|part| part.write(dialect)).collect();
    let mut message = json!({
        "messageId": id, "role": role.write(dialect), "parts": parts,
        "taskId": task.to_string(), "contextId": task.thread.to_string(),
    });
    if dialect == Dialect::V03 {
        message["kind"] = json!("message");
    }
    message
}

/// A text that names something; an empty one names nothing, as protobuf writes it.
fn named(of: &Map<String, Value>, key: &str) -> Result<Option<String>, Refusal> {
    match of.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(Refusal::params(format!("message.{key}: expected a string"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunId;

    #[expect(clippy::needless_pass_by_value, reason = "what `json!` makes is given away")]
    fn message(parts: Value) -> Message {
        let sent = json!({"messageId": "m", "role": "ROLE_USER", "parts": parts});
        Message::read(Some(&sent)).unwrap()
    }

    #[test]
    fn refusals_name_the_field() {
        let whole = json!({"messageId": "m", "role": "user", "parts": [{"text": "a"}]});
        for (key, value) in [
            ("messageId", json!(null)),
            ("messageId", json!(5)),
            ("role", json!("boss")),
            ("parts", json!([])),
            ("parts", json!("a")),
            ("contextId", json!("no-uuid")),
            ("taskId", json!(5)),
        ] {
            let mut sent = whole.clone();
            sent[key] = value;
            let refusal = Message::read(Some(&sent)).unwrap_err();
            assert_eq!(refusal.code, Code::InvalidParams);
            assert!(refusal.message.contains(key), "{}", refusal.message);
        }
        assert!(Message::read(None).is_err());
    }

    #[test]
    fn text_is_a_message_and_data_are_fields() {
        let task = TaskId {
            thread: ThreadId::new(),
            run: RunId::new(),
        };
        let input = message(json!([{"text": "a"}, {"text": "b"}, {"data": {"x": 1}}]))
            .input(task)
            .unwrap();
        assert_eq!(input["messages"][0]["content"], "a\nb");
        assert_eq!(
            input["messages"][0]["additional_kwargs"]["a2a"]["task_id"],
            task.to_string()
        );
        assert_eq!(input["x"], 1);
        let alone = message(json!([{"data": {"log": []}}])).input(task).unwrap();
        assert_eq!(Value::Object(alone), json!({"log": []}));
        assert!(message(json!([{"data": [1]}])).input(task).is_err());
        let both = message(json!([{"text": "hi"}, {"data": {"messages": []}}])).input(task);
        assert_eq!(both.unwrap_err().code, Code::InvalidParams);
        let file = message(json!([{"text": "see"}, {"url": "https://example.com/a.png", "mediaType": "image/png"}]));
        let content = &file.input(task).unwrap()["messages"][0]["content"];
        assert_eq!(
            content[1],
            json!({"type": "image", "url": "https://example.com/a.png", "mime_type": "image/png"})
        );
    }

    #[test]
    fn an_answer_is_what_resume_says_else_the_text_else_the_data() {
        for (parts, expected) in [
            (
                json!([{"text": "hi"}, {"data": {"resume": {"ok": true}}}]),
                json!({"ok": true}),
            ),
            (json!([{"text": "hi"}, {"data": {"x": 1}}]), json!("hi")),
            (json!([{"data": {"x": 1}}]), json!({"x": 1})),
        ] {
            assert_eq!(message(parts).resume().unwrap(), expected);
        }
        assert!(
            message(json!([{"data": {"resume": 1}}, {"data": {"resume": 2}}]))
                .resume()
                .is_err()
        );
        assert!(message(json!([{"url": "https://example.com"}])).resume().is_err());
    }
}
