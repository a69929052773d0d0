//! Decimal amounts of money: a binary float would show `0.1` as `0.1000000000000000055`.

/// Digits of a cost, as `Decimal128` has them.
pub const COST_PRECISION: u8 = 20;
/// Digits behind the point.
pub const COST_SCALE: i8 = 10;

/// Parses a JSON number as a multiple of 10⁻¹⁰, rounding half away from zero. `None` if it is not a number or needs
/// more than 20 digits.
pub fn parse(text: &str) -> Option<i128> {
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
        .checked_add(i64::from(COST_SCALE))?;
    let mut value: i128 = 0;
    let mut seen = 0;
    let limit = 10_i128.pow(u32::from(COST_PRECISION));
    for digit in digits {
        if seen >= keep {
            if seen == keep && digit >= b'5' {
                value += 1;
            }
            break;
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
    (value < limit).then_some(if negative { -value } else { value })
}

/// Both together, or the most that 20 digits can say.
pub fn sum(a: i128, b: i128) -> i128 {
    let most = 10_i128.pow(u32::from(COST_PRECISION)) - 1;
    a.saturating_add(b).clamp(-most, most)
}

#[cfg(test)]
mod tests {
    use super::parse;

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
}
