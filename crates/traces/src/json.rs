//! Checks that a text is JSON without building anything from it.
//!
//! Ingest keeps `inputs`, `outputs` and the like as the client wrote them. Before it promises to, it makes sure that
//! every later reader will be able to parse them: strict RFC 8259 syntax, valid UTF-8, nesting bounded. One pass, no
//! allocation below 64 levels, no recursion.

/// Levels of nesting that are accepted: what `serde_json` reads, so that no later reader chokes on what was accepted.
pub const MAX_DEPTH: usize = 127;

/// Where and why a text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Invalid {
    /// Offset of the first byte that does not fit.
    pub at: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// The text that [`check`] has passed before, and that a checksum has kept since.
///
/// # Errors
/// It is no text at all.
pub fn known(text: &[u8]) -> Result<&str, Invalid> {
    std::str::from_utf8(text).map_err(|error| Invalid {
        at: error.valid_up_to(),
        what: "text that is not UTF-8",
    })
}

/// Checks that `text` is exactly one JSON value, surrounded by white space at most.
///
/// # Errors
/// Where it stops being one.
pub fn check(text: &[u8]) -> Result<&str, Invalid> {
    let valid = known(text)?;
    let mut scan = Scan { text, at: 0 };
    scan.document()?;
    Ok(valid)
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

/// Which bracket is open, one bit per level: set for an object.
struct Nesting {
    bits: u128,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, object: bool) -> bool {
        if self.depth == MAX_DEPTH {
            return false;
        }
        self.bits = (self.bits << 1) | u128::from(object);
        self.depth += 1;
        true
    }

    fn pop(&mut self) {
        self.bits >>= 1;
        self.depth -= 1;
    }

    fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }
}

impl Scan<'_> {
    fn document(&mut self) -> Result<(), Invalid> {
        let mut nesting = Nesting { bits: 0, depth: 0 };
        loop {
            // A value is due here.
            self.blank();
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if !nesting.push(open == b'{') {
                        return Err(self.invalid("nesting too deep"));
                    }
                    self.at += 1;
                    self.blank();
                    let empty = self.peek() == Some(if open == b'{' { b'}' } else { b']' });
                    if !empty {
                        if open == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                    nesting.pop();
                }
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                Some(_) => return Err(self.invalid("expected a value")),
                None => return Err(self.invalid("the text ends early")),
            }
            // A value is complete; close what it completes.
            loop {
                self.blank();
                if nesting.depth == 0 {
                    return if self.peek().is_none() {
                        Ok(())
                    } else {
                        Err(self.invalid("text after the value"))
                    };
                }
                match (self.peek(), nesting.in_object()) {
                    (Some(b','), object) => {
                        self.at += 1;
                        if object {
                            self.blank();
                            self.key()?;
                        }
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        nesting.pop();
                    }
                    (Some(_), true) => return Err(self.invalid("expected `,` or `}`")),
                    (Some(_), false) => return Err(self.invalid("expected `,` or `]`")),
                    (None, _) => return Err(self.invalid("the text ends early")),
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), Invalid> {
        match self.peek() {
            Some(b'"') => {}
            Some(_) => return Err(self.invalid("expected a key")),
            None => return Err(self.invalid("the text ends early")),
        }
        self.string()?;
        self.blank();
        if self.peek() != Some(b':') {
            return Err(self.invalid("expected `:`"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), Invalid> {
        self.at += 1;
        loop {
            self.at += plain(&self.text[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.invalid("a control character in a string")),
                None => return Err(self.invalid("the text ends inside a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Invalid> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => {
                let digits = self.text.get(self.at + 2..self.at + 6);
                if digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    self.at += 6;
                    Ok(())
                } else {
                    Err(self.invalid("an unfinished \\u escape"))
                }
            }
            _ => Err(self.invalid("an unknown escape")),
        }
    }

    fn number(&mut self) -> Result<(), Invalid> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Invalid> {
        let rest = &self.text[self.at..];
        let count = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit())
            .unwrap_or(rest.len());
        if count == 0 {
            return Err(self.invalid("expected a digit"));
        }
        self.at += count;
        Ok(())
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Invalid> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.invalid("expected a value"))
        }
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    const fn invalid(&self, what: &'static str) -> Invalid {
        Invalid { at: self.at, what }
    }
}

/// How many bytes of `text` are plain string content: no quote, backslash or control character. Eight at a time,
/// since this is where nearly all bytes of a body are.
fn plain(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The high bit of each byte that is zero; a borrow can only reach bytes above a true hit, so the lowest is right.
    const fn zeros(word: u64) -> u64 {
        word.wrapping_sub(ONES) & !word & HIGHS
    }
    let mut at = 0;
    for chunk in text.as_chunks::<8>().0 {
        let word = u64::from_le_bytes(*chunk);
        let quote = zeros(word ^ (ONES * b'"' as u64));
        let backslash = zeros(word ^ (ONES * b'\\' as u64));
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let hit = quote | backslash | control;
        if hit != 0 {
            return at + hit.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = &text[at..];
    at + rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))
        .unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
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
    }
}
