//! The tokens of a filter.

use super::FilterError;
use crate::json::Number;

#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub kind: TokenKind,
    /// In bytes.
    pub at: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TokenKind {
    Word(String),
    Text(String),
    Number(String),
    /// `(`, `)`, `[`, `]` or `,`.
    Sign(char),
    End,
}

impl TokenKind {
    pub fn shown(&self) -> String {
        match self {
            Self::Word(word) => format!("`{}`", word.chars().take(40).collect::<String>()),
            Self::Text(_) => "a text".to_owned(),
            Self::Number(_) => "a number".to_owned(),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::End => "the end".to_owned(),
        }
    }
}

pub fn error(text: &str, at: usize, message: impl Into<String>) -> FilterError {
    let before = text.get(..at).unwrap_or(text);
    FilterError {
        position: before.chars().count() + 1,
        message: message.into(),
    }
}

pub fn cut(text: &str) -> Result<Vec<Token>, FilterError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let kind = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'(' | b')' | b'[' | b']' | b',' => {
                at += 1;
                TokenKind::Sign(char::from(byte))
            }
            b'"' | b'\'' => TokenKind::Text(quoted(text, &mut at)?),
            b'-' | b'+' | b'.' | b'0'..=b'9' => {
                at = end(bytes, at, |byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
                let number = &text[start..at];
                if number.parse::<Number<'_>>().is_err() {
                    return Err(error(text, start, "not a number; put text in quotes"));
                }
                TokenKind::Number(number.to_owned())
            }
            _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                at = end(bytes, at, |byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
                TokenKind::Word(text[start..at].to_owned())
            }
            _ => {
                return Err(error(text, start, "unexpected character; put text in quotes"));
            }
        };
        tokens.push(Token { kind, at: start });
    }
    tokens.push(Token {
        kind: TokenKind::End,
        at: text.len(),
    });
    Ok(tokens)
}

fn end(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    let rest = bytes[from..].iter();
    from + rest.take_while(|byte| belongs(**byte)).count()
}

/// A string in single or double quotes, with JSON escapes.
fn quoted(text: &str, at: &mut usize) -> Result<String, FilterError> {
    let start = *at;
    let quote = text.as_bytes()[start];
    let open = || error(text, start, "unterminated string");
    let mut said = String::new();
    let mut chars = text[start + 1..].char_indices();
    while let Some((offset, char)) = chars.next() {
        let here = start + 1 + offset;
        if char == char::from(quote) {
            *at = here + 1;
            return Ok(said);
        }
        if char != '\\' {
            said.push(char);
            continue;
        }
        let wrong = || error(text, here, "not a valid JSON escape");
        let meant = match chars.next().ok_or_else(open)?.1 {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let mut unit =
                    || -> Option<u32> { (0..4).try_fold(0, |sum, _| Some(sum * 16 + chars.next()?.1.to_digit(16)?)) };
                let first = unit().ok_or_else(wrong)?;
                let code = if (0xd800..0xdc00).contains(&first) {
                    let pair = chars.next().map(|(_, char)| char) == Some('\\')
                        && chars.next().map(|(_, char)| char) == Some('u');
                    let mut unit = || -> Option<u32> {
                        (0..4).try_fold(0, |sum, _| Some(sum * 16 + chars.next()?.1.to_digit(16)?))
                    };
                    let second = unit()
                        .filter(|low| pair && (0xdc00..0xe000).contains(low))
                        .ok_or_else(wrong)?;
                    0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                } else {
                    first
                };
                char::from_u32(code).ok_or_else(wrong)?
            }
            plain @ ('"' | '\'' | '\\' | '/') => plain,
            // `%` and `_` of `like`: the backslash is part of the pattern.
            pattern @ ('%' | '_') => {
                said.push('\\');
                pattern
            }
            _ => return Err(wrong()),
        };
        said.push(meant);
    }
    Err(open())
}
