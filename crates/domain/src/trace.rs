//! Rules of tracing: names of projects, and the interpretation of `dotted_order`, metadata and status.

use std::borrow::Cow;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{ProjectId, Rejection, Timestamp, json};

/// The project of a trace run that names none.
pub const DEFAULT_PROJECT: &str = "default";

/// In characters. PostgreSQL's index entries are limited to a little over 2,600 bytes.
pub const LONGEST_PROJECT_NAME: usize = 512;

/// A reference to a project in a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectRef {
    /// `session_id`.
    Id(ProjectId),
    /// `session_name`. A missing project is created under this name.
    Name(String),
}

pub fn check_project_name(name: &str) -> Result<(), Rejection> {
    if name.is_empty() {
        return Err(Rejection::invalid("name", "a project name must not be empty"));
    }
    if name.chars().count() > LONGEST_PROJECT_NAME {
        return Err(Rejection::invalid(
            "name",
            format!("a project name has at most {LONGEST_PROJECT_NAME} characters"),
        ));
    }
    if name.contains('\0') {
        return Err(Rejection::invalid(
            "name",
            "a project name must not contain a NUL character",
        ));
    }
    Ok(())
}

/// The thread in metadata: the first of `thread_id`, `session_id` and `conversation_id` that is a string or a number.
#[must_use]
pub fn thread_id<'a>(metadata: &'a json::Value<'_>) -> Option<Cow<'a, str>> {
    let named = ["thread_id", "session_id", "conversation_id"];
    named.into_iter().find_map(|name| match metadata.get(name)? {
        json::Value::String(text) => Some(Cow::Borrowed(&**text)),
        json::Value::Number(number) => Some(Cow::Borrowed(number.text())),
        _ => None,
    })
}

/// The status of a trace run for a sent text: `success`, `error` or `pending`. `None` for any other text.
#[must_use]
pub fn status(sent: &str) -> Option<&'static str> {
    const WORDS: [(&str, &[&str]); 3] = [
        ("success", &["success", "succeeded", "completed", "ok"]),
        ("error", &["error", "failed", "failure"]),
        ("pending", &["pending", "queued", "started", "running", "in_progress"]),
    ];
    let sent = sent.trim();
    let means = |(status, words): (&'static str, &[&str])| {
        words
            .iter()
            .any(|word| sent.eq_ignore_ascii_case(word))
            .then_some(status)
    };
    WORDS.into_iter().find_map(means)
}

/// A part of a `dotted_order`: the start and id of a trace run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DottedOrderPart {
    /// The start of the trace run, by which it also sorts.
    pub start: Timestamp,
    pub id: Uuid,
}

/// Length of the id at the end of a part.
const ID_LENGTH: usize = 36;

/// The parts of `dotted_order` from the root to the trace run itself, each `<YYYYMMDD>T<HHMMSS><fraction>Z<id>`, joined
/// by dots. An invalid part is `None`.
pub fn dotted_order_parts(dotted_order: &str) -> impl DoubleEndedIterator<Item = Option<DottedOrderPart>> {
    dotted_order.split('.').map(parse_part)
}

/// The last part: the trace run itself. `None` if it is invalid.
#[must_use]
pub fn last_part(dotted_order: &str) -> Option<DottedOrderPart> {
    dotted_order_parts(dotted_order).next_back().flatten()
}

fn parse_part(text: &str) -> Option<DottedOrderPart> {
    let split = text.len().checked_sub(ID_LENGTH)?;
    let (time, id) = (text.get(..split)?, text.get(split..)?);
    Some(DottedOrderPart {
        start: parse_part_time(time)?,
        id: id.parse().ok()?,
    })
}

/// `20261120T102210210769Z`: no separators, a fraction of any length (clients send six digits).
fn parse_part_time(text: &str) -> Option<Timestamp> {
    const SECONDS: usize = "20261120T102210".len();
    const YEAR_10_000: i64 = 253_402_300_800_000_000;
    let text = text.strip_suffix('Z')?;
    if !text.is_ascii() || text.len() < SECONDS {
        return None;
    }
    let (seconds, fraction) = text.split_at(SECONDS);
    let fraction = fraction.strip_prefix('.').unwrap_or(fraction);
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // Truncated or padded to whole microseconds.
    let micros = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(6)
        .fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let (date, time) = seconds.split_once('T')?;
    let (year, month, day) = (digits(date, 0..4)?, digits(date, 4..6)?, digits(date, 6..8)?);
    let [hour, minute, second] = [digits(time, 0..2)?, digits(time, 2..4)?, digits(time, 4..6)?];
    // A leap second counts as the first second of the next minute, as for every clock here.
    let leap = second == 60;
    let whole = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?.and_hms_opt(
        hour,
        minute,
        if leap { 59 } else { second },
    )?;
    let whole = whole.and_utc().timestamp_micros() + if leap { 1_000_000 } else { 0 };
    // A leap second can exceed the last year with four digits, which could not be parsed again.
    (whole < YEAR_10_000).then(|| Timestamp::from_micros(whole + micros))
}

/// Parses digits by hand: every trace run has such a part, and a generic parser would dominate its cost.
fn digits(text: &str, at: std::ops::Range<usize>) -> Option<u32> {
    let digits = text.as_bytes().get(at)?;
    digits.iter().try_fold(0, |sum, digit| {
        digit.is_ascii_digit().then(|| sum * 10 + u32::from(digit - b'0'))
    })
}

/// Formats a part so that [`dotted_order_parts`] can parse it.
#[must_use]
pub fn format_part(link: &DottedOrderPart) -> String {
    format!("{}Z{}", link.start.to_utc().format("%Y%m%dT%H%M%S%6f"), link.id)
}

#[cfg(test)]
mod tests {
    use chrono::NaiveDateTime;
    use proptest::prelude::*;

    use super::*;

    const ROOT: &str = "20261120T102210210769Z01a1f87a-5922-751a-9e7b-b20ac5ab0dc2";
    const CHILD: &str = "20261120T102210223350Z01a1f87a-592f-7f80-84da-ebbff0dc9a36";

    #[test]
    fn a_dotted_order_gives_start_and_ancestors() {
        let order = format!("{ROOT}.{CHILD}");
        let all: Vec<_> = dotted_order_parts(&order).map(Option::unwrap).collect();
        assert_eq!(all[0].id.to_string(), "01a1f87a-5922-751a-9e7b-b20ac5ab0dc2");
        assert_eq!(all[0].start, Timestamp::parse("2026-11-20T10:22:10.210769Z").unwrap());
        assert_eq!(last_part(&order), Some(all[1]));
        assert_eq!(format_part(&all[1]), CHILD);
    }

    #[test]
    fn statuses_are_a_closed_set() {
        for (sent, meant) in [
            ("success", Some("success")),
            (" Completed ", Some("success")),
            ("ERROR", Some("error")),
            ("Failed", Some("error")),
            ("in_progress", Some("pending")),
            ("pending", Some("pending")),
            ("interrupted", None),
            ("", None),
        ] {
            assert_eq!(status(sent), meant, "{sent}");
        }
    }

    #[test]
    fn a_thread_is_named_by_a_text_or_a_number() {
        for (metadata, thread) in [
            (r#"{"thread_id":"a\ud83d","session_id":"b"}"#, Some("a\u{fffd}")),
            (r#"{"thread_id":null,"session_id":1e999}"#, Some("1e999")),
            (
                r#"{"conversation_id":12345678901234567890123}"#,
                Some("12345678901234567890123"),
            ),
            (r#"{"thread_id":["a"]}"#, None),
            (r#"["thread_id"]"#, None),
        ] {
            let metadata = json::Value::parse(metadata).unwrap();
            assert_eq!(thread_id(&metadata).as_deref(), thread);
        }
    }

    #[test]
    fn fractions_of_any_length_are_read() {
        let id = "01a1f87a-5922-751a-9e7b-b20ac5ab0dc2";
        for (fraction, micros) in [("", 0), ("5", 500_000), ("210", 210_000), ("210769999", 210_769)] {
            let link = last_part(&format!("20261120T102210{fraction}Z{id}")).unwrap();
            assert_eq!(link.start.micros() % 1_000_000, micros, "{fraction}");
        }
    }

    #[test]
    fn nonsense_is_no_link() {
        for text in [
            "",
            ".",
            "20261120T102210Z",
            "x",
            "20261120T102210Zéééééééééééééééééé",
            &format!("{ROOT}."),
            "99991231T235960Z01a1f87a-5922-751a-9e7b-b20ac5ab0dc2",
        ] {
            assert_eq!(last_part(text), None, "{text}");
        }
        assert_eq!(dotted_order_parts(&format!("zzz.{CHILD}")).collect::<Vec<_>>()[0], None);
    }

    proptest! {
        #[test]
        fn a_start_is_read_as_chrono_reads_it(text in "[0-9]{4}(0[0-9]|1[0-3])[0-3][0-9]T[0-2][0-9][0-6][0-9][0-6][0-9]") {
            let id = "01a1f87a-5922-751a-9e7b-b20ac5ab0dc2";
            let expected = NaiveDateTime::parse_from_str(&text, "%Y%m%dT%H%M%S").ok();
            let expected = expected.map(|time| time.and_utc().timestamp_micros());
            let read = last_part(&format!("{text}Z{id}")).map(|link| link.start.micros());
            prop_assert_eq!(read, expected, "{}", text);
        }
    }

    #[test]
    fn project_names_are_checked() {
        assert!(check_project_name("canal – été").is_ok());
        assert!(check_project_name("").is_err());
        assert!(check_project_name("a\0b").is_err());
        assert!(check_project_name(&"x".repeat(LONGEST_PROJECT_NAME + 1)).is_err());
    }
}
