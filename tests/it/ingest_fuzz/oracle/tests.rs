use super::*;
use crate::ingest_fuzz::operation::{Link, Moment};

const ID: Uuid = Uuid::from_u128(7);
const RUN: Run = (0, ID);

fn operation(verb: Verb, project: Option<Handle>, order: Option<i64>, fields: &[(Field, &str)]) -> Arc<Operation> {
    let mut operation = Operation::new(0, verb, ID, &Arc::default());
    operation.project = project;
    operation.order = order.map(|start| Order {
        text: start.to_string(),
        links: vec![Link { start, id: ID }],
    });
    let fields = fields.iter().map(|(field, raw)| (*field, (*raw).to_owned()));
    operation.fields = fields.collect();
    Arc::new(operation)
}

fn oracle(said: &[Arc<Operation>]) -> Oracle {
    let mut oracle = Oracle::new(Features::ALL);
    for operation in said {
        oracle.say(0, operation);
    }
    oracle
}

fn only(oracle: &Oracle) -> Arc<Row> {
    oracle.whereabouts(RUN).expect("one row and nothing else")
}

fn raw(row: &Row, field: Field) -> &str {
    &row.fields[&field].raw
}

#[test]
fn the_first_that_states_a_project_and_a_start_decides() {
    let said = [
        operation(Verb::Patch, None, Some(5), &[(Field::Name, "\"waits\"")]),
        operation(Verb::Patch, Some(1), Some(9), &[]),
        operation(Verb::Post, Some(2), Some(1), &[(Field::Inputs, "{}")]),
    ];
    let mut oracle = oracle(&said[..1]);
    assert_eq!(oracle.outcomes(RUN).iter().flatten().count(), 0);
    assert_eq!(oracle.waiting(RUN), (1, 1));
    for operation in &said[1..] {
        oracle.say(0, operation);
    }
    let row = only(&oracle);
    assert_eq!((row.project, row.sort_key.bounds()), (1, (9, 9)));
    assert_eq!((raw(&row, Field::Name), raw(&row, Field::Inputs)), ("\"waits\"", "{}"));
    assert!(row.posted);
}

#[test]
fn patches_beat_the_first_post_and_later_patches_earlier_ones() {
    let said = [
        operation(
            Verb::Patch,
            None,
            None,
            &[(Field::Name, "\"one\""), (Field::Error, "null")],
        ),
        operation(
            Verb::Post,
            Some(1),
            Some(1),
            &[(Field::Name, "\"post\""), (Field::Status, "\"pending\"")],
        ),
        operation(
            Verb::Post,
            Some(1),
            Some(2),
            &[(Field::Status, "\"error\""), (Field::Tags, "[]")],
        ),
        operation(
            Verb::Patch,
            None,
            None,
            &[(Field::Name, "\"two\""), (Field::Status, "\"unheard of\"")],
        ),
    ];
    let row = only(&oracle(&said));
    assert_eq!(
        (raw(&row, Field::Name), raw(&row, Field::Status)),
        ("\"two\"", "\"pending\"")
    );
    assert!(!row.fields.contains_key(&Field::Tags) && !row.fields.contains_key(&Field::Error));
}

#[test]
fn extra_merges_by_its_keys_and_metadata_by_its_own() {
    let said = [
        operation(
            Verb::Post,
            Some(1),
            Some(1),
            &[(Field::Extra, "{\"a\":1,\"metadata\":{\"x\":1,\"y\":1}}")],
        ),
        operation(
            Verb::Patch,
            None,
            None,
            &[(Field::Extra, "{\"b\":2,\"metadata\":{\"y\":2}}")],
        ),
        operation(Verb::Patch, None, None, &[(Field::Extra, "null")]),
        operation(
            Verb::Patch,
            None,
            None,
            &[(Field::Extra, "{\"a\":{\"n\":3},\"metadata\":null}")],
        ),
    ];
    let merged = Json::parse("{\"a\":{\"n\":3},\"b\":2,\"metadata\":{\"x\":1,\"y\":2}}").unwrap();
    assert_eq!(only(&oracle(&said)).extra.as_ref(), merged.members());
}

#[test]
fn a_post_without_a_time_starts_when_it_came_in() {
    let mut post = Operation::clone(&operation(Verb::Post, Some(1), None, &[]));
    let row = only(&oracle(&[Arc::new(post.clone())]));
    assert!(matches!(row.start, Start::Received(_)));
    post.start = Some(Moment {
        raw: "0".to_owned(),
        micros: 3,
    });
    let row = only(&oracle(&[Arc::new(post.clone())]));
    assert_eq!(row.sort_key.bounds(), (3, 3));
    // The place counts, whatever is said of the start.
    let order = operation(Verb::Patch, Some(1), Some(8), &[]);
    let row = only(&oracle(&[order, Arc::new(post)]));
    assert!(row.start.is(8));
}

#[test]
fn what_a_deleted_project_takes_with_it_depends_on_the_fold() {
    let post = operation(Verb::Post, Some(1), Some(1), &[(Field::Name, "\"old\"")]);
    let patch = operation(Verb::Patch, None, None, &[(Field::Status, "\"success\"")]);
    let again = operation(Verb::Post, Some(2), Some(2), &[(Field::Name, "\"new\"")]);
    let mut oracle = oracle(&[post, patch]);
    oracle.delete_project(1);
    assert!(oracle.outcomes(RUN).iter().all(Option::is_none));
    assert_eq!(oracle.waiting(RUN), (0, 1));
    oracle.say(0, &again);
    let rows: Vec<Arc<Row>> = oracle.outcomes(RUN).into_iter().flatten().collect();
    assert_eq!(rows.len(), 3);
    assert!(
        rows.iter()
            .all(|row| row.project == 2 && raw(row, Field::Name) == "\"new\"")
    );
    let kept = rows.iter().filter(|row| row.fields.contains_key(&Field::Status));
    // The patch goes with the project where it was flushed before, and waits where it was not.
    assert_eq!(kept.count(), 2);
}

#[test]
fn a_request_that_may_be_refused_leaves_a_run_or_none() {
    let mut post = Operation::clone(&operation(Verb::Post, Some(1), Some(1), &[]));
    post.certain = false;
    let acceptance = Arc::clone(&post.acceptance);
    let oracle = oracle(&[Arc::new(post)]);
    assert_eq!(oracle.outcomes(RUN).len(), 2);
    acceptance.is_answered(false);
    assert_eq!(oracle.outcomes(RUN).iter().flatten().count(), 0);
    assert_eq!(oracle.outcomes(RUN).len(), 1);
}
