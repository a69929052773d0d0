//! Prices with their compiled patterns.

use std::cmp::Reverse;
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;
use towpath_domain::Timestamp;

use super::{MATCH_PATH, MAX_NAME, ModelPrice};

/// Limit of the memory of a compiled pattern in bytes.
const PATTERN_BYTES: usize = 256 << 10;

/// The prices of this build.
const BUNDLED: &str = include_str!("bundled.json");

/// Prices of a workspace in the order of their precedence. Patterns are compiled once per table.
#[derive(Debug, Default)]
pub struct PriceTable {
    version: i64,
    entries: Vec<Arc<Entry>>,
}

#[derive(Debug)]
struct Entry {
    price: ModelPrice,
    pattern: Regex,
    /// Whether its `match_path` is not the default one.
    has_own_path: bool,
}

/// A model as a trace run names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub provider: Option<String>,
    /// `ls_model_name`, else the first parameter of [`MATCH_PATH`].
    pub name: Option<String>,
    /// Whether `name` is `ls_model_name`, which counts for every `match_path`.
    pub is_named: bool,
    /// Texts among the parameters of the call.
    pub parameters: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    /// The day of the prices, for people.
    as_of: chrono::NaiveDate,
    prices: Vec<ModelPrice>,
}

/// Compiles a pattern. Without Unicode classes, which names of models do not need.
pub(super) fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .case_insensitive(true)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build()
}

/// Reads a file of prices.
///
/// # Errors
/// A text that names what is wrong.
pub(super) fn read(text: &str) -> Result<(chrono::NaiveDate, Vec<ModelPrice>), String> {
    let file: PriceFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (at, price) in file.prices.iter().enumerate() {
        let wrong = |refused: towpath_domain::Rejection| format!("prices[{at}].{}: {refused}", refused.field);
        price.check().map_err(wrong)?;
    }
    Ok((file.as_of, file.prices))
}

/// The bundled prices and their day.
pub(super) fn bundled() -> (chrono::NaiveDate, Vec<ModelPrice>) {
    read(BUNDLED).expect("a test reads the bundled prices")
}

impl PriceTable {
    /// A table of several sources, the preceding ones first.
    ///
    /// # Errors
    /// A pattern cannot be compiled.
    pub fn new(version: i64, sources: Vec<Vec<ModelPrice>>) -> Result<Self, regex::Error> {
        let mut entries = Vec::with_capacity(sources.iter().map(Vec::len).sum());
        for mut source in sources {
            // Stable: otherwise the order of the source counts.
            source.sort_by_key(|price| (price.provider.is_none(), Reverse(price.start_time)));
            for price in source {
                entries.push(Arc::new(Entry {
                    pattern: pattern(&price.match_pattern)?,
                    has_own_path: price.match_path != MATCH_PATH,
                    price,
                }));
            }
        }
        Ok(Self { version, entries })
    }

    /// A table of a workspace's own prices, which precede those of `common`. It shares the patterns of those.
    pub(super) fn with_own(version: i64, own: Vec<ModelPrice>, common: &Self) -> Result<Self, regex::Error> {
        let mut table = Self::new(version, vec![own])?;
        table.entries.extend_from_slice(&common.entries);
        Ok(table)
    }

    /// Grows with every change of the workspace's prices; 0 if it never had its own.
    #[must_use]
    pub const fn version(&self) -> i64 {
        self.version
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of prices.
    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Positions of the prices with the default `match_path` that fit a provider and a name.
    pub(super) fn fitting(&self, provider: Option<&str>, name: &str) -> Vec<usize> {
        let fits =
            |(_, entry): &(usize, &Arc<Entry>)| !entry.has_own_path && entry.is_of(provider) && entry.matches(name);
        self.entries.iter().enumerate().filter(fits).map(|(at, _)| at).collect()
    }

    /// The price of a model for a run that starts `at`. `fitting` is what [`Self::fitting`] found for it.
    pub(super) fn find(&self, model: &Model, at: Option<Timestamp>, fitting: &[usize]) -> Option<&ModelPrice> {
        let applies = |(position, entry): &(usize, &Arc<Entry>)| {
            let fits = if entry.has_own_path {
                entry.is_of(model.provider.as_deref()) && entry.matches_parameters(model)
            } else {
                fitting.contains(position)
            };
            fits && entry
                .price
                .start_time
                .is_none_or(|start| at.is_some_and(|at| start <= at))
        };
        let found = self.entries.iter().enumerate().find(applies);
        found.map(|(_, entry)| &entry.price)
    }
}

impl Entry {
    fn is_of(&self, provider: Option<&str>) -> bool {
        self.price
            .provider
            .as_deref()
            .is_none_or(|own| provider.is_some_and(|provider| provider.eq_ignore_ascii_case(own)))
    }

    fn matches(&self, name: &str) -> bool {
        name.len() <= MAX_NAME && self.pattern.is_match(name.as_bytes())
    }

    fn matches_parameters(&self, model: &Model) -> bool {
        if model.is_named {
            return model.name.as_deref().is_some_and(|name| self.matches(name));
        }
        let value = |key: &String| model.parameters.iter().find(|(name, _)| name == key);
        let named = self.price.match_path.iter().find_map(value);
        named.is_some_and(|(_, name)| self.matches(name))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::prices::{TokenPrice, default_match_path};

    pub fn price(name: &str, pattern: &str, prompt: &str) -> ModelPrice {
        ModelPrice {
            name: name.to_owned(),
            provider: None,
            match_pattern: pattern.to_owned(),
            match_path: default_match_path(),
            start_time: None,
            prompt_cost: TokenPrice::parse(prompt).unwrap(),
            completion_cost: TokenPrice::parse(prompt).unwrap(),
            prompt_cost_details: BTreeMap::new(),
            completion_cost_details: BTreeMap::new(),
        }
    }

    fn found(table: &PriceTable, model: &Model, at: Option<&str>) -> Option<String> {
        let fitting = model
            .name
            .as_deref()
            .map(|name| table.fitting(model.provider.as_deref(), name));
        let at = at.map(|at| Timestamp::parse(at).unwrap());
        let price = table.find(model, at, &fitting.unwrap_or_default());
        price.map(|price| price.name.clone())
    }

    fn model(provider: Option<&str>, name: &str) -> Model {
        Model {
            provider: provider.map(str::to_owned),
            name: Some(name.to_owned()),
            is_named: true,
            parameters: Vec::new(),
        }
    }

    #[test]
    fn the_bundled_prices_are_valid() {
        let (day, prices) = bundled();
        assert!(day > chrono::NaiveDate::from_ymd_opt(2025, 1, 1).unwrap());
        let table = PriceTable::new(0, vec![prices]).unwrap();
        for (provider, name, expected) in [
            ("openai", "gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
            ("openai", "gpt-4o-2024-08-06", "gpt-4o"),
            ("openai", "gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
            ("openai", "ft:gpt-4o-2024-08-06:acme::9Z", "ft:gpt-4o-2024-08-06"),
            ("azure", "gpt-4o", "gpt-4o"),
            ("litellm", "openai/gpt-4o", "gpt-4o"),
            ("openai", "gpt-4.1-nano", "gpt-4.1-nano"),
            ("openai", "gpt-5-pro-2025-10-06", "gpt-5-pro"),
            ("openai", "o3-mini", "o3-mini"),
            ("anthropic", "claude-sonnet-4-20250514", "claude-sonnet-4"),
            ("anthropic", "claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            ("anthropic", "claude-3-5-haiku-20241022", "claude-3-5-haiku"),
            ("anthropic", "claude-opus-5", "claude-opus-5"),
            (
                "amazon_bedrock",
                "global.anthropic.claude-haiku-4-5-20251001-v1:0",
                "claude-haiku-4-5",
            ),
            (
                "amazon_bedrock",
                "eu.anthropic.claude-haiku-4-5-20251001-v1:0",
                "anthropic.claude-haiku-4-5",
            ),
            ("amazon_bedrock", "eu.amazon.nova-pro-v1:0", "eu.amazon.nova-pro"),
            ("google_genai", "gemini-2.5-flash", "gemini-2.5-flash"),
            ("google_genai", "models/gemini-2.5-flash-lite", "gemini-2.5-flash-lite"),
            ("mistral", "mistral-large-2512", "mistral-large-3"),
            ("deepseek", "deepseek-chat", "deepseek-chat"),
            ("xai", "grok-4-fast-non-reasoning", "grok-4-fast"),
            ("groq", "llama-3.3-70b-versatile", "llama-3.3-70b-versatile"),
        ] {
            let found = found(&table, &model(Some(provider), name), None);
            assert_eq!(found.as_deref(), Some(expected), "{name}");
            // Among prices of several days, one pattern.
            let fitting = table.fitting(Some(provider), name);
            let patterns = fitting.iter().map(|&at| &table.entries[at].price.match_pattern);
            assert_eq!(patterns.collect::<BTreeSet<_>>().len(), 1, "{name}");
        }
        for (provider, name) in [
            ("openai", "a-model-of-ours"),
            ("openai", "gpt-4o-2024-08-06-of-ours"),
            ("openai", "my-gpt-4o"),
            ("openai", "gpt-4o-nano"),
            ("openai", "gpt-4x1"),
            ("anthropic", "claude-sonnet-4-9"),
            ("amazon_bedrock", "moon.anthropic.claude-haiku-4-5-20251001-v1:0"),
            ("google_genai", "gemini-2.5-flash-image"),
            ("openai", "grok-4"),
        ] {
            assert_eq!(found(&table, &model(Some(provider), name), None), None, "{name}");
        }
    }

    #[test]
    fn a_bundled_price_applies_from_its_day() {
        let (_, prices) = bundled();
        let table = PriceTable::new(0, vec![prices]).unwrap();
        let model = model(Some("google_genai"), "gemini-3.8-flash");
        let fitting = table.fitting(model.provider.as_deref(), "gemini-3.8-flash");
        for (at, prompt) in [
            ("2026-12-31T23:59:59.999999Z", "0.00000075"),
            ("2027-01-01T00:00:00Z", "0.0000015"),
        ] {
            let price = table.find(&model, Timestamp::parse(at).ok(), &fitting).unwrap();
            assert_eq!(price.prompt_cost.to_string(), prompt, "{at}");
        }
    }

    #[test]
    fn precedence_is_by_source_provider_and_time() {
        let since = |start: &str, price: ModelPrice| ModelPrice {
            start_time: Timestamp::parse(start).ok(),
            ..price
        };
        let of = |provider: &str, price: ModelPrice| ModelPrice {
            provider: Some(provider.to_owned()),
            ..price
        };
        let table = PriceTable::new(
            1,
            vec![
                vec![
                    price("old", "^m", "1"),
                    since("2026-01-01T00:00:00Z", price("new", "^m", "1")),
                    since("2026-06-01T00:00:00Z", price("newest", "^m", "1")),
                    of("acme", price("acme", "^m", "1")),
                ],
                vec![price("bundled", "^(m|n)", "1")],
            ],
        )
        .unwrap();
        for (provider, name, at, expected) in [
            (None, "m-1", "2025-12-31T23:59:59.999999Z", Some("old")),
            (None, "m-1", "2026-01-01T00:00:00Z", Some("new")),
            (Some("other"), "M-1", "2026-07-01T00:00:00Z", Some("newest")),
            (Some("ACME"), "m-1", "2026-07-01T00:00:00Z", Some("acme")),
            (None, "n-1", "2026-07-01T00:00:00Z", Some("bundled")),
            (None, "o-1", "2026-07-01T00:00:00Z", None),
        ] {
            let found = found(&table, &model(provider, name), Some(at));
            assert_eq!(found.as_deref(), expected, "{provider:?} {name} {at}");
        }
        // A run without a start.
        assert_eq!(found(&table, &model(None, "m"), None).as_deref(), Some("old"));
        let long = "m".repeat(MAX_NAME + 1);
        assert_eq!(found(&table, &model(None, &long), None), None);
    }

    #[test]
    fn a_path_names_the_parameter() {
        let own = ModelPrice {
            match_path: vec!["deployment".to_owned()],
            ..price("own", "^m$", "1")
        };
        let table = PriceTable::new(1, vec![vec![own]]).unwrap();
        let by_parameter = |name: &str| Model {
            parameters: vec![(name.to_owned(), "m".to_owned())],
            ..Model::default()
        };
        assert_eq!(found(&table, &by_parameter("deployment"), None).as_deref(), Some("own"));
        assert_eq!(found(&table, &by_parameter("model"), None), None);
        assert_eq!(found(&table, &model(None, "m"), None).as_deref(), Some("own"));
    }

    #[test]
    fn a_wrong_file_says_where() {
        let wrong = |text: &str| read(text).unwrap_err();
        assert!(wrong("{}").contains("as_of"));
        let price = r#"{"name":"a","match_pattern":"(","prompt_cost":"1e-6","completion_cost":"0"}"#;
        let refused = wrong(&format!(r#"{{"as_of":"2026-01-01","prices":[{price}]}}"#));
        assert!(refused.starts_with("prices[0].match_pattern: "), "{refused}");
        let number = price.replace("\"1e-6\"", "1e-6");
        let refused = wrong(&format!(r#"{{"as_of":"2026-01-01","prices":[{number}]}}"#));
        assert!(refused.contains("expected a string"), "{refused}");
    }
}
