//! `box-file`: one operation on files, in a process of the user. Its standard input is the connection.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;

use super::search;
use crate::file::{ByteRange, FileStat};
use crate::wire::{self, CHUNK, Failure, FailureKind, FileCall, Kind, Reply};

/// A client that makes no progress.
const STALL: Duration = Duration::from_secs(120);
const MODE: u32 = 0o644;
/// What can be set: no set-user-id.
const MODES: u32 = 0o777;

type Done = io::Result<Result<(), Failure>>;

pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let call = arguments.next().and_then(|call| call.into_string().ok());
    let call = serde_json::from_str(&call.ok_or(io::ErrorKind::InvalidInput)?)?;
    let mut connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    connection.set_read_timeout(Some(STALL))?;
    connection.set_write_timeout(Some(STALL))?;
    let failure = match perform(call, &mut connection) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(failure)) => failure,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Failure::new(FailureKind::Invalid, "path may not hold NUL")
        }
        Err(error) => return Err(error),
    };
    wire::write_json_blocking(&mut connection, &Reply::Failed { failure })
}

fn perform(call: FileCall, connection: &mut UnixStream) -> Done {
    match call {
        FileCall::Stat { path } => stat(&path, connection),
        FileCall::List { path, limit } => search::list(&absolute(&path)?, limit, connection),
        FileCall::Read { path, range } => read(&path, range, connection),
        FileCall::Write { path, mode } => write(&path, mode, connection),
        FileCall::Glob { search } => search::glob(&search, &absolute(&search.path)?, connection),
        FileCall::Grep { search } => search::grep(&search, &absolute(&search.path)?, connection),
    }
}

fn stat(path: &str, connection: &mut UnixStream) -> Done {
    let place = absolute(path)?;
    let about = match fs::metadata(&place) {
        Ok(about) => about,
        Err(error) => return Ok(Err(failure(path, &error))),
    };
    let stat = described(&place, &about);
    wire::write_json_blocking(connection, &Reply::Stat { stat }).map(Ok)
}

fn read(path: &str, range: Option<ByteRange>, connection: &mut UnixStream) -> Done {
    let place = absolute(path)?;
    // What waits for another process must not be waited for.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&place);
    let (file, about) = match opened.and_then(|file| file.metadata().map(|about| (file, about))) {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(failure(path, &error))),
    };
    if about.is_dir() {
        return Ok(Err(Failure::new(FailureKind::IsDirectory, path)));
    }
    if !about.is_file() {
        return Ok(Err(Failure::new(
            FailureKind::Invalid,
            format!("{path} is no regular file"),
        )));
    }
    let stat = described(&place, &about);
    let Some((start, end)) = bounds(range, stat.size_bytes) else {
        let mut failure = Failure::new(FailureKind::Range, path);
        failure.number = stat.size_bytes;
        return Ok(Err(failure));
    };
    wire::write_json_blocking(connection, &Reply::File { stat, start, end })?;
    send(&file, start, end, connection).map(Ok)
}

/// First byte and the one behind the last. None: there are none.
fn bounds(range: Option<ByteRange>, size: u64) -> Option<(u64, u64)> {
    match range {
        None => Some((0, size)),
        Some(ByteRange::From(start, last)) => {
            let end = last.map_or(size, |last| last.saturating_add(1).min(size));
            (start < size && start < end).then_some((start, end))
        }
        Some(ByteRange::Last(count)) => (count > 0 && size > 0).then(|| (size.saturating_sub(count), size)),
    }
}

/// A file that became shorter ends the connection early, which its reader sees.
fn send(file: &File, start: u64, end: u64, connection: &mut UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = start;
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let count = file.read_at(&mut buffer[..most], at)?;
        if count == 0 {
            return Ok(());
        }
        wire::write_blocking(connection, Kind::Data, &buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

fn write(path: &str, mode: Option<u32>, connection: &mut UnixStream) -> Done {
    let asked = absolute(path)?;
    // A link leads to what is written.
    let place = fs::canonicalize(&asked).unwrap_or(asked);
    let old = fs::metadata(&place).ok();
    if old.as_ref().is_some_and(fs::Metadata::is_dir) || path.ends_with('/') {
        return Ok(Err(Failure::new(FailureKind::IsDirectory, path)));
    }
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return Ok(Err(Failure::new(
            FailureKind::Invalid,
            format!("{path} is no regular file"),
        )));
    }
    let mode = mode.or(old.as_ref().map(fs::Metadata::mode)).unwrap_or(MODE) & MODES;
    let draft = match Draft::begin(&place, old.is_some()) {
        Ok(draft) => draft,
        Err(error) => return Ok(Err(failure(path, &error))),
    };
    wire::write_json_blocking(connection, &Reply::Done)?;
    if let Err(error) = draft.fill(connection) {
        return Ok(Err(failure(path, &error)));
    }
    match draft.finish(&place, mode) {
        Ok(about) => {
            let stat = described(&place, &about);
            wire::write_json_blocking(connection, &Reply::Stat { stat }).map(Ok)
        }
        Err(error) => Ok(Err(failure(path, &error))),
    }
}

/// A file that is not whole yet, beside its place. Dropped, it is removed.
struct Draft {
    file: File,
    /// None where only the file itself may be written, not its folder.
    path: Option<PathBuf>,
}

impl Draft {
    fn begin(place: &Path, is_there: bool) -> io::Result<Self> {
        let folder = place.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(folder)?;
        let path = folder.join(format!(".towpath-upload-{}", std::process::id()));
        let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path);
        match made {
            Ok(file) => Ok(Self { file, path: Some(path) }),
            Err(error) if is_there && error.kind() == io::ErrorKind::PermissionDenied => {
                let flags = OFlag::O_NONBLOCK.bits();
                let file = OpenOptions::new().write(true).custom_flags(flags).open(place)?;
                file.set_len(0)?;
                Ok(Self { file, path: None })
            }
            Err(error) => Err(error),
        }
    }

    fn fill(&self, connection: &mut impl Read) -> io::Result<()> {
        loop {
            let frame = wire::read_blocking(connection)?;
            match frame.kind {
                Kind::Data => (&self.file).write_all(&frame.body)?,
                Kind::End => return Ok(()),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn finish(mut self, place: &Path, mode: u32) -> io::Result<fs::Metadata> {
        if let Some(path) = &self.path {
            self.file.set_permissions(Permissions::from_mode(mode))?;
            fs::rename(path, place)?;
            self.path = None;
        }
        self.file.metadata()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// From the folder that the agent starts this process in.
fn absolute(path: &str) -> io::Result<PathBuf> {
    if path.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(std::env::current_dir()?.join(path))
}

fn described(path: &Path, about: &fs::Metadata) -> FileStat {
    let modified_ns = about
        .mtime()
        .saturating_mul(1_000_000_000)
        .saturating_add(about.mtime_nsec());
    FileStat {
        path: path.to_string_lossy().into_owned(),
        size_bytes: about.len(),
        mode: about.mode() & 0o7777,
        is_dir: about.is_dir(),
        modified_ns,
        tag: format!(
            "{:x}-{:x}-{modified_ns:x}-{:x}.{:x}",
            about.ino(),
            about.len(),
            about.ctime(),
            about.ctime_nsec()
        ),
    }
}

/// What the client is told of an error.
pub(super) fn failure(path: &str, error: &io::Error) -> Failure {
    use io::ErrorKind::{
        InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    let (kind, text) = match error.kind() {
        NotFound | NotADirectory => (FailureKind::NotFound, format!("{path} does not exist in the box")),
        IsADirectory => (FailureKind::IsDirectory, path.to_owned()),
        PermissionDenied | ReadOnlyFilesystem => (FailureKind::Denied, format!("{path}: {error}")),
        InvalidInput | InvalidFilename => (FailureKind::Invalid, format!("{path} is no path")),
        _ => (FailureKind::Other, format!("{path}: {error}")),
    };
    Failure::new(kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_file() {
        for (range, expected) in [
            (None, Some((0, 10))),
            (Some(ByteRange::From(0, None)), Some((0, 10))),
            (Some(ByteRange::From(2, Some(3))), Some((2, 4))),
            (Some(ByteRange::From(2, Some(u64::MAX))), Some((2, 10))),
            (Some(ByteRange::From(9, Some(9))), Some((9, 10))),
            (Some(ByteRange::From(10, None)), None),
            (Some(ByteRange::From(4, Some(3))), None),
            (Some(ByteRange::Last(3)), Some((7, 10))),
            (Some(ByteRange::Last(30)), Some((0, 10))),
            (Some(ByteRange::Last(0)), None),
        ] {
            assert_eq!(bounds(range, 10), expected, "{range:?}");
        }
        assert_eq!(bounds(None, 0), Some((0, 0)));
    }
}
