//! Conditional and range headers (RFC 9110, sections 13 and 14).

use http::HeaderMap;
use http::header::{HeaderName, IF_NONE_MATCH, IF_RANGE, RANGE};
use towpath_sandbox::ByteRange;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    Whole,
    Part(ByteRange),
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Whether the caller has this version of the file.
pub(super) fn is_unchanged(headers: &HeaderMap, tag: &str) -> bool {
    let Some(known) = header_text(headers, IF_NONE_MATCH) else {
        return false;
    };
    known.split(',').map(str::trim).any(|known| {
        // Weak comparison is enough here.
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}

/// The range in `Range`, if `If-Range` matches this version. Several or invalid ranges count as the whole file.
pub(super) fn requested_range(headers: &HeaderMap, tag: &str) -> RequestedRange {
    if header_text(headers, IF_RANGE).is_some_and(|known| known.trim() != tag) {
        return RequestedRange::Whole;
    }
    let range = header_text(headers, RANGE).and_then(parse_range);
    range.map_or(RequestedRange::Whole, RequestedRange::Part)
}

fn parse_range(range: &str) -> Option<ByteRange> {
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
            ("bytes=0-4", RequestedRange::Part(ByteRange::From(0, Some(4)))),
            ("bytes=5-", RequestedRange::Part(ByteRange::From(5, None))),
            ("bytes=-3", RequestedRange::Part(ByteRange::Last(3))),
            ("bytes=4-0", RequestedRange::Whole),
            ("bytes=-0", RequestedRange::Whole),
            ("bytes=0-1,3-4", RequestedRange::Whole),
            ("bytes=+1-2", RequestedRange::Whole),
            ("lines=0-4", RequestedRange::Whole),
            ("bytes=99999999999999999999-", RequestedRange::Whole),
        ] {
            assert_eq!(requested_range(&headers(&[(RANGE, text)]), "\"a\""), range, "{text}");
        }
    }

    #[test]
    fn tags_decide_what_is_sent() {
        let range = (RANGE, "bytes=0-4");
        let part = RequestedRange::Part(ByteRange::From(0, Some(4)));
        assert_eq!(
            requested_range(&headers(&[range.clone(), (IF_RANGE, "\"a\"")]), "\"a\""),
            part
        );
        assert_eq!(
            requested_range(&headers(&[range, (IF_RANGE, "\"b\"")]), "\"a\""),
            RequestedRange::Whole
        );
        for (known, same) in [("\"a\"", true), ("\"b\", W/\"a\"", true), ("*", true), ("\"b\"", false)] {
            assert_eq!(
                is_unchanged(&headers(&[(IF_NONE_MATCH, known)]), "\"a\""),
                same,
                "{known}"
            );
        }
    }
}
