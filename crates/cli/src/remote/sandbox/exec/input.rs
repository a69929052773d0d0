//! Standard input of the caller, as the protocol carries it.

use std::io::{self, Read as _};

use tokio::sync::mpsc;

/// Chunks of input that are queued while the command does not read.
const INPUT_QUEUE_CAPACITY: usize = 4;
/// Bytes of a chunk.
const INPUT_CHUNK_BYTES: usize = 32 << 10;

/// A chunk of standard input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Text(String),
    Unreadable(String),
}

/// Reads standard input in a thread. The process can exit while that thread blocks.
pub(super) fn input() -> mpsc::Receiver<Input> {
    let (give, given) = mpsc::channel(INPUT_QUEUE_CAPACITY);
    std::thread::spawn(move || {
        let mut decoder = InputDecoder::default();
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; INPUT_CHUNK_BYTES];
        loop {
            let piece = match stdin.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Some(Input::Unreadable(error.to_string())),
                Ok(count) => decoder.decode(&buffer[..count]),
            };
            let Some(piece) = piece else { return };
            let is_last = matches!(piece, Input::Unreadable(_));
            if give.blocking_send(piece).is_err() || is_last {
                return;
            }
        }
    });
    given
}

/// Splits input at character boundaries, and keeps incomplete characters.
#[derive(Default)]
struct InputDecoder(Vec<u8>);

impl InputDecoder {
    /// The next chunk; `None` at the end of the input, where `read` is empty.
    fn decode(&mut self, read: &[u8]) -> Option<Input> {
        let is_end = read.is_empty();
        self.0.extend_from_slice(read);
        let whole = match std::str::from_utf8(&self.0) {
            Ok(_) if is_end && self.0.is_empty() => return None,
            Ok(_) => self.0.len(),
            Err(error) if error.error_len().is_none() && !is_end => error.valid_up_to(),
            Err(_) => return Some(Self::unreadable()),
        };
        let rest = self.0.split_off(whole);
        let text = String::from_utf8(std::mem::replace(&mut self.0, rest));
        Some(text.map_or_else(|_| Self::unreadable(), Input::Text))
    }

    /// The protocol carries input as text.
    fn unreadable() -> Input {
        let why = "it is not UTF-8 text; copy it with towpath sandbox cp";
        Input::Unreadable(why.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_handed_on_in_whole_characters() {
        let text = |text: &str| Some(Input::Text(text.to_owned()));
        let mut decoder = InputDecoder::default();
        assert_eq!(decoder.decode(b"a\xc3"), text("a"));
        assert_eq!(decoder.decode(b"\xa4b"), text("äb"));
        assert_eq!(decoder.decode(b""), None);
        assert!(matches!(decoder.decode(b"\xff"), Some(Input::Unreadable(_))));
        let mut cut = InputDecoder::default();
        assert_eq!(cut.decode(b"\xc3"), text(""));
        assert!(matches!(cut.decode(b""), Some(Input::Unreadable(_))));
    }
}
