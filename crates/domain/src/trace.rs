//! Tracing: how a project is named, and what a `dotted_order`, metadata and a status say about a trace run.

use std::borrow::Cow;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{ProjectId, Rejection, Timestamp, json};

/// The project of a trace run whose sender named none.
pub const DEFAULT_PROJECT: &str = "default";

/// Longest project name, in characters. PostgreSQL's index on it takes a little over 2,600 bytes.
pub const LONGEST_PROJECT_NAME: usize = 512;

/// A project as a client refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectRef {
    /// `session_id`.
    Id(ProjectId),
    /// `session_name`. A project that does not exist yet is made by its name.
    Name(String),
}

/// Whether `name` can be a project's name.
///
/// # Errors
/// It is empty, too long, or holds a NUL, which PostgreSQL cannot keep in a text.
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

/// The thread that metadata name: the first of `thread_id`, `session_id` and `conversation_id` that is a text or a number.
#[must_use]
pub fn thread_id<'a>(metadata: &'a json::Value<'_>) -> Option<Cow<'a, str>> {
    let named = ["thread_id", "session_id", "conversation_id"];
    named.into_iter().find_map(|name| match metadata.get(name)? {
        json::Value::String(text) => Some(Cow::Borrowed(&**text)),
        json::Value::Number(number) => Some(Cow::Borrowed(number.text())),
        _ => None,
    })
}

/// The status that a sent text means, of those that a trace run can have: `success`, `error` and `pending`. `None` where it
/// means none of them: clients know no others.
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

/// One link of a `dotted_order`: when a trace run started and which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Start of the trace run as written there, which also is where it sorts.
    pub start: Timestamp,
    /// The trace run.
    pub id: Uuid,
}

/// Length of the id at the end of a link.
const ID_LENGTH: usize = 36;

/// The links of `dotted_order` from the root to the trace run itself, each `<YYYYMMDD>T<HHMMSS><fraction>Z<id>`,
/// joined by dots. A link that does not read so comes as `None`.
pub fn links(dotted_order: &str) -> impl DoubleEndedIterator<Item = Option<Link>> {
    dotted_order.split('.').map(link)
}

/// The last link: the trace run itself. `None` when it does not read as one.
#[must_use]
pub fn own_link(dotted_order: &str) -> Option<Link> {
    links(dotted_order).next_back().flatten()
}

fn link(text: &str) -> Option<Link> {
    let split = text.len().checked_sub(ID_LENGTH)?;
    let (time, id) = (text.get(..split)?, text.get(split..)?);
    Some(Link {
        start: link_time(time)?,
        id: id.parse().ok()?,
    })
}

/// `20261120T102210210769Z`: no separators, a fraction of any length (clients send six digits).
fn link_time(text: &str) -> Option<Timestamp> {
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
    // Whole microseconds: what is finer is cut off, what is missing counts as zeros.
    let micros = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(6)
        .fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let (date, time) = seconds.split_once('T')?;
    let (year, month, day) = (digits(date, 0..4)?, digits(date, 4..6)?, digits(date, 6..8)?);
    let [hour, minute, second] = [digits(time, 0..2)?, digits(time, 2..4)?, digits(time, 4..6)?];
    // A leap second is the first one of the next minute, as it is to every clock here.
    let leap = second == 60;
    let whole = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?.and_hms_opt(
        hour,
        minute,
        if leap { 59 } else { second },
    )?;
    let whole = whole.and_utc().timestamp_micros() + if leap { 1_000_000 } else { 0 };
    // A leap second can lead out of the years that have four digits, and nobody could read that link again.
    (whole < YEAR_10_000).then(|| Timestamp::from_micros(whole + micros))
}

/// The number that these characters are, by hand: every trace run has some, and reading them by a pattern takes longer
/// than all else about a link.
fn digits(text: &str, at: std::ops::Range<usize>) -> Option<u32> {
    let digits = text.as_bytes().get(at)?;
    digits.iter().try_fold(0, |sum, digit| {
        digit.is_ascii_digit().then(|| sum * 10 + u32::from(digit - b'0'))
    })
}

/// One link as text, the form [`links`] reads.
#[must_use]
pub fn format_link(link: &Link) -> String {
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
        let all: Vec<_> = links(&order).map(Option::unwrap).collect();
        assert_eq!(all[0].id.to_string(), "01a1f87a-5922-751a-9e7b-b20ac5ab0dc2");
        assert_eq!(all[0].start, Timestamp::parse("2026-11-20T10:22:10.210769Z").unwrap());
        assert_eq!(own_link(&order), Some(all[1]));
        assert_eq!(format_link(&all[1]), CHILD);
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
            let link = own_link(&format!("20261120T102210{fraction}Z{id}")).unwrap();
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
            assert_eq!(own_link(text), None, "{text}");
        }
        assert_eq!(links(&format!("zzz.{CHILD}")).collect::<Vec<_>>()[0], None);
    }

    proptest! {
        #[test]
        fn a_start_is_read_as_chrono_reads_it(text in "[0-9]{4}(0[0-9]|1[0-3])[0-3][0-9]T[0-2][0-9][0-6][0-9][0-6][0-9]") {
            let id = "01a1f87a-5922-751a-9e7b-b20ac5ab0dc2";
            let expected = NaiveDateTime::parse_from_str(&text, "%Y%m%dT%H%M%S").ok();
            let expected = expected.map(|time| time.and_utc().timestamp_micros());
            let read = own_link(&format!("{text}Z{id}")).map(|link| link.start.micros());
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
