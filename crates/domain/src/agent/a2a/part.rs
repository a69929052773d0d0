//! Parts of messages and artifacts: text, files, data.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Dialect;
use super::error::{A2aError, ErrorCode};
use super::fields::field;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    Text {
        text: String,
    },
    Data {
        data: Value,
    },
    File {
        source: Source,
        name: Option<String>,
        media_type: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Base64.
    Bytes(String),
    /// An address, which this server does not fetch.
    Url(String),
}

impl Part {
    /// Reads the part at `place` of a request, in either version.
    pub fn parse(value: &Value, place: &str) -> Result<Self, A2aError> {
        let Value::Object(part) = value else {
            return Err(A2aError::invalid_params(format!("{place}: expected an object")));
        };
        let kinds: Vec<&str> = ["text", "data", "file", "raw", "url"]
            .into_iter()
            .filter(|key| part.get(*key).is_some_and(|value| !value.is_null()))
            .collect();
        match kinds[..] {
            ["text"] => Ok(Self::Text {
                text: string(part, "text", place)?,
            }),
            ["data"] => Ok(Self::Data {
                data: part["data"].clone(),
            }),
            ["file"] => Self::parse_file(&part["file"], &format!("{place}.file")),
            ["raw"] | ["url"] => Ok(Self::File {
                source: match kinds[0] {
                    "raw" => Source::Bytes(string(part, "raw", place)?),
                    _ => Source::Url(string(part, "url", place)?),
                },
                name: optional(part, "filename", place)?,
                media_type: optional(part, "mediaType", place)?,
            }),
            [] => Err(A2aError::new(
                ErrorCode::ContentTypeNotSupported,
                format!("{place}: expected text, a file or data"),
            )),
            _ => Err(A2aError::invalid_params(format!(
                "{place}: expected one of text, file, raw, url and data, not several"
            ))),
        }
    }

    /// The media type that a part of a request names, in either version.
    pub(super) fn named_media_type(part: &Value) -> Option<&str> {
        let part = part.as_object()?;
        // The field that `parse` reads: what is checked is what the graph gets.
        let name = match part.get("file").and_then(Value::as_object) {
            Some(file) => field(file, "mimeType"),
            None => field(part, "mediaType"),
        };
        name?.as_str().filter(|name| !name.is_empty())
    }

    /// A file in the shape of version 0.3.
    fn parse_file(value: &Value, place: &str) -> Result<Self, A2aError> {
        let Value::Object(file) = value else {
            return Err(A2aError::invalid_params(format!("{place}: expected an object")));
        };
        let bytes = optional(file, "bytes", place)?;
        let source = match (bytes, optional(file, "uri", place)?) {
            (Some(bytes), None) => Source::Bytes(bytes),
            (None, Some(uri)) => Source::Url(uri),
            _ => {
                return Err(A2aError::invalid_params(format!(
                    "{place}: expected either bytes or uri"
                )));
            }
        };
        Ok(Self::File {
            source,
            name: optional(file, "name", place)?,
            media_type: optional(file, "mimeType", place)?,
        })
    }

    #[must_use]
    pub fn to_json(&self, dialect: Dialect) -> Value {
        match (self, dialect) {
            (Self::Text { text }, Dialect::V03) => json!({"kind": "text", "text": text}),
            (Self::Text { text }, Dialect::V10) => json!({"text": text}),
            // In version 0.3 data is always an object.
            (Self::Data { data }, Dialect::V03) if !data.is_object() => {
                json!({"kind": "data", "data": {"value": data}})
            }
            (Self::Data { data }, Dialect::V03) => json!({"kind": "data", "data": data}),
            (Self::Data { data }, Dialect::V10) => json!({"data": data}),
            (
                Self::File {
                    source,
                    name,
                    media_type,
                },
                dialect,
            ) => {
                let mut file = Map::new();
                let (bytes, url, name_key, type_key) = match dialect {
                    Dialect::V03 => ("bytes", "uri", "name", "mimeType"),
                    Dialect::V10 => ("raw", "url", "filename", "mediaType"),
                };
                match source {
                    Source::Bytes(base64) => file.insert(bytes.to_owned(), json!(base64)),
                    Source::Url(address) => file.insert(url.to_owned(), json!(address)),
                };
                for (key, value) in [(name_key, name), (type_key, media_type)] {
                    if let Some(value) = value {
                        file.insert(key.to_owned(), json!(value));
                    }
                }
                match dialect {
                    Dialect::V03 => json!({"kind": "file", "file": file}),
                    Dialect::V10 => Value::Object(file),
                }
            }
        }
    }

    /// The part as a content block, in the format of graphs.
    #[must_use]
    pub(super) fn to_content_block(&self) -> Option<Value> {
        match self {
            Self::Text { text } => Some(json!({"type": "text", "text": text})),
            Self::Data { .. } => None,
            Self::File {
                source,
                name,
                media_type,
            } => {
                let sort = media_type.as_deref().and_then(|media| media.split('/').next());
                let sort = sort.filter(|sort| matches!(*sort, "image" | "audio" | "video"));
                let mut block = json!({"type": sort.unwrap_or("file")});
                match source {
                    Source::Bytes(base64) => block["base64"] = json!(base64),
                    Source::Url(address) => block["url"] = json!(address),
                }
                if let Some(media_type) = media_type {
                    block["mime_type"] = json!(media_type);
                }
                if let Some(name) = name {
                    block["extras"] = json!({"filename": name});
                }
                Some(block)
            }
        }
    }

    /// Parts from a message's content, in the format of graphs.
    #[must_use]
    pub(super) fn from_content(content: &Value) -> Vec<Self> {
        let blocks = match content {
            Value::String(text) if text.is_empty() => return Vec::new(),
            Value::String(text) => return vec![Self::Text { text: text.clone() }],
            Value::Array(blocks) => blocks,
            _ => return Vec::new(),
        };
        let mut parts = Vec::new();
        for block in blocks {
            let text = block.as_str().or_else(|| block.get("text").and_then(Value::as_str));
            if let Some(text) = text {
                match parts.last_mut() {
                    Some(Self::Text { text: before }) => before.push_str(text),
                    _ => parts.push(Self::Text { text: text.to_owned() }),
                }
            } else if let Some(file) = Self::from_content_block(block) {
                parts.push(file);
            }
        }
        parts.retain(|part| !matches!(part, Self::Text { text } if text.is_empty()));
        parts
    }

    fn from_content_block(block: &Value) -> Option<Self> {
        let sort = block.get("type")?.as_str()?;
        if sort == "data" {
            let data = block.get("data")?.clone();
            return Some(Self::Data { data });
        }
        if !matches!(sort, "image" | "audio" | "video" | "file") {
            return None;
        }
        let text = |key: &str| block.get(key).and_then(Value::as_str).map(str::to_owned);
        let source = text("base64")
            .map(Source::Bytes)
            .or_else(|| text("url").map(Source::Url))?;
        let name = block.pointer("/extras/filename").and_then(Value::as_str);
        Some(Self::File {
            source,
            name: name.map(str::to_owned),
            media_type: text("mime_type"),
        })
    }
}

fn string(of: &Map<String, Value>, key: &str, place: &str) -> Result<String, A2aError> {
    match &of[key] {
        Value::String(text) => Ok(text.clone()),
        _ => Err(A2aError::invalid_params(format!("{place}.{key}: expected a string"))),
    }
}

fn optional(of: &Map<String, Value>, key: &str, place: &str) -> Result<Option<String>, A2aError> {
    match field(of, key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(A2aError::invalid_params(format!("{place}.{key}: expected a string"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_in_both_versions_and_written_in_the_one_asked_for() {
        for (old, new) in [
            (json!({"kind": "text", "text": "hi"}), json!({"text": "hi"})),
            (json!({"kind": "data", "data": {"a": 1}}), json!({"data": {"a": 1}})),
            (
                json!({"kind": "file", "file": {"bytes": "AA==", "name": "a.png", "mimeType": "image/png"}}),
                json!({"raw": "AA==", "filename": "a.png", "mediaType": "image/png"}),
            ),
            (
                json!({"kind": "file", "file": {"uri": "https://example.com/a"}}),
                json!({"url": "https://example.com/a"}),
            ),
        ] {
            for sent in [&old, &new] {
                let part = Part::parse(sent, "parts.0").unwrap();
                assert_eq!(part.to_json(Dialect::V03), old);
                assert_eq!(part.to_json(Dialect::V10), new);
            }
        }
    }

    #[test]
    fn the_media_type_that_is_checked_is_the_one_that_is_read() {
        let file = json!({"bytes": "AA==", "mimeType": "application/x-other"});
        let both = json!({"kind": "file", "mediaType": "text/plain", "file": file});
        assert_eq!(Part::named_media_type(&both), Some("application/x-other"));
        let read = Part::parse(&both, "parts.0").unwrap();
        assert_eq!(read.to_json(Dialect::V10)["mediaType"], "application/x-other");
    }

    #[test]
    fn a_part_that_nobody_takes_is_refused_with_its_place() {
        for (part, code) in [
            (json!({"kind": "form"}), ErrorCode::ContentTypeNotSupported),
            (json!({"text": "a", "data": {}}), ErrorCode::InvalidParams),
            (json!({"text": 5}), ErrorCode::InvalidParams),
            (json!({"file": {}}), ErrorCode::InvalidParams),
            (json!("text"), ErrorCode::InvalidParams),
        ] {
            let refusal = Part::parse(&part, "message.parts.2").unwrap_err();
            assert_eq!(refusal.code, code, "{part}");
            assert!(refusal.message.starts_with("message.parts.2"), "{}", refusal.message);
        }
    }

    #[test]
    fn content_of_blocks_becomes_parts() {
        let content = json!([{"type": "text", "text": "a"}, "b", {"type": "tool_use", "id": "x"},
                             {"type": "image", "url": "https://example.com/a", "mime_type": "image/png"},
                             {"type": "data", "data": {"a": [1]}}]);
        let parts = Part::from_content(&content);
        let written: Vec<Value> = parts.iter().map(|part| part.to_json(Dialect::V10)).collect();
        assert_eq!(
            written,
            [
                json!({"text": "ab"}),
                json!({"url": "https://example.com/a", "mediaType": "image/png"}),
                json!({"data": {"a": [1]}})
            ]
        );
        assert_eq!(Part::from_content(&json!("")), []);
    }
}
