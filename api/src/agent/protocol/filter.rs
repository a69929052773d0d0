//! Which events a subscription is about.

use serde_json::Value;
use towpath_domain::agent::Object;
use towpath_domain::agent::request::write_whole;

use super::event::{Channel, Event};

/// Entries of a list, and segments of a namespace.
const MOST: usize = 256;
/// Bytes of a name, of a segment of a namespace, of an id.
const TEXT_BYTES: usize = 256;
/// Bytes of all namespaces of one subscription.
const NAMESPACE_BYTES: usize = 64 << 10;

/// The events of a subscription.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    channels: Vec<Channel>,
    /// Names of custom channels.
    names: Vec<String>,
    /// Prefixes; none is every namespace.
    namespaces: Vec<Vec<String>>,
    /// Levels below the prefix.
    depth: Option<usize>,
}

impl Filter {
    /// Reads `{channels, namespaces?, depth?}`.
    ///
    /// # Errors
    /// A text that names the field.
    pub fn read(params: &Object) -> Result<Self, String> {
        let Some(Value::Array(listed)) = params
            .get("channels")
            .filter(|listed| **listed != Value::Array(Vec::new()))
        else {
            return Err("channels is required and must be a non-empty array".to_owned());
        };
        if listed.len() > MOST {
            return Err(format!("channels: at most {MOST} entries"));
        }
        let mut filter = Self {
            channels: Vec::new(),
            names: Vec::new(),
            namespaces: namespaces(params.get("namespaces"))?,
            depth: depth(params.get("depth"))?,
        };
        for entry in listed {
            let text = entry.as_str().unwrap_or_default();
            if let Some(channel) = Channel::parse(text) {
                filter.channels.push(channel);
            } else if let Some(name) = text.strip_prefix("custom:").filter(|name| !name.is_empty()) {
                short("channels", name)?;
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

    /// Whether an event is among them.
    pub fn takes(&self, event: &Event) -> bool {
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
                .all(|(pattern, segment)| fits(pattern, segment));
            fits.then_some(levels)
        };
        let mut levels = self.namespaces.iter().filter_map(below);
        self.namespaces.is_empty() || levels.any(|levels| self.depth.is_none_or(|depth| levels <= depth))
    }
}

/// Whether a segment of a namespace is the one of a prefix. A node without a task is every task of it.
fn fits(pattern: &str, segment: &str) -> bool {
    pattern == segment || (!pattern.contains(':') && segment.split(':').next() == Some(pattern))
}

fn namespaces(given: Option<&Value>) -> Result<Vec<Vec<String>>, String> {
    let wrong = || "namespaces: expected a list of lists of strings".to_owned();
    let Some(given) = given.filter(|given| !given.is_null()) else {
        return Ok(Vec::new());
    };
    let listed: Vec<Vec<String>> = serde_json::from_value(given.clone()).map_err(|_| wrong())?;
    if listed.len() > MOST || listed.iter().any(|namespace| namespace.len() > MOST) {
        return Err(format!("namespaces: at most {MOST} entries of at most {MOST} segments"));
    }
    let mut bytes = 0;
    for segment in listed.iter().flatten() {
        short("namespaces", segment)?;
        bytes += segment.len();
    }
    if bytes > NAMESPACE_BYTES {
        return Err(format!(
            "namespaces: at most {NAMESPACE_BYTES} bytes in all entries together"
        ));
    }
    Ok(listed)
}

/// Refuses a text that is too long for a name, a segment or an id.
pub(super) fn short(field: &str, text: &str) -> Result<(), String> {
    if text.len() <= TEXT_BYTES {
        return Ok(());
    }
    Err(format!(
        "{field}: a text has {} bytes, and may have at most {TEXT_BYTES}",
        text.len()
    ))
}

/// Reads a namespace: a list of strings.
pub(super) fn namespace(given: &Value) -> Result<Vec<String>, String> {
    let Ok(segments) = serde_json::from_value::<Vec<String>>(given.clone()) else {
        return Err("namespace: expected a list of strings".to_owned());
    };
    if segments.len() > MOST {
        return Err(format!("namespace: at most {MOST} segments"));
    }
    segments.iter().try_for_each(|segment| short("namespace", segment))?;
    Ok(segments)
}

fn depth(given: Option<&Value>) -> Result<Option<usize>, String> {
    let depth = number("depth", given)?;
    Ok(depth.map(|depth| usize::try_from(depth).unwrap_or(usize::MAX)))
}

/// An integer, as JSON knows them: `25.0` is one.
pub(super) fn integer(given: &Value) -> Option<i64> {
    let mut number = given.clone();
    write_whole(&mut number);
    number.as_i64()
}

/// Reads a number that is not negative, if it is there.
pub(super) fn number(field: &str, given: Option<&Value>) -> Result<Option<i64>, String> {
    match given.filter(|given| !given.is_null()) {
        None => Ok(None),
        Some(given) => match integer(given).filter(|number| *number >= 0) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{field}: expected a non-negative integer")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Draft;
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "what `json!` makes is given away")]
    fn read(params: Value) -> Result<Filter, String> {
        Filter::read(params.as_object().unwrap())
    }

    fn event(channel: Channel, name: Option<&str>, namespace: &[&str]) -> Event {
        let namespace: Vec<String> = namespace.iter().map(|&segment| segment.to_owned()).collect();
        let mut draft = Draft::of(channel, &namespace, &json!({})).unwrap();
        draft.name = name.map(str::to_owned);
        draft.numbered(1, "1-0", 1)
    }

    #[test]
    fn channels_names_and_prefixes_choose() {
        let all = read(json!({"channels": ["values", "custom:mine"]})).unwrap();
        assert!(all.takes(&event(Channel::Values, None, &["a:1", "b:2"])));
        assert!(!all.takes(&event(Channel::Tools, None, &[])));
        assert!(all.takes(&event(Channel::Custom, Some("mine"), &[])));
        assert!(!all.takes(&event(Channel::Custom, Some("other"), &[])));
        assert!(!all.takes(&event(Channel::Custom, None, &[])));
        let below = read(json!({"channels": ["values"], "namespaces": [["a"], ["b:2", "c"]], "depth": 1})).unwrap();
        assert!(below.takes(&event(Channel::Values, None, &["a:1"])));
        assert!(below.takes(&event(Channel::Values, None, &["a:1", "x:1"])));
        assert!(!below.takes(&event(Channel::Values, None, &["a:1", "x:1", "y:1"])));
        assert!(below.takes(&event(Channel::Values, None, &["b:2", "c:3"])));
        assert!(!below.takes(&event(Channel::Values, None, &["b:3", "c:3"])));
        assert!(!below.takes(&event(Channel::Values, None, &[])));
        let root = read(json!({"channels": ["values"], "namespaces": [[]], "depth": 0.0})).unwrap();
        assert!(root.takes(&event(Channel::Values, None, &[])));
        assert!(!root.takes(&event(Channel::Values, None, &["a:1"])));
    }

    #[test]
    fn the_segments_of_a_namespace_are_bounded() {
        assert_eq!(
            namespace(&json!(["a:1", "b"])),
            Ok(vec!["a:1".to_owned(), "b".to_owned()])
        );
        for wrong in [json!("a"), json!([1]), json!(["x".repeat(257)]), json!(vec!["x"; 257])] {
            assert!(namespace(&wrong).unwrap_err().starts_with("namespace: "), "{wrong}");
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
