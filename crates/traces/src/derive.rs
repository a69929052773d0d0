//! Derived columns.
//!
//! They are computed from the merged fields when a row is written, so a late patch updates them all. JSON is only
//! parsed if a search for the key finds it.

pub(crate) mod decimal;
mod usage;

use std::borrow::Cow;

use memchr::memmem;
use towpath_domain::json::{decode, items, members};
use towpath_domain::{Timestamp, trace};
use uuid::Uuid;

pub use decimal::{COST_PRECISION, COST_SCALE};
pub use usage::Usage;

use crate::operation::Fields;
use crate::prices::Pricer;
use crate::row::Row;

/// What follows from a row's fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived<'a> {
    /// The first id of `dotted_order`; without it the sent value, or the run's own id if it has no parent.
    pub trace_id: Option<Uuid>,
    /// Last but one id of `dotted_order`; without one what was sent.
    pub parent_run_id: Option<Uuid>,
    /// Ancestors from the root to the parent. Without `dotted_order` only the parent is known. `None` for a patch
    /// without its post.
    pub parent_run_ids: Option<Vec<Uuid>>,
    /// Whether it has no parent; `None` where nothing is known.
    pub is_root: Option<bool>,
    /// The position of the row in its project, consistent with its range and partition. The sent value is stored but
    /// not shown.
    pub start_time: Option<Timestamp>,
    /// `error` if there is an error, else `success` if it ended, else the sent value, else `pending`.
    pub status: Cow<'a, str>,
    /// Tokens and costs.
    pub usage: Usage,
    /// When a model's first token came.
    pub first_token_time: Option<Timestamp>,
}

/// Derives them. Costs are those that the client sent, if any.
#[must_use]
pub fn derive(row: &Row) -> Derived<'_> {
    let fields = row.fields();
    let tree = Tree::of(row);
    Derived {
        trace_id: tree.trace_id,
        parent_run_id: tree.parent_run_id,
        parent_run_ids: tree.parent_run_ids,
        is_root: tree.is_root,
        start_time: row.key().map(|key| key.sort_time).or(fields.start_time),
        status: status(fields),
        usage: usage::of(fields, || row.extra_value("metadata")),
        first_token_time: fields.events.as_deref().and_then(first_token_time),
    }
}

/// Derives them. Costs that the client did not send follow from its tokens and the prices.
#[must_use]
pub fn derive_priced<'a>(row: &'a Row, pricer: &mut Pricer) -> Derived<'a> {
    let mut derived = derive(row);
    pricer.price(row, &mut derived.usage);
    derived
}

struct Tree {
    trace_id: Option<Uuid>,
    parent_run_id: Option<Uuid>,
    parent_run_ids: Option<Vec<Uuid>>,
    is_root: Option<bool>,
}

impl Tree {
    fn of(row: &Row) -> Self {
        let fields = row.fields();
        let links = fields
            .dotted_order
            .as_deref()
            .and_then(|order| trace::dotted_order_parts(order).collect::<Option<Vec<_>>>());
        if let Some(links) = links {
            let mut ids: Vec<Uuid> = links.into_iter().map(|link| link.id).collect();
            let trace_id = ids.first().copied();
            ids.pop(); // the run itself
            return Self {
                trace_id,
                parent_run_id: ids.last().copied(),
                is_root: Some(ids.is_empty()),
                parent_run_ids: Some(ids),
            };
        }
        // A patch without a parent may belong to a post with one, so only a post can decide that it is a root.
        let is_root = (row.has_post() || fields.parent_run_id.is_some()).then_some(fields.parent_run_id.is_none());
        Self {
            trace_id: fields.trace_id.or((is_root == Some(true)).then_some(row.id().0)),
            parent_run_id: fields.parent_run_id,
            parent_run_ids: is_root.map(|_| fields.parent_run_id.into_iter().collect()),
            is_root,
        }
    }
}

fn status(fields: &Fields) -> Cow<'_, str> {
    if fields.error.as_deref().is_some_and(|error| !error.is_empty()) {
        return Cow::Borrowed("error");
    }
    if fields.end_time.is_some() {
        return Cow::Borrowed("success");
    }
    fields.status.as_deref().map_or(Cow::Borrowed("pending"), Cow::Borrowed)
}

/// Time of the first event named `new_token`.
fn first_token_time(events: &str) -> Option<Timestamp> {
    const NAME: &str = "new_token";
    memmem::find(events.as_bytes(), NAME.as_bytes())?;
    // A model streams thousands of tokens; only the first matters.
    let time = items(events).find_map(|event| {
        let [name, time] = members(event, ["name", "time"])?;
        (decode(name?)? == NAME).then_some(time)
    });
    timestamp(time??)
}

/// A time in either format of the clients: ISO text, or milliseconds since the epoch (JS).
fn timestamp(raw: &str) -> Option<Timestamp> {
    if let Some(text) = decode(raw) {
        return Timestamp::parse(&text).ok();
    }
    let millis: f64 = raw.parse().ok()?;
    let micros = millis * 1000.0;
    // Beyond 2^53 microseconds (year 2255) a float cannot represent whole microseconds.
    (micros.abs() < 9e15).then(|| Timestamp::from_micros(micros.round() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Operation, Verb};
    use towpath_domain::TraceRunId;

    fn row(fields: Fields) -> Row {
        Row::from_operation(
            Operation {
                verb: Verb::Post,
                id: TraceRunId(Uuid::from_u128(7)),
                project: None,
                fields,
            },
            1,
        )
    }

    #[test]
    fn the_tree_follows_from_the_dotted_order() {
        let [root, middle, own] = [1, 2, 7].map(Uuid::from_u128);
        let order = [root, middle, own]
            .map(|id| format!("20261120T102210210769Z{id}"))
            .join(".");
        let row = row(Fields {
            dotted_order: Some(order),
            trace_id: Some(own),
            parent_run_id: Some(root),
            ..Fields::default()
        });
        let derived = derive(&row);
        assert_eq!(derived.trace_id, Some(root));
        assert_eq!(derived.parent_run_id, Some(middle));
        assert_eq!(derived.parent_run_ids, Some(vec![root, middle]));
        assert_eq!(derived.is_root, Some(false));
        assert_eq!(derived.start_time, Timestamp::parse("2026-11-20T10:22:10.210769Z").ok());
    }

    #[test]
    fn the_start_is_the_place_in_the_order() {
        let sent = Timestamp::parse("2026-03-01T10:00:00Z").ok();
        let fields = |dotted_order: Option<&str>| Fields {
            dotted_order: dotted_order.map(|time| format!("{time}Z{}", Uuid::from_u128(7))),
            start_time: sent,
            ..Fields::default()
        };
        assert_eq!(derive(&row(fields(None))).start_time, sent);
        let other = row(fields(Some("20250101T000000000000")));
        assert_eq!(derive(&other).start_time, Timestamp::parse("2025-01-01T00:00:00Z").ok());
        assert_eq!(other.fields().start_time, sent, "kept as it was sent");
    }

    #[test]
    fn without_a_dotted_order_the_sent_ids_count() {
        let lone = row(Fields::default());
        assert_eq!(derive(&lone).trace_id, Some(lone.id().0));
        assert_eq!(derive(&lone).is_root, Some(true));
        assert_eq!(derive(&lone).parent_run_ids, Some(vec![]));
        let parent = Uuid::from_u128(3);
        let child = row(Fields {
            parent_run_id: Some(parent),
            ..Fields::default()
        });
        assert_eq!(derive(&child).trace_id, None);
        assert_eq!(derive(&child).parent_run_ids, Some(vec![parent]));
        assert_eq!(derive(&child).is_root, Some(false));
    }

    #[test]
    fn error_beats_end_beats_what_was_sent() {
        let text = |text: &str| Some(text.to_owned());
        let end_time = Some(Timestamp::from_micros(5));
        for (fields, expected) in [
            (Fields::default(), "pending"),
            (
                Fields {
                    status: text("interrupted"),
                    ..Fields::default()
                },
                "interrupted",
            ),
            (
                Fields {
                    status: text("pending"),
                    end_time,
                    ..Fields::default()
                },
                "success",
            ),
            (
                Fields {
                    status: text("success"),
                    end_time,
                    error: text("boom"),
                    ..Fields::default()
                },
                "error",
            ),
        ] {
            assert_eq!(derive(&row(fields)).status, expected);
        }
    }

    #[test]
    fn the_first_token_is_found_in_either_form() {
        let at = Timestamp::parse("2026-03-01T12:00:00.5Z").unwrap();
        for events in [
            r#"[{"name":"start","time":"2026-03-01T11:00:00Z"},{"name":"new_token","time":"2026-03-01T12:00:00.5","kwargs":{"token":"x"}},{"name":"new_token","time":"2027-01-01"}]"#,
            r#"[{"time":1772366400500,"name":"new_token"}]"#,
            r#"[{"\ud83d":1,"name":"x"},{"name":"x","name":"new_token","at":1e999,"time":"2026-03-01T12:00:00.5"}]"#,
            r#"[{"name":"new_token","\ud83d":"\ude00","time":"2026-03-01T12:00:00.5Z","name":"new_token"}]"#,
            r#"[3, {"name":["new_token"]}, {"name":"new_token","time":1772366400500.0}, {broken"#,
        ] {
            assert_eq!(first_token_time(events), Some(at), "{events}");
        }
        for events in [
            "",
            "null",
            "{\"new_token\":1}",
            r#"[{"name":"end","kwargs":"new_token"}]"#,
            r#"[{"name":"new_token"}]"#,
        ] {
            assert_eq!(first_token_time(events), None, "{events}");
        }
    }
}
