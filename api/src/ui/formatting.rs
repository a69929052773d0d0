//! Formats of numbers, sizes, times and series on pages.

use std::time::Duration;

use towpath_domain::Timestamp;

/// A count with grouped digits: `1 234 567`.
pub(crate) fn count(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if number < 0 {
        text.push('−');
    }
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            // A narrow no-break space.
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Bytes in a readable unit: `3.4 MiB`.
pub(crate) fn bytes(number: i64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value < 100.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A span of time by its two largest parts: `3 h 12 min`.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 if span.is_zero() => "0 s".to_owned(),
        0 => format!("{} ms", span.as_millis().max(1)),
        1..=9 => format!("{:.1} s", span.as_secs_f64()),
        10..=59 => format!("{seconds} s"),
        60..=3599 => parts(seconds, 60, "min", "s"),
        3600..=86_399 => parts(seconds / 60, 60, "h", "min"),
        _ => parts(seconds / 3600, 24, "d", "h"),
    }
}

fn parts(number: u64, size: u64, large: &str, small: &str) -> String {
    match number % size {
        0 => format!("{} {large}", number / size),
        rest => format!("{} {large} {rest} {small}", number / size),
    }
}

/// When something was or will be, as seen from `now`: `4 min ago`, `in 2 h`.
pub(crate) fn relative(time: Timestamp, now: Timestamp) -> String {
    if time <= now {
        let ago = now.since(time);
        if ago < Duration::from_secs(1) {
            "now".to_owned()
        } else {
            format!("{} ago", span(ago))
        }
    } else {
        format!("in {}", span(time.since(now)))
    }
}

/// A moment, to the second: `2026-03-01 12:00:00`.
pub(crate) fn moment(time: Timestamp) -> String {
    time.to_utc().format("%Y-%m-%d %H:%M:%S").to_string()
}

/// The end of an id, which is enough to recognize it: ids created together have the same beginning.
pub(crate) fn short(id: &impl ToString) -> String {
    let text = id.to_string();
    text.get(text.len().saturating_sub(12)..).unwrap_or(&text).to_owned()
}

/// Color of a state of jobs, exports, deployments and revisions.
pub(crate) fn tone(state: &str) -> &'static str {
    match state {
        "running" | "RUNNING" | "BUILDING" | "DEPLOYING" => "busy",
        "succeeded" | "COMPLETED" | "DEPLOYED" | "READY" | "serving" => "good",
        "failed" | "timed_out" | "FAILED" | "TIMEDOUT" | "CREATE_FAILED" | "BUILD_FAILED" | "DEPLOY_FAILED"
        | "down" => "bad",
        "ready" | "blocked" | "waiting" | "scheduled" | "CREATING" | "QUEUED" | "AWAITING_BUILD"
        | "AWAITING_DEPLOY" | "AWAITING_DATABASE" | "AWAITING_DELETE" | "switching" => "wait",
        _ => "",
    }
}

/// A line over values as points of an SVG of 100 by 24, and the same as a closed area. `None` if there is nothing
/// to show.
pub(crate) fn line(values: &[i64]) -> Option<(String, String)> {
    if values.len() < 2 {
        return None;
    }
    let most = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let step = 100.0 / (values.len() - 1) as f64;
    let points: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(at, value)| format!("{:.1},{:.1}", at as f64 * step, 23.0 - 22.0 * *value as f64 / most))
        .collect();
    let line = points.join(" ");
    let area = format!("0,24 {line} 100,24");
    Some((line, area))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(999), "999");
        assert_eq!(count(-1000), "−1\u{202f}000");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3_565_158), "3.4 MiB");
        assert_eq!(bytes(150 << 30), "150 GiB");
        let seconds = |seconds| span(Duration::from_secs(seconds));
        assert_eq!(seconds(0), "0 s");
        assert_eq!(span(Duration::from_micros(10)), "1 ms");
        assert_eq!(seconds(59), "59 s");
        assert_eq!(seconds(60), "1 min");
        assert_eq!(seconds(3 * 3600 + 12 * 60 + 5), "3 h 12 min");
        assert_eq!(seconds(2 * 86_400), "2 d");
        let now = Timestamp::from_micros(1_000_000_000);
        assert_eq!(relative(now, now), "now");
        assert_eq!(relative(now.minus(Duration::from_secs(240)), now), "4 min ago");
        assert_eq!(relative(now.plus(Duration::from_secs(7200)), now), "in 2 h");
        assert_eq!(moment(Timestamp::from_micros(0)), "1970-01-01 00:00:00");
        assert_eq!(short(&"0199a5c4-1111-7000-8000-00000000abcd"), "00000000abcd");
    }

    #[test]
    fn a_line_stays_in_its_box() {
        assert_eq!(line(&[3]), None);
        let (points, area) = line(&[0, 10, 5]).unwrap();
        assert_eq!(points, "0.0,23.0 50.0,1.0 100.0,12.0");
        assert!(area.starts_with("0,24 ") && area.ends_with(" 100,24"));
        assert_eq!(line(&[0, 0]).unwrap().0, "0.0,23.0 100.0,23.0");
    }
}
