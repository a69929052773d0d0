//! Files of volumes on the machine.
//!
//! ```text
//! <folder>/
//!   volumes/<volume>/      files of a volume
//!   volumes/<volume>.copy  a copy that is not whole yet
//!   trash/<volume>         a volume on its way out
//! ```

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::fs;
use tokio::process::Command;
use towpath_domain::VolumeId;

use super::Boxes;

impl Boxes {
    fn volume(&self, id: VolumeId) -> PathBuf {
        self.folder.join("volumes").join(id.to_string())
    }

    /// The folder of a volume, which is made where it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) async fn volume_folder(&self, id: VolumeId) -> io::Result<PathBuf> {
        let folder = self.volume(id);
        match fs::create_dir(&folder).await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Every user of the box may write to it; the folder above keeps others of the host out.
            made => {
                made?;
                fs::set_permissions(&folder, Permissions::from_mode(0o777)).await?;
            }
        }
        Ok(folder)
    }

    /// Copies the files of one volume into a new one. May be repeated.
    ///
    /// # Errors
    /// They cannot be copied.
    pub(crate) async fn copy_volume(&self, from: VolumeId, to: VolumeId) -> io::Result<()> {
        let (from, to) = (self.volume_folder(from).await?, self.volume(to));
        if fs::try_exists(&to).await? {
            return Ok(());
        }
        let partial = to.with_extension("copy");
        remove(&partial).await?;
        // Shares blocks where the file system can, and keeps owners, links and times.
        let mut copy = Command::new("cp");
        copy.args(["--archive", "--reflink=auto", "--one-file-system", "--"])
            .arg(&from)
            .arg(&partial)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let ended = copy.status().await?;
        if !ended.success() {
            return Err(io::Error::other(format!(
                "copying the files of the volume ended with {ended}"
            )));
        }
        fs::rename(partial, to).await
    }

    /// Removes the files of a volume: by one rename first, so that half of them are never seen. May be repeated.
    ///
    /// # Errors
    /// They cannot be removed.
    pub(crate) async fn remove_volume(&self, id: VolumeId) -> io::Result<()> {
        let trash = self.folder.join("trash").join(id.to_string());
        match fs::rename(self.volume(id), &trash).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        remove(&self.volume(id).with_extension("copy")).await?;
        remove(&trash).await
    }
}

async fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
