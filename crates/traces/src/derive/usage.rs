//! Token counts and costs of model calls.
//!
//! The first non-empty source counts: `outputs.usage_metadata`; the sum over `outputs.message` and every
//! `outputs.generations[..].message` (plain, or serialised with `kwargs`); `extra.metadata.usage_metadata`;
//! `outputs.llm_output.token_usage`, which uses other names.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memchr::memmem;
use towpath_domain::json::{items, members, pairs};

use super::decimal;
use crate::operation::Fields;

/// Kinds of tokens that are read of one call.
const MAX_KINDS: usize = 32;

/// Tokens, and costs as multiples of 10⁻¹⁰.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of it; the sum of the two others where it was not sent.
    pub total_tokens: Option<i64>,
    /// Tokens that went in.
    pub prompt_tokens: Option<i64>,
    /// Tokens that came out.
    pub completion_tokens: Option<i64>,
    /// All of it; the sum of the two others where it was not sent.
    pub total_cost: Option<i128>,
    /// Cost of what went in.
    pub prompt_cost: Option<i128>,
    /// Cost of what came out.
    pub completion_cost: Option<i128>,
    /// Those of `prompt_tokens` that are of a special kind: `cache_read`, `cache_creation`, `audio`, …
    pub prompt_token_details: BTreeMap<String, i64>,
    /// Those of `completion_tokens` that are of a special kind: `reasoning`, `audio`, …
    pub completion_token_details: BTreeMap<String, i64>,
    /// The parts of `prompt_cost` by kind.
    pub prompt_cost_details: BTreeMap<String, i128>,
    /// The parts of `completion_cost` by kind.
    pub completion_cost_details: BTreeMap<String, i128>,
}

type Raw<'a> = Option<&'a str>;

/// Usage of a row; `metadata` is only evaluated if needed.
pub fn of<'a>(fields: &Fields, metadata: impl FnOnce() -> Option<Cow<'a, str>>) -> Usage {
    let has = |text: &str, key: &str| memmem::find(text.as_bytes(), key.as_bytes()).is_some();
    let text = fields.outputs.as_deref().unwrap_or_default();
    let has_usage = has(text, "usage_metadata");
    let has_token_usage = has(text, "token_usage");
    let outputs = (has_usage || has_token_usage)
        .then(|| members(text, ["usage_metadata", "message", "generations", "llm_output"]))
        .flatten();
    let own = outputs
        .filter(|_| has_usage)
        .map(|[usage, message, generations, _]| in_outputs(usage, message, generations))
        .unwrap_or_default();
    if !own.is_empty() {
        return own;
    }
    let metadata = metadata();
    let told = counts(
        metadata
            .as_deref()
            .filter(|text| has(text, "usage_metadata"))
            .and_then(|text| member(text, "usage_metadata")),
    );
    if !told.is_empty() {
        return told;
    }
    let output = outputs.filter(|_| has_token_usage).and_then(|[.., output]| output);
    counts(output.and_then(|output| member(output, "token_usage")))
}

fn in_outputs(usage: Raw<'_>, message: Raw<'_>, generations: Raw<'_>) -> Usage {
    let direct = counts(usage);
    if !direct.is_empty() {
        return direct;
    }
    let mut sum = in_message(message);
    // One list per prompt, or one list: both are about.
    for item in generations.into_iter().flat_map(items) {
        if item.starts_with('[') {
            for generation in items(item) {
                sum = sum.plus(in_message(member(generation, "message")));
            }
        } else {
            sum = sum.plus(in_message(member(item, "message")));
        }
    }
    sum
}

fn in_message(raw: Raw<'_>) -> Usage {
    let Some([usage, kwargs]) = raw.and_then(|raw| members(raw, ["usage_metadata", "kwargs"])) else {
        return Usage::default();
    };
    let plain = counts(usage);
    if !plain.is_empty() {
        return plain;
    }
    counts(kwargs.and_then(|kwargs| member(kwargs, "usage_metadata")))
}

fn counts(raw: Raw<'_>) -> Usage {
    const NAMES: [&str; 14] = [
        "input_tokens",
        "prompt_tokens",
        "output_tokens",
        "completion_tokens",
        "total_tokens",
        "input_cost",
        "output_cost",
        "total_cost",
        "input_token_details",
        "prompt_tokens_details",
        "output_token_details",
        "completion_tokens_details",
        "input_cost_details",
        "output_cost_details",
    ];
    // Objects of an unexpected shape are ignored, not refused.
    let Some(
        [
            input,
            prompt,
            output,
            completion,
            total,
            input_cost,
            output_cost,
            total_cost,
            input_details,
            prompt_details,
            output_details,
            completion_details,
            input_cost_details,
            output_cost_details,
        ],
    ) = raw.and_then(|raw| members(raw, NAMES))
    else {
        return Usage::default();
    };
    let (prompt_tokens, completion_tokens) = (tokens(input.or(prompt)), tokens(output.or(completion)));
    let (prompt_cost, completion_cost) = (cost(input_cost), cost(output_cost));
    Usage {
        total_tokens: tokens(total).or(add(prompt_tokens, completion_tokens, i64::saturating_add)),
        prompt_tokens,
        completion_tokens,
        total_cost: cost(total_cost).or(add(prompt_cost, completion_cost, decimal::sum)),
        prompt_cost,
        completion_cost,
        prompt_token_details: by_kind(input_details.or(prompt_details), |raw| tokens(Some(raw))),
        completion_token_details: by_kind(output_details.or(completion_details), |raw| tokens(Some(raw))),
        prompt_cost_details: by_kind(input_cost_details, |raw| cost(Some(raw))),
        completion_cost_details: by_kind(output_cost_details, |raw| cost(Some(raw))),
    }
}

/// Numbers by kind, under the names of `usage_metadata`. Others than numbers are left out.
fn by_kind<T>(raw: Raw<'_>, read: impl Fn(&str) -> Option<T>) -> BTreeMap<String, T> {
    let pairs = raw.and_then(pairs).unwrap_or_default();
    let read = pairs.into_iter().filter_map(|(name, raw)| {
        let name = match &*name {
            "cached_tokens" => "cache_read",
            "audio_tokens" => "audio",
            "reasoning_tokens" => "reasoning",
            other => other,
        };
        Some((name.to_owned(), read(raw)?))
    });
    read.take(MAX_KINDS).collect()
}

impl Usage {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn plus(self, other: Self) -> Self {
        Self {
            total_tokens: add(self.total_tokens, other.total_tokens, i64::saturating_add),
            prompt_tokens: add(self.prompt_tokens, other.prompt_tokens, i64::saturating_add),
            completion_tokens: add(self.completion_tokens, other.completion_tokens, i64::saturating_add),
            total_cost: add(self.total_cost, other.total_cost, decimal::sum),
            prompt_cost: add(self.prompt_cost, other.prompt_cost, decimal::sum),
            completion_cost: add(self.completion_cost, other.completion_cost, decimal::sum),
            prompt_token_details: add_kinds(
                self.prompt_token_details,
                other.prompt_token_details,
                i64::saturating_add,
            ),
            completion_token_details: add_kinds(
                self.completion_token_details,
                other.completion_token_details,
                i64::saturating_add,
            ),
            prompt_cost_details: add_kinds(self.prompt_cost_details, other.prompt_cost_details, decimal::sum),
            completion_cost_details: add_kinds(
                self.completion_cost_details,
                other.completion_cost_details,
                decimal::sum,
            ),
        }
    }
}

fn add_kinds<T: Copy>(mut a: BTreeMap<String, T>, b: BTreeMap<String, T>, plus: fn(T, T) -> T) -> BTreeMap<String, T> {
    for (kind, value) in b {
        let has_room = a.len() < MAX_KINDS;
        match a.get_mut(&kind) {
            Some(sum) => *sum = plus(*sum, value),
            None if has_room => {
                a.insert(kind, value);
            }
            None => {}
        }
    }
    a
}

fn member<'a>(text: &'a str, name: &str) -> Raw<'a> {
    members(text, [name]).and_then(|[member]| member)
}

/// A count; clients in JS may write `12.0`.
fn tokens(raw: Raw<'_>) -> Option<i64> {
    let text = raw?;
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    })
}

/// An amount, as a number or as a text that holds one.
fn cost(raw: Raw<'_>) -> Option<i128> {
    decimal::parse(raw?.trim_matches('"'))
}

fn add<T>(a: Option<T>, b: Option<T>, plus: fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(plus(a, b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = r#"{"input_tokens":10,"output_tokens":5,"total_tokens":15,"input_cost":0.001,"output_cost":"0.002","input_token_details":{"audio":1}}"#;

    fn full() -> Usage {
        Usage {
            total_tokens: Some(15),
            prompt_tokens: Some(10),
            completion_tokens: Some(5),
            total_cost: Some(30_000_000),
            prompt_cost: Some(10_000_000),
            completion_cost: Some(20_000_000),
            prompt_token_details: BTreeMap::from([("audio".to_owned(), 1)]),
            ..Usage::default()
        }
    }

    fn outputs(text: &str) -> Usage {
        let fields = Fields {
            outputs: Some(text.to_owned()),
            ..Fields::default()
        };
        of(&fields, || None)
    }

    #[test]
    fn every_place_is_looked_at() {
        for text in [
            format!(r#"{{"messages":[],"usage_metadata":{USAGE}}}"#),
            format!(r#"{{"message":{{"content":"x","usage_metadata":{USAGE}}}}}"#),
            format!(
                r#"{{"generations":[[{{"text":"","message":{{"lc":1,"kwargs":{{"usage_metadata":{USAGE}}}}}}}]],"llm_output":{{"token_usage":{{"prompt_tokens":1}}}}}}"#
            ),
            format!(r#"{{"generations":[{{"message":{{"usage_metadata":{USAGE}}}}}]}}"#),
        ] {
            assert_eq!(outputs(&text), full(), "{text}");
        }
        let metadata = format!(r#"{{"a":1,"usage_metadata":{USAGE}}}"#);
        let text = r#"{"llm_output":{"token_usage":{"prompt_tokens":1}}}"#.to_owned();
        let fields = Fields {
            outputs: Some(text),
            ..Fields::default()
        };
        assert_eq!(of(&fields, || Some(Cow::Owned(metadata))), full());
        for odd in [
            r#""\ud83d":[],"text":"\ud83d""#,
            r#""n":1e999,"usage_metadata":3"#,
            r#""message":1,"message":2"#,
        ] {
            assert_eq!(
                outputs(&format!(r#"{{{odd},"usage_metadata":{USAGE}}}"#)),
                full(),
                "{odd}"
            );
        }
        let old =
            outputs(r#"{"generations":[],"llm_output":{"token_usage":{"prompt_tokens":3,"completion_tokens":4.0}}}"#);
        assert_eq!(
            (old.prompt_tokens, old.completion_tokens, old.total_tokens),
            (Some(3), Some(4), Some(7))
        );
    }

    #[test]
    fn generations_are_summed() {
        let message = format!(r#"{{"message":{{"usage_metadata":{USAGE}}}}}"#);
        let two = outputs(&format!(r#"{{"generations":[[{message},{{}}],[{message}]]}}"#));
        assert_eq!((two.total_tokens, two.total_cost), (Some(30), Some(60_000_000)));
    }

    #[test]
    fn sums_end_at_what_a_column_can_hold() {
        let usage = format!(
            r#"{{"input_tokens":{},"output_tokens":1,"input_cost":9999999999}}"#,
            i64::MAX
        );
        let message = format!(r#"{{"message":{{"usage_metadata":{usage}}}}}"#);
        let three = outputs(&format!(r#"{{"generations":[{message},{message},{message}]}}"#));
        let tokens = [three.total_tokens, three.prompt_tokens, three.completion_tokens];
        assert_eq!(tokens, [Some(i64::MAX), Some(i64::MAX), Some(3)]);
        assert_eq!(three.total_cost, Some(99_999_999_999_999_999_999));
    }

    #[test]
    fn other_shapes_give_nothing() {
        for text in [
            "",
            "null",
            "[\"usage_metadata\"]",
            "{\"usage_metadata\":3}",
            "{\"usage_metadata\":{\"input_tokens\":\"many\"}}",
            "{\"usage_metadata\":{\"input_tokens\":1.5}",
            "{\"text\":\"usage_metadata token_usage\"}",
            "{\"generations\":{\"usage_metadata\":1}}",
        ] {
            assert_eq!(outputs(text), Usage::default(), "{text}");
        }
    }

    #[test]
    fn kinds_of_tokens_have_one_name() {
        let sdk = outputs(
            r#"{"usage_metadata":{"input_tokens":9,"output_tokens":8,"input_token_details":{"cache_read":4,"cache_creation":2,"odd":"x"},
                "output_token_details":{"reasoning":5},"input_cost_details":{"cache_read":0.5}}}"#,
        );
        let provider = outputs(
            r#"{"llm_output":{"token_usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},
                "completion_tokens":8,"completion_tokens_details":{"reasoning_tokens":5}}}}"#,
        );
        let kinds = |of: &[(&str, i64)]| -> BTreeMap<String, i64> {
            of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        assert_eq!(
            sdk.prompt_token_details,
            kinds(&[("cache_creation", 2), ("cache_read", 4)])
        );
        assert_eq!(sdk.completion_token_details, kinds(&[("reasoning", 5)]));
        assert_eq!(
            sdk.prompt_cost_details,
            BTreeMap::from([("cache_read".to_owned(), 5_000_000_000)])
        );
        assert_eq!(provider.prompt_token_details, kinds(&[("audio", 0), ("cache_read", 4)]));
        assert_eq!(provider.completion_token_details, kinds(&[("reasoning", 5)]));
    }
}
