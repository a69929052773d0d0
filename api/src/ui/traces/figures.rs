//! Formats of what trace runs show: states, durations, tokens and costs.

use towpath_domain::Timestamp;
use towpath_traces::derive::{COST_SCALE, Derived};

use crate::ui::formatting;

/// The smallest cost that is shown by its digits: a millionth of a dollar.
const SHOWN_UNITS: i128 = 10_i128.pow(COST_SCALE as u32 - 6);

/// Color of a trace run's state.
pub(in crate::ui) fn tone(status: &str) -> &'static str {
    match status {
        "success" => "good",
        "error" => "bad",
        "pending" => "busy",
        _ => "",
    }
}

/// Time from start to end; `None` if either is unknown.
pub(in crate::ui) fn latency(start: Option<Timestamp>, end: Option<Timestamp>) -> Option<String> {
    let (start, end) = start.zip(end)?;
    Some(if end > start {
        formatting::span(end.since(start))
    } else {
        "0 ms".to_owned()
    })
}

/// Token count, if any.
pub(super) fn tokens(derived: &Derived<'_>) -> Option<String> {
    derived.usage.total_tokens.map(formatting::count)
}

/// A cost in dollars: `$0.0042`.
pub(in crate::ui) fn dollars(units: i128) -> String {
    if (1..SHOWN_UNITS).contains(&units) {
        return "< $0.000001".to_owned();
    }
    let value = units as f64 / 10_f64.powi(i32::from(COST_SCALE));
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0');
    let digits = text.rsplit('.').next().map_or(0, str::len);
    // Cents at least.
    format!("${text}{}", "0".repeat(2_usize.saturating_sub(digits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_shown_in_dollars() {
        for (units, text) in [
            (42_000_000, "$0.0042"),
            (15_000_000_000, "$1.50"),
            (20_000_000_000, "$2.00"),
            (10_000, "$0.000001"),
            (9_999, "< $0.000001"),
            (0, "$0.00"),
        ] {
            assert_eq!(dollars(units), text);
        }
    }
}
