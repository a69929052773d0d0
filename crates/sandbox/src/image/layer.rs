//! Unpacks the layers of an image over each other into one tree.
//!
//! Archives are untrusted. Paths are resolved as if the tree were the root of the machine, so that neither `..` nor a
//! link of an earlier layer leads out of it. Nothing in the tree has rights of its own: set-user-id bits, file
//! capabilities and other extended attributes are dropped, and devices are refused.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown, futimens,
    linkat, mkdirat, mknodat, open, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::digest::{Digest, Hasher};
use crate::launch::USER_COUNT;
use crate::tree;

/// Entries of all layers of an image.
const MAX_ENTRIES: u64 = 1_000_000;
/// Headers of one entry, with long names and extensions, which are read into memory.
const MAX_HEADER_BYTES: u64 = 4 << 20;
const MAX_PATH_BYTES: usize = 4000;
const MAX_NAME_BYTES: usize = 255;
/// Attempts to resolve a path while other programs of the machine move folders.
const MAX_RESOLVE_ATTEMPTS: usize = 100;
const BUFFER_BYTES: usize = 128 << 10;
/// Begins the name of an entry that hides one of the layers below.
const WHITEOUT: &[u8] = b".wh.";
/// Begins names that the whiteouts themselves need.
const WHITEOUT_OWN: &[u8] = b".wh..wh.";
/// Hides all that layers below have in the folder.
const WHITEOUT_ALL: &[u8] = b".wh..wh..opq";
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Decompresses a layer and returns its size. Fails if it is longer than `limit` or has another digest.
pub(super) fn decompress(blob: &Path, archive: &Path, content: &Digest, limit: u64) -> io::Result<u64> {
    let mut file = File::open(blob)?;
    let mut magic = [0; 4];
    let read = read_up_to(&mut file, &mut magic)?;
    file.rewind()?;
    let file = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut source: Box<dyn Read> = if magic[..read].starts_with(&GZIP_MAGIC) {
        Box::new(flate2::bufread::MultiGzDecoder::new(file))
    } else if magic[..read] == ZSTD_MAGIC {
        Box::new(zstd::Decoder::with_buffer(file)?)
    } else {
        Box::new(file)
    };
    let mut target = File::options().create_new(true).write(true).open(archive)?;
    let (mut hasher, mut size) = (Hasher::new(), 0_u64);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = source.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        size += length as u64;
        if size > limit {
            return Err(refusal("the image has more bytes than this machine accepts"));
        }
        hasher.update(&buffer[..length]);
        target.write_all(&buffer[..length])?;
    }
    if hasher.finish() == *content {
        Ok(size)
    } else {
        Err(refusal("a layer differs from its digest"))
    }
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

/// The files of an image.
#[derive(Debug)]
pub(super) struct ImageTree {
    root: OwnedFd,
    /// The host user that is root in boxes. `None`: everything belongs to the platform's own account.
    first_user: Option<u32>,
    entries_left: u64,
    bytes_left: u64,
}

impl ImageTree {
    /// A tree in an empty folder, whose files may have this many bytes.
    pub(super) fn open(folder: &Path, first_user: Option<u32>, max_bytes: u64) -> io::Result<Self> {
        let root = open(
            folder,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let tree = Self {
            root,
            first_user,
            entries_left: MAX_ENTRIES,
            bytes_left: max_bytes,
        };
        tree.set_folder_metadata(&tree.root, Owner::ROOT, 0o755)?;
        Ok(tree)
    }

    /// Adds a layer. Its whiteouts come first, because they hide what layers below have and never what the layer itself
    /// adds.
    pub(super) fn apply(&mut self, archive: &File) -> io::Result<()> {
        walk(archive, |entry| {
            self.entries_left = self
                .entries_left
                .checked_sub(1)
                .ok_or_else(|| refusal(format!("the image has more than {MAX_ENTRIES} entries")))?;
            let path = entry.path_bytes().into_owned();
            self.hide(&split(&path)?)
        })?;
        walk(archive, |entry| {
            let path = entry.path_bytes().into_owned();
            self.add(entry, &path)
        })
    }

    /// Creates what programs expect, and the working folder.
    pub(super) fn complete(&self, work_dir: Option<&str>) -> io::Result<()> {
        let hosts = [OsStr::new("etc"), OsStr::new("hosts")];
        let (parent, name) = self.parent_of(&hosts)?;
        if kind_at(&parent, name)?.is_none() {
            let mut file = self.create_file(&parent, name)?;
            file.write_all(b"127.0.0.1 localhost\n::1 localhost ip6-localhost\n")?;
            self.set_metadata(&file, Owner::ROOT, 0o644)?;
        }
        if let Some(folder) = work_dir {
            self.folder(&split(folder.as_bytes())?)?;
        }
        Ok(())
    }

    /// Applies a whiteout; does nothing for other entries.
    fn hide(&self, path: &[&OsStr]) -> io::Result<()> {
        let Some((name, folders)) = path.split_last() else {
            return Ok(());
        };
        if folders.iter().any(|folder| folder.as_bytes().starts_with(WHITEOUT)) {
            return Err(refusal_of(path, "is below a whiteout"));
        }
        let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) else {
            return Ok(());
        };
        let is_all = name.as_bytes() == WHITEOUT_ALL;
        if !is_all && name.as_bytes().starts_with(WHITEOUT_OWN) {
            return Ok(());
        }
        if !is_all && matches!(hidden, b"" | b"." | b"..") {
            return Err(refusal_of(path, "hides no name"));
        }
        let parent = match self.open_folder(folders) {
            // The layers below have nothing there.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            other => other.map_err(|errno| path_error(path, errno))?,
        };
        if !is_all {
            return remove(&parent, OsStr::from_bytes(hidden));
        }
        for child in std::fs::read_dir(descriptor_path(&parent))? {
            remove(&parent, &child?.file_name())?;
        }
        Ok(())
    }

    fn add(&mut self, entry: &mut Entry<'_, BoundedReader>, path: &[u8]) -> io::Result<()> {
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            return Ok(());
        }
        let parts = split(path)?;
        let owner = self.owner_of(entry, &parts)?;
        let mode = entry.header().mode()?;
        // Old archives mark a folder by a slash alone.
        let is_folder = kind.is_dir() || (kind.is_file() && path.ends_with(b"/"));
        let Some(name) = parts.last() else {
            return if is_folder {
                self.set_folder_metadata(&self.root, owner, mode)
            } else {
                Err(refusal("an entry that is not a folder has no name"))
            };
        };
        if name.as_bytes().starts_with(WHITEOUT) {
            return Ok(());
        }
        if kind.is_character_special() || kind.is_block_special() {
            // A box has devices of its own there.
            return if parts[0] == "dev" {
                Ok(())
            } else {
                Err(refusal_of(&parts, "is a device"))
            };
        }
        let (parent, name) = self.parent_of(&parts)?;
        let at = |errno: Errno| path_error(&parts, errno);
        if is_folder {
            if kind_at(&parent, name)? != Some(FileType::Directory) {
                remove(&parent, name)?;
                mkdirat(&parent, name, Mode::RWXU).map_err(at)?;
            }
            return self.set_folder_metadata(&open_child(&parent, name).map_err(at)?, owner, mode);
        }
        if kind.is_hard_link() {
            return self.add_hard_link(entry, &parts, &parent, name);
        }
        remove(&parent, name)?;
        if kind.is_symlink() {
            let target = entry.link_name_bytes().unwrap_or_default();
            if target.is_empty() || target.len() > MAX_PATH_BYTES || target.contains(&0) {
                return Err(refusal_of(&parts, "is a symbolic link without a usable target"));
            }
            symlinkat(OsStr::from_bytes(&target), &parent, name).map_err(at)?;
            return self.set_owner(&parent, name, owner);
        }
        if kind.is_fifo() {
            let mode = Mode::from_raw_mode(mode & 0o777);
            mknodat(&parent, name, FileType::Fifo, mode, 0).map_err(at)?;
            return self.set_owner(&parent, name, owner);
        }
        if !is_regular(kind) {
            return Err(refusal_of(&parts, "is of an unknown type"));
        }
        self.add_file(entry, &parts, &parent, owner, mode)
    }

    fn add_file(
        &mut self,
        entry: &mut Entry<'_, BoundedReader>,
        path: &[&OsStr],
        parent: &OwnedFd,
        owner: Owner,
        mode: u32,
    ) -> io::Result<()> {
        let size = entry.size();
        self.bytes_left = self
            .bytes_left
            .checked_sub(size)
            .ok_or_else(|| refusal("the image has more bytes than this machine accepts"))?;
        let name = path.last().copied().unwrap_or_default();
        let mut file = self.create_file(parent, name)?;
        if io::copy(entry, &mut file)? != size {
            return Err(refusal_of(path, "is shorter than its header says"));
        }
        // Without set-user-id and set-group-id.
        self.set_metadata(&file, owner, mode & 0o777)?;
        // Programs compare it, such as Python for its compiled files.
        let time = Timespec {
            tv_sec: entry
                .header()
                .mtime()
                .ok()
                .and_then(|time| time.try_into().ok())
                .unwrap_or(0),
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(futimens(&file, &times)?)
    }

    /// The target is a path in the tree. A symbolic link at its end is linked itself.
    fn add_hard_link(
        &self,
        entry: &Entry<'_, BoundedReader>,
        path: &[&OsStr],
        parent: &OwnedFd,
        name: &OsStr,
    ) -> io::Result<()> {
        let target = entry.link_name_bytes().unwrap_or_default();
        let target = split(&target)?;
        let Some((target_name, folders)) = target.split_last() else {
            return Err(refusal_of(path, "is a hard link without a target"));
        };
        let missing = || refusal_of(path, "is a hard link to something that is no file of the image");
        let from = self.open_folder(folders).map_err(|_| missing())?;
        if kind_at(&from, target_name)?.is_none_or(|kind| kind == FileType::Directory) {
            return Err(missing());
        }
        if target == path {
            return Ok(());
        }
        remove(parent, name)?;
        // The target may have been below the name.
        linkat(&from, *target_name, parent, name, AtFlags::empty()).map_err(|errno| path_error(path, errno))
    }

    fn owner_of(&self, entry: &Entry<'_, BoundedReader>, path: &[&OsStr]) -> io::Result<Owner> {
        let (user, group) = (entry.header().uid()?, entry.header().gid()?);
        let inner = |id: u64| u32::try_from(id).ok().filter(|id| *id < USER_COUNT);
        match (inner(user), inner(group)) {
            (Some(user), Some(group)) => Ok(Owner { user, group }),
            // It is not used.
            _ if self.first_user.is_none() => Ok(Owner::ROOT),
            _ => Err(refusal_of(path, "belongs to a user or group above 65535")),
        }
    }

    /// The folder of a path, created if missing, and the last name.
    fn parent_of<'p>(&self, path: &[&'p OsStr]) -> io::Result<(OwnedFd, &'p OsStr)> {
        let (name, folders) = path
            .split_last()
            .ok_or_else(|| refusal("an entry that is not a folder has no name"))?;
        Ok((self.folder(folders)?, *name))
    }

    /// Opens a folder, and creates what is missing of its path.
    fn folder(&self, path: &[&OsStr]) -> io::Result<OwnedFd> {
        let at = |errno| path_error(path, errno);
        match self.open_folder(path) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(at),
        }
        let mut current = self.open_folder(&[]).map_err(at)?;
        for (index, name) in path.iter().enumerate() {
            let part = &path[..=index];
            current = match self.open_folder(part) {
                Err(Errno::NOENT) => {
                    // A link that leads nowhere exists, and fails here.
                    mkdirat(&current, *name, Mode::RWXU).map_err(at)?;
                    let made = self.open_folder(part).map_err(at)?;
                    self.set_folder_metadata(&open_child(&current, name).map_err(at)?, Owner::ROOT, 0o755)?;
                    made
                }
                other => other.map_err(at)?,
            };
        }
        Ok(current)
    }

    /// Opens a folder as a process would whose root is the tree.
    fn open_folder(&self, path: &[&OsStr]) -> Result<OwnedFd, Errno> {
        let mut whole = PathBuf::from(".");
        whole.extend(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let mut opened = Err(Errno::AGAIN);
        for _ in 0..MAX_RESOLVE_ATTEMPTS {
            opened = openat2(&self.root, &whole, flags, Mode::empty(), resolve);
            if !matches!(opened, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        opened
    }

    fn create_file(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
        Ok(File::from(file.map_err(|errno| path_error(&[name], errno))?))
    }

    fn set_folder_metadata(&self, folder: &OwnedFd, owner: Owner, mode: u32) -> io::Result<()> {
        let mode = match self.first_user {
            Some(_) => mode & 0o7777,
            // The account is no superuser: it could not unpack further into a folder that it may not write to.
            None => (mode & 0o7777) | 0o700,
        };
        self.set_metadata(folder, owner, mode)
    }

    fn set_metadata(&self, file: &impl AsFd, owner: Owner, mode: u32) -> io::Result<()> {
        // Before the mode: a change of the owner clears bits of it.
        if let Some(first) = self.first_user {
            fchown(file, Some(owner.user(first)), Some(owner.group(first)))?;
        }
        Ok(fchmod(file, Mode::from_raw_mode(mode))?)
    }

    fn set_owner(&self, parent: &OwnedFd, name: &OsStr, owner: Owner) -> io::Result<()> {
        let Some(first) = self.first_user else { return Ok(()) };
        let (user, group) = (owner.user(first), owner.group(first));
        Ok(chownat(
            parent,
            name,
            Some(user),
            Some(group),
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }
}

/// A user and a group of the image.
#[derive(Clone, Copy, Debug)]
struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    const ROOT: Self = Self { user: 0, group: 0 };

    fn user(self, first: u32) -> Uid {
        Uid::from_raw(first + self.user)
    }

    fn group(self, first: u32) -> Gid {
        Gid::from_raw(first + self.group)
    }
}

/// Reads an archive up to a bound that the caller moves.
struct BoundedReader {
    file: File,
    left: Rc<Cell<u64>>,
}

impl Read for BoundedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(refusal("the headers of an entry are too long"));
        }
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(&mut buffer[..length])?;
        self.left.set(left - read as u64);
        Ok(read)
    }
}

impl Seek for BoundedReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Visits the entries of an archive. What is not read of an entry is skipped.
fn walk(mut archive: &File, mut visit: impl FnMut(&mut Entry<'_, BoundedReader>) -> io::Result<()>) -> io::Result<()> {
    archive.rewind()?;
    let left = Rc::new(Cell::new(MAX_HEADER_BYTES));
    let reader = BoundedReader {
        file: archive.try_clone()?,
        left: Rc::clone(&left),
    };
    let mut archive = Archive::new(reader);
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        // The content goes to a file.
        left.set(u64::MAX);
        visit(&mut entry)?;
        left.set(MAX_HEADER_BYTES);
    }
    Ok(())
}

/// The parts of a path of an archive, which begins at the root of the tree.
fn split(path: &[u8]) -> io::Result<Vec<&OsStr>> {
    let shown = || String::from_utf8_lossy(&path[..path.len().min(100)]).into_owned();
    if path.len() > MAX_PATH_BYTES || path.contains(&0) {
        return Err(refusal(format!("the path {:?} is too long or contains NUL", shown())));
    }
    let mut parts = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(refusal(format!("the path {:?} contains '..'", shown()))),
            part if part.len() > MAX_NAME_BYTES => {
                return Err(refusal(format!("the path {:?} has a name that is too long", shown())));
            }
            part => parts.push(OsStr::from_bytes(part)),
        }
    }
    Ok(parts)
}

fn is_regular(kind: EntryType) -> bool {
    kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse()
}

/// The type of an entry of a folder, if there is one.
fn kind_at(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a folder that is not a link.
fn open_child(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Removes an entry of a folder with everything below it.
fn remove(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match kind_at(parent, name)? {
        None => Ok(()),
        Some(FileType::Directory) => tree::remove(&descriptor_path(parent).join(name)),
        Some(_) => Ok(unlinkat(parent, name, AtFlags::empty())?),
    }
}

/// A name by which the kernel finds what was opened.
fn descriptor_path(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// The archive is refused. Errors of the machine have a number of the system instead.
fn refusal(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn refusal_of(path: &[&OsStr], why: &str) -> io::Error {
    let path: PathBuf = path.iter().collect();
    refusal(format!("{:?} {why}", path.display().to_string()))
}

/// Errors that the archive causes are refusals of it.
fn path_error(path: &[&OsStr], errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP => refusal_of(path, "leads through links in a circle"),
        Errno::NOTDIR => refusal_of(path, "is below something that is not a folder"),
        Errno::NAMETOOLONG => refusal_of(path, "is too long"),
        Errno::EXIST | Errno::NOENT => refusal_of(path, "leads through a link to something that does not exist"),
        Errno::MLINK => refusal_of(path, "has too many links"),
        Errno::XDEV => refusal_of(path, "leads out of the image"),
        errno => errno.into(),
    }
}

#[cfg(test)]
mod tests;
