//! The grammar of RFC 8259: valid UTF-8, strict syntax, bounded nesting.

use super::string::Quoted;
use super::{InvalidJson, MAX_DEPTH};

/// A text and the current position.
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

/// Open brackets, one bit per level: set for an object.
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

impl<'a> Scanner<'a> {
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Consumes a value and the white space before it, and returns its text.
    pub fn value(&mut self) -> Result<&'a str, InvalidJson> {
        self.skip_whitespace();
        let start = self.at;
        let mut nesting = Nesting { bits: 0, depth: 0 };
        loop {
            // A value is expected here.
            self.skip_whitespace();
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    let object = open == b'{';
                    if !nesting.push(object) {
                        return Err(self.invalid("nesting too deep"));
                    }
                    if self.open(if object { b'}' } else { b']' }) {
                        if object {
                            self.name()?;
                        }
                        continue;
                    }
                    nesting.pop();
                }
                _ => self.scalar()?,
            }
            // A value is complete: close the brackets that it completes.
            loop {
                if nesting.depth == 0 {
                    return Ok(&self.text[start..self.at]);
                }
                let object = nesting.in_object();
                if self.next(if object { b'}' } else { b']' })? {
                    if object {
                        self.name()?;
                    }
                    break;
                }
                nesting.pop();
            }
        }
    }

    /// Expects the end of the text, after optional white space.
    pub fn end(&mut self) -> Result<(), InvalidJson> {
        self.skip_whitespace();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.invalid("text after the value")),
        }
    }

    /// Consumes the opening bracket of an object or a list, and `close` if it is empty. Returns whether it has content.
    pub fn open(&mut self, close: u8) -> bool {
        self.at += 1;
        self.skip_whitespace();
        let empty = self.peek() == Some(close);
        self.at += usize::from(empty);
        !empty
    }

    /// Consumes a comma or `close` after a value inside brackets. Returns whether another value follows.
    pub fn next(&mut self, close: u8) -> Result<bool, InvalidJson> {
        self.skip_whitespace();
        let more = match self.peek() {
            Some(b',') => true,
            Some(byte) if byte == close => false,
            Some(_) if close == b'}' => return Err(self.invalid("expected `,` or `}`")),
            Some(_) => return Err(self.invalid("expected `,` or `]`")),
            None => return Err(self.invalid("unexpected end of text")),
        };
        self.at += 1;
        Ok(more)
    }

    /// Consumes the name of a member and the colon. Returns the decoded name and its text with quotes.
    pub fn name(&mut self) -> Result<(Quoted<'a>, &'a str), InvalidJson> {
        self.skip_whitespace();
        let start = self.at;
        let name = match self.peek() {
            Some(b'"') => self.string()?,
            Some(_) => return Err(self.invalid("expected a key")),
            None => return Err(self.invalid("unexpected end of text")),
        };
        let text = &self.text[start..self.at];
        self.skip_whitespace();
        if self.peek() != Some(b':') {
            return Err(self.invalid("expected `:`"));
        }
        self.at += 1;
        Ok((name, text))
    }

    /// Consumes a string; the position is at its opening quote.
    pub fn string(&mut self) -> Result<Quoted<'a>, InvalidJson> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at += plain(&self.text.as_bytes()[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    let inner = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Quoted { inner, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.invalid("a control character in a string")),
                None => return Err(self.invalid("the text ends inside a string")),
            }
        }
    }

    /// Consumes a number and returns its text.
    pub fn number(&mut self) -> Result<&'a str, InvalidJson> {
        let start = self.at;
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
        Ok(&self.text[start..self.at])
    }

    /// Consumes a literal word.
    pub fn word(&mut self, word: &str) -> Result<(), InvalidJson> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.invalid("expected a value"))
        }
    }

    pub fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// An error at the current position.
    pub const fn invalid(&self, what: &'static str) -> InvalidJson {
        InvalidJson { at: self.at, what }
    }

    fn scalar(&mut self) -> Result<(), InvalidJson> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(_) => Err(self.invalid("expected a value")),
            None => Err(self.invalid("unexpected end of text")),
        }
    }

    fn escape(&mut self) -> Result<(), InvalidJson> {
        let text = self.text.as_bytes();
        match text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => {
                let digits = text.get(self.at + 2..self.at + 6);
                if digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    self.at += 6;
                    Ok(())
                } else {
                    Err(self.invalid("an unfinished \\u escape"))
                }
            }
            _ => Err(self.invalid("an invalid escape")),
        }
    }

    fn digits(&mut self) -> Result<(), InvalidJson> {
        let rest = &self.text.as_bytes()[self.at..];
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
}

/// The number of leading bytes of `text` that are plain string content: no quote, backslash or control character. Eight
/// at a time, since nearly all bytes of a body are such content.
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
