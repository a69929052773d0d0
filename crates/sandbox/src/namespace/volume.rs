//! Volumes on this machine: a folder, or an image with a hard size limit.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::spec::{VolumeMount, VolumeSource};

/// `user` of boxes.
const USER_ID: u32 = 1000;
/// Polling of a volume's mounts: attempts and interval.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(20);

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

/// Creates a volume, or returns the existing one: an image if the platform is root, else a folder without a size limit.
pub(super) fn make(volumes: &Path, id: Uuid, bytes: u64, first_user: Option<u32>) -> Result<VolumeSource> {
    if let Some(first_user) = first_user
        && can_make_images()
    {
        let image = image_path(volumes, id);
        make_image(volumes, id, bytes, first_user)?;
        return Ok(VolumeSource::Image(image));
    }
    let folder = folder_path(volumes, id);
    let made = fs::create_dir_all(&folder).and_then(|()| own(&folder, first_user, USER_ID));
    made.map_err(Error::io("the folder of the volume"))?;
    Ok(VolumeSource::Folder(folder))
}

/// Whether an image is mounted, and writable. The kernel unmounts it some time after the last process of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageUse {
    None,
    ReadOnly,
    Write,
}

/// Asks the loop devices of the machine.
pub(super) fn image_use(image: &Path) -> io::Result<ImageUse> {
    let mut found = ImageUse::None;
    let devices = match fs::read_dir("/sys/block") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for device in devices.flatten() {
        // Missing for other devices and for unused loop devices.
        let Ok(file) = fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        // The box's own mount table is skipped: it only shows the path from the root of its file system. The name is
        // unique to the volume.
        if Path::new(file.trim_end_matches('\n')).file_name() != image.file_name() {
            continue;
        }
        match fs::read_to_string(device.path().join("ro")).unwrap_or_default().trim() {
            "1" if found == ImageUse::None => found = ImageUse::ReadOnly,
            "1" => {}
            _ => found = ImageUse::Write,
        }
    }
    Ok(found)
}

/// Refuses a change of an image that a box has mounted.
fn unused(image: &Path, id: Uuid) -> Result<()> {
    // The last of a box's mounts may take a moment to be gone.
    for _ in 0..TRIES {
        if image_use(image).map_err(Error::io("the image of the volume"))? == ImageUse::None {
            return Ok(());
        }
        // On a thread for work that blocks, and for a bounded time.
        #[expect(clippy::disallowed_methods, reason = "cannot tell when the kernel has unmounted it")]
        std::thread::sleep(PAUSE);
    }
    Err(Error::Busy(format!(
        "volume {id} is mounted in a sandbox; stop the sandbox first"
    )))
}

/// Refuses a mount that would give an image two writers, or a reader and a writer.
pub(super) fn check_mount(mount: &VolumeMount) -> Result<()> {
    let VolumeSource::Image(image) = &mount.source else {
        return Ok(());
    };
    let file = File::open(image).map_err(Error::io("the image of the volume"))?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Busy(format!("the volume at {} is being changed", mount.path)));
        }
        Err(TryLockError::Error(error)) => return Err(Error::io("the image of the volume")(error)),
    }
    match image_use(image).map_err(Error::io("the image of the volume"))? {
        ImageUse::None => Ok(()),
        ImageUse::ReadOnly if mount.read_only => Ok(()),
        _ => Err(Error::Busy(format!(
            "the volume at {} is mounted in another sandbox",
            mount.path
        ))),
    }
}

/// Lets a volume that no box has mounted hold more.
pub(super) fn grow(volumes: &Path, id: Uuid, bytes: u64) -> Result<()> {
    let image = image_path(volumes, id);
    if image.is_file() {
        return grow_image(&image, id, bytes);
    }
    if folder_path(volumes, id).is_dir() {
        return Ok(());
    }
    Err(Error::NotFound(format!("volume {id} is not on this machine")))
}

/// Moves a volume away, then removes its data. Leftovers of a kill are removed by the next call.
pub(super) fn remove_tree(volumes: &Path, id: Uuid) -> Result<()> {
    unused(&image_path(volumes, id), id)?;
    let doomed = volumes.join(format!("{id}.deleted"));
    let removed = || -> io::Result<()> {
        let drafts = drafts(volumes, id)?;
        for path in drafts
            .into_iter()
            .chain([image_path(volumes, id), folder_path(volumes, id)])
        {
            remove_entry(&doomed)?;
            match fs::rename(path, &doomed) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => remove_entry(&doomed)?,
            }
        }
        Ok(())
    };
    removed().map_err(Error::io("removing the volume"))
}

fn remove_entry(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => crate::tree::remove(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn image_path(volumes: &Path, id: Uuid) -> PathBuf {
    volumes.join(format!("{id}.img"))
}

fn folder_path(volumes: &Path, id: Uuid) -> PathBuf {
    volumes.join(id.to_string())
}

/// With an empty file system that `user` of boxes owns.
fn make_image(volumes: &Path, id: Uuid, bytes: u64, first_user: u32) -> Result<()> {
    let path = image_path(volumes, id);
    if path.exists() {
        return Ok(());
    }
    let removed = drafts(volumes, id).and_then(|drafts| drafts.iter().try_for_each(|draft| remove_entry(draft)));
    removed.map_err(Error::io("the image of the volume"))?;
    // A unique name: an earlier caller may have been interrupted.
    let draft = volumes.join(format!("{id}.{}.new", Uuid::now_v7()));
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft);
    let sized = file.and_then(|file| file.set_len(bytes));
    sized.map_err(Error::io("the image of the volume"))?;
    let owner = first_user.saturating_add(USER_ID);
    let options = format!("root_owner={owner}:{owner},lazy_itable_init=1,lazy_journal_init=1");
    // No blocks for root alone: no one is root there.
    let mut command = Command::new("mkfs.ext4");
    run_command(
        command.args(["-q", "-F", "-m", "0", "-E", &options, "--"]).arg(&draft),
        None,
    )?;
    let placed = File::open(&draft)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::hard_link(&draft, &path));
    match placed {
        // Another one was first: a box may have it already.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.map_err(Error::io("the image of the volume"))?,
    }
    remove_entry(&draft).map_err(Error::io("the image of the volume"))
}

/// Images that were begun.
fn drafts(volumes: &Path, id: Uuid) -> io::Result<Vec<PathBuf>> {
    let (begin, end) = (format!("{id}."), ".new");
    let entries = fs::read_dir(volumes)?.flatten();
    let is_draft = |name: &str| name.starts_with(&begin) && name.ends_with(end);
    Ok(entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_draft))
        .map(|entry| entry.path())
        .collect())
}

fn grow_image(path: &Path, id: Uuid, bytes: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    let file = file.map_err(Error::io("the image of the volume"))?;
    // An earlier caller may have been killed while its programs still work on the image.
    file.lock().map_err(Error::io("the image of the volume"))?;
    unused(path, id)?;
    let size = file.metadata().map_err(Error::io("the image of the volume"))?.len();
    if bytes < size {
        return Err(Error::Invalid(format!(
            "size: the volume has {size} bytes and cannot shrink"
        )));
    }
    file.set_len(bytes).map_err(Error::io("the image of the volume"))?;
    // It refuses to work on what was not checked.
    run_command(Command::new("e2fsck").args(["-f", "-p", "--"]).arg(path), Some(&file))?;
    run_command(Command::new("resize2fs").arg("--").arg(path), Some(&file))
}

/// Runs a program to its end. It holds the lock of a file while it runs.
fn run_command(command: &mut Command, locked: Option<&File>) -> Result<()> {
    let shared = locked.map(File::try_clone).transpose();
    let shared = shared.map_err(Error::io("the image of the volume"))?;
    let ended = command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(shared.map_or_else(Stdio::null, Stdio::from))
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
