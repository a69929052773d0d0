//! Numbers of any size and precision.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A number as it was written.
///
/// Two integers compare exactly, however many digits they have. Every other pair compares as doubles: what is beyond
/// their range is infinite, and so equals everything else that is beyond it.
#[derive(Clone, Debug)]
pub struct Number<'a>(Cow<'a, str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number")]
pub struct NotANumber;

impl<'a> Number<'a> {
    /// From text that the grammar has accepted.
    pub(super) const fn scanned(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// The text as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The nearest double, which may be infinite.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.0.parse().unwrap_or(f64::NAN)
    }

    /// The nearest double that is finite.
    #[must_use]
    pub fn to_finite(&self) -> f64 {
        self.to_f64().clamp(f64::MIN, f64::MAX)
    }

    #[must_use]
    pub fn compare(&self, other: &Number<'_>) -> Ordering {
        match (self.integer(), other.integer()) {
            (Some(own), Some(other)) => own.compare(&other),
            // Neither is NaN, so all are ordered.
            _ => self.to_f64().partial_cmp(&other.to_f64()).unwrap_or(Ordering::Equal),
        }
    }

    #[must_use]
    pub fn into_owned(self) -> Number<'static> {
        Number(Cow::Owned(self.0.into_owned()))
    }

    fn integer(&self) -> Option<Integer<'_>> {
        let (negative, digits) = match self.0.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, self.0.strip_prefix('+').unwrap_or(&self.0)),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = digits.trim_start_matches('0');
        Some(Integer {
            // Zero has no sign.
            negative: negative && !digits.is_empty(),
            digits,
        })
    }
}

struct Integer<'a> {
    negative: bool,
    digits: &'a str,
}

impl Integer<'_> {
    fn compare(&self, other: &Self) -> Ordering {
        let size = |of: &Self| (of.digits.len(), of.digits);
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => size(self).cmp(&size(other)),
            (true, true) => size(other).cmp(&size(self)),
        }
    }
}

impl PartialEq for Number<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.compare(other).is_eq()
    }
}

impl fmt::Display for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Accepts JSON numbers, and in addition a `+`, leading zeros and a bare decimal point.
impl FromStr for Number<'static> {
    type Err = NotANumber;

    fn from_str(text: &str) -> Result<Self, NotANumber> {
        let written = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
        if text.bytes().all(written) && text.parse::<f64>().is_ok() {
            Ok(Self(Cow::Owned(text.to_owned())))
        } else {
            Err(NotANumber)
        }
    }
}

/// Scores treat true as 1 and false as 0.
impl From<bool> for Number<'_> {
    fn from(value: bool) -> Self {
        Self(Cow::Borrowed(if value { "1" } else { "0" }))
    }
}
