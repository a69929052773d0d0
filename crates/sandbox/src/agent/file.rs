//! `box-file`: one file operation, in a process of the user. Its standard input is the connection.

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
use crate::file::{ByteRange, FileStat, byte_bounds};
use crate::wire::{self, CHUNK_BYTES, Failure, FailureKind, FileOperation, FrameKind, Reply};

/// A client that makes no progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
const DEFAULT_MODE: u32 = 0o644;
/// What can be set: no set-user-id.
const ALLOWED_MODES: u32 = 0o777;

type OperationResult = io::Result<Result<(), Failure>>;

pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let call = arguments.next().and_then(|call| call.into_string().ok());
    let call = serde_json::from_str(&call.ok_or(io::ErrorKind::InvalidInput)?)?;
    let mut connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    connection.set_read_timeout(Some(STALL_TIMEOUT))?;
    connection.set_write_timeout(Some(STALL_TIMEOUT))?;
    let failure = match perform(call, &mut connection) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(failure)) => failure,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Failure::new(FailureKind::Invalid, "path must not contain NUL")
        }
        Err(error) => return Err(error),
    };
    wire::write_json_blocking(&mut connection, &Reply::Failed { failure })
}

fn perform(call: FileOperation, connection: &mut UnixStream) -> OperationResult {
    match call {
        FileOperation::Stat { path } => stat(&path, connection),
        FileOperation::List { path, limit } => search::list(&absolute(&path)?, limit, connection),
        FileOperation::Read { path, range } => read(&path, range, connection),
        FileOperation::Write { path, mode } => write(&path, mode, connection),
        FileOperation::Glob { search } => search::glob(&search, &absolute(&search.path)?, connection),
        FileOperation::Grep { search } => search::grep(&search, &absolute(&search.path)?, connection),
    }
}

fn stat(path: &str, connection: &mut UnixStream) -> OperationResult {
    let place = absolute(path)?;
    let about = match fs::metadata(&place) {
        Ok(about) => about,
        Err(error) => return Ok(Err(io_failure(path, &error))),
    };
    let stat = file_stat(&place, &about);
    wire::write_json_blocking(connection, &Reply::Stat { stat }).map(Ok)
}

fn read(path: &str, range: Option<ByteRange>, connection: &mut UnixStream) -> OperationResult {
    let place = absolute(path)?;
    // What waits for another process must not be waited for.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&place);
    let (file, about) = match opened.and_then(|file| file.metadata().map(|about| (file, about))) {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(io_failure(path, &error))),
    };
    if about.is_dir() {
        return Ok(Err(Failure::new(FailureKind::IsDirectory, path)));
    }
    if !about.is_file() {
        return Ok(Err(Failure::new(
            FailureKind::Invalid,
            format!("{path} is not a regular file"),
        )));
    }
    let stat = file_stat(&place, &about);
    let Some((start, end)) = byte_bounds(range, stat.size_bytes) else {
        let mut failure = Failure::new(FailureKind::Range, path);
        failure.number = stat.size_bytes;
        return Ok(Err(failure));
    };
    wire::write_json_blocking(connection, &Reply::File { stat, start, end })?;
    send(&file, start, end, connection).map(Ok)
}

/// If the file shrinks, the connection ends early, which the reader detects.
fn send(file: &File, start: u64, end: u64, connection: &mut UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = start;
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let count = file.read_at(&mut buffer[..most], at)?;
        if count == 0 {
            return Ok(());
        }
        wire::write_frame_blocking(connection, FrameKind::Data, &buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

fn write(path: &str, mode: Option<u32>, connection: &mut UnixStream) -> OperationResult {
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
            format!("{path} is not a regular file"),
        )));
    }
    let mode = mode.or(old.as_ref().map(fs::Metadata::mode)).unwrap_or(DEFAULT_MODE) & ALLOWED_MODES;
    let draft = match TemporaryFile::create(&place, old.is_some()) {
        Ok(draft) => draft,
        Err(error) => return Ok(Err(io_failure(path, &error))),
    };
    wire::write_json_blocking(connection, &Reply::Done)?;
    if let Err(error) = draft.receive(connection) {
        return Ok(Err(io_failure(path, &error)));
    }
    match draft.commit(&place, mode) {
        Ok(about) => {
            let stat = file_stat(&place, &about);
            wire::write_json_blocking(connection, &Reply::Stat { stat }).map(Ok)
        }
        Err(error) => Ok(Err(io_failure(path, &error))),
    }
}

/// A temporary file next to its target. Dropped, it is removed.
struct TemporaryFile {
    file: File,
    /// `None` if only the file itself is writable, not its folder.
    path: Option<PathBuf>,
}

impl TemporaryFile {
    fn create(place: &Path, is_there: bool) -> io::Result<Self> {
        let folder = place.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(folder)?;
        // Process ids come again, and what a kill left has one, too.
        let path = folder.join(format!(".towpath-upload-{}", uuid::Uuid::now_v7().simple()));
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

    fn receive(&self, connection: &mut impl Read) -> io::Result<()> {
        loop {
            let frame = wire::read_frame_blocking(connection)?;
            match frame.kind {
                FrameKind::Data => (&self.file).write_all(&frame.body)?,
                FrameKind::End => return Ok(()),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn commit(mut self, place: &Path, mode: u32) -> io::Result<fs::Metadata> {
        if let Some(path) = &self.path {
            self.file.set_permissions(Permissions::from_mode(mode))?;
            fs::rename(path, place)?;
            self.path = None;
        }
        self.file.metadata()
    }
}

impl Drop for TemporaryFile {
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

fn file_stat(path: &Path, about: &fs::Metadata) -> FileStat {
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
pub(super) fn io_failure(path: &str, error: &io::Error) -> Failure {
    use io::ErrorKind::{
        InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    let (kind, text) = match error.kind() {
        NotFound | NotADirectory => (FailureKind::NotFound, format!("{path} does not exist in the sandbox")),
        IsADirectory => (FailureKind::IsDirectory, path.to_owned()),
        PermissionDenied | ReadOnlyFilesystem => (FailureKind::Denied, format!("{path}: {error}")),
        InvalidInput | InvalidFilename => (FailureKind::Invalid, format!("{path} is not a path")),
        _ => (FailureKind::Other, format!("{path}: {error}")),
    };
    Failure::new(kind, text)
}
