//! Prices of models, and the costs of trace runs that follow from them.
//!
//! A price applies to a call of a model by its provider, by the name of the model, and by the start of the run. Prices
//! of the workspace precede those of the server's file, which precede the bundled ones. Among prices of one source,
//! those of a provider precede those of any, then the latest start of validity counts, then the order of the source.
//!
//! A cost is computed exactly and rounded once, half away from zero, to the ten digits of a column.

mod book;
mod cost;
mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use towpath_domain::{Rejection, Timestamp};

pub use book::{PriceBook, price};
pub use cost::{PRICED_TYPES, Pricer};
pub use table::PriceTable;

use crate::derive::decimal;

/// Digits of a price behind the point.
const SCALE: u8 = 18;
/// Digits of a price in total: it is less than 1000 dollars.
const PRECISION: u8 = 21;
/// Most kinds of tokens with their own price.
const MAX_KINDS: usize = 32;
/// Longest name of a model, of a provider, of a kind, and of a price, in bytes.
const MAX_NAME: usize = 256;
/// Longest pattern in bytes.
const MAX_PATTERN: usize = 1024;
/// Most keys of a `match_path`.
const MAX_PATH: usize = 16;

/// Parameters of a call that name the model, if `ls_model_name` does not.
pub const MATCH_PATH: [&str; 5] = ["model", "model_name", "model_id", "model_path", "endpoint_name"];

/// A price of one token in dollars: a decimal number from 0 to less than 1000 with up to 18 digits behind the point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenPrice(i128);

impl TokenPrice {
    /// Reads a JSON number, or the number in a JSON string or a plain text. `None` if it is not a price, or has too many
    /// digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parsed = decimal::parse_scaled(text.trim().trim_matches('"'), SCALE, PRECISION)?;
        (parsed.exact && parsed.units >= 0).then_some(Self(parsed.units))
    }

    const fn units(self) -> i128 {
        self.0
    }
}

impl std::fmt::Display for TokenPrice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&decimal::text(self.0, SCALE))
    }
}

impl Serialize for TokenPrice {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenPrice {
    /// From a string: a JSON number may have passed through a binary float.
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom("expected a price of a token as a string, such as \"2.5e-6\" or \"0.0000025\"")
        })
    }
}

/// Prices of the tokens of some models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    pub name: String,
    /// Matches any provider if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Regular expression for the name of the model. ASCII letters match in either case.
    pub match_pattern: String,
    /// Parameters of the call that name the model, in this order.
    #[serde(default = "default_match_path")]
    pub match_path: Vec<String>,
    /// Applies to runs that start at or after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    pub prompt_cost: TokenPrice,
    pub completion_cost: TokenPrice,
    /// Prices of the special kinds of tokens of `input_token_details`, instead of `prompt_cost`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompt_cost_details: BTreeMap<String, TokenPrice>,
    /// Prices of the special kinds of tokens of `output_token_details`, instead of `completion_cost`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub completion_cost_details: BTreeMap<String, TokenPrice>,
}

/// The keys of [`MATCH_PATH`].
#[must_use]
pub fn default_match_path() -> Vec<String> {
    MATCH_PATH.map(str::to_owned).to_vec()
}

impl ModelPrice {
    /// Checks everything that a client sends.
    ///
    /// # Errors
    /// A rejection of the field that is wrong.
    pub fn check(&self) -> Result<(), Rejection> {
        check_name("name", &self.name)?;
        if let Some(provider) = &self.provider {
            check_name("provider", provider)?;
        }
        if self.match_path.is_empty() || self.match_path.len() > MAX_PATH {
            let text = format!("expected 1 to {MAX_PATH} names of parameters");
            return Err(Rejection::invalid("match_path", text));
        }
        for key in &self.match_path {
            check_name("match_path", key)?;
        }
        for (field, details) in [
            ("prompt_cost_details", &self.prompt_cost_details),
            ("completion_cost_details", &self.completion_cost_details),
        ] {
            if details.len() > MAX_KINDS {
                return Err(Rejection::invalid(
                    field,
                    format!("expected at most {MAX_KINDS} kinds of tokens"),
                ));
            }
            for kind in details.keys() {
                check_name(field, kind)?;
            }
        }
        if self.match_pattern.is_empty() || self.match_pattern.len() > MAX_PATTERN || self.match_pattern.contains('\0')
        {
            let text = format!("expected a regular expression of 1 to {MAX_PATTERN} bytes");
            return Err(Rejection::invalid("match_pattern", text));
        }
        table::pattern(&self.match_pattern).map(drop).map_err(|error| {
            let text = format!("expected a regular expression without look-around and back-references: {error}");
            Rejection::invalid("match_pattern", text)
        })
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), Rejection> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
        let text = format!("expected names of 1 to {MAX_NAME} bytes without a NUL character");
        return Err(Rejection::invalid(field, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_keep_every_digit() {
        for (sent, shown) in [
            ("0", "0"),
            ("2.5e-6", "0.0000025"),
            ("\"0.0000025\"", "0.0000025"),
            ("1.875E-8", "0.00000001875"),
            ("0.000000000000000001", "0.000000000000000001"),
            ("999.5", "999.5"),
        ] {
            assert_eq!(TokenPrice::parse(sent).unwrap().to_string(), shown, "{sent}");
        }
        for wrong in ["", "-1", "x", "1000", "1e-19", "true", "null", "[1]"] {
            assert_eq!(TokenPrice::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn mistakes_name_their_field() {
        let good = ModelPrice {
            name: "ours".to_owned(),
            provider: None,
            match_pattern: r"^ours-\d+$".to_owned(),
            match_path: default_match_path(),
            start_time: None,
            prompt_cost: TokenPrice::default(),
            completion_cost: TokenPrice::default(),
            prompt_cost_details: BTreeMap::new(),
            completion_cost_details: BTreeMap::new(),
        };
        good.check().unwrap();
        let many: BTreeMap<String, TokenPrice> = (0..=MAX_KINDS)
            .map(|n| (n.to_string(), TokenPrice::default()))
            .collect();
        for (wrong, field) in [
            (
                ModelPrice {
                    name: String::new(),
                    ..good.clone()
                },
                "name",
            ),
            (
                ModelPrice {
                    provider: Some("\0".to_owned()),
                    ..good.clone()
                },
                "provider",
            ),
            (
                ModelPrice {
                    match_path: Vec::new(),
                    ..good.clone()
                },
                "match_path",
            ),
            (
                ModelPrice {
                    match_pattern: "(?!x)".to_owned(),
                    ..good.clone()
                },
                "match_pattern",
            ),
            (
                ModelPrice {
                    match_pattern: "(a{1000}){1000}".to_owned(),
                    ..good.clone()
                },
                "match_pattern",
            ),
            (
                ModelPrice {
                    completion_cost_details: many,
                    ..good.clone()
                },
                "completion_cost_details",
            ),
        ] {
            assert_eq!(wrong.check().unwrap_err().field, field);
        }
    }
}
