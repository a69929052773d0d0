//! Source archives from clients: gzip-compressed tar.
//!
//! Everything an archive can inflate is bounded in advance: its decompressed size, the written part of it, files and
//! folders, names, and metadata in front of entries. Sparse files are refused: they are as large as they claim, without
//! content.

mod entry;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::EntryType;

use self::entry::EntryHeaders;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::root::make;
use crate::tree::{self, Limits};

/// Maximum ratio of decompressed to compressed size, beyond a small free allowance.
const LARGEST_RATIO: u64 = 200;
const SMALL: u64 = 64 << 20;
/// Bytes of all names together: they are kept until the end.
const ALL_NAMES: u64 = 64 << 20;
/// The longest path, and the longest name in it.
const LONGEST_PATH: usize = 2048;
const LONGEST_NAME: usize = 255;

/// Unpacks the archive into the folder `to`, which must not exist: it appears atomically. `work` is an empty folder on
/// the same disk.
pub fn unpack(archive: &Path, work: &Path, to: &Path, limits: Limits, log: &Log) -> Result<()> {
    let file = File::open(archive).map_err(Error::io("opening the source archive"))?;
    let packed = file.metadata().map_err(Error::io("opening the source archive"))?.len();
    let most = limits.bytes.min(packed.saturating_mul(LARGEST_RATIO).max(SMALL));
    let files = work.join("source");
    make(&files)?;
    // Bounded before parsing: headers and padding count too.
    let plain = BoundedReader {
        from: MultiGzDecoder::new(io::BufReader::new(file)),
        remaining: most,
    };
    let mut unpacking = Unpacker {
        top: &files,
        limits,
        max_bytes: most,
        written: 0,
        entries: 0,
        names: 0,
        seen: HashSet::new(),
        folders: HashSet::new(),
        links: Vec::new(),
    };
    unpacking.entries(&mut tar::Archive::new(plain))?;
    unpacking.links()?;
    tree::check(&files, limits, log)?;
    fs::rename(&files, to).map_err(Error::io("moving the source into place"))
}

struct Unpacker<'a> {
    top: &'a Path,
    limits: Limits,
    /// What the archive may unpack to.
    max_bytes: u64,
    /// Bytes of files.
    written: u64,
    /// Files, folders and links.
    entries: u64,
    /// Bytes of names.
    names: u64,
    seen: HashSet<PathBuf>,
    folders: HashSet<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
}

impl Unpacker<'_> {
    fn entries<R: Read>(&mut self, archive: &mut tar::Archive<R>) -> Result<()> {
        let mut described = EntryHeaders::default();
        let entries = archive.entries().map_err(|error| self.unreadable(error))?;
        // Raw: metadata of entries are read here with a limit; the library would read them whole.
        for entry in entries.raw(true) {
            let mut entry = entry.map_err(|error| self.unreadable(error))?;
            match described.take(&mut entry) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(entry::Error::Refused(why)) => return Err(Error::Refused(why)),
                Err(entry::Error::Unreadable(error)) => return Err(self.unreadable(error)),
            }
            let about = std::mem::take(&mut described).of(&entry)?;
            let Some(inner) = inside(&about.path)? else { continue };
            self.named(about.path.as_os_str().len() + about.link.as_os_str().len())?;
            match entry.header().entry_type() {
                EntryType::Directory => {
                    if self.folders.contains(&inner) {
                        self.counted()?;
                    }
                    self.folder(&inner)?;
                }
                EntryType::Regular | EntryType::Continuous => self.file(&inner, &mut entry)?,
                EntryType::Symlink => {
                    if about.link.is_absolute() {
                        let shown = inner.display();
                        return Err(Error::Refused(format!(
                            "the source archive has a link {shown} that leads out of it"
                        )));
                    }
                    self.counted()?;
                    self.links.push((inner, about.link));
                }
                EntryType::GNUSparse => {
                    let shown = inner.display();
                    return Err(Error::Refused(format!(
                        "the source archive has {shown} as a sparse file; pack it as a regular file"
                    )));
                }
                other => {
                    let shown = inner.display();
                    return Err(Error::Refused(format!(
                        "the source archive has {shown}, which is not a file, folder or symbolic link ({other:?})"
                    )));
                }
            }
        }
        Ok(())
    }

    fn file<R: Read>(&mut self, inner: &Path, entry: &mut tar::Entry<'_, R>) -> Result<()> {
        self.folder(inner.parent().unwrap_or(Path::new("")))?;
        let place = self.top.join(inner);
        let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        self.counted()?;
        // The last one of a name counts, as for every reader of tar.
        if !self.seen.insert(inner.to_owned()) {
            fs::remove_file(&place).map_err(|_| duplicate_entry(inner))?;
        }
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(if executable { 0o755 } else { 0o644 })
            .open(&place)
            .map_err(|_| duplicate_entry(inner))?;
        let left = self.limits.bytes.saturating_sub(self.written);
        let copied = io::copy(&mut entry.take(left.saturating_add(1)), &mut file);
        let copied = copied.map_err(|error| self.unreadable(error))?;
        if copied > left {
            return Err(Error::Refused(format!(
                "the source is larger than {} MB",
                self.limits.bytes >> 20
            )));
        }
        self.written += copied;
        file.flush().map_err(Error::io("writing the source"))
    }

    /// Links come last: nothing is ever written through one. Their targets are checked once all of them exist.
    fn links(&mut self) -> Result<()> {
        for (place, target) in std::mem::take(&mut self.links) {
            self.folder(place.parent().unwrap_or(Path::new("")))?;
            symlink(&target, self.top.join(&place)).map_err(|_| duplicate_entry(&place))?;
        }
        Ok(())
    }

    /// Creates a folder and its parents. Each is counted: one path can name a thousand of them.
    fn folder(&mut self, inner: &Path) -> Result<()> {
        let mut folder = PathBuf::new();
        for part in inner.components() {
            folder.push(part);
            if self.folders.contains(&folder) {
                continue;
            }
            self.counted()?;
            self.named(folder.as_os_str().len())?;
            fs::create_dir(self.top.join(&folder)).map_err(|_| duplicate_entry(&folder))?;
            self.folders.insert(folder.clone());
        }
        Ok(())
    }

    fn counted(&mut self) -> Result<()> {
        self.entries += 1;
        if self.entries <= self.limits.entries {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the source archive has more than {} entries",
            self.limits.entries
        )))
    }

    fn named(&mut self, bytes: usize) -> Result<()> {
        self.names += bytes as u64;
        if self.names <= ALL_NAMES {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the names in the source archive exceed {} MB in total",
            ALL_NAMES >> 20
        )))
    }

    fn unreadable(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::FileTooLarge => Error::Refused(format!(
                "the source archive unpacks to more than {} MB",
                self.max_bytes >> 20
            )),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::io("writing the source")(error),
            _ => Error::Refused(format!(
                "the source archive cannot be read as a gzip-compressed tar: {error}"
            )),
        }
    }
}

/// The path relative to a folder; `None` for the folder itself.
fn inside(path: &Path) -> Result<Option<PathBuf>> {
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(Error::Refused(format!(
            "the source archive has a path of more than {LONGEST_PATH} bytes"
        )));
    }
    let refused = || {
        let shown = path.display();
        Error::Refused(format!(
            "the source archive has an entry {shown:?} that leads out of it"
        ))
    };
    let mut inner = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) if name.len() > LONGEST_NAME => {
                return Err(Error::Refused(format!(
                    "the source archive has a name of more than {LONGEST_NAME} bytes"
                )));
            }
            Component::Normal(name) if name.to_str().is_some_and(|name| !name.contains(['\\', '\0'])) => {
                inner.push(name);
            }
            _ => return Err(refused()),
        }
    }
    Ok((!inner.as_os_str().is_empty()).then_some(inner))
}

fn duplicate_entry(inner: &Path) -> Error {
    let shown = inner.display();
    Error::Refused(format!("the source archive has conflicting entries for {shown}"))
}

/// Fails where more than so many bytes come.
struct BoundedReader<R> {
    from: R,
    remaining: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to)?;
        self.remaining = self
            .remaining
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        Ok(read)
    }
}
