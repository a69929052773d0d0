//! What the headers of a request ask for of a file (RFC 9110, sections 13 and 14).

use http::HeaderMap;
use http::header::{HeaderName, IF_NONE_MATCH, IF_RANGE, RANGE};
use towpath_sandbox::ByteRange;

/// Which bytes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// All.
    Whole,
    /// These.
    Part(ByteRange),
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Whether the caller has this version of the file.
pub(super) fn is_unchanged(headers: &HeaderMap, tag: &str) -> bool {
    let Some(known) = text(headers, IF_NONE_MATCH) else {
        return false;
    };
    known.split(',').map(str::trim).any(|known| {
        // A weak tag is enough here.
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}

/// The bytes that `Range` names, where `If-Range` names this version. Several ranges, and what cannot be read, are all bytes.
pub(super) fn asked(headers: &HeaderMap, tag: &str) -> Asked {
    if text(headers, IF_RANGE).is_some_and(|known| known.trim() != tag) {
        return Asked::Whole;
    }
    let range = text(headers, RANGE).and_then(parse);
    range.map_or(Asked::Whole, Asked::Part)
}

fn parse(range: &str) -> Option<ByteRange> {
    let (first, last) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    match (first.trim(), last.trim()) {
        ("", last) => number(last).filter(|bytes| *bytes > 0).map(ByteRange::Last),
        (first, "") => Some(ByteRange::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::From(first, Some(last)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, text)| (name.clone(), text.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn one_range_is_read_and_others_are_all_bytes() {
        for (text, range) in [
            ("bytes=0-4", Asked::Part(ByteRange::From(0, Some(4)))),
            ("bytes=5-", Asked::Part(ByteRange::From(5, None))),
            ("bytes=-3", Asked::Part(ByteRange::Last(3))),
            ("bytes=4-0", Asked::Whole),
            ("bytes=-0", Asked::Whole),
            ("bytes=0-1,3-4", Asked::Whole),
            ("bytes=+1-2", Asked::Whole),
            ("lines=0-4", Asked::Whole),
            ("bytes=99999999999999999999-", Asked::Whole),
        ] {
            assert_eq!(asked(&headers(&[(RANGE, text)]), "\"a\""), range, "{text}");
        }
    }

    #[test]
    fn tags_decide_what_is_sent() {
        let range = (RANGE, "bytes=0-4");
        let part = Asked::Part(ByteRange::From(0, Some(4)));
        assert_eq!(asked(&headers(&[range.clone(), (IF_RANGE, "\"a\"")]), "\"a\""), part);
        assert_eq!(asked(&headers(&[range, (IF_RANGE, "\"b\"")]), "\"a\""), Asked::Whole);
        for (known, same) in [("\"a\"", true), ("\"b\", W/\"a\"", true), ("*", true), ("\"b\"", false)] {
            assert_eq!(
                is_unchanged(&headers(&[(IF_NONE_MATCH, known)]), "\"a\""),
                same,
                "{known}"
            );
        }
    }
}
