//! What is accepted can be read, all of it, and nothing else is accepted.

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

/// What a later reader will say, without the two things `IgnoredAny` lets through: bad UTF-8 and any depth.
fn reads(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

#[test]
fn agrees_with_serde_json_on_the_odd_ones() {
    for text in [
        "",
        " ",
        "null",
        " nul",
        "nulll",
        "true false",
        "[]",
        "[ ]",
        "[,]",
        "[1,]",
        "{}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":1 \"b\":2}",
        "[1 2]",
        "]",
        "}",
        "[}",
        "{]",
        "0",
        "-0",
        "00",
        "01",
        "-",
        "1.",
        "1.5",
        ".5",
        "1e",
        "1e5",
        "1E+05",
        "1e-",
        "--1",
        "+1",
        "NaN",
        "Infinity",
        "\"",
        "\"\\\"",
        "\"\\u00\"",
        "\"\\u00e9\"",
        "\"\\ud800\"",
        "\"\\x\"",
        "\"\n\"",
        "\"a\u{7f}b\"",
        "\"\u{1}\"",
        "'a'",
        "[[[]]]",
        "[[[]]",
        "{\"a\":{\"b\":[1,{\"c\":null}]}}",
        "\u{feff}1",
        "1\0",
        "\"12345678\\n12345678\"",
        "\"1234567\"",
        "\"12345678\"",
    ] {
        assert_eq!(check(text.as_bytes()).is_ok(), reads(text.as_bytes()), "{text:?}");
    }
    assert_eq!(check(b"\"\xff\"").unwrap_err().what, "text that is not UTF-8");
}

#[test]
fn what_passes_at_the_deepest_level_can_be_parsed() {
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    assert!(check(deep(MAX_DEPTH).as_bytes()).is_ok());
    assert!(serde_json::from_str::<serde_json::Value>(&deep(MAX_DEPTH)).is_ok());
    assert_eq!(
        check(deep(MAX_DEPTH + 1).as_bytes()).unwrap_err().what,
        "nesting too deep"
    );
    assert!(check("[".repeat(1_000_000).as_bytes()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn agrees_with_serde_json(text in "[\\[\\]{}:,\"\\\\ntrue0-9.eEu \\x01é-]{0,24}") {
        prop_assert_eq!(check(text.as_bytes()).is_ok(), reads(text.as_bytes()), "{:?}", text);
    }

    #[test]
    fn strings_end_where_they_end(text in any::<String>()) {
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(check(json.as_bytes()), Ok(json.as_str()));
        prop_assert_eq!(check(text.as_bytes()).is_ok(), reads(text.as_bytes()));
    }

    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(check(&bytes).is_ok(), reads(&bytes));
    }

    #[test]
    fn what_is_accepted_is_read(text in accepted(MAX_DEPTH)) {
        prop_assert_eq!(check(text.as_bytes()), Ok(text.as_str()));
        let value = Value::parse(&text).unwrap();
        prop_assert!(value.depth() <= MAX_DEPTH);
        // Writing what was read changes nothing any more.
        let written = value.to_string();
        prop_assert_eq!(check(written.as_bytes()), Ok(written.as_str()));
        prop_assert_eq!(&Value::parse(&written).unwrap(), &value);
        prop_assert_eq!(&value.clone().into_owned(), &value);
        // A typed reader of another crate reads it once it is mended, unless a number is too large for it.
        let mended = replace_lone_surrogates(&text);
        match serde_json::from_str::<serde_json::Value>(&mended) {
            Ok(plain) => prop_assert!(same(&plain, &value), "{plain}\n{value}"),
            Err(error) => prop_assert!(error.to_string().starts_with("number out of range"), "{error}: {mended}"),
        }
    }

    #[test]
    fn every_other_member_is_seen(
        odd in accepted(MAX_DEPTH - 1), name in name(), before in accepted(3), behind in accepted(3),
    ) {
        let text = format!("{{\"first\": {before}, {name}: {odd}, \"last\" :{behind} }}");
        prop_assert_eq!(check(text.as_bytes()), Ok(text.as_str()));
        let value = Value::parse(&text).unwrap();
        let object = Object::parse(&text).unwrap();
        let [first, last, absent] = members(&text, ["first", "last", "absent"]).unwrap();
        prop_assert_eq!(absent, None);
        for (own, name, sent) in [(first, "first", &before), (last, "last", &behind)] {
            prop_assert_eq!(own, (sent != "null").then_some(sent.as_str()));
            prop_assert_eq!(object.get(name), own);
            prop_assert_eq!(value.get(name), Some(&Value::parse(sent).unwrap()));
        }
        let written = object.to_string();
        prop_assert_eq!(Value::parse(&written).unwrap(), value);
    }

    #[test]
    fn every_item_is_seen(sent in proptest::collection::vec(accepted(MAX_DEPTH - 1), 0..6)) {
        let text = format!(" [ {} ] ", sent.join(" , "));
        prop_assert_eq!(items(&text).collect::<Vec<_>>(), sent);
    }

    #[test]
    fn changing_a_member_keeps_the_others_to_the_letter(
        sent in proptest::collection::vec((name(), accepted(4)), 0..6), changed in accepted(4),
    ) {
        let member = |(name, value): &(String, String)| format!("{name}:{value}");
        let text = format!("{{{}}}", sent.iter().map(member).collect::<Vec<_>>().join(" , "));
        let change = format!("{{ \"changed\" : {changed} }}");
        let object = Object::parse(&text).unwrap().merge(Object::parse(&change).unwrap());
        let kept = sent.iter().filter(|(name, _)| name != "\"changed\"").map(member);
        let expected: Vec<String> = kept.chain([format!("\"changed\":{changed}")]).collect();
        prop_assert_eq!(object.to_string(), format!("{{{}}}", expected.join(",")));
    }

    #[test]
    fn all_readers_agree_on_what_is_json(text in "[\\[\\]{}:,\"\\\\nualtrse0-9.eEdD8 \\x01é-]{0,24}") {
        let value = Value::parse(&text);
        prop_assert_eq!(value.is_ok(), check(text.as_bytes()).is_ok(), "{:?}", text);
        let is_object = matches!(value, Ok(Value::Object(_)));
        prop_assert_eq!(Object::parse(&text).is_ok(), is_object, "{:?}", text);
        prop_assert_eq!(members(&text, ["a"]).is_some(), is_object, "{:?}", text);
        prop_assert_eq!(decode(&text).is_some(), matches!(value, Ok(Value::String(_))), "{:?}", text);
        // Any text may be mended.
        prop_assert!(replace_lone_surrogates(&text).len() >= text.len());
    }

    #[test]
    fn integers_compare_exactly(a in any::<i128>(), b in any::<i128>(), zeros in 0..4_usize) {
        let number = |of: i128| -> Number<'static> {
            let sign = if of < 0 { "-" } else { "" };
            format!("{sign}{}{}", "0".repeat(zeros), of.unsigned_abs()).parse().unwrap()
        };
        prop_assert_eq!(number(a).compare(&number(b)), a.cmp(&b));
        prop_assert_eq!(number(a).compare(&a.to_string().parse().unwrap()), std::cmp::Ordering::Equal);
    }

    #[test]
    fn other_numbers_compare_as_doubles(a in any::<f64>(), b in any::<f64>()) {
        let number = |of: f64| -> Number<'static> { format!("{of:e}").parse().unwrap() };
        prop_assert_eq!(Some(number(a).compare(&number(b))), a.partial_cmp(&b));
        prop_assert_eq!(number(a).to_f64(), a);
    }
}

#[test]
fn odd_strings_and_numbers_have_a_meaning() {
    let text = r#"{"cut":"a\ud83d","pair":"\uD83D\uDE00","twice":"\ude00\ud83d\ud83d\ude00","big":1e999,"small":-1e999,
        "whole":12345678901234567890123,"again":1,"again":2}"#;
    let value = Value::parse(text).unwrap();
    let said = |name: &str| value.get(name).and_then(Value::as_str).unwrap();
    assert_eq!(said("cut"), "a\u{fffd}");
    assert_eq!(said("pair"), "\u{1f600}");
    assert_eq!(said("twice"), "\u{fffd}\u{fffd}\u{1f600}");
    let number = |name: &str| value.get(name).and_then(Value::as_number).unwrap();
    assert_eq!(number("big").text(), "1e999");
    assert_eq!(number("big").to_f64(), f64::INFINITY);
    assert_eq!(number("small").to_finite(), f64::MIN);
    assert_eq!(number("whole").text(), "12345678901234567890123");
    assert_eq!(number("again").text(), "2");
    let plain = serde_json::Value::from(value.clone());
    assert_eq!((&plain["big"], &plain["small"]), (&f64::MAX.into(), &f64::MIN.into()));
    assert_eq!(
        replace_lone_surrogates(r#"["\\ud83d", "\ud83d"]"#),
        r#"["\\ud83d", "\ufffd"]"#
    );
}

#[test]
fn numbers_are_equal_however_they_are_written() {
    let number = |text: &str| text.parse::<Number<'_>>().unwrap();
    for (a, b) in [
        ("0", "-0"),
        ("1", "1.0"),
        ("100", "1e2"),
        ("1e999", "2e400"),
        ("007", "+7"),
        ("0.1", "1e-1"),
    ] {
        assert_eq!(number(a), number(b));
    }
    for (less, more) in [
        ("9007199254740992", "9007199254740993"),
        ("-9007199254740993", "-9007199254740992"),
        ("18446744073709551615", "18446744073709551616"),
        ("-1e999", "-1e308"),
        ("1e308", "1e999"),
        ("-1", "0"),
    ] {
        assert!(number(less).compare(&number(more)).is_lt(), "{less} {more}");
        assert!(number(more).compare(&number(less)).is_gt(), "{less} {more}");
    }
    for text in ["", "-", "inf", "NaN", "1x", "0x1", "1_0", "."] {
        assert!(text.parse::<Number<'_>>().is_err(), "{text}");
    }
}

#[test]
fn what_is_put_around_accepted_text_is_read_too() {
    let deep = format!("{}1{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    let around = format!(r#"[{{"value":{deep}}}]"#);
    assert_eq!(Value::parse(&around).unwrap().depth(), MAX_DEPTH + 2);
    assert!(Value::parse(&"[".repeat(1_000_000)).is_err());
}

/// Whether `serde_json`, whose floats are off by a bit here and there, read the same.
fn same(plain: &serde_json::Value, value: &Value<'_>) -> bool {
    use serde_json::Value as Plain;
    match (plain, value) {
        (Plain::Null, Value::Null) => true,
        (Plain::Bool(plain), Value::Bool(value)) => plain == value,
        (Plain::Number(plain), Value::Number(value)) => {
            let (plain, value) = (plain.as_f64().unwrap(), value.to_f64());
            (plain - value).abs() <= value.abs() * 1e-14 + 1e-320 || plain == value
        }
        (Plain::String(plain), Value::String(value)) => plain == value,
        (Plain::Array(plain), Value::Array(value)) => {
            plain.len() == value.len() && plain.iter().zip(value).all(|(plain, value)| same(plain, value))
        }
        (Plain::Object(plain), Value::Object(value)) => {
            plain.len() == value.len()
                && plain
                    .iter()
                    .zip(value)
                    .all(|((name, plain), (own, value))| name == own && same(plain, value))
        }
        _ => false,
    }
}

/// Names of members, among them such that no text can hold.
fn name() -> impl Strategy<Value = String> {
    const ODD: [&str; 4] = [r#""\ud83d""#, r#""\udc00\ud800x""#, r#""\u0041\n""#, r#""changed""#];
    prop_oneof![
        "[a-e]{1,2}".prop_map(|name| format!("\"{name}\"")),
        proptest::sample::select(&ODD[..]).prop_map(str::to_owned),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?",
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        r#""(a|é|\\\\|\\"|\\/|\\n|\\u[dD][89abcdefABCDEF][0-9a-f]{2}|\\u[0-9a-f]{4}){0,6}""#,
        name(),
    ]
}

/// How deep a text is, also where a later member of the same name hides it.
fn levels(text: &str) -> usize {
    let (mut level, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => level += 1,
            b']' | b'}' if !quoted => level -= 1,
            _ => {}
        }
        deepest = deepest.max(level);
    }
    deepest
}

/// Texts that are accepted: all that the grammar has, of at most `deepest` levels.
fn accepted(deepest: usize) -> BoxedStrategy<String> {
    let blank = "[ \\t\\n\\r]{0,2}";
    let most = u32::try_from(deepest.min(6)).unwrap();
    let value = scalar().prop_recursive(most, 40, 5, move |inner| {
        let member = (name(), inner.clone()).prop_map(|(name, value)| format!("{name}:{value}"));
        prop_oneof![
            (blank, proptest::collection::vec(inner, 0..5), blank)
                .prop_map(|(before, items, behind)| format!("[{before}{}{behind}]", items.join(","))),
            (blank, proptest::collection::vec(member, 0..5), blank)
                .prop_map(|(before, members, behind)| format!("{{{before}{}{behind}}}", members.join(" , "))),
        ]
    });
    // Now and then at the bottom of as many lists as there may be.
    let buried = value.clone().prop_map(move |text| {
        let levels = deepest - levels(&text);
        format!("{}{text}{}", "[".repeat(levels), "]".repeat(levels))
    });
    prop_oneof![8 => value, 1 => buried].boxed()
}
