//! W3C trace context: which distributed trace a request or a job belongs to.
//!
//! ```text
//! 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//! version  trace id (16 bytes)        span id (8 bytes) flags, bit 0: sampled
//! ```
//! <https://www.w3.org/TR/trace-context/>

use std::fmt;
use std::str::FromStr;

use rand::RngCore as _;

/// A span of a distributed trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traceparent {
    trace: u128,
    span: u64,
    sampled: bool,
}

impl Traceparent {
    /// The first span of a new trace.
    #[must_use]
    pub fn new() -> Self {
        let mut random = rand::rng();
        let mut trace = [0; 16];
        random.fill_bytes(&mut trace);
        Self {
            // Zero is invalid.
            trace: u128::from_be_bytes(trace).max(1),
            span: new_span(),
            sampled: true,
        }
    }

    /// A new span below this one.
    #[must_use]
    pub fn child(self) -> Self {
        Self {
            span: new_span(),
            ..self
        }
    }

    /// In network byte order.
    #[must_use]
    pub const fn trace_bytes(self) -> [u8; 16] {
        self.trace.to_be_bytes()
    }

    /// In network byte order.
    #[must_use]
    pub const fn span_bytes(self) -> [u8; 8] {
        self.span.to_be_bytes()
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub const fn sampled(self) -> bool {
        self.sampled
    }

    /// The id of the trace in log lines: 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(self) -> String {
        // The same format as a UUID without dashes, which that crate writes efficiently.
        uuid::Uuid::from_u128(self.trace).simple().to_string()
    }

    /// 16 hexadecimal digits.
    #[must_use]
    pub fn span_id(self) -> String {
        uuid::Uuid::from_u64_pair(0, self.span)
            .simple()
            .to_string()
            .split_off(16)
    }
}

fn new_span() -> u64 {
    rand::rng().next_u64().max(1)
}

impl Default for Traceparent {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent")]
pub struct NotTraceparent;

impl FromStr for Traceparent {
    type Err = NotTraceparent;

    /// Parses version 00, and the first four fields of later versions, as the standard allows.
    fn from_str(text: &str) -> Result<Self, NotTraceparent> {
        let bytes = text.as_bytes();
        let lower_hex = |range: std::ops::Range<usize>| {
            let part = bytes.get(range).ok_or(NotTraceparent)?;
            let plain = part
                .iter()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
            // Checked to be ASCII, so it is UTF-8.
            plain
                .then(|| std::str::from_utf8(part).unwrap_or_default())
                .ok_or(NotTraceparent)
        };
        let version = lower_hex(0..2)?;
        let dashes = [2, 35, 52].iter().all(|&at| bytes.get(at) == Some(&b'-'));
        let ends = match version {
            "ff" => false,
            "00" => bytes.len() == 55,
            _ => bytes.len() == 55 || bytes.get(55) == Some(&b'-'),
        };
        if !dashes || !ends {
            return Err(NotTraceparent);
        }
        let trace = u128::from_str_radix(lower_hex(3..35)?, 16).map_err(|_| NotTraceparent)?;
        let span = u64::from_str_radix(lower_hex(36..52)?, 16).map_err(|_| NotTraceparent)?;
        let flags = u8::from_str_radix(lower_hex(53..55)?, 16).map_err(|_| NotTraceparent)?;
        if trace == 0 || span == 0 {
            return Err(NotTraceparent);
        }
        Ok(Self {
            trace,
            span,
            sampled: flags & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_read_is_written_the_same() {
        let known: Traceparent = KNOWN.parse().unwrap();
        assert_eq!(known.to_string(), KNOWN);
        assert_eq!(known.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(known.span_id(), "00f067aa0ba902b7");
        assert!(known.sampled());
        let new = Traceparent::new();
        assert_eq!(new.to_string().parse(), Ok(new));
    }

    #[test]
    fn a_child_stays_in_the_trace_and_keeps_the_decision() {
        let parent: Traceparent = KNOWN.replace("-01", "-00").parse().unwrap();
        let child = parent.child();
        assert_eq!(child.trace_bytes(), parent.trace_bytes());
        assert_ne!(child.span_bytes(), parent.span_bytes());
        assert!(!child.sampled());
        assert_ne!(Traceparent::new().trace_bytes(), Traceparent::new().trace_bytes());
    }

    #[test]
    fn what_is_not_one_is_refused() {
        let later = KNOWN.replacen("00", "01", 1);
        assert!(later.parse::<Traceparent>().is_ok());
        assert!(format!("{later}-more").parse::<Traceparent>().is_ok());
        for wrong in [
            "",
            "00",
            &KNOWN[..54],
            &format!("{KNOWN}-more"),
            &later.replace("-01", "-01x"),
            &KNOWN.replacen("00", "ff", 1),
            &KNOWN.to_uppercase(),
            &KNOWN.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &KNOWN.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &KNOWN.replace('-', "_"),
            &KNOWN.replace("4bf9", "4b\u{e9}"),
        ] {
            assert_eq!(wrong.parse::<Traceparent>(), Err(NotTraceparent), "{wrong}");
        }
    }
}
