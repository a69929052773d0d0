//! Compiled filters agree with the plain evaluator row by row.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use towpath_domain::filter::Filter;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_query::Predicate;
use towpath_store::feedback::Feedback;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::{Row, RowsBuilder};
use uuid::Uuid;

use crate::naive::{self, Subject};

/// Deterministic pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len())].clone()
    }

    fn maybe<T>(&mut self, value: T) -> Option<T> {
        (self.roll(4) > 0).then_some(value)
    }
}

const WORDS: [&str; 8] = [
    "alpha",
    "Beta",
    "beta\\x",
    "a_b",
    "50%",
    "Ünïcode",
    "say \"hi\"",
    "line\nbreak",
];
const KEYS: [&str; 6] = ["k", "messages", "content", "thread_id", "a.b", "x"];
const START: i64 = 1_767_225_600_000_000;

fn scalar(dice: &mut Random) -> Json {
    match dice.roll(6) {
        0 => Json::Null,
        1 => json!(dice.roll(2) == 0),
        2 => json!(dice.roll(4)),
        3 => json!(dice.roll(8) as f64 / 4.0),
        4 => json!(dice.roll(4).to_string()),
        _ => json!(dice.of(&WORDS)),
    }
}

fn tree(dice: &mut Random, depth: usize) -> Json {
    match dice.roll(if depth == 0 { 4 } else { 6 }) {
        4 => Json::Array((0..dice.roll(3)).map(|_| tree(dice, depth - 1)).collect()),
        5 => object(dice, depth - 1),
        _ => scalar(dice),
    }
}

fn object(dice: &mut Random, depth: usize) -> Json {
    let fields = (0..dice.roll(4)).map(|_| (dice.of(&KEYS).to_owned(), tree(dice, depth)));
    Json::Object(fields.collect())
}

fn id(number: usize) -> Uuid {
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + number as u128)
}

fn post(dice: &mut Random, number: usize) -> Operation {
    let start = Timestamp::from_micros(START + (dice.roll(100) as i64) * 60_000_000);
    let mut outputs = object(dice, 2);
    if dice.roll(2) == 0 {
        outputs["usage_metadata"] = json!({"input_tokens": dice.roll(5), "output_tokens": 2, "total_tokens": dice.roll(9),
            "total_cost": dice.roll(4) as f64 / 1000.0});
    }
    let extra = [
        ("metadata".to_owned(), object(dice, 2).to_string()),
        ("runtime".to_owned(), json!({"k": dice.of(&WORDS)}).to_string()),
    ];
    let events = json!([{"name": "new_token", "time": "2026-01-01T00:30:00Z"}]).to_string();
    let inputs = if dice.roll(8) == 0 {
        tree(dice, 2)
    } else {
        object(dice, 2)
    };
    let fields = Fields {
        parent_run_id: (dice.roll(2) == 0).then(|| id(dice.roll(8))),
        trace_id: (dice.roll(2) == 0).then(|| id(dice.roll(8))),
        reference_example_id: (dice.roll(5) == 0).then(|| id(dice.roll(3))),
        name: Some(dice.of(&WORDS).to_owned()).filter(|_| dice.roll(6) > 0),
        run_type: dice.maybe(dice_type(number)),
        start_time: Some(start),
        end_time: dice
            .maybe(())
            .map(|()| Timestamp::from_micros(start.micros() + (dice.roll(4) as i64) * 2_500_000)),
        error: match dice.roll(5) {
            0 => Some(String::new()),
            1 => Some(format!("failed: {}", dice.of(&WORDS))),
            _ => None,
        },
        tags: (dice.roll(3) > 0).then(|| (0..dice.roll(3)).map(|_| dice.of(&WORDS).to_owned()).collect()),
        inputs: dice.maybe(inputs.to_string()),
        outputs: dice.maybe(outputs.to_string()),
        events: (dice.roll(4) == 0).then_some(events),
        extra: (dice.roll(4) > 0).then(|| extra.to_vec()),
        ..Fields::default()
    };
    Operation {
        verb: Verb::Post,
        id: TraceRunId(id(1000 + number)),
        project: None,
        fields,
    }
}

fn row(dice: &mut Random, number: usize) -> Row {
    Row::from_operation(post(dice, number), number as i64)
}

fn dice_type(number: usize) -> String {
    ["chain", "llm", "tool"][number % 3].to_owned()
}

fn feedback(dice: &mut Random) -> Vec<Json> {
    let one = |dice: &mut Random| {
        let score = match dice.roll(4) {
            0 => Json::Null,
            1 => json!(dice.roll(2) == 0),
            _ => json!(dice.roll(3) as f64 / 2.0),
        };
        let source = dice.of(&[json!("api"), json!("model"), Json::Null]);
        json!({"key": dice.of(&["good", "user"]), "score": score, "value": scalar(dice), "source": source})
    };
    (0..dice.roll(3)).map(|_| one(dice)).collect()
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn value(dice: &mut Random) -> String {
    match dice.roll(6) {
        0 => "null".to_owned(),
        1 => dice.of(&["true", "false"]).to_owned(),
        2 => dice.roll(4).to_string(),
        3 => format!("{}", dice.roll(8) as f64 / 4.0),
        4 => quoted(&dice.roll(4).to_string()),
        _ => quoted(dice.of(&WORDS)),
    }
}

fn pattern(dice: &mut Random) -> String {
    let word = dice.of(&WORDS);
    let part: String = word.chars().skip(dice.roll(2)).take(3).collect();
    let shape = dice.of(&["%{}%", "{}%", "%{}", "_{}%", "{}", "%"]);
    quoted(&shape.replace("{}", &part.replace('\\', "\\\\")))
}

fn test(dice: &mut Random) -> String {
    let compare = dice.of(&["eq", "neq", "gt", "gte", "lt", "lte"]);
    let same = dice.of(&["eq", "neq"]);
    let time = format!("\"2026-01-01T{:02}:{:02}:00Z\"", dice.roll(2), dice.roll(60));
    let uuid = format!("\"{}\"", id(dice.roll(8)));
    match dice.roll(26) {
        0 => format!(
            "{same}({}, {uuid})",
            dice.of(&["parent_run_id", "trace_id", "reference_example"])
        ),
        1 => format!(
            "{same}({}, null)",
            dice.of(&[
                "parent_run_id",
                "error",
                "name",
                "end_time",
                "total_tokens",
                "thread_id"
            ])
        ),
        2 => format!(
            "in(id, [\"{}\", \"{}\"])",
            id(1000 + dice.roll(300)),
            id(1000 + dice.roll(300))
        ),
        3 => format!("{same}(name, {})", quoted(dice.of(&WORDS))),
        4 => format!(
            "in(name, [{}, {}, null])",
            quoted(dice.of(&WORDS)),
            quoted(dice.of(&WORDS))
        ),
        5 => format!(
            "like({}, {})",
            dice.of(&["name", "error", "tags", "thread_id"]),
            pattern(dice)
        ),
        6 => format!("{same}(run_type, {})", quoted(dice.of(&["chain", "llm", "none"]))),
        7 => format!("in(run_type, [{}])", dice.of(&["\"chain\"", "\"llm\", \"tool\"", ""])),
        8 => format!("{same}(status, {})", quoted(dice.of(&["success", "error", "pending"]))),
        9 => format!("{same}(is_root, {})", dice.of(&["true", "false", "null"])),
        10 => format!(
            "{compare}({}, {time})",
            dice.of(&["start_time", "end_time", "first_token_time"])
        ),
        11 => format!("{compare}(latency, {})", dice.of(&["2.5", "\"5s\"", "\"7500ms\"", "0"])),
        12 => format!(
            "{compare}({}, {})",
            dice.of(&["total_tokens", "prompt_tokens", "completion_tokens"]),
            dice.roll(6)
        ),
        13 => format!("{compare}(total_cost, {})", dice.of(&["0", "0.001", "0.002"])),
        14 => format!("has(tags, {})", quoted(dice.of(&WORDS))),
        15 => format!("in(tags, [{}, {}])", quoted(dice.of(&WORDS)), quoted(dice.of(&WORDS))),
        16 => format!("{same}(thread_id, {})", quoted(dice.of(&WORDS))),
        17 => format!(
            "search({})",
            quoted(dice.of(&["ALPHA", "beta", "ünï", "say \"", "content", "\\x", "break"]))
        ),
        18 => format!(
            "search({}, {})",
            dice.of(&["name", "error", "tags", "inputs", "outputs", "metadata", "extra"]),
            quoted(dice.of(&["bet", "hi", "ÜN", "k"]))
        ),
        19 => {
            let wanted = Json::Object([(dice.of(&KEYS).to_owned(), tree(dice, 1))].into_iter().collect());
            format!(
                "has({}, {})",
                dice.of(&["metadata", "inputs", "outputs", "extra"]),
                quoted(&wanted.to_string())
            )
        }
        20 => format!("{same}(execution_order, 1)"),
        _ => entry(dice),
    }
}

fn entry(dice: &mut Random) -> String {
    let same = dice.of(&["eq", "neq"]);
    let compare = dice.of(&["eq", "neq", "gt", "gte", "lt", "lte"]);
    let kind = dice.of(&["metadata", "input", "output"]);
    let key = quoted(dice.of(&["k", "messages.content", "a.b", "messages", "thread_id", "k.x"]));
    match dice.roll(9) {
        0 | 1 => format!("{same}({kind}_key, {key})"),
        2 => format!("in({kind}_key, [{key}, \"k\"])"),
        3 | 4 => format!("{same}({kind}_value, {})", value(dice)),
        5 => format!("{compare}({kind}_value, {})", dice.roll(4)),
        6 => format!("like({kind}_value, {})", pattern(dice)),
        7 => format!("{same}(feedback_key, {})", quoted(dice.of(&["good", "user", "none"]))),
        _ => match dice.roll(3) {
            0 => format!("{compare}(feedback_score, {})", dice.of(&["0", "0.5", "1"])),
            1 => format!("{same}(feedback_value, {})", value(dice)),
            _ => format!(
                "{same}(feedback_source, {})",
                dice.of(&["\"api\"", "\"model\"", "null"])
            ),
        },
    }
}

fn filter(dice: &mut Random, depth: usize) -> String {
    if depth == 0 {
        return test(dice);
    }
    let parts = |dice: &mut Random| {
        let parts: Vec<String> = (0..=dice.roll(3)).map(|_| filter(dice, depth - 1)).collect();
        parts.join(", ")
    };
    match dice.roll(8) {
        0..=2 => format!("and({})", parts(dice)),
        3 => {
            let kind = dice.of(&["metadata", "input", "output"]);
            let key = quoted(dice.of(&["k", "messages.content", "a.b"]));
            let same = dice.of(&["eq", "neq"]);
            format!("and(eq({kind}_key, {key}), {same}({kind}_value, {}))", value(dice))
        }
        4 => "and(eq(feedback_key, \"good\"), gte(feedback_score, 0.5))".to_owned(),
        5 => format!("or({})", parts(dice)),
        6 => format!("not({})", filter(dice, depth - 1)),
        _ => test(dice),
    }
}

/// Checks that 200 filters on `rows`, with the feedback `lists`, agree with the plain evaluator on `plain` and `given`,
/// which represent the same data.
fn filters_agree(
    dice: &mut Random,
    rows: &[Row],
    lists: &HashMap<TraceRunId, String>,
    plain: &[Row],
    given: &HashMap<TraceRunId, Vec<Json>>,
) {
    let (tenant, project) = (TenantId(id(1)), ProjectId(id(2)));
    let mut builder = RowsBuilder::new(tenant, project);
    rows.iter().for_each(|row| builder.push(row).unwrap());
    let batch = builder.finish().unwrap();
    let keys: Vec<_> = rows.iter().map(|row| row.key().unwrap()).collect();

    let (mut some, mut none, mut all) = (0, 0, 0);
    for number in 0..200 {
        let text = filter(dice, number % 4);
        let parsed = match Filter::parse(&text) {
            Ok(parsed) => parsed,
            // Some combinations are invalid; the parser's own test covers them.
            Err(error) if error.message.contains("needs a value") => continue,
            Err(error) => panic!("{text}: {error}"),
        };
        let predicate = Predicate::new(Some(&parsed), &[]).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let held = predicate
            .evaluate(&batch, &keys, lists)
            .unwrap_or_else(|error| panic!("{text}: {error:?}"));
        for (index, row) in plain.iter().enumerate() {
            let subject = Subject {
                row,
                session: project.0,
                feedback: &given[&row.id()],
            };
            let expected = naive::holds(&parsed, &subject);
            assert_eq!(
                held.value(index),
                expected,
                "{text}\n{:#?}\n{:?}",
                row.fields(),
                subject.feedback
            );
        }
        match held.true_count() {
            0 => none += 1,
            300 => all += 1,
            _ => some += 1,
        }
    }
    // Otherwise both might agree on trivial results only.
    assert!(
        some >= 100,
        "{some} filters divide the rows, {none} match none, {all} match all"
    );
}

#[test]
fn two_hundred_filters_mean_what_they_say() {
    let mut dice = Random(20_261_121);
    let rows: Vec<Row> = (0..300).map(|number| row(&mut dice, number)).collect();
    let given: HashMap<TraceRunId, Vec<Json>> = rows.iter().map(|row| (row.id(), feedback(&mut dice))).collect();
    let lists = given
        .iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(run, list)| (*run, Json::Array(list.clone()).to_string()))
        .collect();
    filters_agree(&mut dice, &rows, &lists, &rows, &given);
}

/// A run with changed JSON fields.
fn changed(mut post: Operation, change: impl Fn(&str) -> String) -> Operation {
    let fields = &mut post.fields;
    for text in [&mut fields.inputs, &mut fields.outputs].into_iter().flatten() {
        *text = change(text);
    }
    for (_, text) in fields.extra.iter_mut().flatten() {
        *text = change(text);
    }
    post
}

#[test]
fn filters_see_all_of_what_other_readers_refuse() {
    let mut dice = Random(20_261_122);
    // The plain evaluator reads a number and a character instead.
    let big = json!(1e300).to_string();
    let odd = |plain: &str| plain.replace(&big, "1e999").replace('\u{fffd}', "\\ud83d");
    let members = json!({"odd": [1e300, "Beta \u{fffd}", {"\u{fffd}": -1e300, "k": "\u{fffd}"}]}).to_string();
    let plain: Vec<Operation> = (0..300)
        .map(|number| {
            changed(post(&mut dice, number), |text| match text.strip_prefix('{') {
                Some("}") => members.clone(),
                Some(rest) => format!("{},{rest}", members.trim_end_matches('}')),
                None => text.to_owned(),
            })
        })
        .collect();
    let texts = plain.iter().filter_map(|post| Some(&post.fields.extra.as_ref()?[0].1));
    for text in texts.map(|text| odd(text)) {
        assert!(text.contains(r#"[1e999,"Beta \ud83d",{"#), "{text}");
        assert!(serde_json::from_str::<Json>(&text).is_err());
    }
    let row = |post: Operation| Row::from_operation(post, 1);
    let rows: Vec<Row> = plain.iter().map(|post| row(changed(post.clone(), odd))).collect();
    let plain: Vec<Row> = plain.into_iter().map(row).collect();

    let given: HashMap<TraceRunId, Vec<Json>> = plain
        .iter()
        .map(|row| {
            let mut given = feedback(&mut dice);
            given.push(json!({"key": "good", "score": 1e300, "value": "Beta \u{fffd}", "source": null}));
            (row.id(), given)
        })
        .collect();
    let lists = given
        .iter()
        .map(|(run, list)| (*run, odd(&Json::Array(list.clone()).to_string())));
    filters_agree(&mut dice, &rows, &lists.collect(), &plain, &given);
}

#[test]
fn values_compare_as_they_were_sent() {
    let (tenant, project) = (TenantId(id(1)), ProjectId(id(2)));
    // The maximum depth that is accepted inside `extra` and feedback.
    let deep = |levels: usize| format!("{}\"bottom\"{}", "[".repeat(levels), "]".repeat(levels));
    let metadata = format!(
        r#"{{"n":9007199254740993,"large":123456789012345678901234567890,"out":1e999,"below":-1e999,"exact":0.30,"deep":{}}}"#,
        deep(125)
    );
    let fields = Fields {
        start_time: Some(Timestamp::from_micros(START)),
        extra: Some(vec![("metadata".to_owned(), metadata)]),
        ..Fields::default()
    };
    let operation = Operation {
        verb: Verb::Post,
        id: TraceRunId(id(3)),
        project: None,
        fields,
    };
    let row = Row::from_operation(operation, 1);
    let mut builder = RowsBuilder::new(tenant, project);
    builder.push(&row).unwrap();
    let batch = builder.finish().unwrap();
    let body = format!(r#"{{"value":{},"score":9007199254740993}}"#, deep(126));
    let given = Feedback {
        tenant_id: tenant,
        id: id(4),
        run_id: Some(row.id()),
        key: "k".to_owned(),
        body,
        seq: 1,
        created_at: Timestamp::from_micros(0),
        modified_at: None,
        deleted: false,
    };
    let lists = towpath_query::feedback::lists(&[given]);
    let pair = |key: &str, test: &str| format!("and(eq(metadata_key, \"{key}\"), {test})");
    for (filter, expected) in [
        (pair("n", "eq(metadata_value, 9007199254740993)"), true),
        (pair("n", "eq(metadata_value, 9007199254740992)"), false),
        (pair("n", "eq(metadata_value, 9007199254740994)"), false),
        (pair("n", "gt(metadata_value, 9007199254740992)"), true),
        (pair("n", "lt(metadata_value, 9007199254740993)"), false),
        (pair("n", "in(metadata_value, [1, 9007199254740993])"), true),
        (pair("n", "eq(metadata_value, \"9007199254740993\")"), true),
        ("has(metadata, '{\"n\": 9007199254740993}')".to_owned(), true),
        ("has(metadata, '{\"n\": 9007199254740992}')".to_owned(), false),
        (
            pair("large", "eq(metadata_value, 123456789012345678901234567890)"),
            true,
        ),
        (
            pair("large", "eq(metadata_value, 123456789012345678901234567891)"),
            false,
        ),
        (pair("large", "eq(metadata_value, 1.2345678901234568e29)"), true),
        (pair("out", "gt(metadata_value, 1e308)"), true),
        (pair("out", "eq(metadata_value, 2e999)"), true),
        (pair("out", "eq(metadata_value, \"1e999\")"), true),
        (pair("out", "lt(metadata_value, 1e308)"), false),
        (pair("below", "lt(metadata_value, -1e308)"), true),
        (pair("exact", "eq(metadata_value, 0.3)"), true),
        (pair("exact", "eq(metadata_value, \"0.30\")"), true),
        (pair("deep", "eq(metadata_value, \"bottom\")"), true),
        ("search(metadata, \"BOTTOM\")".to_owned(), true),
        ("eq(feedback_score, 9007199254740993)".to_owned(), true),
        ("eq(feedback_score, 9007199254740992)".to_owned(), false),
        ("and(eq(feedback_key, \"k\"), gt(feedback_score, 0))".to_owned(), true),
    ] {
        let parsed = Filter::parse(&filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
        let predicate = Predicate::new(Some(&parsed), &[]).unwrap();
        let held = predicate.evaluate(&batch, &[row.key().unwrap()], &lists).unwrap();
        assert_eq!(held.value(0), expected, "{filter}");
    }
}

#[test]
fn a_predicate_reads_only_what_it_needs() {
    let predicate = |text: &str| Predicate::new(Some(&Filter::parse(text).unwrap()), &[]).unwrap();
    let columns = |text: &str| predicate(text).columns().collect::<Vec<_>>();
    assert_eq!(columns("eq(name, \"a\")"), ["name"]);
    assert_eq!(columns("gt(latency, 1)"), ["end_time", "start_time"]);
    assert!(columns("gt(start_time, \"2026-01-01\")").is_empty());
    assert_eq!(columns("eq(metadata_key, \"a\")"), ["extra"]);
    assert!(predicate("eq(feedback_key, \"a\")").needs_feedback());
    let traces = [Arc::new([id(3)].into())];
    let of_trace = Predicate::new(None, &traces).unwrap();
    assert_eq!(of_trace.columns().collect::<Vec<_>>(), ["trace_id"]);
}
