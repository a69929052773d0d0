//! Archives of volumes. Their content is untrusted: nothing in it may lead out of the folder into which an archive is
//! unpacked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use tar::{EntryType, Header};

use super::backup::{Ids, VolumeMetadata};
use super::volume::PLACE;
use crate::error::{Error, Result};
use crate::root::make;

/// Files, folders and links of a volume.
const ENTRIES: usize = 1_000_000;
/// Zeros that an archive ends with.
const END: usize = 1024;

/// Unpacks the archive of a folder into another, empty one. Returns the owner of the database, else of any file.
/// Top-level links and special files are skipped.
pub(super) fn unpack(mut archive: File, into: &Path) -> Result<Option<Ids>> {
    let failed = || Error::io("reading the files of a volume");
    if !has_ended(&mut archive).map_err(failed())? {
        return Err(Error::Transient(
            "the Docker engine stopped sending the files of a volume".to_owned(),
        ));
    }
    archive.rewind().map_err(failed())?;
    let mut archive = tar::Archive::new(io::BufReader::new(archive));
    let (mut of_database, mut of_file) = (None, None);
    let (mut links, mut names) = (Vec::new(), Vec::new());
    for (count, entry) in archive.entries().map_err(failed())?.enumerate() {
        if count >= ENTRIES {
            return Err(Error::Refused(format!("a volume has more than {ENTRIES} files")));
        }
        let mut entry = entry.map_err(failed())?;
        let path = entry.path().map_err(failed())?.into_owned();
        let Some(inner) = inside(&path)? else { continue };
        let place = into.join(&inner);
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            make(&place)?;
            continue;
        }
        make(place.parent().unwrap_or(into))?;
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().map_err(failed())?;
                let ids = Ids {
                    uid: entry.header().uid().map_err(failed())?,
                    gid: entry.header().gid().map_err(failed())?,
                };
                if inner.extension().is_some_and(|end| end == "db") {
                    of_database.get_or_insert(ids);
                }
                of_file.get_or_insert(ids);
                write(&mut entry, &place, mode)?;
            }
            EntryType::Link | EntryType::Symlink => {
                let leads = entry.link_name().map_err(failed())?;
                let leads =
                    leads.ok_or_else(|| Error::Refused(format!("the target of the link {path:?} does not exist")))?;
                if kind == EntryType::Link {
                    names.extend(inside(&leads)?.map(|leads| (into.join(leads), place)));
                } else if inner.components().count() > 1 {
                    links.push((leads.into_owned(), place));
                }
            }
            _ => {}
        }
    }
    // Other names first: nothing that was made until now is a link.
    for (file, place) in names {
        let is_file = fs::symlink_metadata(&file).is_ok_and(|about| about.is_file());
        if is_file {
            fs::hard_link(&file, &place).map_err(failed())?;
        }
    }
    // Links are created last and never replace anything: nothing is written through one.
    for (leads, place) in links {
        symlink(leads, &place).map_err(failed())?;
    }
    Ok(of_database.or(of_file))
}

fn write(from: &mut impl Read, place: &Path, mode: u32) -> Result<()> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(if mode & 0o100 == 0 { 0o600 } else { 0o700 })
        .open(place)
        .and_then(|mut file| io::copy(from, &mut file));
    made.map(drop)
        .map_err(Error::io(format!("writing {}", place.display())))
}

/// A failed engine may end its answer as if it were complete.
fn has_ended(archive: &mut File) -> io::Result<bool> {
    if archive.metadata()?.len() < END as u64 {
        return Ok(false);
    }
    archive.seek(SeekFrom::End(-(END as i64)))?;
    let mut end = [1; END];
    archive.read_exact(&mut end)?;
    Ok(end.iter().all(|byte| *byte == 0))
}

/// The path relative to the packed folder; `None` for the folder itself.
fn inside(path: &Path) -> Result<Option<PathBuf>> {
    let mut inner = PathBuf::new();
    let mut is_top = true;
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(_) if is_top => is_top = false,
            Component::Normal(name) => inner.push(name),
            _ => {
                return Err(Error::Refused(format!("the path {path:?} leads out of the volume")));
            }
        }
    }
    Ok((!inner.as_os_str().is_empty()).then_some(inner))
}

/// Packs the files of a folder for a volume, except top-level ones named in `leave`.
pub(super) fn pack(from: &Path, leave: &[&str], placed: &VolumeMetadata, to: File) -> io::Result<()> {
    let top = Path::new(&PLACE[1..]);
    let mut tar = tar::Builder::new(io::BufWriter::new(to));
    let mut folder = Header::new_gnu();
    folder.set_entry_type(EntryType::Directory);
    folder.set_size(0);
    folder.set_mtime(0);
    folder.set_mode(placed.mode);
    folder.set_uid(placed.folder.uid);
    folder.set_gid(placed.folder.gid);
    tar.append_data(&mut folder, top, io::empty())?;
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(from.join(&below))? {
            let entry = entry?;
            let name = entry.file_name();
            if below.as_os_str().is_empty() && leave.iter().any(|left| name == **left) {
                continue;
            }
            let about = entry.metadata()?;
            let inner = below.join(name);
            let mut header = Header::new_gnu();
            header.set_metadata(&about);
            header.set_uid(placed.files.uid);
            header.set_gid(placed.files.gid);
            if about.is_dir() {
                tar.append_data(&mut header, top.join(&inner), io::empty())?;
                folders.push(inner);
            } else if about.is_symlink() {
                tar.append_link(&mut header, top.join(&inner), fs::read_link(entry.path())?)?;
            } else if about.is_file() {
                tar.append_data(&mut header, top.join(&inner), File::open(entry.path())?)?;
            }
        }
    }
    tar.into_inner()?.flush()
}

/// The parts of an archive with one program: before and after its bytes.
pub(super) fn around(program: &Path, folders: &[&str], bytes: u64) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut head = Vec::new();
    let mut entry = |path: &Path, kind: EntryType, bytes: u64| -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(path)?;
        header.set_size(bytes);
        header.set_mode(0o700);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        head.extend_from_slice(header.as_bytes());
        Ok(())
    };
    for folder in folders {
        entry(Path::new(folder), EntryType::Directory, 0)?;
    }
    entry(program, EntryType::Regular, bytes)?;
    let padding = usize::try_from(bytes.next_multiple_of(512) - bytes).unwrap_or_default();
    Ok((head, vec![0; padding + END]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn placed() -> VolumeMetadata {
        VolumeMetadata {
            files: Ids { uid: 7, gid: 8 },
            ..VolumeMetadata::default()
        }
    }

    fn packed(fill: impl FnOnce(&mut tar::Builder<File>)) -> File {
        let mut tar = tar::Builder::new(tempfile::tempfile().unwrap());
        fill(&mut tar);
        tar.into_inner().unwrap()
    }

    fn add(tar: &mut tar::Builder<File>, path: &str, kind: EntryType, leads: &str, bytes: &[u8]) {
        let mut header = Header::new_gnu();
        // Written as it is: a builder would refuse some.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..leads.len()].copy_from_slice(leads.as_bytes());
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(0);
        header.set_cksum();
        tar.append(&header, bytes).unwrap();
    }

    #[test]
    fn what_is_packed_is_unpacked_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        make(&from.join("more")).unwrap();
        make(&to).unwrap();
        for (name, text) in [("agent.db", "database"), ("more/tool", "tool"), ("left", "left")] {
            fs::write(from.join(name), text).unwrap();
        }
        fs::set_permissions(from.join("more/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("tool", from.join("more/link")).unwrap();
        let mut archive = tempfile::tempfile().unwrap();
        pack(&from, &["left"], &placed(), archive.try_clone().unwrap()).unwrap();
        assert_eq!(
            unpack(archive.try_clone().unwrap(), &to).unwrap(),
            Some(Ids { uid: 7, gid: 8 })
        );
        assert_eq!(fs::read_to_string(to.join("agent.db")).unwrap(), "database");
        assert_eq!(fs::read_to_string(to.join("more/link")).unwrap(), "tool");
        let mode = fs::metadata(to.join("more/tool")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(!to.join("left").exists());

        archive.rewind().unwrap();
        let mut archive = tar::Archive::new(archive);
        let first = archive.entries().unwrap().next().unwrap().unwrap();
        let owner = (first.header().uid().unwrap(), first.header().mode().unwrap());
        assert_eq!(owner, (10001, 0o700), "the volume itself belongs to its user");
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        make(&outside).unwrap();
        let out = outside.to_str().unwrap().to_owned();
        let tried = |name: &str, fill: &dyn Fn(&mut tar::Builder<File>)| {
            let into = folder.path().join(name);
            make(&into).unwrap();
            let unpacked = unpack(packed(fill), &into);
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{name} wrote outside");
            unpacked
        };
        let up = |tar: &mut tar::Builder<File>| add(tar, "volume/../../outside/a", EntryType::Regular, "", b"a");
        tried("up", &up).unwrap_err();
        let through = |tar: &mut tar::Builder<File>| {
            add(tar, "volume/a/link", EntryType::Symlink, &out, b"");
            add(tar, "volume/a/link/file", EntryType::Regular, "", b"a");
        };
        tried("through", &through).unwrap_err();
        let linked = |tar: &mut tar::Builder<File>| {
            add(tar, "volume/a/link", EntryType::Symlink, &out, b"");
            add(tar, "volume/a/link/more", EntryType::Symlink, "x", b"");
        };
        tried("linked", &linked).unwrap_err();
        let named = |tar: &mut tar::Builder<File>| add(tar, "volume/a", EntryType::Link, "volume/../../b", b"");
        tried("named", &named).unwrap_err();
        let top = |tar: &mut tar::Builder<File>| {
            add(tar, "volume/agent.db", EntryType::Regular, "", b"a");
            add(tar, "volume/agent.db-wal", EntryType::Symlink, "/etc/passwd", b"");
            add(tar, "volume/pipe", EntryType::Fifo, "", b"");
        };
        assert_eq!(tried("top", &top).unwrap(), Some(Ids { uid: 7, gid: 8 }));
        let names = fs::read_dir(folder.path().join("top")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["agent.db"], "no link lies beside a database");
    }

    #[test]
    fn an_archive_that_breaks_off_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let archive = packed(|tar| add(tar, "volume/agent.db", EntryType::Regular, "", b"database"));
        archive.set_len(archive.metadata().unwrap().len() - 512).unwrap();
        let error = unpack(archive, folder.path()).unwrap_err();
        assert!(error.to_string().contains("stopped sending"), "{error}");
    }

    #[test]
    fn a_program_is_packed_around_its_bytes() {
        let bytes = vec![7; 700];
        let (head, tail) = around(Path::new("copy/program"), &["copy", "copy/out"], bytes.len() as u64).unwrap();
        let whole = [head, bytes.clone(), tail].concat();
        let mut archive = tar::Archive::new(whole.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.push((entry.path().unwrap().display().to_string(), content));
        }
        let none = Vec::new;
        assert_eq!(
            found,
            [
                ("copy".to_owned(), none()),
                ("copy/out".to_owned(), none()),
                ("copy/program".to_owned(), bytes)
            ]
        );
    }
}
