//! Output for people and for programs.

use comfy_table::{Table, presets};
use serde_json::Value;

pub fn json(value: &Value) {
    println!("{value:#}");
}

/// Prints a table, or the text `empty` if there are no rows.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>, none: &str) {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    let mut empty = true;
    for row in rows {
        table.add_row(row);
        empty = false;
    }
    if empty {
        println!("{none}");
    } else {
        // Trims the padding of the last column.
        for line in table.to_string().lines() {
            println!("{}", line.trim_end());
        }
    }
}

/// Prints names and values line by line, without null values.
pub fn facts(value: &Value, names: &[&str]) {
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    for name in names {
        let text = text(&value[*name]);
        if !text.is_empty() {
            println!("{name:width$}  {text}");
        }
    }
}

/// A value as one word; null as an empty text.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", text(value)))
                .collect();
            fields.join(" ")
        }
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// The first line of a text, shortened for a table.
pub fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = text(value);
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() > MOST {
        format!("{}…", line.chars().take(MOST - 1).collect::<String>())
    } else {
        line.to_owned()
    }
}

/// A moment to the second.
pub fn moment(value: &Value) -> String {
    let text = text(value);
    match text.get(..19) {
        Some(start) if text.len() > 19 => format!("{}Z", start.replace('T', " ")),
        _ => text,
    }
}

/// A number with its noun.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Seconds in their two largest units.
pub fn age(seconds: &Value) -> String {
    let seconds = seconds.as_f64().unwrap_or(0.0);
    match seconds {
        s if s <= 0.0 => "-".to_owned(),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_read_well() {
        assert_eq!(moment(&json!("2026-03-01T12:00:00.123456Z")), "2026-03-01 12:00:00Z");
        assert_eq!(moment(&Value::Null), "");
        assert_eq!(text(&json!({"flushes": 2, "exports": 1})), "exports=1 flushes=2");
        assert_eq!(age(&json!(0.0)), "-");
        assert_eq!(age(&json!(90)), "90 s");
        assert_eq!(age(&json!(7300)), "2 h");
        assert_eq!(short(&json!("one\ntwo")), "one");
    }
}
