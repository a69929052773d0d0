use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Filter {
    Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> (usize, String) {
    let error = Filter::parse(text).expect_err(text);
    (error.position, error.message)
}

fn test(field: Field, check: Comparison) -> Filter {
    Filter::Condition(Condition {
        field,
        comparison: check,
    })
}

#[test]
fn values_take_the_type_of_their_field() {
    let time = Timestamp::parse("2026-01-31T12:00:00Z").unwrap();
    let id = Uuid::from_u128(7);
    for (text, expected) in [
        (
            "eq(name, \"a\\u00e9\\n\")",
            test(Field::Name, Comparison::Equal(Value::Text("aé\n".into()))),
        ),
        (
            "eq(name, 'it\\'s')",
            test(Field::Name, Comparison::Equal(Value::Text("it's".into()))),
        ),
        (
            "neq(error, null)",
            test(Field::Error, Comparison::NotEqual(Value::Null)),
        ),
        (
            "eq(is_root, true)",
            test(Field::IsRoot, Comparison::Equal(Value::Bool(true))),
        ),
        (
            "gt(latency, \"5s\")",
            test(
                Field::Latency,
                Comparison::Inequality(Inequality::Greater, Value::Span(5_000_000)),
            ),
        ),
        (
            "lte(latency, 0.25)",
            test(
                Field::Latency,
                Comparison::Inequality(Inequality::LessOrEqual, Value::Span(250_000)),
            ),
        ),
        (
            "gte(latency,\"1.5m\")",
            test(
                Field::Latency,
                Comparison::Inequality(Inequality::GreaterOrEqual, Value::Span(90_000_000)),
            ),
        ),
        (
            "gt(start_time, \"2026-01-31T12:00:00Z\")",
            test(
                Field::StartTime,
                Comparison::Inequality(Inequality::Greater, Value::Time(time)),
            ),
        ),
        (
            "eq(total_tokens, 57.0)",
            test(Field::TotalTokens, Comparison::Equal(Value::Count(57))),
        ),
        (
            "lt(total_cost, -0.00012)",
            test(
                Field::TotalCost,
                Comparison::Inequality(Inequality::Less, Value::Cost(-1_200_000)),
            ),
        ),
        (
            "eq(total_cost, 1e-3)",
            test(Field::TotalCost, Comparison::Equal(Value::Cost(10_000_000))),
        ),
        (
            "eq(execution_order, 1)",
            test(Field::ExecutionOrder, Comparison::Equal(Value::Bool(true))),
        ),
        ("has(tags, \"x\")", test(Field::Tags, Comparison::HasText("x".into()))),
        (
            "has(metadata, '{\"a\": 1}')",
            test(
                Field::Metadata,
                Comparison::HasJson(json::Value::parse(r#"{"a": 1}"#).unwrap()),
            ),
        ),
        (
            "like(name, \"50\\%%\")",
            test(Field::Name, Comparison::Like("50\\%%".into())),
        ),
        (
            "search(\"hi\")",
            test(Field::Everything, Comparison::Search("hi".into())),
        ),
        (
            "search(error, \"hi\")",
            test(Field::Error, Comparison::Search("hi".into())),
        ),
        (
            "in(id, [\"00000000-0000-0000-0000-000000000007\"])",
            test(Field::Id, Comparison::In(vec![Value::Id(id)])),
        ),
        (
            "eq(metadata_value, 3)",
            test(
                Field::Entry(Family::Metadata, Entry::Value),
                Comparison::Equal(Value::Number("3".parse().unwrap())),
            ),
        ),
        (
            "gte(feedback_score, true)",
            test(
                Field::Entry(Family::Feedback, Entry::Score),
                Comparison::Inequality(Inequality::GreaterOrEqual, Value::Number(true.into())),
            ),
        ),
    ] {
        assert_eq!(parse(text), expected, "{text}");
    }
}

#[test]
fn refusals_say_where_and_what() {
    for (text, position, message) in [
        ("", 1, "expected a function"),
        ("é", 1, "unexpected character"),
        ("eq(name \"a\")", 9, "expected `,`, found a text"),
        ("eq(\"é\" \"a\")", 4, "unknown field `é`"),
        (
            "and(eq(name, \"é\"), eq(nam, \"a\"))",
            23,
            "unknown field `nam`; expected one of id, ",
        ),
        ("eq(name, \"a", 10, "unterminated string"),
        ("eq(name, \"\\q\")", 11, "not a valid JSON escape"),
        ("eq(name, a)", 10, "put text in quotes"),
        ("eq(name, 3)", 10, "a quoted string"),
        ("gt(name, \"a\")", 4, "`gt` is not supported for `name`; use eq"),
        ("eq(tags, \"a\")", 4, "use has, in"),
        ("eq(id, \"x\")", 8, "a UUID"),
        ("gt(start_time, \"soon\")", 16, "a time like"),
        ("gt(start_time, null)", 16, "can be ordered"),
        ("gt(latency, \"5 parsecs\")", 13, "\"5s\""),
        ("eq(total_tokens, 1.5)", 18, "a whole number"),
        ("eq(total_cost, 0.00000000001)", 16, "at most 10 digits"),
        ("eq(execution_order, 2)", 21, "only the value 1"),
        ("eq(name, 1..2)", 10, "not a number"),
        ("in(name, \"a\")", 10, "expected `[`"),
        ("in(name, [\"a\" \"b\"])", 15, "expected `,` or `]`"),
        ("has(metadata, \"[1]\")", 15, "a JSON object"),
        ("search(\"\")", 8, "the search text is empty"),
        ("select(name)", 1, "unknown function `select`"),
        ("eq(name, \"a\") or", 15, "expected the end"),
        ("and()", 5, "expected a function"),
    ] {
        let (at, said) = refused(text);
        assert_eq!(at, position, "{text}: {said}");
        assert!(said.contains(message), "{text}: {said}");
    }
}

#[test]
fn size_and_depth_are_bounded() {
    let deep = |levels: usize| format!("{}eq(name, \"a\"){}", "not(".repeat(levels), ")".repeat(levels));
    parse(&deep(MAX_DEPTH));
    assert!(refused(&deep(MAX_DEPTH + 1)).1.contains("nested more than"));
    assert!(refused(&deep(3000)).1.contains("nested more than"));
    let wide = |parts: usize| format!("or({})", vec!["eq(name,\"a\")"; parts].join(","));
    parse(&wide(MAX_NODES - 1));
    assert!(refused(&wide(MAX_NODES)).1.contains("at most 512 functions"));
    let list = |values: usize| format!("in(name,[{}])", vec!["\"a\""; values].join(","));
    parse(&list(MAX_VALUES));
    assert!(refused(&list(MAX_VALUES + 1)).1.contains("at most 1000 values"));
    assert!(refused(&" ".repeat(MAX_BYTES + 1)).1.contains("bytes"));
}

#[test]
fn tests_of_one_kind_of_entry_belong_together() {
    let Filter::And(parts) = parse(
        "and(eq(metadata_key, \"k\"), eq(name, \"n\"), neq(metadata_value, \"v\"), neq(input_key, \"i\"),
             not(eq(metadata_key, \"other\")), gt(feedback_score, 0), eq(feedback_key, \"good\"))",
    ) else {
        panic!("an and")
    };
    let scoped = group_by_entry(&parts);
    let sizes: Vec<_> = scoped
        .entries
        .iter()
        .map(|(family, tests)| (*family, tests.len()))
        .collect();
    assert_eq!(sizes, [(Family::Metadata, 2), (Family::Feedback, 2)]);
    // The name, the input key that must not be there, and what is in the `not`.
    assert_eq!(scoped.others.len(), 3);
}

#[test]
fn bounds_on_the_start_are_found_where_they_must_hold() {
    let at = |text: &str| Timestamp::parse(text).unwrap();
    let filter = parse(
        "and(gte(start_time, \"2026-01-01\"), lt(start_time, \"2026-02-01\"), and(lte(start_time, \"2026-01-15\")))",
    );
    let end = Timestamp::from_micros(at("2026-01-15").micros() + 1);
    assert_eq!(filter.start_bounds(), (Some(at("2026-01-01")), Some(end)));
    let loose = parse("or(gte(start_time, \"2026-01-01\"), eq(name, \"a\"))");
    assert_eq!(loose.start_bounds(), (None, None));
    assert_eq!(
        parse("not(gte(start_time, \"2026-01-01\"))").start_bounds(),
        (None, None)
    );
}

#[test]
fn the_traces_of_a_filter_are_those_outside_of_which_it_never_holds() {
    let id = |number: u128| Uuid::from_u128(number);
    let traces = |text: &str| {
        let text = (1..=4_u128).fold(text.to_owned(), |text, number| {
            text.replace(&format!("#{number}"), &format!("\"{}\"", id(number)))
        });
        let traces = parse(&text).traces();
        traces.map(|traces| traces.into_iter().map(|id| id.as_u128()).collect::<Vec<_>>())
    };
    assert_eq!(traces("eq(trace_id, #1)"), Some(vec![1]));
    assert_eq!(traces("in(trace_id, [#1, #3])"), Some(vec![1, 3]));
    assert_eq!(
        traces("and(eq(name, 'a'), in(trace_id, [#1, #2]), in(trace_id, [#2, #3]))"),
        Some(vec![2])
    );
    assert_eq!(traces("and(eq(trace_id, #1), eq(trace_id, #2))"), Some(vec![]));
    assert_eq!(
        traces("or(eq(trace_id, #1), and(eq(trace_id, #2), eq(name, 'a')))"),
        Some(vec![1, 2])
    );
    for any in [
        "or(eq(trace_id, #1), eq(name, 'a'))",
        "not(eq(trace_id, #1))",
        "neq(trace_id, #1)",
        "eq(trace_id, null)",
        "in(trace_id, [#1, null])",
        "eq(parent_run_id, #1)",
        "eq(name, 'a')",
    ] {
        assert_eq!(traces(any), None, "{any}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-z(),\\[\\]\"'\\\\0-9.\u{e9} -]{0,60}") {
        if let Err(error) = Filter::parse(&text) {
            prop_assert!(error.position >= 1 && error.position <= text.chars().count() + 1);
        }
    }
}
