//! The last output of a command, addressed by offset in the stream.

use std::collections::VecDeque;

/// Bytes that are kept of each stream.
pub(super) const CAPACITY: usize = 8 << 20;
/// Output that a client may have missed when its connection breaks: this much is kept after being sent.
const UNCONFIRMED_BYTES: u64 = (CAPACITY / 2) as u64;

#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    start: u64,
    bytes: VecDeque<u8>,
}

impl OutputBuffer {
    /// Bytes of the whole stream.
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Whether this many bytes fit without losing data for a client that was sent everything before `sent`.
    pub(super) fn has_room(&self, count: usize, sent: u64) -> bool {
        let over = (self.bytes.len() + count).saturating_sub(CAPACITY) as u64;
        over == 0 || self.start + over <= sent.saturating_sub(UNCONFIRMED_BYTES)
    }

    /// Adds bytes. The oldest give way.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(CAPACITY);
        self.bytes.drain(..over);
        self.start += over as u64;
    }

    /// At most `most` bytes from an offset, and the offset of the first one: a later one if older bytes are lost. Ends
    /// at a character boundary.
    pub(super) fn read(&self, from: u64, most: usize) -> (u64, Vec<u8>) {
        let from = from.clamp(self.start, self.end());
        let begin = usize::try_from(from - self.start).unwrap_or(usize::MAX);
        let mut end = self.bytes.len().min(begin.saturating_add(most));
        // What was pushed ends between characters.
        while end > begin && end < self.bytes.len() && is_inside(self.bytes[end]) {
            end -= 1;
        }
        (from, self.bytes.range(begin..end).copied().collect())
    }

    /// The last bytes, at most `most`, and the offset of the first. They begin at a character boundary.
    pub(super) fn last(&self, most: usize) -> (u64, Vec<u8>) {
        let mut begin = self.bytes.len().saturating_sub(most);
        // Also where older bytes gave way inside one.
        while begin < self.bytes.len() && is_inside(self.bytes[begin]) {
            begin += 1;
        }
        (self.start + begin as u64, self.bytes.range(begin..).copied().collect())
    }
}

/// Whether a byte belongs to the character before it.
const fn is_inside(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_by_their_place() {
        let mut ring = OutputBuffer::default();
        ring.push("aäb".as_bytes());
        assert_eq!(ring.read(0, 100), (0, "aäb".as_bytes().to_vec()));
        assert_eq!(ring.read(0, 2), (0, b"a".to_vec()), "a character is not split");
        assert_eq!(ring.read(1, 2), (1, "ä".as_bytes().to_vec()));
        assert_eq!(ring.read(9, 2), (4, Vec::new()));
        ring.push(&vec![b'x'; CAPACITY]);
        assert_eq!(ring.read(0, 1), (4, b"x".to_vec()), "what is lost shows in the place");
        assert_eq!(ring.end(), 4 + CAPACITY as u64);
    }

    #[test]
    fn the_last_bytes_begin_between_characters() {
        let mut ring = OutputBuffer::default();
        assert_eq!(ring.last(4), (0, Vec::new()));
        ring.push("aäb".as_bytes());
        assert_eq!(ring.last(100), (0, "aäb".as_bytes().to_vec()));
        assert_eq!(ring.last(3), (1, "äb".as_bytes().to_vec()));
        assert_eq!(ring.last(2), (3, b"b".to_vec()), "a character is not split");
        ring.push(&vec![b'x'; CAPACITY]);
        assert_eq!(ring.last(1), (3 + CAPACITY as u64, b"x".to_vec()));
    }

    #[test]
    fn what_a_client_may_miss_stays() {
        let mut ring = OutputBuffer::default();
        assert!(ring.has_room(CAPACITY, 0));
        ring.push(&vec![b'x'; CAPACITY]);
        assert!(!ring.has_room(1, 0));
        assert!(!ring.has_room(1, UNCONFIRMED_BYTES));
        assert!(ring.has_room(1, UNCONFIRMED_BYTES + 1));
    }
}
