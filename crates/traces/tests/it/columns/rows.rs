use std::sync::Arc;

use arrow::array::{BinaryArray, RecordBatch, StringArray};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use serde_json::{Map, Value};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::{Row, RowReader, RowsBuilder};
use uuid::Uuid;

use super::expected;
use super::world::{PROJECT, TENANT, time};

const ID: TraceRunId = TraceRunId(Uuid::from_u128(42));

fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    weighted(0.4, of)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[ab]", Just("é\"\\\u{1}".to_owned())]
}

fn id() -> impl Strategy<Value = Uuid> {
    (1_u128..4).prop_map(Uuid::from_u128)
}

/// Few values, so that operations agree and disagree often.
fn fields() -> impl Strategy<Value = Fields> {
    let order = prop_oneof![
        Just(format!(
            "20260501T100000000000Z{}.20260501T100001000000Z{}",
            Uuid::from_u128(1),
            ID
        )),
        Just(format!("20260501T100001000000Z{ID}")),
        Just("nonsense".to_owned()),
    ];
    let times = prop_oneof![
        Just(time("2026-05-01T10:00:01Z")),
        Just(Timestamp::from_micros(1)),
        Just(Timestamp::from_micros(i64::MAX - 5))
    ];
    let key = prop_oneof![
        Just("metadata".to_owned()),
        Just("runtime".to_owned()),
        Just("k \"q\"".to_owned())
    ];
    let json = prop_oneof![
        Just("1.50".to_owned()),
        Just("{\"usage_metadata\":{\"input_tokens\":3}}".to_owned()),
        Just("null".to_owned())
    ];
    let nested = prop_oneof![
        2 => vec((prop_oneof![Just("a"), Just("\\u0061"), Just("b"), Just("\\n")], json.clone()), 0..3).prop_map(|pairs| {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
            format!("{{ {} }}", pairs.join(", "))
        }),
        1 => json.clone(),
        1 => Just("[1, {\"a\": 1}]".to_owned()),
    ];
    let status = prop_oneof![
        Just("success".to_owned()),
        Just("pending".to_owned()),
        Just("odd".to_owned())
    ];
    (
        (
            some(id()),
            some(id()),
            some(order),
            some(id()),
            some(text()),
            some(text()),
            some(times.clone()),
            some(times),
        ),
        (
            some(status),
            some(text()),
            some(vec(text(), 0..3)),
            some(json.clone()),
            some(json.clone()),
            some(json.clone()),
            some(json.clone()),
        ),
        some(vec((key, nested), 0..4)),
    )
        .prop_map(
            |(
                (trace_id, parent_run_id, dotted_order, example, name, run_type, start_time, end_time),
                (status, error, tags, inputs, outputs, events, serialized),
                extra,
            )| Fields {
                trace_id,
                parent_run_id,
                dotted_order,
                reference_example_id: example,
                name,
                run_type,
                start_time,
                end_time,
                status,
                error,
                tags,
                inputs,
                outputs,
                events,
                serialized,
                extra,
            },
        )
}

fn operation() -> impl Strategy<Value = Operation> {
    (
        prop_oneof![Just(Verb::Post), Just(Verb::Patch), Just(Verb::Patch)],
        fields(),
    )
        .prop_map(|(verb, fields)| Operation {
            verb,
            id: ID,
            project: None,
            fields,
        })
}

/// Operations with their sequences; some come twice, as a client sends them that lost the answer.
fn accepted(most: usize) -> impl Strategy<Value = Vec<(i64, Operation)>> {
    (
        vec(operation(), 1..=most),
        vec(any::<prop::sample::Index>(), 0..2),
        0_i64..1 << 40,
    )
        .prop_map(|(mut operations, again, first)| {
            for index in again {
                operations.push(index.get(&operations).clone());
            }
            operations
                .into_iter()
                .enumerate()
                .map(|(at, operation)| (first + at as i64 * 1_000_003, operation))
                .collect()
        })
}

fn row((seq, operation): &(i64, Operation)) -> Row {
    let mut row = Row::from_operation(operation.clone(), *seq);
    // What the catalog says to operations that don't know their place.
    row.location(time("2026-05-01T10:00:01Z"));
    row
}

/// Through the columns of a segment and back.
fn stored(row: &Row) -> Row {
    let mut builder = RowsBuilder::new(TENANT, PROJECT);
    builder.push(row).unwrap();
    let batch = builder.finish().unwrap();
    RowReader::new(&batch).unwrap().row(0).unwrap()
}

/// `extra` as a reader of JSON sees it.
fn shown(row: &Row) -> Option<Map<String, Value>> {
    let keys = row.extra()?;
    let pairs = keys.iter().map(|(key, text)| {
        assert_eq!(row.extra_value(key).as_deref(), Some(text.as_str()));
        (key.clone(), serde_json::from_str(text).unwrap())
    });
    Some(pairs.collect())
}

fn fold(rows: impl IntoIterator<Item = Row>) -> Row {
    rows.into_iter().reduce(Row::merge).unwrap()
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(count - 1);
    (0..count)
        .flat_map(|at| {
            shorter.iter().map(move |rest| {
                let mut order = rest.clone();
                order.insert(at, count - 1);
                order
            })
        })
        .collect()
}

#[test]
fn rows_that_exceed_a_batch_are_refused() {
    let fields = |length: usize| Fields {
        name: Some("n".repeat(length)),
        ..Fields::default()
    };
    let sized = |length| {
        let operation = Operation {
            verb: Verb::Post,
            id: ID,
            project: None,
            fields: fields(length),
        };
        row(&(1, operation))
    };
    let mut builder = RowsBuilder::new(TENANT, PROJECT).with_most_bytes(10_000);
    builder.push(&sized(50_000)).unwrap();
    let refused = builder.push(&sized(1)).unwrap_err();
    assert!(refused.to_string().contains("larger than 10000 bytes"), "{refused}");
    assert_eq!(builder.finish().unwrap().num_rows(), 1);
    builder.push(&sized(4_000)).unwrap();
    builder.push(&sized(4_000)).unwrap();
    assert!(builder.push(&sized(4_000)).is_err());
    assert_eq!(builder.finish().unwrap().num_rows(), 2);
}

/// Each of them is within what one operation may say.
#[test]
fn what_patches_add_up_to_is_bounded() {
    let patch = |seq: i64, key: &str| {
        let extra = vec![(key.to_owned(), format!("\"{}\"", "x".repeat(40 << 20)))];
        let operation = Operation {
            verb: Verb::Patch,
            id: ID,
            project: None,
            fields: Fields {
                extra: Some(extra),
                ..Fields::default()
            },
        };
        row(&(seq, operation))
    };
    let one = patch(3, "new").merge(stored(&patch(1, "old")).merge(patch(2, "older")));
    for one in [stored(&one), one] {
        let extra = one.extra().unwrap();
        let names: Vec<_> = extra.iter().map(|(key, text)| (key.as_str(), text.len())).collect();
        assert_eq!(names, [("new", (40 << 20) + 2), ("__truncated__", 4)]);
        // It is known to be older than what was left out.
        let late = one.clone().merge(patch(1, "old"));
        assert_eq!(late.extra().unwrap().len(), 2);
    }
}

/// A segment of a server that took `metadata` and `runtime` as values among others: what it says of them is what their
/// keys inherit.
#[test]
fn rows_of_the_first_version_are_read() {
    let extra = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        Some(pairs.collect::<Vec<_>>())
    };
    let operation = |verb, extra| Operation {
        verb,
        id: ID,
        project: None,
        fields: Fields {
            extra,
            ..Fields::default()
        },
    };
    let post = operation(Verb::Post, extra(&[("metadata", r#"{"b": 1,"a":2}"#)]));
    let old = |provenance: &[u8], text: &str| {
        let mut builder = RowsBuilder::new(TENANT, PROJECT);
        builder.push(&row(&(20, post.clone()))).unwrap();
        let batch = builder.finish().unwrap();
        let mut columns = batch.columns().to_vec();
        let at = |name: &str| batch.schema().index_of(name).unwrap();
        columns[at("extra")] = Arc::new(StringArray::from(vec![text]));
        columns[at("_tp_provenance")] = Arc::new(BinaryArray::from(vec![provenance]));
        let batch = RecordBatch::try_new(batch.schema(), columns).unwrap();
        RowReader::new(&batch).unwrap().row(0).unwrap()
    };
    // The post alone, number 20: `extra` is field 15.
    let alone = old(&[0x11, 0, 0, 0x80, 0x80, 2, 0, 0, 0], r#"{"metadata":{"b": 1,"a":2}}"#);
    assert_eq!(alone, row(&(20, post.clone())));
    // The post was number 5, a patch 20 set `metadata`, another one 12 `runtime` and `x`; the post is left with `y`.
    let text = r#"{"metadata":{"b": 1,"a":2},"runtime":null,"x":{"k":1},"y":3}"#;
    let several = old(&[0x13, 15, 15, 0, 0x80, 0x80, 2, 0, 4, 1, 9, 9, 0, 0], text);
    let known: Value = serde_json::from_str(r#"{"metadata":{"a":2,"b":1},"x":{"k":1},"y":3}"#).unwrap();
    assert_eq!(shown(&several).map(Value::Object), Some(known));
    let patch = |seq, text: &str| row(&(seq, operation(Verb::Patch, extra(&[("metadata", text)]))));
    let merged = |patch: Row| {
        several
            .clone()
            .merge(patch)
            .extra_value("metadata")
            .unwrap()
            .into_owned()
    };
    assert_eq!(merged(patch(21, r#"{"a":3}"#)), r#"{"a":3,"b":1}"#);
    assert_eq!(merged(patch(19, r#"{"a":3,"c":4}"#)), r#"{"a":2,"b":1,"c":4}"#);
    assert_eq!(merged(patch(19, "7")), r#"{"a":2,"b":1}"#);
    assert_eq!(merged(patch(21, "7")), "7");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All orders, and of each order all ways to cut it into runs that are flushed, stored, read back and merged.
    #[test]
    fn every_order_and_every_grouping_gives_one_row(accepted in accepted(4)) {
        let rows: Vec<Row> = accepted.iter().map(row).collect();
        let one = fold(rows.clone());
        for order in permutations(rows.len()) {
            for cuts in 0..1_u32 << (rows.len() - 1) {
                let mut groups: Vec<Vec<Row>> = vec![Vec::new()];
                for (at, index) in order.iter().enumerate() {
                    if at > 0 && cuts >> (at - 1) & 1 == 1 {
                        groups.push(Vec::new());
                    }
                    groups.last_mut().unwrap().push(rows[*index].clone());
                }
                let merged = fold(groups.into_iter().map(|group| stored(&fold(group))));
                prop_assert_eq!(&merged, &one, "order {:?}, cuts {:b}", order, cuts);
            }
        }
    }

    /// Larger sets, merged pair by pair at random, half of the results stored in between.
    #[test]
    fn random_trees_of_merges_give_one_row(accepted in accepted(12), picks in vec((any::<prop::sample::Index>(), any::<bool>()), 40)) {
        let mut rows: Vec<Row> = accepted.iter().map(row).collect();
        let one = fold(rows.clone());
        for pair in picks.chunks_exact(2) {
            if rows.len() < 2 {
                break;
            }
            let left = rows.swap_remove(pair[0].0.index(rows.len()));
            let right = rows.swap_remove(pair[1].0.index(rows.len()));
            let right = if pair[1].1 { stored(&right) } else { right };
            let both = left.merge(right);
            rows.push(if pair[0].1 { stored(&both) } else { both });
        }
        prop_assert_eq!(fold(rows), one);
    }

    /// The rule itself, against the plain way of applying it to all operations at once.
    #[test]
    fn the_row_is_what_the_rule_says(accepted in accepted(8)) {
        let one = stored(&fold(accepted.iter().map(row)));
        let (fields, extra) = expected::merged(accepted.iter().collect());
        prop_assert_eq!(one.fields(), &fields);
        prop_assert_eq!(shown(&one), extra);
        prop_assert_eq!(one.has_post(), accepted.iter().any(|(_, operation)| operation.verb == Verb::Post));
        prop_assert_eq!(one.has_patch(), accepted.iter().any(|(_, operation)| operation.verb == Verb::Patch));
        prop_assert_eq!(one.is_late(), !one.has_post());
        prop_assert_eq!(one.seqs(), (accepted[0].0, accepted[accepted.len() - 1].0));
    }

    /// A row merged with itself, or with what it already has, stays.
    #[test]
    fn merging_again_changes_nothing(accepted in accepted(6)) {
        let one = fold(accepted.iter().map(row));
        prop_assert_eq!(&one.clone().merge(one.clone()), &one);
        prop_assert_eq!(&one.clone().merge(stored(&one)), &one);
        prop_assert_eq!(&row(&accepted[0]).merge(one.clone()), &one);
    }

    /// Everything sent again in the same order, any post sent again, and the last body sent again: all show the same.
    #[test]
    fn a_body_sent_again_shows_the_same(accepted in accepted(6)) {
        let one = fold(accepted.iter().map(row));
        let next = accepted[accepted.len() - 1].0 + 1;
        let again: Vec<_> = accepted.iter().enumerate().map(|(at, (_, operation))| (next + at as i64, operation.clone())).collect();
        let all = fold(accepted.iter().chain(&again).map(row));
        prop_assert_eq!(all.fields(), one.fields());
        prop_assert_eq!(shown(&all), shown(&one));
        if one.has_post() {
            let posts = again.iter().filter(|(_, operation)| operation.verb == Verb::Post);
            let posts = fold(accepted.iter().chain(posts).map(row));
            prop_assert_eq!(posts.fields(), one.fields());
            prop_assert_eq!(shown(&posts), shown(&one));
        }
        let last = fold(accepted.iter().chain(again.last()).map(row));
        prop_assert_eq!(last.fields(), one.fields());
        prop_assert_eq!(shown(&last), shown(&one));
    }
}
