//! Decimal amounts of money: a binary float would show `0.1` as `0.1000000000000000055`.

/// Digits of a cost, as `Decimal128` has them.
pub const COST_PRECISION: u8 = 20;
/// Digits behind the point.
pub const COST_SCALE: i8 = 10;

/// A decimal number as an integer of its last place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub units: i128,
    /// Whether nothing was rounded away.
    pub exact: bool,
}

/// Parses a JSON number as a multiple of 10⁻¹⁰, rounding half away from zero. `None` if it is not a number or needs
/// more than 20 digits.
pub fn parse(text: &str) -> Option<i128> {
    parse_scaled(text, COST_SCALE.unsigned_abs(), COST_PRECISION).map(|parsed| parsed.units)
}

/// Parses a JSON number with `scale` digits behind the point and at most `precision` digits in total, rounding half
/// away from zero.
pub fn parse_scaled(text: &str, scale: u8, precision: u8) -> Option<Parsed> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = whole.bytes().chain(fraction.bytes());
    if whole.is_empty() || !digits.clone().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let exponent: i64 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
    // The number of digits before the last decimal place.
    let keep = i64::try_from(whole.len())
        .ok()?
        .checked_add(exponent)?
        .checked_add(i64::from(scale))?;
    let mut value: i128 = 0;
    let mut seen = 0;
    let mut exact = true;
    let limit = 10_i128.pow(u32::from(precision));
    for digit in digits {
        if seen >= keep {
            exact &= digit == b'0';
            if seen == keep && digit >= b'5' {
                value += 1;
            }
            seen += 1;
            continue;
        }
        value = value * 10 + i128::from(digit - b'0');
        seen += 1;
        if value >= limit {
            return None;
        }
    }
    if value != 0 {
        for _ in seen..keep {
            value *= 10;
            if value >= limit {
                return None;
            }
        }
    }
    (value < limit).then_some(Parsed {
        units: if negative { -value } else { value },
        exact,
    })
}

/// The shortest decimal text of a number with `scale` digits behind the point.
pub fn text(units: i128, scale: u8) -> String {
    let digits = usize::from(scale);
    let one = 10_u128.pow(u32::from(scale));
    let sign = if units < 0 { "-" } else { "" };
    let (whole, rest) = (units.unsigned_abs() / one, units.unsigned_abs() % one);
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    let text = format!("{sign}{whole}.{rest:0digits$}");
    text.trim_end_matches('0').to_owned()
}

/// Both together, or the most that 20 digits can say.
pub fn sum(a: i128, b: i128) -> i128 {
    clamp(a.saturating_add(b))
}

/// The amount, or the most that 20 digits can say.
pub fn clamp(units: i128) -> i128 {
    let most = 10_i128.pow(u32::from(COST_PRECISION)) - 1;
    units.clamp(-most, most)
}

#[cfg(test)]
mod tests {
    use super::{Parsed, parse, parse_scaled, text};

    #[test]
    fn reads_what_json_writes() {
        for (text, value) in [
            ("0", 0),
            ("1", 10_000_000_000),
            ("0.1", 1_000_000_000),
            ("-0.000125", -1_250_000),
            ("1.5e-9", 15),
            ("2E3", 20_000_000_000_000),
            ("0.00000000005", 1),
            ("0.00000000004999", 0),
            ("5e-12", 0),
            ("0e999999999", 0),
            ("9999999999.9999999999", 99_999_999_999_999_999_999),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            ".5",
            "1e",
            "x",
            "1e30",
            "10000000000",
            "9999999999.99999999996",
            "1.2.3",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn lost_digits_are_noticed() {
        let parsed = |text| parse_scaled(text, 18, 21);
        let price = Parsed {
            units: 18_750_000_000,
            exact: true,
        };
        assert_eq!(parsed("1.875e-8"), Some(price));
        assert_eq!(parsed("0.00000001875000"), Some(price));
        assert_eq!(parsed("1e-18"), Some(Parsed { units: 1, exact: true }));
        assert!(!parsed("1.0000000000000000005").unwrap().exact);
        assert!(parsed("0.0000000000000000010000").unwrap().exact);
        assert_eq!(parsed("1000"), None);
    }

    #[test]
    fn texts_are_the_shortest() {
        for (units, scale, expected) in [
            (0, 10, "0"),
            (1, 10, "0.0000000001"),
            (-12_500_000_000, 10, "-1.25"),
            (30_000_000_000, 10, "3"),
            (2_500_000_000_000, 18, "0.0000025"),
        ] {
            assert_eq!(text(units, scale), expected);
        }
    }
}
