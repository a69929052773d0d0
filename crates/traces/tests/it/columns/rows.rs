use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
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
        some(vec((key, json), 0..4)),
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
    row.place(time("2026-05-01T10:00:01Z"));
    row
}

/// Through the columns of a segment and back.
fn stored(row: &Row) -> Row {
    let mut builder = RowsBuilder::new(TENANT, PROJECT);
    builder.push(row).unwrap();
    let batch = builder.finish().unwrap();
    RowReader::new(&batch).unwrap().row(0).unwrap()
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All orders, and of each order all ways to cut it into runs that are folded, stored, read back and merged.
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
        let expected = expected::merged(accepted.iter().collect());
        prop_assert_eq!(one.fields(), &expected);
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
        if one.has_post() {
            let posts = again.iter().filter(|(_, operation)| operation.verb == Verb::Post);
            let posts = fold(accepted.iter().chain(posts).map(row));
            prop_assert_eq!(posts.fields(), one.fields());
        }
        let last = fold(accepted.iter().chain(again.last()).map(row));
        prop_assert_eq!(last.fields(), one.fields());
    }
}
