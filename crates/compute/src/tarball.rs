//! Source archives that clients send: tar, compressed by gzip.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::EntryType;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::root::make;
use crate::tree::{self, Limits};

/// An archive may unpack to this many times its own size, beside what is small anyway.
const LARGEST_RATIO: u64 = 200;
const SMALL: u64 = 64 << 20;

/// Unpacks the archive into the folder `to`, which must not be there yet: it appears whole or not at all. `work` is an
/// empty folder on the same disk.
///
/// # Errors
/// It is no such archive, something in it leads out of the folder or is no file, folder or link, or there is too much
/// of it.
pub fn unpack(archive: &Path, work: &Path, to: &Path, limits: Limits, log: &Log) -> Result<()> {
    let file = File::open(archive).map_err(Error::io("opening the source archive"))?;
    let packed = file.metadata().map_err(Error::io("opening the source archive"))?.len();
    let most = limits.bytes.min(packed.saturating_mul(LARGEST_RATIO).max(SMALL));
    let files = work.join("source");
    make(&files)?;
    // Bounded before anything is looked at: headers and padding count too.
    let plain = Bounded {
        from: MultiGzDecoder::new(io::BufReader::new(file)),
        left: most,
    };
    let mut archive = tar::Archive::new(plain);
    let mut links = Vec::new();
    let mut seen = HashSet::new();
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => {
            Error::Refused(format!("the source archive unpacks to more than {} MB", most >> 20))
        }
        _ => Error::Refused(format!(
            "the source archive cannot be read as a gzip-compressed tar: {error}"
        )),
    };
    for (count, entry) in (1..).zip(archive.entries().map_err(unreadable)?) {
        if count > limits.entries {
            return Err(Error::Refused(format!(
                "the source archive has more than {} entries",
                limits.entries
            )));
        }
        let mut entry = entry.map_err(unreadable)?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            continue;
        }
        let path = entry.path().map_err(unreadable)?.into_owned();
        let Some(inner) = inside(&path)? else { continue };
        let place = files.join(&inner);
        match kind {
            EntryType::Directory => folder(&files, &inner)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                folder(&files, inner.parent().unwrap_or(Path::new("")))?;
                let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
                // The last one of a name counts, as for every reader of tar.
                if !seen.insert(inner.clone()) {
                    fs::remove_file(&place).map_err(|_| twice(&inner))?;
                }
                let mut file = OpenOptions::new()
                    .create_new(true)
                    .write(true)
                    .mode(if executable { 0o755 } else { 0o644 })
                    .open(&place)
                    .map_err(|_| twice(&inner))?;
                io::copy(&mut entry, &mut file).map_err(unreadable)?;
                file.flush().map_err(Error::io("writing the source"))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(unreadable)?.unwrap_or_default().into_owned();
                if target.is_absolute() {
                    let shown = inner.display();
                    return Err(Error::Refused(format!(
                        "the source archive has a link {shown} that leads out of it"
                    )));
                }
                links.push((inner, target));
            }
            other => {
                let shown = inner.display();
                return Err(Error::Refused(format!(
                    "the source archive has {shown}, which is no file, folder or symbolic link ({other:?})"
                )));
            }
        }
    }
    // Last: nothing is ever written through a link. Where they all lead is judged once all of them are there.
    for (place, target) in links {
        folder(&files, place.parent().unwrap_or(Path::new("")))?;
        symlink(&target, files.join(&place)).map_err(|_| twice(&place))?;
    }
    tree::check(&files, limits, log)?;
    fs::rename(&files, to).map_err(Error::io("putting the source in its place"))
}

/// The path as it may be below a folder; `None` for the folder itself.
fn inside(path: &Path) -> Result<Option<PathBuf>> {
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
            Component::Normal(name) if name.to_str().is_some_and(|name| !name.contains(['\\', '\0'])) => {
                inner.push(name)
            }
            _ => return Err(refused()),
        }
    }
    Ok((!inner.as_os_str().is_empty()).then_some(inner))
}

fn folder(top: &Path, inner: &Path) -> Result<()> {
    fs::create_dir_all(top.join(inner)).map_err(|_| twice(inner))
}

fn twice(inner: &Path) -> Error {
    let shown = inner.display();
    Error::Refused(format!("the source archive has {shown} as two different things"))
}

/// Fails where more than so many bytes come.
struct Bounded<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to)?;
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        Ok(read)
    }
}
