//! Files of volumes on the machine.

use std::io;
use std::process::Stdio;

use tokio::process::Command;
use towpath_domain::VolumeId;
use towpath_sandbox::{Error, Source};
use towpath_store::sandboxes::volumes::Volume;

use super::Boxes;

impl Boxes {
    /// Where a volume lies, which is made where it is missing.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) async fn volume(&self, volume: &Volume) -> Result<Source, Error> {
        self.driver.make_volume(volume.id.0, bytes(volume)).await
    }

    /// Lets a volume that no box has mounted hold what its row says.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) async fn grow_volume(&self, volume: &Volume) -> Result<(), Error> {
        self.driver.grow_volume(volume.id.0, bytes(volume)).await
    }

    /// Copies the files of one volume into a new one. May be repeated.
    ///
    /// # Errors
    /// They cannot be copied.
    pub(crate) async fn copy_volume(&self, from: &Volume, to: &Volume) -> Result<(), Error> {
        let (from, to) = (self.volume(from).await?, self.volume(to).await?);
        let mut copy = Command::new("cp");
        match (&from, &to) {
            (Source::Folder(from), Source::Folder(to)) => {
                // Shares blocks where the file system can, and keeps owners, links and times.
                copy.args(["--archive", "--reflink=auto", "--one-file-system", "--"]);
                copy.arg(from.join(".")).arg(to);
            }
            (Source::Image(from), Source::Image(to)) => {
                copy.args(["--reflink=auto", "--sparse=always", "--"]);
                copy.arg(from).arg(to);
            }
            _ => {
                let text = "the volume was made while the platform ran as another account, and cannot be copied";
                return Err(Error::Unsupported(text.to_owned()));
            }
        }
        copy.env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let failed = |source: io::Error| Error::Io {
            what: "copying the files of the volume".to_owned(),
            source,
        };
        let ended = copy.status().await.map_err(failed)?;
        if ended.success() {
            Ok(())
        } else {
            Err(failed(io::Error::other(format!("cp ended with {ended}"))))
        }
    }

    /// Removes the files of a volume. May be repeated.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) async fn remove_volume(&self, id: VolumeId) -> Result<(), Error> {
        match self.driver.remove_volume(id.0).await {
            Err(Error::NotFound(_)) => Ok(()),
            removed => removed,
        }
    }
}

fn bytes(volume: &Volume) -> u64 {
    u64::try_from(volume.size_bytes).unwrap_or_default()
}
