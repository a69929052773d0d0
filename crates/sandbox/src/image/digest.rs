//! SHA-256 digests of what registries send.

use std::fmt::{self, Write as _};

use ring::digest::{Context, SHA256};

const PREFIX: &str = "sha256:";

/// A digest in the form of registries, `sha256:` and hexadecimal digits. Other algorithms are refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    hex: String,
}

impl Digest {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix(PREFIX)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (hex.len() == 64 && hex.bytes().all(is_digit)).then(|| Self { hex: hex.to_owned() })
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    pub(crate) fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex)
    }
}

/// The digest of bytes that arrive one after another.
pub(crate) struct Hasher(Context);

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut hex = String::with_capacity(64);
        for byte in self.0.finish().as_ref() {
            // Writing to a text cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Digest { hex }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sha256_digests_are_read() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::parse(text).unwrap(), Digest::of(b""));
        assert_eq!(Digest::of(b"").to_string(), text);
        let upper = text.to_uppercase();
        for wrong in ["", "sha256:", "sha512:00", &text[..70], upper.as_str(), &text[7..]] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
