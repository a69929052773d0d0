//! Values of JSON as clients write them, well-formed and odd.

use towpath_tests::{Random, compact, rfc3339};
use uuid::Uuid;

use super::Features;
use super::json::quoted;
use super::operation::{Link, Moment, Order};

const DAY: i64 = 86_400_000_000;

/// The earliest and the latest time that is accepted, in microseconds since 1970.
pub const TIMES: (i64, i64) = (-9_200_000_000_000_000, 9_200_000_000_000_000);

/// Texts of JSON strings.
const PLAIN: [&str; 6] = ["\"\"", "\"a\"", "\"run\"", "\"two words\"", "\"null\"", "\"1e999\""];
const ODD: [&str; 14] = [
    r#""ünï ✓ 日本""#,
    r#""\ud83d\ude00 whole""#,
    r#""\ud83d cut""#,
    r#""cut \ude00""#,
    r#""\ude00\ud83d""#,
    r#""\uD83D""#,
    r#""\\ud83d is text""#,
    r#""\u0000""#,
    r#""a\u0000b\u001f""#,
    r#""\"quoted\" \\ \/ \b\f\n\r\t""#,
    r#""\ufffe\uffff\u2028""#,
    r#""'; DROP TABLE run; --""#,
    r#""%_\\%""#,
    r#""\u007f\u0080""#,
];
const NUMBERS: [&str; 20] = [
    "0",
    "-0",
    "1",
    "-1",
    "0.5",
    "1.50",
    "1e3",
    "1E+05",
    "2147483648",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "-9223372036854775809",
    "123456789012345678901234567890.5",
    "1e308",
    "1e999",
    "-1e999",
    "1e-999",
    "0.1e-400",
];

/// A JSON string.
pub fn text(dice: &mut Random) -> String {
    match dice.below(8) {
        0..3 => (*dice.pick(&PLAIN)).to_owned(),
        3 => quoted(&format!("text {}", dice.below(1_000_000))),
        4 => quoted(&"long ".repeat(dice.index(400))),
        _ => (*dice.pick(&ODD)).to_owned(),
    }
}

/// A JSON string without anything odd.
pub fn plain_text(dice: &mut Random) -> String {
    quoted(&format!(
        "{} {}",
        dice.pick(&["alpha", "beta", "ünï ✓", "tab\t"]),
        dice.below(1000)
    ))
}

/// Any JSON, of a few levels.
pub fn any(dice: &mut Random, levels: u64) -> String {
    match dice.below(if levels == 0 { 5 } else { 8 }) {
        0 => "null".to_owned(),
        1 => (*dice.pick(&["true", "false"])).to_owned(),
        2 => (*dice.pick(&NUMBERS)).to_owned(),
        3 | 4 => text(dice),
        5 => list(dice, levels),
        _ => object(dice, levels),
    }
}

/// A list of any JSON.
pub fn list(dice: &mut Random, levels: u64) -> String {
    let items: Vec<String> = (0..dice.below(4)).map(|_| any(dice, levels - 1)).collect();
    let gap = blank(dice);
    format!("[{gap}{}{gap}]", items.join(","))
}

/// An object of any JSON. Names may come twice.
pub fn object(dice: &mut Random, levels: u64) -> String {
    let members: Vec<String> = (0..dice.below(5))
        .map(|_| format!("{}{}:{}", name(dice), blank(dice), any(dice, levels - 1)))
        .collect();
    let gap = blank(dice);
    format!("{{{gap}{}{gap}}}", members.join(","))
}

fn name(dice: &mut Random) -> String {
    let names = [
        "\"a\"",
        "\"b\"",
        "\"c\"",
        "\"\"",
        "\"a.b\"",
        "\"messages\"",
        r#""\ud800""#,
        r#""\u0000""#,
        "\"ü\"",
        "\"thread_id\"",
    ];
    (*dice.pick(&names)).to_owned()
}

fn blank(dice: &mut Random) -> &'static str {
    dice.pick::<&str>(&["", "", "", " ", "\n", "\t ", "\r\n"])
}

/// Lists in lists, so many levels.
pub fn nested(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

/// What `inputs` may hold. Mostly an object.
pub fn inputs(dice: &mut Random, deepest: usize) -> String {
    match dice.below(12) {
        0 => any(dice, 3),
        1 => nested(deepest),
        2 => format!("{{\"text\":{}}}", quoted(&words(dice, 20_000))),
        3 => format!(" {} \n", object(dice, 2)),
        _ => object(dice, 3),
    }
}

/// What `outputs` may hold, with tokens and costs now and then.
pub fn outputs(dice: &mut Random, features: Features) -> String {
    if !dice.one_in(3) {
        return inputs(dice, 8);
    }
    let beside = if features.odd_json {
        any(dice, 2)
    } else {
        plain_text(dice)
    };
    format!("{{\"usage_metadata\":{},\"beside\":{beside}}}", usage(dice))
}

/// Tokens and costs.
pub fn usage(dice: &mut Random) -> String {
    let mut members = Vec::new();
    for name in ["input_tokens", "output_tokens", "total_tokens"] {
        let count = dice.below(10_000).to_string();
        let odd = [
            "12.0",
            "1e3",
            "0",
            "9223372036854775807",
            "1.5",
            "1e999",
            "null",
            "\"7\"",
        ];
        let count = if dice.one_in(6) {
            (*dice.pick(&odd)).to_owned()
        } else {
            count
        };
        if !dice.one_in(4) {
            members.push(format!("\"{name}\":{count}"));
        }
    }
    for name in ["input_cost", "output_cost", "total_cost"] {
        let amounts = [
            "0.125",
            "\"0.002\"",
            "0",
            "1.5e-9",
            "0.00000000005",
            "2E3",
            "1e30",
            "-0.25",
            "null",
        ];
        if dice.one_in(2) {
            members.push(format!("\"{name}\":{}", dice.pick(&amounts)));
        }
    }
    format!("{{{}}}", members.join(","))
}

/// What `extra` may hold: metadata and runtime, and keys of any other name.
pub fn extra(dice: &mut Random, features: Features) -> String {
    let mut members = Vec::new();
    for name in ["metadata", "runtime"] {
        let value = match dice.below(8) {
            0 | 1 => continue,
            2 if features.odd_metadata => any(dice, 1),
            _ => keys(dice, features),
        };
        members.push(format!("\"{name}\":{value}"));
    }
    for _ in 0..dice.below(3) {
        members.push(format!("{}:{}", name(dice), any(dice, 2)));
    }
    if !members.is_empty() && dice.one_in(2) {
        let last = members.len() - 1;
        members.swap(0, last);
    }
    format!("{{{}}}", members.join(","))
}

fn keys(dice: &mut Random, features: Features) -> String {
    let mut members = Vec::new();
    for _ in 0..dice.below(5) {
        let name = dice.pick(&[
            "\"a\"",
            "\"b\"",
            "\"c\"",
            "\"revision_id\"",
            "\"thread_id\"",
            "\"session_id\"",
        ]);
        let value = match dice.below(4) {
            0 => plain_text(dice),
            1 => "null".to_owned(),
            2 if features.odd_json => any(dice, 2),
            _ => dice.below(100).to_string(),
        };
        members.push(format!("{name}:{value}"));
    }
    if dice.one_in(6) {
        members.push(format!("\"usage_metadata\":{}", usage(dice)));
    }
    if features.odd_json && dice.one_in(12) {
        members.push(format!("{}:{}", name(dice), any(dice, 1)));
    }
    format!("{{{}}}", members.join(","))
}

/// A list of events, with the first token now and then.
pub fn events(dice: &mut Random, start: i64) -> String {
    let mut events = Vec::new();
    for _ in 0..dice.below(3) {
        events.push(format!("{{\"name\":\"start\",\"time\":\"{}\"}}", rfc3339(start)));
    }
    if dice.one_in(3) {
        let at = ordinary(start) + 7_000;
        let time = if dice.one_in(2) {
            quoted(&rfc3339(at))
        } else {
            (at / 1000).to_string()
        };
        events.push(format!(
            "{{\"name\":\"new_token\",\"time\":{time},\"kwargs\":{{\"token\":\"x\"}}}}"
        ));
        events.push("{\"name\":\"new_token\",\"time\":\"2001-01-01T00:00:00Z\"}".to_owned());
    }
    if dice.one_in(8) {
        return any(dice, 2);
    }
    if dice.one_in(8) {
        events.push(any(dice, 2));
    }
    format!("[{}]", events.join(","))
}

/// A time between 2000 and 2100.
const fn ordinary(micros: i64) -> i64 {
    if micros > 946_684_800_000_000 && micros < 4_102_444_800_000_000 {
        micros
    } else {
        1_772_366_400_000_000
    }
}

/// A list of texts.
pub fn tags(dice: &mut Random) -> String {
    let tags: Vec<String> = (0..dice.below(4)).map(|_| text(dice)).collect();
    format!("[{}]", tags.join(", "))
}

/// Text that hardly packs, of at most so many bytes.
pub fn words(dice: &mut Random, most: u64) -> String {
    let count = dice.below(most / 9 + 1);
    (0..count).map(|_| format!("{:08x} ", dice.next_u64() >> 32)).collect()
}

/// So many characters that do not pack.
pub fn noise(dice: &mut Random, length: usize) -> String {
    let mut noise: String = (0..length.div_ceil(16))
        .map(|_| format!("{:016x}", dice.next_u64()))
        .collect();
    noise.truncate(length);
    noise
}

/// A time, in one of the ways in which clients write it.
pub fn moment(dice: &mut Random, micros: i64) -> Moment {
    let whole = rfc3339(micros);
    let bare = whole.trim_end_matches('Z');
    let millis = micros.div_euclid(1000);
    // Milliseconds hold no microseconds.
    let exact = millis * 1000 == micros;
    let raw = match dice.below(8) {
        0 => quoted(bare),
        1 => quoted(&bare.replace('T', " ")),
        2 => quoted(&format!("{bare}+00:00")),
        3 => quoted(&format!(
            "{}+02:00",
            rfc3339(micros + 7_200_000_000).trim_end_matches('Z')
        )),
        4 if exact => millis.to_string(),
        5 if exact && millis.abs() < 1 << 52 => format!("{millis}.0"),
        _ => quoted(&whole),
    };
    Moment { raw, micros }
}

/// A time at which a run may start. Most are on a few days.
pub fn start(dice: &mut Random, first_day: i64, days: u64) -> i64 {
    let day = first_day + i64::try_from(dice.below(days)).expect("few days");
    let within = match dice.below(10) {
        0 => 0,
        1 => DAY - 1,
        // Several runs start at the same moment.
        2 | 3 => 3_600_000_000 * i64::try_from(dice.below(24)).expect("hours"),
        _ => i64::try_from(dice.below(DAY.cast_unsigned())).expect("below a day"),
    };
    day * DAY + within
}

/// A time at the limits of what is accepted, or before 1970.
pub fn odd_start(dice: &mut Random) -> i64 {
    let odd = [
        TIMES.0,
        TIMES.0 + 1,
        TIMES.1,
        TIMES.1 - 1,
        -1,
        0,
        1,
        -DAY,
        -62_135_596_800_000_000 / 10,
        4_102_444_800_000_000,
    ];
    *dice.pick(&odd)
}

/// A `dotted_order` of these links.
pub fn order(dice: &mut Random, links: Vec<Link>) -> Order {
    let written = |dice: &mut Random, link: &Link| {
        let time = compact(link.start);
        let digits = time.trim_end_matches('Z');
        let (digits, cut) = digits.split_at(digits.len() - 3);
        // Fractions have any length.
        let time = match dice.below(12) {
            0 if cut == "000" => format!("{digits}Z"),
            1 => format!("{digits}{cut}000Z"),
            _ => time,
        };
        let id = if dice.one_in(20) {
            link.id.to_string().to_uppercase()
        } else {
            link.id.to_string()
        };
        format!("{time}{id}")
    };
    let text: Vec<String> = links.iter().map(|link| written(dice, link)).collect();
    Order {
        text: text.join("."),
        links,
    }
}

/// An id, in one of the ways in which it may be written.
pub fn id_text(dice: &mut Random, id: Uuid) -> String {
    match dice.below(20) {
        0 => id.to_string().to_uppercase(),
        1 => id.simple().to_string(),
        2 => id.braced().to_string(),
        3 => id.urn().to_string(),
        _ => id.to_string(),
    }
}

/// A new id.
pub fn id(dice: &mut Random) -> Uuid {
    let bits = (u128::from(dice.next_u64()) << 64) | u128::from(dice.next_u64());
    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
}
