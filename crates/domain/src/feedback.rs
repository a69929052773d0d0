//! Feedback through a link, without a key: the rules for such links.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Rejection, Timestamp};

/// The default lifetime of a link.
pub const DEFAULT_LIFE: Duration = Duration::from_secs(3 * 60 * 60);
/// The longest lifetime of a link; a longer one is cut to it.
const LONGEST_LIFE: Duration = Duration::from_secs(3650 * 24 * 60 * 60);
pub const LONGEST_KEY: usize = 200;
/// Links per request, and keys for which a run may request links.
pub const MOST_KEYS: usize = 100;

/// Checks the key of feedback.
///
/// # Errors
/// `Invalid` naming `field`.
pub fn check_key(field: &str, key: &str) -> Result<(), Rejection> {
    if key.is_empty() || key.chars().count() > LONGEST_KEY {
        return Err(Rejection::invalid(
            field,
            format!("expected 1 to {LONGEST_KEY} characters"),
        ));
    }
    if key.contains('\0') {
        return Err(Rejection::invalid(field, "expected text without NUL characters"));
    }
    Ok(())
}

/// A time span in the format of clients. Missing parts count as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    pub days: i64,
    pub hours: i64,
    pub minutes: i64,
}

/// When a link created at `now` expires.
pub fn expires(now: Timestamp, at: Option<Timestamp>, within: Option<Lifetime>) -> Result<Timestamp, Rejection> {
    let (field, end) = match (at, within) {
        (Some(_), Some(_)) => {
            return Err(Rejection::rule(
                "expires_at",
                "expires_at and expires_in are mutually exclusive: send one",
            ));
        }
        (None, None) => return Ok(now.plus(DEFAULT_LIFE)),
        (Some(at), None) => ("expires_at", Some(at)),
        (None, Some(span)) => ("expires_in", add_lifetime(now, span)),
    };
    match end {
        Some(end) if end > now && end <= now.plus(LONGEST_LIFE) => Ok(end),
        _ => {
            let days = LONGEST_LIFE.as_secs() / 86_400;
            let text = format!("expected a time in the future, at most {days} days from now");
            Err(Rejection::invalid(field, text))
        }
    }
}

/// `None` if a part of the span is negative. The schema cannot limit the sum of the parts, so a span that is too long
/// is cut; the answer shows the resulting time.
fn add_lifetime(now: Timestamp, span: Lifetime) -> Option<Timestamp> {
    let part = |count: i64, seconds: u64| Some(u64::try_from(count).ok()?.saturating_mul(seconds));
    let seconds = part(span.days, 86_400)?
        .saturating_add(part(span.hours, 3_600)?)
        .saturating_add(part(span.minutes, 60)?);
    Some(now.plus(Duration::from_secs(seconds).min(LONGEST_LIFE)))
}

/// The range of scores of a feedback key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedbackConfig {
    #[serde(rename = "type")]
    pub kind: FeedbackKind,
    #[serde(default)]
    pub min: Option<f64>,
    #[serde(default)]
    pub max: Option<f64>,
    #[serde(default)]
    pub categories: Option<Vec<FeedbackCategory>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedbackKind {
    /// Numbers, optionally within bounds.
    Continuous,
    /// One of several named numbers.
    Categorical,
    /// No scores, or any.
    Freeform,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedbackCategory {
    pub value: f64,
    #[serde(default)]
    pub label: Option<String>,
}

impl FeedbackConfig {
    /// Checks that at least one score is allowed.
    ///
    /// # Errors
    /// A rule across the fields, naming `feedback_config`.
    pub fn check(&self) -> Result<(), Rejection> {
        if self.kind == FeedbackKind::Categorical && self.categories.as_ref().is_none_or(Vec::is_empty) {
            let text = "categorical feedback needs categories";
            return Err(Rejection::rule("feedback_config.categories", text));
        }
        Ok(())
    }

    /// Checks a score.
    ///
    /// # Errors
    /// `Invalid` naming `score`, with the allowed scores.
    pub fn admit(&self, score: f64) -> Result<(), Rejection> {
        match self.kind {
            FeedbackKind::Continuous => {
                let (one, other) = (self.min.unwrap_or(f64::NEG_INFINITY), self.max.unwrap_or(f64::INFINITY));
                // Bounds in reverse order are accepted.
                let (min, max) = (one.min(other), one.max(other));
                if (min..=max).contains(&score) {
                    return Ok(());
                }
                let text = match (self.min, self.max) {
                    (Some(_), Some(_)) => format!("expected a number from {min} to {max}"),
                    (Some(min), None) => format!("expected a number of at least {min}"),
                    _ => format!("expected a number of at most {max}"),
                };
                Err(Rejection::invalid("score", text))
            }
            FeedbackKind::Categorical => {
                let known = self.categories.as_deref().unwrap_or_default();
                // Both are stored as written, so nothing is rounded.
                let same = |category: &FeedbackCategory| category.value.partial_cmp(&score) == Some(Ordering::Equal);
                if known.iter().any(same) {
                    return Ok(());
                }
                let known: Vec<String> = known.iter().map(|category| category.value.to_string()).collect();
                Err(Rejection::invalid(
                    "score",
                    format!("expected one of {}", known.join(", ")),
                ))
            }
            FeedbackKind::Freeform => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn links_end() {
        let now = Timestamp::parse("2026-03-01T12:00:00Z").unwrap();
        let at = |text: &str| Timestamp::parse(text).unwrap();
        let span = |days, hours, minutes| Some(Lifetime { days, hours, minutes });
        assert_eq!(expires(now, None, None).unwrap(), at("2026-03-01T15:00:00Z"));
        assert_eq!(expires(now, None, span(1, 2, 3)).unwrap(), at("2026-03-02T14:03:00Z"));
        let longest = now.plus(LONGEST_LIFE);
        assert_eq!(expires(now, None, span(3651, 0, 0)).unwrap(), longest);
        assert_eq!(expires(now, None, span(i64::MAX, 1, 0)).unwrap(), longest);
        let said = at("2026-03-05T00:00:00Z");
        assert_eq!(expires(now, Some(said), None).unwrap(), said);
        let refused = |at, within| expires(now, at, within).unwrap_err().field;
        assert_eq!(refused(Some(said), span(1, 0, 0)), "expires_at");
        assert_eq!(refused(Some(now), None), "expires_at");
        assert_eq!(refused(Some(at("2046-01-01T00:00:00Z")), None), "expires_at");
        for wrong in [span(0, 0, 0), span(0, 0, -1), span(1, -1, 0), span(0, i64::MIN, 0)] {
            assert_eq!(refused(None, wrong), "expires_in", "{wrong:?}");
        }
    }

    #[test]
    fn scores_fit_what_was_said_of_them() {
        let config = |json: Value| serde_json::from_value::<FeedbackConfig>(json).unwrap();
        let within = config(json!({"type": "continuous", "min": 0, "max": 1}));
        within.check().unwrap();
        assert!(within.admit(0.0).is_ok() && within.admit(1.0).is_ok());
        assert_eq!(within.admit(1.5).unwrap_err().message, "expected a number from 0 to 1");
        let least = config(json!({"type": "continuous", "min": 2}));
        assert!(least.admit(1e300).is_ok() && least.admit(1.0).is_err());
        let named = config(json!({"type": "categorical", "categories": [{"value": 0, "label": "no"}, {"value": 1}]}));
        named.check().unwrap();
        assert!(named.admit(1.0).is_ok());
        assert_eq!(named.admit(0.5).unwrap_err().message, "expected one of 0, 1");
        assert!(config(json!({"type": "freeform"})).admit(-7.0).is_ok());
        let turned = config(json!({"type": "continuous", "min": 5, "max": 1}));
        turned.check().unwrap();
        assert!(turned.admit(2.0).is_ok() && turned.admit(6.0).is_err());
        for wrong in [
            json!({"type": "categorical"}),
            json!({"type": "categorical", "categories": []}),
        ] {
            assert!(config(wrong.clone()).check().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_short_texts() {
        check_key("key", "user_score").unwrap();
        for wrong in ["", "a\0b", "x".repeat(201).as_str()] {
            assert_eq!(check_key("feedback_key", wrong).unwrap_err().field, "feedback_key");
        }
    }
}
