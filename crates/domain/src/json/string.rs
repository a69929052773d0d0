//! Escapes of JSON strings.

use std::borrow::Cow;

/// The content between a string's quotes, accepted by the grammar.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a> {
    pub inner: &'a str,
    /// Whether it contains a backslash.
    pub escaped: bool,
}

impl<'a> Quoted<'a> {
    pub fn decode(self) -> Cow<'a, str> {
        if self.escaped {
            Cow::Owned(unescaped(self.inner))
        } else {
            Cow::Borrowed(self.inner)
        }
    }
}

fn unescaped(inner: &str) -> String {
    let mut said = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        said.push_str(&rest[..at]);
        let (char, length) = escape(&rest[at..]);
        said.push(char);
        rest = rest.get(at + length..).unwrap_or_default();
    }
    said.push_str(rest);
    said
}

/// The character of the escape at the start of `text`, and the length of the escape.
fn escape(text: &str) -> (char, usize) {
    let plain = match text.as_bytes().get(1) {
        Some(b'u') => return unicode(text),
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        // A quote, a backslash or a slash: the grammar has no others.
        Some(itself) => char::from(*itself),
        None => char::REPLACEMENT_CHARACTER,
    };
    (plain, 2)
}

fn unicode(text: &str) -> (char, usize) {
    let (first, second) = (unit(text), text.get(6..).and_then(unit));
    let pair = first.into_iter().chain(second);
    // A pair is one character; a lone half is an error.
    match char::decode_utf16(pair).next() {
        Some(Ok(char)) => (char, 6 * char.len_utf16()),
        _ => (char::REPLACEMENT_CHARACTER, 6),
    }
}

/// The UTF-16 code unit of the `\uXXXX` at the start of `text`.
fn unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

/// See [`replace_lone_surrogates`](super::replace_lone_surrogates).
pub fn replace_lone_surrogates(text: &str) -> Cow<'_, str> {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return Cow::Borrowed(text);
    }
    let mut mended = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        mended.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match unit(rest) {
            None => 2,
            Some(_) => match unicode(rest) {
                (char::REPLACEMENT_CHARACTER, length) => {
                    mended.push_str("\\ufffd");
                    rest = rest.get(length..).unwrap_or_default();
                    continue;
                }
                (_, length) => length,
            },
        };
        // Only invalid JSON ends inside an escape.
        let (escape, behind) = rest.split_at_checked(length).unwrap_or((rest, ""));
        mended.push_str(escape);
        rest = behind;
    }
    mended.push_str(rest);
    Cow::Owned(mended)
}
