//! Path patterns. They compile to expressions without backtracking, so matching takes linear time.

use regex::{Regex, RegexBuilder};

use crate::wire::{Failure, FailureKind};

/// Length limit of a pattern; the compiled size is limited as well.
const MAX_PATTERN_LENGTH: usize = 1000;
const MAX_EXPRESSION_BYTES: usize = 1 << 20;
/// Braces in braces.
const MAX_BRACE_DEPTH: usize = 8;

/// What paths have to look like.
#[derive(Debug)]
pub(super) struct PathPattern {
    expression: Regex,
    target: MatchTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchTarget {
    Name,
    Relative,
    Absolute,
}

impl PathPattern {
    pub(super) fn parse(pattern: &str) -> Result<Self, Failure> {
        let invalid = |why: &str| Failure::new(FailureKind::Invalid, format!("pattern {pattern:?}: {why}"));
        if pattern.is_empty() || pattern.len() > MAX_PATTERN_LENGTH {
            return Err(invalid("it must have 1 to 1,000 bytes"));
        }
        let matches = if pattern.starts_with('/') {
            MatchTarget::Absolute
        } else if pattern.contains('/') || pattern.contains("**") {
            MatchTarget::Relative
        } else {
            MatchTarget::Name
        };
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        let text = expression(pattern).ok_or_else(|| invalid("a bracket or brace is not closed"))?;
        let expression = RegexBuilder::new(&text)
            .dot_matches_new_line(true)
            .size_limit(MAX_EXPRESSION_BYTES)
            .build()
            .map_err(|_| invalid("it is not a valid pattern or is too large"))?;
        Ok(Self {
            expression,
            target: matches,
        })
    }

    /// Whether a path matches; everything before `relative` is the requested folder.
    pub(super) fn matches(&self, absolute: &str, relative: &str) -> bool {
        let part = match self.target {
            MatchTarget::Name => absolute.rsplit('/').next().unwrap_or(absolute),
            MatchTarget::Relative => relative,
            MatchTarget::Absolute => absolute,
        };
        self.expression.is_match(part)
    }
}

fn expression(pattern: &str) -> Option<String> {
    let mut text = String::from("^");
    let mut open = 0;
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("**/") {
            text.push_str("(?:.*/)?");
            rest = after;
            continue;
        }
        if let Some(after) = rest.strip_prefix("**") {
            text.push_str(".*");
            rest = after;
            continue;
        }
        rest = &rest[character.len_utf8()..];
        match character {
            '*' => text.push_str("[^/]*"),
            '?' => text.push_str("[^/]"),
            '[' => {
                // A bracket that comes first is one of the characters.
                let begin = usize::from(rest.starts_with(['!', '^']));
                let after = begin + rest[begin..].chars().next()?.len_utf8();
                let end = after + rest[after..].find(']')?;
                text.push_str(&character_class(&rest[..end]));
                rest = &rest[end + 1..];
            }
            '{' => {
                open += 1;
                if open > MAX_BRACE_DEPTH {
                    return None;
                }
                text.push_str("(?:");
            }
            '}' if open > 0 => {
                open -= 1;
                text.push(')');
            }
            ',' if open > 0 => text.push('|'),
            '\\' => {
                let escaped = rest.chars().next()?;
                text.push_str(&regex::escape(escaped.encode_utf8(&mut [0; 4])));
                rest = &rest[escaped.len_utf8()..];
            }
            other => text.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    text.push('$');
    (open == 0).then_some(text)
}

/// Characters in brackets. Only a range keeps its meaning.
fn character_class(inner: &str) -> String {
    let (begin, inner) = match inner.strip_prefix(['!', '^']) {
        Some(inner) => ("[^/", inner),
        None => ("[", inner),
    };
    let mut text = begin.to_owned();
    for character in inner.chars() {
        if matches!(character, '\\' | '[' | ']' | '^' | '&' | '~') {
            text.push('\\');
        }
        text.push(character);
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_a_shell() {
        for (pattern, relative, fits) in [
            ("*.py", "a.py", true),
            ("*.py", "deep/er/a.py", true),
            ("*.py", "a.pyc", false),
            ("src/*.py", "src/a.py", true),
            ("src/*.py", "src/b/a.py", false),
            ("src/**/*.py", "src/a.py", true),
            ("src/**/*.py", "src/b/c/a.py", true),
            ("**", "any/thing", true),
            ("/top/src/*", "src/a", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c].txt", "b.txt", true),
            ("[!a-c].txt", "b.txt", false),
            ("[]x].txt", "].txt", true),
            ("[é<].txt", "é.txt", true),
            ("[[:a].txt", ":.txt", true),
            ("*.{py,js}", "x.js", true),
            ("*.{py,{js,ts}}", "x.ts", true),
            ("a.b", "axb", false),
            (r"\*", "*", true),
            (r"\*", "x", false),
            ("(a|b)", "a", false),
        ] {
            let absolute = format!("/top/{relative}");
            let parsed = PathPattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(&absolute, relative), fits, "{pattern} {relative}");
        }
        for pattern in ["", "[a", "{a", &"{".repeat(20), &"x".repeat(1001)] {
            assert!(PathPattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
