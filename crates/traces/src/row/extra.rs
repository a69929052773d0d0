//! `extra` of a row, by its keys.
//!
//! Of each key the newest value counts. The values of `metadata` and `runtime` merge by the keys inside them, because
//! clients send both with every update:
//!
//! - an object adds its keys to those of older objects; of each key the newest value counts, `null` included;
//! - `null` instead of the object says nothing;
//! - any other value replaces all that is older. A newer object takes its place in turn, with nothing but keys that are
//!   newer than it.
//!
//! What the post alone said stays as it was sent, so rows without patches cost nothing. Once a patch says something,
//! all of it is taken apart and put together by the order of its keys, whatever met first.
//!
//! Operations together may say more than a row can hold. Then the oldest values are left out and the key [`TRUNCATED`]
//! says so: see [`merged`].

mod merged;
mod stored;

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use self::merged::MergedExtra;
pub use self::stored::Sources;
use towpath_domain::json::decode;

use super::provenance::POST;

/// Keys with their raw JSON text.
pub type Keys = Vec<(String, String)>;

/// Keys whose values merge by the keys inside them.
const OBJECTS: [&str; 2] = ["metadata", "runtime"];

/// Most bytes of keys and values that patches leave in a row.
const LIMIT: u64 = 64 << 20;

/// Marks in `extra` that older values were dropped. The same key from clients is not stored.
const TRUNCATED: &str = "__truncated__";

/// What was said of `extra`.
#[derive(Clone, Debug, PartialEq)]
pub enum Extra {
    /// By the post alone: keys in order, each once.
    Sent(Keys),
    /// By a patch at least.
    Merged(Box<MergedExtra>),
}

impl Extra {
    /// What one operation says.
    pub fn sent(source: i64, mut keys: Keys) -> Self {
        normalise(&mut keys);
        keys.retain(|(key, text)| key != TRUNCATED && !says_nothing(key, text));
        match source {
            POST => Self::Sent(keys),
            patch => Self::Merged(Box::new(MergedExtra::of(patch, keys))),
        }
    }

    /// What both say. They are not of two posts.
    pub fn merge(mine: Option<Self>, theirs: Option<Self>) -> Option<Self> {
        match (mine, theirs) {
            // Both are what the one post says.
            (Some(Self::Sent(keys)), Some(Self::Sent(_))) => Some(Self::Sent(keys)),
            (Some(mine), Some(theirs)) => {
                let merged = mine.into_merged().join(theirs.into_merged(), LIMIT);
                Some(Self::Merged(merged))
            }
            (one, other) => one.or(other),
        }
    }

    /// Forgets what a post said. A patch has said something, too.
    pub fn drop_post(&mut self) {
        if let Self::Merged(merged) = self {
            merged.drop_post();
        }
    }

    fn into_merged(self) -> Box<MergedExtra> {
        match self {
            Self::Sent(keys) => Box::new(MergedExtra::of(POST, keys)),
            Self::Merged(merged) => merged,
        }
    }

    /// Keys of the top level in order, as they are shown.
    pub fn keys(&self) -> Cow<'_, [(String, String)]> {
        match self {
            Self::Sent(keys) => Cow::Borrowed(keys.as_slice()),
            Self::Merged(merged) => Cow::Owned(merged.bounded(LIMIT).keys()),
        }
    }

    /// The value of a key of the top level, as it is shown.
    pub fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Sent(keys) => keys
                .binary_search_by(|(known, _)| known.as_str().cmp(key))
                .ok()
                .map(|at| Cow::Borrowed(keys[at].1.as_str())),
            Self::Merged(merged) => merged.bounded(LIMIT).get(key).map(Cow::Owned),
        }
    }

    /// As one JSON object.
    pub fn text(&self) -> String {
        compose(self.keys().iter())
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Sent(keys) => {
                let bytes = |(key, text): &(String, String)| key.len() + text.len() + 2 * size_of::<String>();
                keys.iter().map(bytes).sum()
            }
            Self::Merged(merged) => merged.bytes(),
        }
    }
}

/// `null` instead of an object whose keys merge.
fn says_nothing(key: &str, text: &str) -> bool {
    OBJECTS.contains(&key) && text.trim() == "null"
}

/// Sorts by key, so that the text does not depend on the order. For duplicate keys, the last one counts, as in JSON
/// parsers.
fn normalise(keys: &mut Keys) {
    keys.reverse();
    keys.sort_by(|a, b| a.0.cmp(&b.0)); // stable: the one sent last now comes first
    keys.dedup_by(|later, kept| later.0 == kept.0);
}

/// As one JSON object.
fn compose<'a>(keys: impl IntoIterator<Item = &'a (String, String)>) -> String {
    compose_pairs(keys.into_iter().map(|(key, text)| (key.as_str(), text.as_str())))
}

fn compose_pairs<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("{");
    for (key, value) in pairs {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&serde_json::Value::from(key).to_string());
        text.push(':');
        text.push_str(value.trim());
    }
    text.push('}');
    text
}

/// Splits a JSON object into its members, in order. Lone halves of surrogate pairs in keys are replaced as at the top
/// level.
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
        while let Some((raw, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            let key = decode(raw.get()).ok_or_else(|| serde::de::Error::custom("a key that is not a string"))?;
            keys.push((key.into_owned(), value.get().to_owned()));
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

    fn merged(operations: &[(i64, &[(&str, &str)])]) -> String {
        let all = operations
            .iter()
            .map(|(source, keys)| Some(Extra::sent(*source, pairs(keys))));
        all.reduce(Extra::merge).flatten().unwrap().text()
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
        assert_eq!(
            parse(r#"{"\ud83d": 1e999, "\u0061":"\ud83d"}"#).unwrap(),
            pairs(&[("\u{fffd}", "1e999"), ("a", r#""\ud83d""#)])
        );
    }

    #[test]
    fn what_the_post_alone_says_stays_as_it_was_sent() {
        let text = r#"{ "b": 1, "a" :2.50, "b":3 }"#;
        let keys = pairs(&[("runtime", "null"), ("metadata", text), ("__truncated__", "1")]);
        let post = Extra::sent(POST, keys.clone());
        assert_eq!(post.text(), format!(r#"{{"metadata":{text}}}"#));
        assert_eq!(post.get("metadata").as_deref(), Some(text));
        assert_eq!(post.get("runtime"), None);
        assert_eq!(Extra::merge(Some(post.clone()), None), Some(post.clone()));
        assert_eq!(Extra::merge(Some(post.clone()), Some(post.clone())), Some(post));
        let patch = Extra::sent(4, keys);
        assert_eq!(patch.text(), r#"{"metadata":{"a":2.50,"b":3}}"#);
        assert_eq!(patch.get("runtime"), None);
    }

    #[test]
    fn metadata_and_runtime_merge_by_key_and_nothing_else_does() {
        let post: &[_] = &[
            ("metadata", r#"{"user":"u1", "a": 1}"#),
            ("runtime", r#"{"sdk":"x"}"#),
            ("other", r#"{"a":1}"#),
        ];
        let patch: &[_] = &[
            ("metadata", r#"{"revision":"r", "\u0061":null}"#),
            ("other", r#"{"b":2}"#),
        ];
        let shown = r#"{"metadata":{"a":null,"revision":"r","user":"u1"},"other":{"b":2},"runtime":{"sdk":"x"}}"#;
        assert_eq!(merged(&[(POST, post), (7, patch)]), shown);
        assert_eq!(merged(&[(7, patch), (POST, post)]), shown);
    }

    #[test]
    fn a_value_that_is_no_object_takes_the_place_of_older_ones_only() {
        let object = |text: &'static str| [("metadata", text)];
        let (old, whole, new) = (object(r#"{"a":1,"b":1}"#), object("[1, 2]"), object(r#"{"b":2}"#));
        assert_eq!(merged(&[(5, &old), (7, &whole)]), r#"{"metadata":[1, 2]}"#);
        assert_eq!(merged(&[(7, &whole), (5, &old)]), r#"{"metadata":[1, 2]}"#);
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0]] {
            let all: [(i64, &[_]); 3] = [(5, &old), (7, &whole), (9, &new)];
            assert_eq!(merged(&order.map(|at: usize| all[at])), r#"{"metadata":{"b":2}}"#);
        }
        assert_eq!(merged(&[(7, &whole), (9, &object("null"))]), r#"{"metadata":[1, 2]}"#);
        assert_eq!(
            merged(&[(5, &old), (9, &object("{}"))]),
            r#"{"metadata":{"a":1,"b":1}}"#
        );
        assert_eq!(merged(&[(7, &whole), (9, &object("{}"))]), r#"{"metadata":{}}"#);
    }
}
