//! The multipart bodies of the official tracing clients, cut into parts without copying.
//!
//! ```text
//! --<boundary>\r\n
//! Content-Disposition: form-data; name="post.<id>.inputs"\r\n
//! Content-Type: application/json\r\n            (or `application/json; length=57`)
//! Content-Length: 57\r\n                        (or the length above)
//! \r\n
//! <57 bytes>\r\n
//! --<boundary>--\r\n
//! ```
//!
//! A part that says its length is cut by it, so its data may contain anything, also the boundary. One that does not
//! ends at the next boundary. Either way each byte is looked at a bounded number of times.

use memchr::memmem;

/// Header lines of one part together are no longer.
const MAX_HEAD: usize = 8 * 1024;

/// Longest boundary (RFC 2046).
const MAX_BOUNDARY: usize = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// `post.<id>`, `patch.<id>.outputs`, `attachment.<id>.<name>`, …
    pub name: &'a str,
    /// Without its `length` parameter.
    pub content_type: &'a str,
    pub data: &'a [u8],
}

/// Why a body could not be cut into parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MultipartError {
    /// The request's content type is not `multipart/form-data` with a boundary.
    #[error("expected the content type multipart/form-data with a boundary")]
    ContentType,
    /// The body does not begin with its boundary.
    #[error("the body does not begin with its boundary")]
    Start,
    /// The body ends without its closing boundary: it was cut off.
    #[error("{part}: the body ends early")]
    Truncated {
        /// Which part it ends in.
        part: String,
    },
    /// A part that cannot be read.
    #[error("{part}: {what}")]
    Part {
        /// Its name, or which one it is where it has none.
        part: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// The boundary of a `multipart/form-data` content type, quoted or not.
///
/// # Errors
/// [`MultipartError::ContentType`] for another type, or without a usable boundary.
pub fn boundary(content_type: &str) -> Result<&str, MultipartError> {
    let (kind, parameters) = content_type.split_once(';').ok_or(MultipartError::ContentType)?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(MultipartError::ContentType);
    }
    let boundary = parameter(parameters, "boundary").ok_or(MultipartError::ContentType)?;
    let usable = !boundary.is_empty()
        && boundary.len() <= MAX_BOUNDARY
        && boundary.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if usable {
        Ok(boundary)
    } else {
        Err(MultipartError::ContentType)
    }
}

/// The value of `wanted` in `a=b; c="d"`, without quotes. Escapes are not decoded, since no client sends any.
fn parameter<'a>(mut text: &'a str, wanted: &str) -> Option<&'a str> {
    loop {
        let (name, rest) = text.split_once('=')?;
        let name = name.trim_matches([' ', '\t', ';']);
        let rest = rest.trim_start_matches([' ', '\t']);
        let (value, next) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => {
                let end = rest.find(';').unwrap_or(rest.len());
                (rest[..end].trim_end_matches([' ', '\t']), &rest[end..])
            }
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        text = next.trim_start_matches([' ', '\t', ';']);
    }
}

/// Cuts `body` into its parts.
pub fn parts<'a>(body: &'a [u8], boundary: &str) -> Parts<'a> {
    let mut delimiter = Vec::with_capacity(boundary.len() + 4);
    delimiter.extend_from_slice(b"\r\n--");
    delimiter.extend_from_slice(boundary.as_bytes());
    Parts {
        body,
        at: 0,
        count: 0,
        state: State::Start,
        finder: memmem::Finder::new(&delimiter).into_owned(),
    }
}

/// Iterator over the parts of a body.
pub struct Parts<'a> {
    body: &'a [u8],
    at: usize,
    count: usize,
    state: State,
    /// Finds CR LF, two dashes and the boundary.
    finder: memmem::Finder<'static>,
}

#[derive(PartialEq)]
enum State {
    Start,
    /// `at` is just behind a boundary.
    Delimiter,
    End,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Result<Part<'a>, MultipartError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.state = State::End;
        }
        item
    }
}

impl<'a> Parts<'a> {
    fn advance(&mut self) -> Result<Option<Part<'a>>, MultipartError> {
        if self.state == State::End {
            return Ok(None);
        }
        if self.state == State::Start {
            // The first boundary is at the very start, without a preceding line break.
            let first = &self.finder.needle()[2..];
            if !self.body.starts_with(first) {
                return Err(MultipartError::Start);
            }
            self.at = first.len();
            self.state = State::Delimiter;
        }
        let rest = &self.body[self.at..];
        if let Some(rest) = rest.strip_prefix(b"--") {
            return if rest.iter().all(|byte| matches!(byte, b'\r' | b'\n' | b' ' | b'\t')) {
                Ok(None)
            } else {
                Err(self.bad(None, "text after the closing boundary"))
            };
        }
        self.count += 1;
        if !rest.starts_with(b"\r\n") {
            return Err(if rest.is_empty() {
                self.truncated(None)
            } else {
                self.bad(None, "no line break after the boundary")
            });
        }
        let head = self.head(&rest[2..])?;
        let start = self.at + 2 + head.length;
        let end = self.end(start, &head)?;
        self.at = end + self.finder.needle().len();
        Ok(Some(Part {
            name: head.name,
            content_type: head.content_type,
            data: &self.body[start..end],
        }))
    }

    /// Where the data of a part that begins at `start` ends.
    fn end(&self, start: usize, head: &Head<'a>) -> Result<usize, MultipartError> {
        let Some(length) = head.data_length else {
            let found = self.finder.find(&self.body[start..]);
            return found
                .map(|offset| start + offset)
                .ok_or_else(|| self.truncated(Some(head.name)));
        };
        let end = start.checked_add(length).filter(|end| *end <= self.body.len());
        let end = end.ok_or_else(|| self.truncated(Some(head.name)))?;
        let behind = &self.body[end..];
        if behind.starts_with(self.finder.needle()) {
            Ok(end)
        } else if self.finder.needle().starts_with(behind) {
            Err(self.truncated(Some(head.name)))
        } else {
            Err(self.bad(Some(head.name), "its length does not end at a boundary"))
        }
    }

    fn head(&self, text: &'a [u8]) -> Result<Head<'a>, MultipartError> {
        let window = &text[..text.len().min(MAX_HEAD)];
        let Some(end) = memmem::find(window, b"\r\n\r\n") else {
            return Err(if window.len() < MAX_HEAD {
                self.truncated(None)
            } else {
                self.bad(None, "its headers are too long")
            });
        };
        let lines = std::str::from_utf8(&window[..end]).map_err(|_| self.bad(None, "its headers are not UTF-8"))?;
        let mut head = Head {
            name: "",
            content_type: "application/octet-stream",
            data_length: None,
            length: end + 4,
        };
        for line in lines.split("\r\n") {
            let (key, value) = line
                .split_once(':')
                .ok_or_else(|| self.bad(None, "a header line without a colon"))?;
            self.header(&mut head, key.trim(), value.trim())?;
        }
        if head.name.is_empty() {
            return Err(self.bad(None, "it has no name"));
        }
        if head.name.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
            return Err(self.bad(None, "a control character in its name"));
        }
        Ok(head)
    }

    fn header(&self, head: &mut Head<'a>, key: &str, value: &'a str) -> Result<(), MultipartError> {
        let name = Some(head.name).filter(|name| !name.is_empty());
        if key.eq_ignore_ascii_case("content-disposition") {
            let (kind, parameters) = value.split_once(';').unwrap_or((value, ""));
            if !kind.trim().eq_ignore_ascii_case("form-data") {
                return Err(self.bad(name, "its disposition is not form-data"));
            }
            head.name = parameter(parameters, "name").unwrap_or_default();
        } else if key.eq_ignore_ascii_case("content-type") {
            let (kind, parameters) = value.split_once(';').unwrap_or((value, ""));
            head.content_type = kind.trim();
            if let Some(length) = parameter(parameters, "length") {
                head.data_length = Some(self.length(name, length)?);
            }
        } else if key.eq_ignore_ascii_case("content-length") {
            let length = self.length(name, value)?;
            if head.data_length.is_some_and(|other| other != length) {
                return Err(self.bad(name, "its lengths differ"));
            }
            head.data_length = Some(length);
        } else if key.eq_ignore_ascii_case("content-encoding") && !value.eq_ignore_ascii_case("identity") {
            return Err(self.bad(name, "a part must not have its own content encoding"));
        }
        Ok(())
    }

    fn length(&self, name: Option<&str>, text: &str) -> Result<usize, MultipartError> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let length = if digits { text.parse().ok() } else { None };
        length.ok_or_else(|| self.bad(name, "its length is not a number"))
    }

    fn label(&self, name: Option<&str>) -> String {
        // A name is the client's; a long one must not fill a log.
        name.map_or_else(
            || format!("part {}", self.count),
            |name| name.chars().take(200).collect(),
        )
    }

    fn bad(&self, name: Option<&str>, what: &'static str) -> MultipartError {
        MultipartError::Part {
            part: self.label(name),
            what,
        }
    }

    fn truncated(&self, name: Option<&str>) -> MultipartError {
        MultipartError::Truncated { part: self.label(name) }
    }
}

struct Head<'a> {
    name: &'a str,
    content_type: &'a str,
    data_length: Option<usize>,
    /// Of the header lines and the empty one.
    length: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all<'a>(body: &'a [u8], boundary: &str) -> Result<Vec<Part<'a>>, MultipartError> {
        parts(body, boundary).collect()
    }

    #[test]
    fn reads_content_types() {
        assert_eq!(boundary("multipart/form-data; boundary=abc"), Ok("abc"));
        assert_eq!(
            boundary("Multipart/Form-Data; charset=utf-8; boundary=\"a b\""),
            Ok("a b")
        );
        assert_eq!(
            boundary("multipart/form-data;boundary=----LangSmithFormBoundaryx"),
            Ok("----LangSmithFormBoundaryx")
        );
        for wrong in [
            "",
            "application/json",
            "multipart/form-data",
            "multipart/mixed; boundary=a",
            "multipart/form-data; boundary=",
        ] {
            assert_eq!(boundary(wrong), Err(MultipartError::ContentType), "{wrong}");
        }
    }

    #[test]
    fn cuts_all_three_ways_to_say_where_a_part_ends() {
        let body = b"--b\r\nContent-Disposition: form-data; name=\"one\"\r\nContent-Type: image/png\r\nContent-Length: 6\r\n\r\n\r\n--b\n\r\n\
            --b\r\ncontent-disposition: form-data; name=two\r\ncontent-type: application/json; length=2\r\n\r\n{}\r\n\
            --b\r\nContent-Disposition: form-data; name=\"three\"\r\n\r\nto the boundary\r\n--b--\r\n";
        let cut = all(body, "b").unwrap();
        assert_eq!(
            cut[0],
            Part {
                name: "one",
                content_type: "image/png",
                data: b"\r\n--b\n"
            }
        );
        assert_eq!(
            cut[1],
            Part {
                name: "two",
                content_type: "application/json",
                data: b"{}"
            }
        );
        assert_eq!(
            cut[2],
            Part {
                name: "three",
                content_type: "application/octet-stream",
                data: b"to the boundary"
            }
        );
        assert_eq!(cut.len(), 3);
        assert_eq!(all(b"--b--", "b"), Ok(vec![]));
    }

    #[test]
    fn errors_name_the_part() {
        let body = |length: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"post.x\"\r\nContent-Length: {length}\r\n\r\n{{}}\r\n--b--\r\n"
            )
        };
        for (length, error) in [
            ("1", "post.x: its length does not end at a boundary"),
            ("900", "post.x: the body ends early"),
            ("99999999999999999999999", "post.x: its length is not a number"),
            ("-1", "post.x: its length is not a number"),
        ] {
            assert_eq!(all(body(length).as_bytes(), "b").unwrap_err().to_string(), error);
        }
        assert_eq!(all(b"--c--", "b"), Err(MultipartError::Start));
        assert_eq!(
            all(b"--b\r\n\r\n\r\n--b--", "b").unwrap_err().to_string(),
            "part 1: a header line without a colon"
        );
        let encoded = b"--b\r\nContent-Disposition: form-data; name=\"p\"\r\nContent-Encoding: gzip\r\n\r\n\r\n--b--";
        assert_eq!(
            all(encoded, "b").unwrap_err().to_string(),
            "p: a part must not have its own content encoding"
        );
    }

    #[test]
    fn a_body_cut_anywhere_is_an_error_and_no_part_is_wrong() {
        let body = body_of(&[
            ("post.a", b"{\"x\":1}".to_vec(), true),
            ("attachment.a.b", b"\r\n--b\r\n".to_vec(), true),
        ]);
        let whole = all(&body, "b").unwrap();
        // The line break behind the closing boundary may be missing.
        for end in 0..body.len() - 2 {
            assert!(all(&body[..end], "b").is_err(), "cut at {end}");
            for (part, expected) in parts(&body[..end], "b").map_while(Result::ok).zip(&whole) {
                assert_eq!(part, *expected);
            }
        }
    }

    fn body_of(parts: &[(&str, Vec<u8>, bool)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (name, data, sized) in parts {
            body.extend_from_slice(
                format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json")
                    .as_bytes(),
            );
            let length = if *sized {
                format!("; length={}\r\n\r\n", data.len())
            } else {
                "\r\n\r\n".to_owned()
            };
            body.extend_from_slice(length.as_bytes());
            body.extend_from_slice(data);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--b--\r\n");
        body
    }

    proptest! {
        #[test]
        fn what_is_put_together_is_cut_apart(
            data in proptest::collection::vec(("[a-z.]{1,20}", proptest::collection::vec(any::<u8>(), 0..50)), 0..20),
        ) {
            let list: Vec<_> = data.iter().map(|(name, data)| (name.as_str(), data.clone(), true)).collect();
            let body = body_of(&list);
            let cut = all(&body, "b").unwrap();
            prop_assert_eq!(cut.len(), data.len());
            for (part, (name, data)) in cut.iter().zip(&data) {
                prop_assert_eq!((part.name, part.data), (name.as_str(), data.as_slice()));
            }
        }

        #[test]
        fn never_panics_on_noise(body in proptest::collection::vec(any::<u8>(), 0..200), prefix in any::<bool>()) {
            let body = if prefix { [b"--b\r\n".as_slice(), &body].concat() } else { body };
            let _ = all(&body, "b");
        }

        #[test]
        fn never_panics_on_pieces(pieces in proptest::collection::vec(prop_oneof![
            Just("--b"), Just("\r\n"), Just("\r\n\r\n"), Just("--"), Just("Content-Disposition: form-data; name=\"a\""),
            Just("Content-Length: 3"), Just("Content-Type: a; length=1"), Just("name=\""), Just(";"), Just(":"), Just("é"), Just("=\""),
        ], 0..30)) {
            let _ = all(pieces.concat().as_bytes(), "b");
        }
    }
}
