//! Readable inputs and outputs of trace runs.

use towpath_domain::json::Value;

/// Maximum number of characters of one value; the API returns all.
const MOST: usize = 100_000;
/// Maximum number of messages of one value.
const MOST_MESSAGES: usize = 200;

/// A formatted value.
pub(super) struct Content {
    /// Messages, if the value is a conversation.
    pub messages: Vec<Message>,
    /// Indented JSON.
    pub text: String,
    /// Whether the end of the text is not shown.
    pub cut: bool,
}

pub(super) struct Message {
    /// `user`, `assistant`, `system`, `tool`, …
    pub role: String,
    /// Style: `person`, `model` or none.
    pub side: &'static str,
    pub text: String,
}

impl Content {
    /// `None` if the value is empty.
    pub(super) fn of(json: Option<&str>) -> Option<Self> {
        let json = json
            .map(str::trim)
            .filter(|json| !matches!(*json, "" | "null" | "{}" | "[]"))?;
        let parsed = (json.len() <= 1 << 20).then(|| Value::parse(json).ok()).flatten();
        let (text, cut) = indented(json);
        Some(Self {
            messages: parsed.as_ref().map(messages).unwrap_or_default(),
            text,
            cut,
        })
    }
}

/// One-line preview: the only text in the value, else its JSON.
pub(in crate::ui) fn preview(json: Option<&str>) -> String {
    const LENGTH: usize = 140;
    let json = json.unwrap_or_default().trim();
    let parsed = (json.len() <= 1 << 16).then(|| Value::parse(json).ok()).flatten();
    let said = parsed.as_ref().and_then(|value| {
        let last = messages(value).pop().map(|message| message.text);
        last.or_else(|| only_text(value).map(str::to_owned))
    });
    let text = said.as_deref().unwrap_or(if json == "{}" { "" } else { json });
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LENGTH) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// The text of an object with a single entry.
fn only_text<'a>(value: &'a Value<'_>) -> Option<&'a str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(entries) if entries.len() == 1 => entries.values().next().and_then(only_text),
        _ => None,
    }
}

/// The messages in a value, in the formats of chat models and clients; empty for other values.
fn messages(value: &Value<'_>) -> Vec<Message> {
    let found = match value {
        Value::Object(_) => ["messages", "message", "generations", "choices", "output", "input"]
            .iter()
            .find_map(|key| value.get(key).map(listed).filter(|list| !list.is_empty())),
        list @ Value::Array(_) => Some(listed(list)),
        _ => None,
    };
    let one = || message(value).into_iter().collect();
    found.unwrap_or_else(one)
}

/// A list of messages or lists of messages; empty if any entry is not a message.
fn listed(value: &Value<'_>) -> Vec<Message> {
    match value {
        Value::Array(items) => {
            let mut all = Vec::new();
            for item in items.iter().take(MOST_MESSAGES) {
                let said = if item.as_array().is_some() {
                    listed(item)
                } else {
                    message(item).into_iter().collect()
                };
                if said.is_empty() {
                    return Vec::new();
                }
                all.extend(said);
            }
            all
        }
        one => message(one).into_iter().collect(),
    }
}

fn message(value: &Value<'_>) -> Option<Message> {
    // `{message: …}` of choices and generations, `{kwargs: …}` of serialized messages.
    if let Some(inner) = value.get("message").or_else(|| value.get("kwargs")) {
        return message(inner);
    }
    let role = ["role", "type"].iter().find_map(|key| value.get(key)?.as_str())?;
    let side = match role {
        "user" | "human" => "person",
        "assistant" | "ai" | "AIMessageChunk" => "model",
        "system" | "developer" | "tool" | "function" => "",
        _ => return None,
    };
    let mut text = message_text(value.get("content")?)?;
    for call in value.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Value::as_str).unwrap_or("a tool");
        let given = function.get("arguments").or_else(|| function.get("args"));
        let given = match given {
            Some(Value::String(text)) => text.to_string(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let line = format!("→ {name}({given})");
        text = if text.is_empty() {
            line
        } else {
            format!("{text}\n{line}")
        };
    }
    Some(Message {
        role: role.to_owned(),
        side,
        text: shortened(text),
    })
}

/// The text of a message: a string, or its text blocks.
fn message_text(content: &Value<'_>) -> Option<String> {
    match content {
        Value::String(text) => Some(text.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(blocks) => {
            let texts = blocks.iter().map(|block| {
                let text = block.as_str().or_else(|| block.get("text")?.as_str());
                let kind = || block.get("type").and_then(Value::as_str).unwrap_or("block");
                text.map_or_else(|| format!("[{}]", kind()), str::to_owned)
            });
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MOST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Indented JSON with the original key order and numbers, and whether it was cut.
fn indented(json: &str) -> (String, bool) {
    let mut text = String::with_capacity(json.len() + json.len() / 4);
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut tokens = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth.min(40)));
    };
    while let Some(c) = tokens.next() {
        if text.len() > MOST {
            return (text, true);
        }
        if quoted {
            text.push(c);
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                quoted = true;
                text.push(c);
            }
            '{' | '[' => {
                text.push(c);
                while tokens.next_if(|next| next.is_whitespace()).is_some() {}
                let end = if c == '{' { '}' } else { ']' };
                if tokens.next_if_eq(&end).is_some() {
                    text.push(end);
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if c.is_whitespace() => {}
            c => text.push(c),
        }
    }
    (text, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> Vec<(String, String)> {
        let found = Content::of(Some(json)).unwrap().messages;
        found.into_iter().map(|message| (message.role, message.text)).collect()
    }

    #[test]
    fn json_is_indented_as_it_was_written() {
        let text = indented(r#"{"z":1.50,"a":[{},[],"x: {\"y\"}, \\"],"n":{"k":null}}"#).0;
        assert_eq!(
            text,
            "{\n  \"z\": 1.50,\n  \"a\": [\n    {},\n    [],\n    \"x: {\\\"y\\\"}, \\\\\"\n  ],\n  \"n\": {\n    \"k\": null\n  }\n}"
        );
        let (long, cut) = indented(&format!("[{}1]", "1,".repeat(MOST)));
        assert!(cut && long.len() <= MOST + 8);
    }

    #[test]
    fn conversations_are_known_in_every_shape() {
        let pair = |role: &str, text: &str| (role.to_owned(), text.to_owned());
        assert_eq!(
            told(
                r#"{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image"}]}]}"#
            ),
            [pair("system", "be brief"), pair("user", "hi\n[image]")]
        );
        assert_eq!(
            told(r#"{"messages":[[{"lc":1,"type":"constructor","kwargs":{"content":"hi","type":"human"}}]]}"#),
            [pair("human", "hi")]
        );
        assert_eq!(
            told(
                r#"{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"look","arguments":"{\"at\":1}"}}]}}]}"#
            ),
            [pair("assistant", "→ look({\"at\":1})")]
        );
        assert_eq!(
            told(r#"{"generations":[[{"text":"yes","message":{"kwargs":{"type":"ai","content":"yes"}}}]]}"#),
            [pair("ai", "yes")]
        );
        assert_eq!(
            told(
                r#"{"n":1e999,"messages":[{"role":"user","content":"cut \ud83d"},{"role":"ai","type":"ai","content":"","tool_calls":[{"name":"f","args":{"n":1e999}}]}]}"#
            ),
            [pair("user", "cut \u{fffd}"), pair("ai", "→ f({\"n\":1e999})")]
        );
        assert!(told(r#"{"messages":[{"role":"user","content":"a"},7]}"#).is_empty());
        assert!(told(r#"{"question":"why?"}"#).is_empty());
        assert!(Content::of(Some(" {} ")).is_none());
    }

    #[test]
    fn previews_say_what_matters() {
        assert_eq!(
            preview(Some(r#"{"question": "how\n does  it work?"}"#)),
            "how does it work?"
        );
        assert_eq!(
            preview(Some(r#"{"messages":[{"role":"user","content":"last"}]}"#)),
            "last"
        );
        assert_eq!(preview(Some(r#"{"a":1,"b":2}"#)), r#"{"a":1,"b":2}"#);
        assert_eq!(preview(Some(r#"{"cut": "a \ud83d"}"#)), "a \u{fffd}");
        assert_eq!(preview(Some("{}")), "");
        assert_eq!(preview(None), "");
        assert_eq!(preview(Some(&format!("\"{}\"", "é".repeat(500)))).chars().count(), 141);
    }
}
