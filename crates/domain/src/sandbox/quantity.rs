//! Quantities in the notation of Kubernetes: `512Mi`, `1.5G`, `500m`.

pub const GIB: i64 = 1 << 30;

/// The upper limit: more than any disk.
const MAX_BYTES: f64 = (1_i64 << 50) as f64;

const UNITS: [(&str, f64); 12] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("e3", 1e3),
    ("e6", 1e6),
    ("e9", 1e9),
];

fn parse_number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

/// Parses a number of bytes, rounded up. `None` if it is invalid or too large.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<i64> {
    let text = text.trim();
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (digits, factor) = unit.map_or((text, 1.0), |(unit, factor)| {
        (&text[..text.len() - unit.len()], *factor)
    });
    let bytes = (parse_number(digits)? * factor).ceil();
    (1.0..=MAX_BYTES).contains(&bytes).then_some(bytes as i64)
}

/// Parses processors (`2`, `0.5`) or thousandths (`500m`), as thousandths. `None` if it is invalid or too large.
#[must_use]
pub fn parse_cpu_millis(text: &str) -> Option<i64> {
    let text = text.trim();
    let millis = match text.strip_suffix('m') {
        Some(millis) => parse_number(millis)?,
        None => parse_number(text)? * 1000.0,
    };
    let millis = millis.ceil();
    (1.0..=1_024_000.0).contains(&millis).then_some(millis as i64)
}

/// Formats bytes in the largest unit that is exact.
#[must_use]
pub fn format_bytes(bytes: i64) -> String {
    let units = [("Ti", 1_i64 << 40), ("Gi", GIB), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    let fitting = units.iter().find(|(_, factor)| bytes > 0 && bytes % factor == 0);
    fitting.map_or_else(
        || bytes.to_string(),
        |(unit, factor)| format!("{}{unit}", bytes / factor),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, bytes) in [
            ("1Gi", GIB),
            ("512Mi", 512 << 20),
            ("1.5Gi", 3 << 29),
            ("2G", 2_000_000_000),
            ("1024", 1024),
            (" 4Ki ", 4096),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "0", "-1Gi", "1Xi", "Gi", "1e400", "9999999Ti", "1 Gi", "NaN", "inf"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        for (text, millis) in [("500m", 500), ("2", 2000), ("0.25", 250)] {
            assert_eq!(parse_cpu_millis(text), Some(millis), "{text}");
        }
        for text in ["", "0", "m", "-1", "1Gi"] {
            assert_eq!(parse_cpu_millis(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_shown_in_the_largest_exact_unit() {
        for (bytes, text) in [(GIB, "1Gi"), (3 << 29, "1536Mi"), (1000, "1000"), (0, "0")] {
            assert_eq!(format_bytes(bytes), text);
        }
    }
}
