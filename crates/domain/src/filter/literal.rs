//! Conversion of literals to the types of their fields.

use uuid::Uuid;

use super::{Field, Kind, Value};
use crate::Timestamp;

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
}

/// Digits of a cost after the decimal point.
const COST_DIGITS: usize = 10;
/// A longer span would leave the range of times: about 30,000 years.
const MAX_SECONDS: f64 = 1e12;

/// The value for `field`, or a message with what was expected.
pub fn typed(field: Field, literal: Literal) -> Result<Value, String> {
    if literal == Literal::Null {
        return Ok(Value::Null);
    }
    let name = field.name();
    match (field.kind(), literal) {
        (Kind::Id, Literal::Text(text)) => text
            .parse::<Uuid>()
            .map(Value::Id)
            .map_err(|_| format!("`{name}` is compared with a UUID in quotes")),
        (Kind::Id, _) => Err(format!("`{name}` is compared with a UUID in quotes")),
        (Kind::Text | Kind::Texts, Literal::Text(text)) => Ok(Value::Text(text)),
        (Kind::Text | Kind::Texts, _) => Err(format!("`{name}` is compared with a quoted string")),
        (Kind::Bool, Literal::Bool(value)) => Ok(Value::Bool(value)),
        (Kind::Bool, Literal::Text(text)) if text.eq_ignore_ascii_case("true") => Ok(Value::Bool(true)),
        (Kind::Bool, Literal::Text(text)) if text.eq_ignore_ascii_case("false") => Ok(Value::Bool(false)),
        (Kind::Bool, _) => Err(format!("`{name}` is compared with true or false")),
        (Kind::Time, Literal::Text(text)) => Timestamp::parse(&text)
            .map(Value::Time)
            .map_err(|_| format!("`{name}` is compared with a time like \"2026-01-31T12:00:00Z\"")),
        (Kind::Time, _) => Err(format!(
            "`{name}` is compared with a time like \"2026-01-31T12:00:00Z\""
        )),
        (Kind::Span, literal) => span(&literal).ok_or_else(|| {
            format!("`{name}` is compared with seconds, or a text like \"5s\", \"250ms\", \"2m\", \"1h\"")
        }),
        (Kind::Count, Literal::Number(number)) => whole(&number)
            .map(Value::Count)
            .ok_or_else(|| format!("`{name}` is compared with a whole number")),
        (Kind::Count, _) => Err(format!("`{name}` is compared with a whole number")),
        (Kind::Cost, Literal::Number(number) | Literal::Text(number)) => {
            cost(&number).map(Value::Cost).ok_or_else(|| {
                format!("`{name}` is compared with a number of at most 10 digits on either side of the decimal point")
            })
        }
        (Kind::Cost, _) => Err(format!("`{name}` is compared with a number")),
        (Kind::First, Literal::Number(number)) if whole(&number) == Some(1) => Ok(Value::Bool(true)),
        (Kind::First, _) => Err(format!("`{name}` supports only the value 1, the root of a trace")),
        (Kind::Number | Kind::Scalar, Literal::Number(number)) => number
            .parse()
            .map(Value::Number)
            .map_err(|_| format!("`{name}` is compared with a number")),
        (Kind::Number, Literal::Bool(value)) => Ok(Value::Number(value.into())),
        (Kind::Number, _) => Err(format!("`{name}` is compared with a number")),
        (Kind::Scalar, Literal::Text(text)) => Ok(Value::Text(text)),
        (Kind::Scalar, Literal::Bool(value)) => Ok(Value::Bool(value)),
        (Kind::Json | Kind::Everything, _) | (Kind::Scalar, Literal::Null) => {
            Err(format!("`{name}` cannot be compared"))
        }
    }
}

/// Microseconds from seconds, or from a text with a unit.
fn span(literal: &Literal) -> Option<Value> {
    let (number, unit) = match literal {
        Literal::Number(number) => (number.as_str(), 1.0),
        Literal::Text(text) => {
            let text = text.trim();
            let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
            let unit = match &text[split..] {
                "us" => 1e-6,
                "ms" => 1e-3,
                "" | "s" => 1.0,
                "m" | "min" => 60.0,
                "h" => 3600.0,
                "d" => 86400.0,
                _ => return None,
            };
            (text[..split].trim(), unit)
        }
        Literal::Null | Literal::Bool(_) => return None,
    };
    let seconds = number.parse::<f64>().ok()? * unit;
    (seconds.abs() <= MAX_SECONDS).then(|| Value::Span((seconds * 1e6).round() as i64))
}

/// A whole number, also as `57.0`.
fn whole(number: &str) -> Option<i64> {
    number.parse().ok().or_else(|| {
        let float: f64 = number.parse().ok()?;
        (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i64)
    })
}

/// A decimal number in units of 10⁻¹⁰.
fn cost(number: &str) -> Option<i128> {
    let number = number.trim();
    let plain = match number.parse::<f64>() {
        Ok(float) if float.is_finite() && number.contains(['e', 'E']) => format!("{float:.10}"),
        Ok(float) if float.is_finite() => number.to_owned(),
        _ => return None,
    };
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let (before, behind) = digits.split_once('.').unwrap_or((digits, ""));
    let (before, behind) = (before.trim_start_matches('0'), behind.trim_end_matches('0'));
    if before.len() > COST_DIGITS || behind.len() > COST_DIGITS {
        return None;
    }
    let joined = format!("{before}{behind:0<COST_DIGITS$}");
    Some(sign * joined.parse::<i128>().ok()?)
}
