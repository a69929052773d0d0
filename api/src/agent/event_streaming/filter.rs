//! Filter of a subscription.

use serde_json::Value;
use towpath_domain::agent::Object;
use towpath_domain::agent::request::write_whole;

use super::event::{Channel, Event};

/// Maximum number of list entries and namespace segments.
const MAX_ENTRIES: usize = 256;
/// Maximum size of a name, a namespace segment or an id.
const MAX_TEXT_BYTES: usize = 256;
/// Maximum size of all namespaces of a subscription.
const MAX_NAMESPACE_BYTES: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct EventFilter {
    channels: Vec<Channel>,
    /// Names of custom channels.
    names: Vec<String>,
    /// Prefixes; empty for all namespaces.
    namespaces: Vec<Vec<String>>,
    /// Levels below the prefix.
    depth: Option<usize>,
}

impl EventFilter {
    /// Reads `{channels, namespaces?, depth?}`. The error names the field.
    pub fn parse(params: &Object) -> Result<Self, String> {
        let Some(Value::Array(listed)) = params
            .get("channels")
            .filter(|listed| **listed != Value::Array(Vec::new()))
        else {
            return Err("channels is required and must be a non-empty array".to_owned());
        };
        if listed.len() > MAX_ENTRIES {
            return Err(format!("channels: at most {MAX_ENTRIES} entries"));
        }
        let mut filter = Self {
            channels: Vec::new(),
            names: Vec::new(),
            namespaces: parse_namespaces(params.get("namespaces"))?,
            depth: parse_depth(params.get("depth"))?,
        };
        for entry in listed {
            let text = entry.as_str().unwrap_or_default();
            if let Some(channel) = Channel::parse(text) {
                filter.channels.push(channel);
            } else if let Some(name) = text.strip_prefix("custom:").filter(|name| !name.is_empty()) {
                check_length("channels", name)?;
                filter.names.push(name.to_owned());
            } else {
                let known = Channel::ALL.map(Channel::as_str).join(", ");
                return Err(format!(
                    "channels contains unsupported entries: {entry}. Allowed: {known}, or any `custom:<name>`."
                ));
            }
        }
        Ok(filter)
    }

    pub fn matches(&self, event: &Event) -> bool {
        let Some(channel) = event.channel else { return true };
        let named = || event.name.as_ref().is_some_and(|name| self.names.contains(name));
        let is_named_custom = || channel == Channel::Custom && named();
        if !(self.channels.contains(&channel) || is_named_custom()) {
            return false;
        }
        let below = |prefix: &Vec<String>| {
            let levels = event.namespace.len().checked_sub(prefix.len())?;
            let fits = prefix
                .iter()
                .zip(&event.namespace)
                .all(|(pattern, segment)| matches_segment(pattern, segment));
            fits.then_some(levels)
        };
        let mut levels = self.namespaces.iter().filter_map(below);
        self.namespaces.is_empty() || levels.any(|levels| self.depth.is_none_or(|depth| levels <= depth))
    }
}

/// Whether a namespace segment matches the segment of a prefix. A node without a task matches all its tasks.
fn matches_segment(pattern: &str, segment: &str) -> bool {
    pattern == segment || (!pattern.contains(':') && segment.split(':').next() == Some(pattern))
}

fn parse_namespaces(given: Option<&Value>) -> Result<Vec<Vec<String>>, String> {
    let wrong = || "namespaces: expected a list of lists of strings".to_owned();
    let Some(given) = given.filter(|given| !given.is_null()) else {
        return Ok(Vec::new());
    };
    let listed: Vec<Vec<String>> = serde_json::from_value(given.clone()).map_err(|_| wrong())?;
    if listed.len() > MAX_ENTRIES || listed.iter().any(|namespace| namespace.len() > MAX_ENTRIES) {
        return Err(format!(
            "namespaces: at most {MAX_ENTRIES} entries of at most {MAX_ENTRIES} segments"
        ));
    }
    let mut bytes = 0;
    for segment in listed.iter().flatten() {
        check_length("namespaces", segment)?;
        bytes += segment.len();
    }
    if bytes > MAX_NAMESPACE_BYTES {
        return Err(format!(
            "namespaces: expected at most {MAX_NAMESPACE_BYTES} bytes in total"
        ));
    }
    Ok(listed)
}

/// Rejects a text that is too long for a name, a segment or an id.
pub(super) fn check_length(field: &str, text: &str) -> Result<(), String> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    Err(format!(
        "{field}: a text has {} bytes, but at most {MAX_TEXT_BYTES} are allowed",
        text.len()
    ))
}

/// Reads a namespace: a list of strings.
pub(super) fn parse_namespace(given: &Value) -> Result<Vec<String>, String> {
    let Ok(segments) = serde_json::from_value::<Vec<String>>(given.clone()) else {
        return Err("namespace: expected a list of strings".to_owned());
    };
    if segments.len() > MAX_ENTRIES {
        return Err(format!("namespace: at most {MAX_ENTRIES} segments"));
    }
    segments
        .iter()
        .try_for_each(|segment| check_length("namespace", segment))?;
    Ok(segments)
}

fn parse_depth(given: Option<&Value>) -> Result<Option<usize>, String> {
    let depth = parse_number("depth", given)?;
    Ok(depth.map(|depth| usize::try_from(depth).unwrap_or(usize::MAX)))
}

/// An integer; `25.0` counts as one.
pub(super) fn parse_integer(given: &Value) -> Option<i64> {
    let mut number = given.clone();
    write_whole(&mut number);
    number.as_i64()
}

/// Reads an optional non-negative number.
pub(super) fn parse_number(field: &str, given: Option<&Value>) -> Result<Option<i64>, String> {
    match given.filter(|given| !given.is_null()) {
        None => Ok(None),
        Some(given) => match parse_integer(given).filter(|number| *number >= 0) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{field}: expected a non-negative integer")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::DraftEvent;
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "what `json!` makes is given away")]
    fn read(params: Value) -> Result<EventFilter, String> {
        EventFilter::parse(params.as_object().unwrap())
    }

    fn event(channel: Channel, name: Option<&str>, namespace: &[&str]) -> Event {
        let namespace: Vec<String> = namespace.iter().map(|&segment| segment.to_owned()).collect();
        let mut draft = DraftEvent::serialize(channel, &namespace, &json!({})).unwrap();
        draft.name = name.map(str::to_owned);
        draft.into_event(1, "1-0", 1)
    }

    #[test]
    fn channels_names_and_prefixes_choose() {
        let all = read(json!({"channels": ["values", "custom:mine"]})).unwrap();
        assert!(all.matches(&event(Channel::Values, None, &["a:1", "b:2"])));
        assert!(!all.matches(&event(Channel::Tools, None, &[])));
        assert!(all.matches(&event(Channel::Custom, Some("mine"), &[])));
        assert!(!all.matches(&event(Channel::Custom, Some("other"), &[])));
        assert!(!all.matches(&event(Channel::Custom, None, &[])));
        let below = read(json!({"channels": ["values"], "namespaces": [["a"], ["b:2", "c"]], "depth": 1})).unwrap();
        assert!(below.matches(&event(Channel::Values, None, &["a:1"])));
        assert!(below.matches(&event(Channel::Values, None, &["a:1", "x:1"])));
        assert!(!below.matches(&event(Channel::Values, None, &["a:1", "x:1", "y:1"])));
        assert!(below.matches(&event(Channel::Values, None, &["b:2", "c:3"])));
        assert!(!below.matches(&event(Channel::Values, None, &["b:3", "c:3"])));
        assert!(!below.matches(&event(Channel::Values, None, &[])));
        let root = read(json!({"channels": ["values"], "namespaces": [[]], "depth": 0.0})).unwrap();
        assert!(root.matches(&event(Channel::Values, None, &[])));
        assert!(!root.matches(&event(Channel::Values, None, &["a:1"])));
    }

    #[test]
    fn the_segments_of_a_namespace_are_bounded() {
        assert_eq!(
            parse_namespace(&json!(["a:1", "b"])),
            Ok(vec!["a:1".to_owned(), "b".to_owned()])
        );
        for wrong in [json!("a"), json!([1]), json!(["x".repeat(257)]), json!(vec!["x"; 257])] {
            assert!(
                parse_namespace(&wrong).unwrap_err().starts_with("namespace: "),
                "{wrong}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (params, field) in [
            (json!({}), "channels"),
            (json!({"channels": []}), "channels"),
            (json!({"channels": ["debug"]}), "debug"),
            (json!({"channels": ["custom:"]}), "custom:"),
            (json!({"channels": ["values"], "namespaces": ["a"]}), "namespaces"),
            (json!({"channels": [format!("custom:{}", "x".repeat(257))]}), "channels"),
            (
                json!({"channels": ["values"], "namespaces": [["x".repeat(257)]]}),
                "namespaces",
            ),
            (
                json!({"channels": ["values"], "namespaces": vec![vec!["x".repeat(256); 128]; 3]}),
                "namespaces",
            ),
            (json!({"channels": ["values"], "depth": true}), "depth"),
            (json!({"channels": ["values"], "depth": 0.5}), "depth"),
            (json!({"channels": ["values"], "depth": -1}), "depth"),
        ] {
            let refused = read(params).unwrap_err();
            assert!(refused.contains(field), "{field}: {refused}");
        }
    }
}
