//! Searches files and lines. Bounded by results, scanned files, and time.

use std::fs::{self, DirEntry, File, Metadata, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memchr::memmem::Finder;
use nix::fcntl::OFlag;

use super::file::io_failure;
use super::path_pattern::PathPattern;
use crate::file::{Entry, GlobRequest, GrepMatch, GrepRequest};
use crate::wire::{self, Failure, FailureKind, Reply};

/// Files that one search looks at, and how long.
const MAX_FILES: usize = 1_000_000;
const MAX_DURATION: Duration = Duration::from_secs(60);
const MAX_DEPTH: usize = 64;
/// Results that go into one frame.
const BATCH_BYTES: usize = 128 << 10;
/// Text of all results.
const MAX_TEXT_BYTES: usize = 16 << 20;
const MAX_LINE_CHARS: usize = 2000;
/// What is stored of a line while it is looked at.
const MAX_LINE_BYTES: usize = 1 << 20;
/// A file with a NUL among its first bytes is not a text.
const TEXT_PROBE_BYTES: usize = 8 << 10;

type SearchResult<T> = Result<T, Failure>;

/// Collects results into frames.
struct ResultBatches<'a, T> {
    to: &'a mut dyn Write,
    reply: fn(Vec<T>) -> Reply,
    batch: Vec<T>,
    batch_bytes: usize,
    remaining: usize,
    remaining_bytes: usize,
    truncated: bool,
}

impl<'a, T> ResultBatches<'a, T> {
    fn new(to: &'a mut dyn Write, reply: fn(Vec<T>) -> Reply, limit: usize) -> Self {
        Self {
            to,
            reply,
            batch: Vec::new(),
            batch_bytes: 0,
            remaining: limit,
            remaining_bytes: MAX_TEXT_BYTES,
            truncated: false,
        }
    }

    /// Whether there is room for more.
    fn add(&mut self, result: T, bytes: usize) -> io::Result<bool> {
        // As JSON a byte may take six.
        let bytes = 6 * bytes + 200;
        if self.remaining == 0 || bytes > self.remaining_bytes {
            self.truncated = true;
            return Ok(false);
        }
        self.remaining -= 1;
        self.remaining_bytes -= bytes;
        self.batch.push(result);
        self.batch_bytes += bytes;
        if self.batch_bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        wire::write_json_blocking(&mut self.to, &(self.reply)(batch))
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        let truncated = self.truncated;
        wire::write_json_blocking(&mut self.to, &Reply::Last { truncated })
    }
}

/// What a folder holds, by name.
pub(super) fn list(folder: &Path, limit: usize, to: &mut dyn Write) -> io::Result<SearchResult<()>> {
    let entries = match read_folder(folder) {
        Ok(entries) => entries,
        Err(error) => return Ok(Err(io_failure(&folder.display().to_string(), &error))),
    };
    let mut batches = ResultBatches::new(to, entries_reply, limit);
    for entry in entries {
        let Ok(about) = entry.metadata() else { continue };
        let entry = entry_of(&entry.path(), &about);
        let bytes = entry.path.len();
        if !batches.add(entry, bytes)? {
            break;
        }
    }
    batches.finish().map(Ok)
}

/// Files by a pattern.
pub(super) fn glob(search: &GlobRequest, top: &Path, to: &mut dyn Write) -> io::Result<SearchResult<()>> {
    let pattern = match PathPattern::parse(&search.pattern) {
        Ok(pattern) => pattern,
        Err(failure) => return Ok(Err(failure)),
    };
    if let Err(error) = fs::read_dir(top) {
        return Ok(Err(io_failure(&search.path, &error)));
    }
    let mut batches = ResultBatches::new(to, entries_reply, search.limit);
    let is_whole = walk(top, &mut |path, about| {
        if !pattern.matches(&path.to_string_lossy(), &relative_path(path, top)) {
            return Ok(true);
        }
        let entry = entry_of(path, about);
        let bytes = entry.path.len();
        batches.add(entry, bytes)
    })?;
    batches.truncated |= !is_whole;
    batches.finish().map(Ok)
}

/// Lines that contain a text.
pub(super) fn grep(search: &GrepRequest, top: &Path, to: &mut dyn Write) -> io::Result<SearchResult<()>> {
    let invalid = |text: &str| Ok(Err(Failure::new(FailureKind::Invalid, text)));
    if search.pattern.is_empty() || search.pattern.len() > TEXT_PROBE_BYTES {
        return invalid("pattern must have 1 to 8,192 bytes");
    }
    let glob = match search.glob.as_deref().map(PathPattern::parse).transpose() {
        Ok(glob) => glob,
        Err(failure) => return Ok(Err(failure)),
    };
    let about = match fs::metadata(top) {
        Ok(about) => about,
        Err(error) => return Ok(Err(io_failure(&search.path, &error))),
    };
    let finder = Finder::new(search.pattern.as_bytes());
    let begun = Instant::now();
    let mut batches = ResultBatches::new(to, |matches| Reply::Lines { matches }, search.limit);
    if !about.is_dir() {
        grep_file(top, &finder, begun, &mut batches)?;
        return batches.finish().map(Ok);
    }
    let is_whole = walk(top, &mut |path, about| {
        let fits = |glob: &PathPattern| glob.matches(&path.to_string_lossy(), &relative_path(path, top));
        if !about.is_file() || !glob.as_ref().is_none_or(fits) {
            return Ok(true);
        }
        grep_file(path, &finder, begun, &mut batches)
    })?;
    batches.truncated |= !is_whole;
    batches.finish().map(Ok)
}

/// Adds the lines of a file. Whether there is room for more.
fn grep_file(
    path: &Path,
    finder: &Finder<'_>,
    begun: Instant,
    batches: &mut ResultBatches<'_, GrepMatch>,
) -> io::Result<bool> {
    // One that cannot be read is not a match.
    let Some(file) = open_text_file(path) else {
        return Ok(true);
    };
    let mut file = BufReader::with_capacity(TEXT_PROBE_BYTES.max(64 << 10), file);
    match file.fill_buf() {
        Ok(head) if !head[..head.len().min(TEXT_PROBE_BYTES)].contains(&0) => {}
        _ => return Ok(true),
    }
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        match next_line(&mut file, &mut line) {
            Ok(true) => number += 1,
            Ok(false) | Err(_) => return Ok(true),
        }
        if begun.elapsed() >= MAX_DURATION {
            batches.truncated = true;
            return Ok(false);
        }
        if finder.find(&line).is_none() {
            continue;
        }
        let text: String = String::from_utf8_lossy(&line).chars().take(MAX_LINE_CHARS).collect();
        let path = path.to_string_lossy().into_owned();
        let bytes = text.len() + path.len();
        let found = GrepMatch {
            path,
            line: number,
            text,
        };
        if !batches.add(found, bytes)? {
            return Ok(false);
        }
    }
}

/// The next line without its end; overlong lines are skipped. False at the end.
fn next_line(file: &mut BufReader<File>, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_begun = false;
    loop {
        let buffer = file.fill_buf()?;
        if buffer.is_empty() {
            return Ok(has_begun);
        }
        has_begun = true;
        let end = memchr::memchr(b'\n', buffer);
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let kept = part.len().min(MAX_LINE_BYTES.saturating_sub(line.len()));
        line.extend_from_slice(&part[..kept]);
        let used = part.len() + usize::from(end.is_some());
        file.consume(used);
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(true);
        }
    }
}

/// A file with bytes; what waits for another process is none.
fn open_text_file(path: &Path) -> Option<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
        .ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Visits everything below a folder in name order until the visitor stops. Follows no links. Returns whether everything
/// was visited.
fn walk(top: &Path, visit: &mut dyn FnMut(&Path, &Metadata) -> io::Result<bool>) -> io::Result<bool> {
    let begun = Instant::now();
    let mut visited = 0;
    let mut is_whole = true;
    let mut open = vec![read_folder(top)?.into_iter()];
    while let Some(entries) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        visited += 1;
        if visited > MAX_FILES || begun.elapsed() >= MAX_DURATION {
            return Ok(false);
        }
        // It may be gone.
        let Ok(about) = entry.metadata() else { continue };
        let path = entry.path();
        if !visit(&path, &about)? {
            return Ok(true);
        }
        if about.is_dir() {
            if open.len() >= MAX_DEPTH {
                is_whole = false;
            } else if let Ok(entries) = read_folder(&path) {
                open.push(entries.into_iter());
            }
        }
    }
    Ok(is_whole)
}

/// Entries of a folder by name, as many as one search looks at.
fn read_folder(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let mut entries: Vec<DirEntry> = fs::read_dir(folder)?.take(MAX_FILES).filter_map(Result::ok).collect();
    entries.sort_by_key(DirEntry::file_name);
    Ok(entries)
}

fn entries_reply(matches: Vec<Entry>) -> Reply {
    Reply::Entries { matches }
}

fn entry_of(path: &Path, about: &Metadata) -> Entry {
    Entry {
        path: path.to_string_lossy().into_owned(),
        is_dir: about.is_dir(),
        size_bytes: about.len(),
        modified_ns: about
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(about.mtime_nsec()),
    }
}

fn relative_path(path: &Path, top: &Path) -> String {
    let relative = path.strip_prefix(top).map_or_else(|_| path.to_owned(), PathBuf::from);
    relative.to_string_lossy().into_owned()
}
