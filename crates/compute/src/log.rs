//! Where the lines of programs go.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use towpath_domain::Secret;
use towpath_domain::deployment::Level;

/// Longer lines are cut, in bytes.
pub const LONGEST_LINE: usize = 4 * 1024;
/// Shorter secrets are not masked, as they would match ordinary words.
const SHORTEST_MASKED: usize = 6;

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// How loud.
    pub level: Level,
    /// Without its end.
    pub message: String,
    /// Whether a program printed it. The platform itself logs little.
    pub is_output: bool,
}

/// Takes lines. Clones share it.
#[derive(Clone)]
pub struct Log(Arc<LogState>);

struct LogState {
    take: Box<dyn Fn(Line) + Send + Sync>,
    /// The last lines, for the reason of a failure.
    tail: Mutex<VecDeque<String>>,
    /// The longest first: one may be a part of another.
    secrets: Vec<Secret>,
    /// Bytes of a line that are read: a secret more than is kept, so that none is cut before it is masked.
    looked_at: usize,
}

/// Lines that are kept for the reason of a failure.
const TAIL: usize = 12;

impl Log {
    /// Passes every line to `take`, which must not block. Values of `secrets` are masked everywhere.
    pub fn new(secrets: impl IntoIterator<Item = Secret>, take: impl Fn(Line) + Send + Sync + 'static) -> Self {
        let mut secrets: Vec<Secret> = secrets.into_iter().flat_map(|secret| lines_of(&secret)).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.reveal().len()));
        let longest = secrets.first().map_or(0, |secret| secret.reveal().len());
        Self(Arc::new(LogState {
            take: Box::new(take),
            tail: Mutex::default(),
            secrets,
            looked_at: LONGEST_LINE + longest,
        }))
    }

    /// Drops every line.
    #[must_use]
    pub fn none() -> Self {
        Self::new([], drop)
    }

    /// A log with the same secrets and reader, silent until the returned token is cancelled. It keeps its own output
    /// for error messages.
    #[must_use]
    pub fn muted(&self) -> (Self, CancellationToken) {
        let (loud, of) = (CancellationToken::new(), self.clone());
        let heard = loud.clone();
        let log = Self::new(self.0.secrets.iter().cloned(), move |line| {
            if heard.is_cancelled() {
                (of.0.take)(line);
            }
        });
        (log, loud)
    }

    /// A line of a program's output.
    pub fn output(&self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(self.0.looked_at)]);
        // Control characters are removed first: one in the middle of a value would hide it.
        let message = cut(self.masked(&plain(&text)));
        if message.is_empty() {
            return;
        }
        let mut tail = self.0.tail.lock();
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(message.clone());
        drop(tail);
        let level = level_of(&message);
        (self.0.take)(Line {
            level,
            message,
            is_output: true,
        });
    }

    /// What continues.
    pub fn info(&self, message: impl AsRef<str>) {
        self.write_line(Level::Info, message.as_ref());
    }

    /// Odd, and it continues.
    pub fn warn(&self, message: impl AsRef<str>) {
        self.write_line(Level::Warning, message.as_ref());
    }

    /// Something did not work.
    pub fn error(&self, message: impl AsRef<str>) {
        self.write_line(Level::Error, message.as_ref());
    }

    fn write_line(&self, level: Level, message: &str) {
        let message = self.masked(message);
        (self.0.take)(Line {
            level,
            message,
            is_output: false,
        });
    }

    /// The last lines that programs wrote, oldest first.
    #[must_use]
    pub fn tail(&self) -> Vec<String> {
        let tail = self.0.tail.lock();
        tail.iter().cloned().collect()
    }

    fn masked(&self, text: &str) -> String {
        let mask = |text: String, secret: &Secret| {
            if text.contains(secret.reveal()) {
                text.replace(secret.reveal(), "***")
            } else {
                text
            }
        };
        self.0.secrets.iter().fold(text.to_owned(), mask)
    }
}

/// The masked texts of a value: output comes in lines, so each line of a multi-line value separately.
fn lines_of(secret: &Secret) -> Vec<Secret> {
    let lines = secret.reveal().lines().map(|line| plain(line).trim().to_owned());
    lines
        .filter(|line| line.len() >= SHORTEST_MASKED)
        .map(Secret::new)
        .collect()
}

fn cut(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(LONGEST_LINE));
    message.truncate(message.trim_end().len());
    message
}

/// Cuts a program's output into lines.
pub(crate) struct Splitter<'a> {
    log: &'a Log,
    line: Vec<u8>,
}

impl<'a> Splitter<'a> {
    pub(crate) const fn new(log: &'a Log) -> Self {
        Self { log, line: Vec::new() }
    }

    /// Takes the next chunk, and passes completed lines to the log and to `also`.
    pub(crate) fn take(&mut self, piece: &[u8], mut also: impl FnMut(&[u8])) {
        for byte in piece {
            match byte {
                // Progress bars rewrite their line.
                b'\n' | b'\r' => {
                    self.log.output(&self.line);
                    also(&self.line);
                    self.line.clear();
                }
                // The rest of an endless line is of no use to anyone.
                byte if self.line.len() < self.log.0.looked_at => self.line.push(*byte),
                _ => {}
            }
        }
    }

    /// The last line, which need not have an end.
    pub(crate) fn finish(self, also: impl FnOnce(&[u8])) {
        self.log.output(&self.line);
        also(&self.line);
    }
}

/// Removes colours and other control characters: the log is read in terminals and web pages.
fn plain(text: &str) -> String {
    let mut message = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => {
                if letters.next_if_eq(&'[').is_some() {
                    while letters.next().is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {}
                }
            }
            '\t' => message.push(' '),
            letter if letter.is_control() => {}
            letter => message.push(letter),
        }
    }
    message.truncate(message.trim_end().len());
    message
}

/// The level stated in the line: by our agent server, Python's logging, or npm.
fn level_of(message: &str) -> Level {
    let head: String = message.chars().take(60).collect();
    let says = |word: &str| head.split(|c: char| !c.is_ascii_alphabetic()).any(|part| part == word);
    if says("ERROR") || says("CRITICAL") || says("ERR") || head.starts_with("error") || head.starts_with("Traceback") {
        Level::Error
    } else if says("WARN") || says("WARNING") {
        Level::Warning
    } else if says("DEBUG") {
        Level::Debug
    } else {
        Level::Info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_plain_and_carry_no_secret() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&lines);
        let log = Log::new([Secret::new("hunter2hunter2"), Secret::new("x")], move |line| {
            taken.lock().push(line);
        });
        log.output(b"\x1b[31mERROR\x1b[0m the key is hunter2hunter2\x07");
        log.output(b"");
        log.info("hunter2hunter2 again");
        let lines = lines.lock();
        assert_eq!(lines[0].message, "ERROR the key is ***");
        assert_eq!(lines[0].level, Level::Error);
        assert_eq!(lines[1].message, "*** again");
        assert_eq!(log.tail(), ["ERROR the key is ***"]);
    }

    #[test]
    fn a_secret_is_masked_wherever_its_line_is_cut_or_ends() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\n-----END KEY-----\n";
        let log = Log::new([Secret::new("hunter2hunter2"), Secret::new(key)], drop);
        let mut lines = Splitter::new(&log);
        let filler = "x".repeat(LONGEST_LINE - 5);
        lines.take(format!("{filler}hunter2hunter2 and more\n{key}").as_bytes(), |_| {});
        lines.take(b"hunter2\x1b[1mhunter2\n", |_| {});
        let tail = log.tail().join("\n");
        for part in ["hunte", "MIIEvQIBADAN", "BgkqhkiG9w0B"] {
            assert!(!tail.contains(part), "{part} is in the log: {tail}");
        }
        assert!(log.tail().iter().all(|line| line.len() <= LONGEST_LINE));
    }

    #[test]
    fn the_tail_is_short() {
        let log = Log::none();
        for n in 0..100 {
            log.output(format!("line {n}").as_bytes());
        }
        assert_eq!(log.tail().len(), TAIL);
        assert_eq!(log.tail()[TAIL - 1], "line 99");
        log.output(&[b'x'; 100_000]);
        assert_eq!(log.tail()[TAIL - 1].len(), LONGEST_LINE);
    }
}
