//! Messages: read from requests, and turned into the input of a run or the answer to an interrupt.

use serde_json::{Map, Value, json};

use super::error::{A2aError, ErrorCode};
use super::fields::field;
use super::part::Part;
use super::{Dialect, Task, TaskId};
use crate::agent::Object;

const MAX_PARTS: usize = 100;
const MAX_ID_LENGTH: usize = 256;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client.
    User,
    /// The assistant.
    Agent,
}

impl Role {
    fn parse(value: Option<&Value>) -> Result<Self, A2aError> {
        match value.and_then(Value::as_str) {
            Some("user" | "ROLE_USER") => Ok(Self::User),
            Some("agent" | "ROLE_AGENT") => Ok(Self::Agent),
            _ => Err(A2aError::invalid_params(
                "message.role: expected ROLE_USER or ROLE_AGENT (user or agent)",
            )),
        }
    }

    const fn as_str(self, dialect: Dialect) -> &'static str {
        match (self, dialect) {
            (Self::User, Dialect::V03) => "user",
            (Self::User, Dialect::V10) => "ROLE_USER",
            (Self::Agent, Dialect::V03) => "agent",
            (Self::Agent, Dialect::V10) => "ROLE_AGENT",
        }
    }
}

/// A message of a client or an assistant.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Chosen by the sender.
    pub id: String,
    pub role: Role,
    pub parts: Vec<Part>,
    /// The context named by the message: the id of a thread, or a name of the client's.
    pub context: Option<String>,
    /// The task named by the message. Text, because an invalid id is answered with "not found".
    pub task: Option<String>,
    /// The media types that its parts name.
    pub media_types: Vec<MediaType>,
}

/// A media type that a part names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaType {
    /// The part, such as `message.parts.0`.
    pub place: String,
    pub name: String,
}

impl MediaType {
    /// Whether one of these media types covers it: the same one, `type/*` or `*/*`. Parameters do not count.
    #[must_use]
    pub fn is_among(&self, accepted: &[String]) -> bool {
        let essence = |name: &str| name.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let own = essence(&self.name);
        accepted
            .iter()
            .map(|mode| essence(mode))
            .any(|mode| match mode.strip_suffix("/*") {
                Some("*") => true,
                Some(sort) => own.split('/').next() == Some(sort),
                None => own == mode,
            })
    }
}

impl Message {
    pub fn parse(value: Option<&Value>) -> Result<Self, A2aError> {
        let Some(Value::Object(message)) = value else {
            return Err(A2aError::invalid_params("message: expected an object"));
        };
        let id = match optional_id(message, "messageId")? {
            Some(id) if id.len() <= MAX_ID_LENGTH => id,
            Some(_) => {
                let text = format!("message.messageId: expected at most {MAX_ID_LENGTH} bytes");
                return Err(A2aError::invalid_params(text));
            }
            None => return Err(A2aError::invalid_params("message.messageId: field required")),
        };
        let role = Role::parse(message.get("role"))?;
        let parts = match message.get("parts") {
            Some(Value::Array(parts)) if (1..=MAX_PARTS).contains(&parts.len()) => parts,
            _ => {
                let text = format!("message.parts: expected a list of 1 to {MAX_PARTS} parts");
                return Err(A2aError::invalid_params(text));
            }
        };
        let (mut read, mut media_types) = (Vec::with_capacity(parts.len()), Vec::new());
        for (nth, part) in parts.iter().enumerate() {
            let place = format!("message.parts.{nth}");
            read.push(Part::parse(part, &place)?);
            if let Some(name) = Part::named_media_type(part) {
                let name = name.to_owned();
                media_types.push(MediaType { place, name });
            }
        }
        let context = optional_id(message, "contextId")?;
        if context.as_ref().is_some_and(|name| name.len() > MAX_ID_LENGTH) {
            let text = format!("message.contextId: expected at most {MAX_ID_LENGTH} bytes");
            return Err(A2aError::invalid_params(text));
        }
        Ok(Self {
            id,
            role,
            parts: read,
            context,
            task: optional_id(message, "taskId")?,
            media_types,
        })
    }

    /// Whether the graph needs a `messages` channel to accept it.
    #[must_use]
    pub fn needs_messages(&self) -> bool {
        self.parts.iter().any(|part| !matches!(part, Part::Data { .. }))
    }

    /// The input of a run: text and files become a message, data becomes further fields.
    pub fn input(&self, task: TaskId) -> Result<Object, A2aError> {
        let mut input = Object::new();
        if self.needs_messages() {
            let role = match self.role {
                Role::User => "human",
                Role::Agent => "assistant",
            };
            let message = json!({
                "role": role, "content": self.message_content(), "id": self.id,
                "additional_kwargs": {"a2a": {"task_id": task.to_string()}},
            });
            input.insert("messages".to_owned(), json!([message]));
        }
        let data = self.data()?;
        if input.contains_key("messages") && data.contains_key("messages") {
            return Err(A2aError::invalid_params(
                "message.parts: expected either text and files, or a part of data with messages, not both",
            ));
        }
        input.extend(data);
        Ok(input)
    }

    /// The answer to an interrupt: the `resume` field of a data part, else the text, else the data.
    pub fn resume_value(&self) -> Result<Value, A2aError> {
        let mut answers = self.parts.iter().filter_map(|part| match part {
            Part::Data { data } => data.get("resume"),
            _ => None,
        });
        if let Some(answer) = answers.next() {
            return match answers.next() {
                None => Ok(answer.clone()),
                Some(_) => Err(A2aError::invalid_params(
                    "message.parts: expected one part of data with resume, not several",
                )),
            };
        }
        if let Some(text) = self.text() {
            return Ok(json!(text));
        }
        let data = self.data()?;
        if data.is_empty() {
            return Err(A2aError::new(
                ErrorCode::ContentTypeNotSupported,
                "message.parts: expected text or data that answers the question of the task",
            ));
        }
        Ok(Value::Object(data))
    }

    #[must_use]
    pub fn to_json(&self, dialect: Dialect, task: &Task) -> Value {
        message_json(dialect, &self.id, self.role, &self.parts, task)
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

    /// Text alone stays a string, as simple graphs expect it.
    fn message_content(&self) -> Value {
        let files = self.parts.iter().any(|part| matches!(part, Part::File { .. }));
        match self.text() {
            Some(text) if !files => json!(text),
            _ => self.parts.iter().filter_map(Part::to_content_block).collect(),
        }
    }

    fn data(&self) -> Result<Object, A2aError> {
        let mut all = Object::new();
        for (nth, part) in self.parts.iter().enumerate() {
            match part {
                Part::Data {
                    data: Value::Object(data),
                } => all.extend(data.clone()),
                Part::Data { .. } => {
                    return Err(A2aError::new(
                        ErrorCode::ContentTypeNotSupported,
                        format!("message.parts.{nth}.data: expected an object"),
                    ));
                }
                _ => {}
            }
        }
        Ok(all)
    }
}

pub(super) fn message_json(dialect: Dialect, id: &str, role: Role, parts: &[Part], task: &Task) -> Value {
    let parts: Vec<Value> = parts.iter().map(|part| part.to_json(dialect)).collect();
    let mut message = json!({
        "messageId": id, "role": role.as_str(dialect), "parts": parts,
        "taskId": task.id.to_string(), "contextId": task.context_id(),
    });
    if dialect == Dialect::V03 {
        message["kind"] = json!("message");
    }
    message
}

/// An optional id. An empty string counts as absent, as in protobuf.
fn optional_id(of: &Map<String, Value>, key: &str) -> Result<Option<String>, A2aError> {
    match field(of, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(A2aError::invalid_params(format!("message.{key}: expected a string"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunId, ThreadId};

    #[expect(clippy::needless_pass_by_value, reason = "what `json!` makes is given away")]
    fn message(parts: Value) -> Message {
        let sent = json!({"messageId": "m", "role": "ROLE_USER", "parts": parts});
        Message::parse(Some(&sent)).unwrap()
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
            ("contextId", json!(5)),
            ("contextId", json!("x".repeat(MAX_ID_LENGTH + 1))),
            ("taskId", json!(5)),
        ] {
            let mut sent = whole.clone();
            sent[key] = value;
            let refusal = Message::parse(Some(&sent)).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidParams);
            assert!(refusal.message.contains(key), "{}", refusal.message);
        }
        assert!(Message::parse(None).is_err());
    }

    #[test]
    fn media_types_are_those_that_parts_name() {
        let sent = message(json!([
            {"text": "a"}, {"raw": "AA==", "mediaType": "image/png"}, {"text": "b", "media_type": "text/markdown"},
            {"kind": "file", "file": {"uri": "https://example.com/a", "mimeType": "audio/wav"}},
        ]));
        let found = sent
            .media_types
            .iter()
            .map(|media| (media.place.as_str(), media.name.as_str()));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                ("message.parts.1", "image/png"),
                ("message.parts.2", "text/markdown"),
                ("message.parts.3", "audio/wav")
            ]
        );
        let media = |name: &str| MediaType {
            place: "message.parts.0".to_owned(),
            name: name.to_owned(),
        };
        for (name, accepted, expected) in [
            ("image/png", &["image/png"][..], true),
            ("Image/PNG; q=1", &["text/plain", "image/png"][..], true),
            ("image/png", &["image/*"][..], true),
            ("image/png", &["*/*"][..], true),
            ("image/png", &["image/jpeg", "text/*"][..], false),
            ("image/png", &[][..], false),
        ] {
            let accepted: Vec<String> = accepted.iter().map(|&mode| mode.to_owned()).collect();
            assert_eq!(media(name).is_among(&accepted), expected, "{name} {accepted:?}");
        }
    }

    #[test]
    fn fields_may_have_the_names_of_the_protocol_buffer() {
        let sent = json!({"message_id": "m", "role": "ROLE_USER", "parts": [{"text": "a"}],
                          "context_id": "c", "task_id": "t"});
        let read = Message::parse(Some(&sent)).unwrap();
        assert_eq!(
            (read.id.as_str(), read.context.as_deref(), read.task.as_deref()),
            ("m", Some("c"), Some("t"))
        );
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
        assert_eq!(both.unwrap_err().code, ErrorCode::InvalidParams);
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
            assert_eq!(message(parts).resume_value().unwrap(), expected);
        }
        assert!(
            message(json!([{"data": {"resume": 1}}, {"data": {"resume": 2}}]))
                .resume_value()
                .is_err()
        );
        assert!(message(json!([{"url": "https://example.com"}])).resume_value().is_err());
    }
}
