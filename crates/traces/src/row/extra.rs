//! `extra` by the keys of its top level.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Keys with their raw JSON text.
pub type Keys = Vec<(String, String)>;

/// Sorts by key, so that what was sent in any order gives one text. Of a key that stands twice the last counts, as
/// JSON readers do it.
pub fn normalise(keys: &mut Keys) {
    keys.reverse();
    keys.sort_by(|a, b| a.0.cmp(&b.0)); // stable: the one sent last now comes first
    keys.dedup_by(|later, kept| later.0 == kept.0);
}

/// Merges two sorted lists; of a key in both, the value with the higher source stays.
pub fn merge(
    left: impl Iterator<Item = ((String, String), i64)>,
    right: impl Iterator<Item = ((String, String), i64)>,
) -> (Keys, Vec<i64>) {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(|| {
        let order = match (left.peek(), right.peek()) {
            (Some((a, _)), Some((b, _))) => a.0.cmp(&b.0),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, _) => std::cmp::Ordering::Greater,
        };
        match order {
            std::cmp::Ordering::Less => left.next(),
            std::cmp::Ordering::Greater => right.next(),
            std::cmp::Ordering::Equal => {
                let (mine, theirs) = (left.next()?, right.next()?);
                Some(if theirs.1 > mine.1 { theirs } else { mine })
            }
        }
    })
    .unzip()
}

/// As one JSON object.
pub fn compose(keys: &[(String, String)]) -> String {
    let mut text = String::with_capacity(
        2 + keys
            .iter()
            .map(|(key, value)| key.len() + value.len() + 4)
            .sum::<usize>(),
    );
    text.push('{');
    for (at, (key, value)) in keys.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&serde_json::Value::from(key.as_str()).to_string());
        text.push(':');
        text.push_str(value.trim());
    }
    text.push('}');
    text
}

/// Takes apart what [`compose`] put together.
pub fn parse(text: &str) -> serde_json::Result<Keys> {
    serde_json::from_str::<Object>(text).map(|object| object.0)
}

struct Object(Keys);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut keys = Keys::new();
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            keys.push((key, value.get().to_owned()));
        }
        Ok(Object(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Keys {
        list.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_last_of_a_repeated_key_counts() {
        let mut keys = pairs(&[("b", "1"), ("a", "2"), ("b", "3"), ("b", "4")]);
        normalise(&mut keys);
        assert_eq!(keys, pairs(&[("a", "2"), ("b", "4")]));
    }

    #[test]
    fn composes_and_parses() {
        let keys = pairs(&[("a \"q\"\n", "{\"x\": [1, 2.50]}"), ("é", "null")]);
        let text = compose(&keys);
        assert_eq!(text, "{\"a \\\"q\\\"\\n\":{\"x\": [1, 2.50]},\"é\":null}");
        assert_eq!(parse(&text).unwrap(), keys);
        assert_eq!(parse(&compose(&[])).unwrap(), Keys::new());
        assert!(parse("[]").is_err());
    }
}
