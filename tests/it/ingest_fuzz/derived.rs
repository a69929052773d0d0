//! What follows from the fields of a run: its place in a tree, its status, tokens, costs, the first token's time.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::json::Json;
use super::operation::Field;
use super::oracle::{FieldValue, Row};

/// What follows from a row's fields.
pub struct Derived {
    pub trace: Option<Uuid>,
    pub parent: Option<Uuid>,
    /// `None` where nothing is known of its ancestors.
    pub ancestors: Option<Vec<Uuid>>,
    pub is_root: Option<bool>,
    pub status: String,
    pub usage: Usage,
    /// Microseconds since 1970.
    pub first_token: Option<i64>,
}

/// Tokens, and costs as multiples of 10⁻¹⁰.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: Option<i64>,
    pub completion_tokens: Option<i64>,
    pub total_tokens: Option<i64>,
    pub prompt_cost: Option<i128>,
    pub completion_cost: Option<i128>,
    pub total_cost: Option<i128>,
}

impl Row {
    /// A field's value.
    pub fn value(&self, field: Field) -> Option<Json> {
        let sent = self.fields.get(&field)?;
        Some(Json::parse(&sent.raw).expect("what is sent is JSON"))
    }

    pub fn sent(&self, field: Field) -> Option<&FieldValue> {
        self.fields.get(&field)
    }

    /// What a field of text says.
    pub fn said(&self, field: Field) -> Option<String> {
        self.value(field)
            .map(|value| value.as_text().expect("a text").to_owned())
    }

    /// The id that a field holds.
    pub fn id_in(&self, field: Field) -> Option<Uuid> {
        self.said(field).map(|text| text.parse().expect("an id"))
    }

    /// `error`, which is a text, or whatever else was sent as the text that it is.
    pub fn error(&self) -> Option<String> {
        let sent = self.sent(Field::Error)?;
        match self.value(Field::Error) {
            Some(Json::Text(text)) => Some(text),
            _ => Some(sent.raw.clone()),
        }
    }

    pub fn derived(&self) -> Derived {
        let (trace, parent, ancestors, is_root) = match &self.order {
            Some(order) => {
                let ids: Vec<Uuid> = order.links.iter().map(|link| link.id).collect();
                let above = &ids[..ids.len() - 1];
                let root = above.is_empty();
                (Some(ids[0]), above.last().copied(), Some(above.to_vec()), Some(root))
            }
            None => {
                let parent = self.id_in(Field::Parent);
                // A patch without a parent may belong to a run that has one, so only a post can say that it is a root.
                let known = self.posted || parent.is_some();
                let root = known.then_some(parent.is_none());
                let trace = self.id_in(Field::TraceId).or((root == Some(true)).then_some(self.id));
                (trace, parent, known.then(|| parent.into_iter().collect()), root)
            }
        };
        Derived {
            trace,
            parent,
            ancestors,
            is_root,
            status: self.status(),
            usage: self.usage(),
            first_token: self.first_token(),
        }
    }

    fn status(&self) -> String {
        let failed = self.error().is_some_and(|error| !error.is_empty());
        match (failed, self.end) {
            (true, _) => "error".to_owned(),
            (false, Some(_)) => "success".to_owned(),
            (false, None) => {
                let said = self.said(Field::Status);
                let known = said.as_deref().and_then(known_status);
                known.unwrap_or("pending").to_owned()
            }
        }
    }

    fn usage(&self) -> Usage {
        let outputs = self.value(Field::Outputs).unwrap_or(Json::Null);
        let in_outputs = Usage::of(outputs.at("usage_metadata"));
        if in_outputs != Usage::default() {
            return in_outputs;
        }
        let metadata = self.extra.as_ref().and_then(|extra| extra.get("metadata"));
        metadata.map_or_else(Usage::default, |metadata| Usage::of(metadata.at("usage_metadata")))
    }

    fn first_token(&self) -> Option<i64> {
        let events = self.value(Field::Events)?;
        let first = events
            .items()?
            .iter()
            .find(|event| event.at("name").as_text() == Some("new_token"))?;
        match first.at("time") {
            Json::Text(text) => instant(text),
            Json::Number(millis) => millis.parse::<i64>().ok().map(|millis| millis * 1000),
            _ => None,
        }
    }
}

/// One of the three statuses, whatever a client calls it. Any other text counts as none.
pub fn known_status(said: &str) -> Option<&'static str> {
    match said.to_lowercase().as_str() {
        "success" | "completed" | "succeeded" | "ok" => Some("success"),
        "error" | "failed" | "failure" => Some("error"),
        "pending" | "queued" | "started" | "running" | "in_progress" => Some("pending"),
        _ => None,
    }
}

impl Usage {
    fn of(usage: &Json) -> Self {
        let count = |name: &str| usage.at(name).as_number().and_then(tokens);
        let amount = |name: &str| match usage.at(name) {
            Json::Number(text) | Json::Text(text) => cost(text),
            _ => None,
        };
        let (prompt_tokens, completion_tokens) = (count("input_tokens"), count("output_tokens"));
        let (prompt_cost, completion_cost) = (amount("input_cost"), amount("output_cost"));
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: count("total_tokens").or_else(|| match (prompt_tokens, completion_tokens) {
                (Some(one), Some(two)) => Some(one.saturating_add(two)),
                (one, two) => one.or(two),
            }),
            prompt_cost,
            completion_cost,
            total_cost: amount("total_cost").or_else(|| match (prompt_cost, completion_cost) {
                (Some(one), Some(two)) => Some((one + two).clamp(1 - COST_LIMIT, COST_LIMIT - 1)),
                (one, two) => one.or(two),
            }),
        }
    }
}

/// Costs have 20 digits, 10 of them behind the point.
const COST_DIGITS: i64 = 10;
const COST_LIMIT: i128 = 100_000_000_000_000_000_000;

/// A whole number.
fn tokens(text: &str) -> Option<i64> {
    let value: f64 = text.parse().ok()?;
    text.parse()
        .ok()
        .or_else(|| (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64))
}

/// A decimal as a multiple of 10⁻¹⁰, rounded half away from zero.
fn cost(text: &str) -> Option<i128> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let shift = exponent.parse::<i64>().ok()? - i64::try_from(fraction.len()).ok()? + COST_DIGITS;
    if digits == 0 {
        return Some(0);
    }
    let power = |exponent: i64| {
        u32::try_from(exponent)
            .ok()
            .and_then(|exponent| 10_i128.checked_pow(exponent))
    };
    let value = if shift >= 0 {
        digits.checked_mul(power(shift)?)?
    } else {
        // Smaller than every power of ten there is: nothing is left.
        power(-shift).map_or(0, |unit| (digits + unit / 2) / unit)
    };
    (value < COST_LIMIT).then_some(if negative { -value } else { value })
}

/// A cost as it is shown: in dollars, without zeros that say nothing.
pub fn dollars(units: i128) -> String {
    let sign = if units < 0 { "-" } else { "" };
    let (whole, rest) = (units.abs() / 10_000_000_000, units.abs() % 10_000_000_000);
    let text = format!("{sign}{whole}.{rest:010}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `2026-02-27T01:02:03.000004Z` in microseconds since 1970.
pub fn instant(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let fraction = text.get(19..)?.strip_suffix('Z')?;
    let micros = fraction.strip_prefix('.').map_or(Some(0), |digits| {
        (digits.len() == 6).then(|| digits.parse::<i64>().ok()).flatten()
    })?;
    // Days from civil.
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let year_of_era = shifted - era * 400;
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros)
}

/// `feedback_stats`: by key how many, the mean of the numbers among the scores, how often each text was given as value,
/// and the first ten comments.
pub fn stats<'a>(given: impl Iterator<Item = (&'a str, &'a [(&'static str, String)])>) -> Json {
    #[derive(Default)]
    struct Key {
        count: usize,
        scores: Vec<f64>,
        values: BTreeMap<String, usize>,
        comments: Vec<Json>,
    }
    let mut keys: BTreeMap<&str, Key> = BTreeMap::new();
    for (name, members) in given {
        let value = |name: &str| {
            let raw = members.iter().find(|(member, _)| *member == name);
            raw.map_or(Json::Null, |(_, raw)| Json::parse(raw).expect("what is sent is JSON"))
        };
        let key = keys.entry(name).or_default();
        key.count += 1;
        match value("score") {
            Json::Bool(yes) => key.scores.push(f64::from(u8::from(yes))),
            Json::Number(number) => key.scores.push(number.parse().expect("a number")),
            _ => {}
        }
        if let Json::Text(text) = value("value") {
            *key.values.entry(text).or_default() += 1;
        }
        if let (comment @ Json::Text(_), true) = (value("comment"), key.comments.len() < 10) {
            key.comments.push(comment);
        }
    }
    if keys.is_empty() {
        return Json::Null;
    }
    let keys = keys.into_iter().map(|(name, key)| {
        let mean = key.scores.iter().sum::<f64>() / key.scores.len() as f64;
        let mean = if key.scores.is_empty() {
            Json::Null
        } else {
            Json::number(mean)
        };
        let values = key.values.into_iter().map(|(text, count)| (text, Json::number(count)));
        let stats = Json::object([
            ("n", Json::number(key.count)),
            ("avg", mean),
            ("values", Json::Object(values.collect())),
            ("comments", Json::List(key.comments)),
        ]);
        (name.to_owned(), stats)
    });
    Json::Object(keys.collect())
}

#[cfg(test)]
mod tests {
    use towpath_tests::rfc3339;

    use super::*;

    #[test]
    fn decimals_are_read_and_shown() {
        for (text, units) in [
            ("0", Some(0)),
            ("0.125", Some(1_250_000_000)),
            ("-1.5e-9", Some(-15)),
            ("2E3", Some(20_000_000_000_000)),
            ("5e-12", Some(0)),
            ("0.00000000005", Some(1)),
            ("1e30", None),
            ("1e999", None),
            ("x", None),
        ] {
            assert_eq!(cost(text), units, "{text}");
        }
        assert_eq!(dollars(1_250_000_000), "0.125");
        assert_eq!(dollars(-30_000_000_000), "-3");
        assert_eq!(
            (tokens("12"), tokens("12.0"), tokens("1.5"), tokens("1e999")),
            (Some(12), Some(12), None, None)
        );
    }

    #[test]
    fn instants_are_read_as_they_are_written() {
        for micros in [
            0,
            1,
            -1,
            1_772_366_400_500_000,
            -9_200_000_000_000_000,
            9_200_000_000_000_000,
        ] {
            assert_eq!(instant(&rfc3339(micros)), Some(micros));
        }
        assert_eq!(instant("2026-03-01T00:00:00Z"), instant("2026-03-01T00:00:00.000000Z"));
        assert_eq!(instant("soon"), None);
    }
}
