//! Output as UTF-8. Clients count offsets in bytes of the received text, so invalid bytes are replaced before they are
//! counted.

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Holds back the begin of a character whose rest has not come.
#[derive(Debug, Default)]
pub(super) struct Utf8Decoder {
    incomplete: Vec<u8>,
}

impl Utf8Decoder {
    /// The text of the next bytes.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.incomplete);
        all.extend_from_slice(bytes);
        let mut text = Vec::with_capacity(all.len());
        let mut seen = 0;
        for chunk in all.utf8_chunks() {
            text.extend_from_slice(chunk.valid().as_bytes());
            let invalid = chunk.invalid();
            seen += chunk.valid().len() + invalid.len();
            if invalid.is_empty() {
                continue;
            }
            // Only the last chunk can lack a rest.
            let is_begin = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_begin && seen == all.len() {
                self.incomplete = invalid.to_vec();
            } else {
                text.extend_from_slice(REPLACEMENT);
            }
        }
        text
    }

    /// What was held back and has no rest.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        if std::mem::take(&mut self.incomplete).is_empty() {
            Vec::new()
        } else {
            REPLACEMENT.to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However output is cut, its text is the same.
    #[test]
    fn cuts_change_nothing() {
        let whole = [b"a\xffb\xe2\x82".as_slice(), "ä€😀".as_bytes(), b"\xf0\x9f"].concat();
        let expected = String::from_utf8_lossy(&whole).into_owned();
        for cut in 0..=whole.len() {
            for other in cut..=whole.len() {
                let mut text = Utf8Decoder::default();
                let mut all = text.decode(&whole[..cut]);
                all.extend(text.decode(&whole[cut..other]));
                all.extend(text.decode(&whole[other..]));
                all.extend(text.finish());
                assert_eq!(String::from_utf8(all).unwrap(), expected, "{cut} {other}");
            }
        }
    }
}
