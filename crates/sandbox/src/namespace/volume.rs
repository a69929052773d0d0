//! Volumes on this machine: a folder, or an image whose size is a hard limit.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::spec::{Mount, Source};

/// `user` of boxes.
const USER: u32 = 1000;

/// Whether the programs for images are here.
pub(super) fn can_make_images() -> bool {
    ["mkfs.ext4", "resize2fs", "e2fsck", "mount"]
        .into_iter()
        .all(|program| {
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
                .iter()
                .any(|folder| Path::new(folder).join(program).is_file())
        })
}

/// Makes a volume: an image where the platform is root, else a folder without a limit. Answers one that is there.
pub(super) fn make(volumes: &Path, id: Uuid, bytes: u64, first_user: Option<u32>) -> Result<Source> {
    if let Some(first_user) = first_user
        && can_make_images()
    {
        let image = image(volumes, id);
        make_image(&image, bytes, first_user)?;
        return Ok(Source::Image(image));
    }
    let folder = folder(volumes, id);
    let made = fs::create_dir_all(&folder).and_then(|()| own(&folder, first_user, USER));
    made.map_err(Error::io("the folder of the volume"))?;
    Ok(Source::Folder(folder))
}

/// Whether an image is mounted, and writable. The kernel unmounts it some time after the last process of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    None,
    ReadOnly,
    Write,
}

/// Asks the loop devices of the machine.
pub(super) fn used(image: &Path) -> io::Result<Use> {
    let mut found = Use::None;
    let devices = match fs::read_dir("/sys/block") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for device in devices.flatten() {
        // Other devices have no such file, and neither has one that is free.
        let Ok(file) = fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        if Path::new(file.trim_end_matches('\n')) != image {
            continue;
        }
        match fs::read_to_string(device.path().join("ro")).unwrap_or_default().trim() {
            "1" if found == Use::None => found = Use::ReadOnly,
            "1" => {}
            _ => found = Use::Write,
        }
    }
    Ok(found)
}

/// Refuses a mount that would give an image two writers, or a reader beside a writer.
pub(super) fn check(mount: &Mount) -> Result<()> {
    let Source::Image(image) = &mount.source else {
        return Ok(());
    };
    match used(image).map_err(Error::io("the image of the volume"))? {
        Use::None => Ok(()),
        Use::ReadOnly if mount.read_only => Ok(()),
        _ => Err(Error::Busy(format!(
            "the volume at {} is mounted in another box",
            mount.path
        ))),
    }
}

/// Lets a volume that no box has mounted hold more.
pub(super) fn grow(volumes: &Path, id: Uuid, bytes: u64) -> Result<()> {
    let image = image(volumes, id);
    if image.is_file() {
        if used(&image).map_err(Error::io("the image of the volume"))? != Use::None {
            return Err(Error::Busy(format!(
                "volume {id} is mounted in a box: stop the box first"
            )));
        }
        return grow_image(&image, bytes);
    }
    if folder(volumes, id).is_dir() {
        return Ok(());
    }
    Err(Error::NotFound(format!("volume {id} is not on this machine")))
}

/// Takes a volume away at once, then removes its bytes. What a kill leaves goes with the next call.
pub(super) fn remove(volumes: &Path, id: Uuid) -> Result<()> {
    if used(&image(volumes, id)).map_err(Error::io("the image of the volume"))? != Use::None {
        return Err(Error::Busy(format!(
            "volume {id} is mounted in a box: stop the box first"
        )));
    }
    let doomed = volumes.join(format!("{id}.deleted"));
    let removed = || -> io::Result<()> {
        for path in [image(volumes, id), folder(volumes, id)] {
            discard(&doomed)?;
            match fs::rename(path, &doomed) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => discard(&doomed)?,
            }
        }
        Ok(())
    };
    removed().map_err(Error::io("removing the volume"))
}

fn discard(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => super::tree::remove(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn image(volumes: &Path, id: Uuid) -> PathBuf {
    volumes.join(format!("{id}.img"))
}

fn folder(volumes: &Path, id: Uuid) -> PathBuf {
    volumes.join(id.to_string())
}

/// With an empty file system that `user` of boxes owns.
fn make_image(path: &Path, bytes: u64, first_user: u32) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let draft = path.with_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("the image of the volume")(error));
        }
        _ => {}
    }
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft);
    let sized = file.and_then(|file| file.set_len(bytes));
    sized.map_err(Error::io("the image of the volume"))?;
    let owner = first_user.saturating_add(USER);
    let options = format!("root_owner={owner}:{owner},lazy_itable_init=1,lazy_journal_init=1");
    // No blocks for root alone: nobody is root there.
    let mut command = Command::new("mkfs.ext4");
    perform(command.args(["-q", "-F", "-m", "0", "-E", &options, "--"]).arg(&draft))?;
    let placed = fs::File::open(&draft)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    placed.map_err(Error::io("the image of the volume"))
}

fn grow_image(path: &Path, bytes: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    let file = file.map_err(Error::io("the image of the volume"))?;
    let size = file.metadata().map_err(Error::io("the image of the volume"))?.len();
    if bytes < size {
        return Err(Error::Invalid(format!(
            "size: the volume has {size} bytes and cannot shrink"
        )));
    }
    file.set_len(bytes).map_err(Error::io("the image of the volume"))?;
    // It refuses to work on what was not checked.
    perform(Command::new("e2fsck").args(["-f", "-p", "--"]).arg(path))?;
    perform(Command::new("resize2fs").arg("--").arg(path))
}

fn perform(command: &mut Command) -> Result<()> {
    let ended = command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io("the image of the volume"))?;
    // A check that repaired something ends with 1.
    if matches!(ended.status.code(), Some(0 | 1)) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(Error::Io {
        what: "the image of the volume".to_owned(),
        source: io::Error::other(said.lines().next().unwrap_or_default().to_owned()),
    })
}

/// Gives a path to a user of boxes.
pub(super) fn own(path: &Path, first_user: Option<u32>, user: u32) -> io::Result<()> {
    first_user.map_or(Ok(()), |first| chown(path, Some(first + user), Some(first + user)))
}
