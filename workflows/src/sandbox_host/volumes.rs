//! Files of volumes.

use std::io;
use std::process::Stdio;

use tokio::process::Command;
use towpath_domain::VolumeId;
use towpath_sandbox::{Error, VolumeSource};
use towpath_store::sandboxes::volumes::Volume;

use super::SandboxHost;

impl SandboxHost {
    /// The source of a volume, created if necessary.
    pub(crate) async fn ensure_volume(&self, volume: &Volume) -> Result<VolumeSource, Error> {
        self.driver.make_volume(volume.id.0, volume_bytes(volume)).await
    }

    /// Grows an unmounted volume to the size in its row.
    pub(crate) async fn grow_volume(&self, volume: &Volume) -> Result<(), Error> {
        self.driver.grow_volume(volume.id.0, volume_bytes(volume)).await
    }

    /// Checks that no sandbox has a volume mounted, and that its file system is consistent.
    pub(crate) async fn check_volume_idle(&self, volume: &Volume) -> Result<(), Error> {
        self.ensure_volume(volume).await?;
        // It refuses mounted volumes, and checks the file system.
        self.grow_volume(volume).await
    }

    /// Copies the files of one volume to a new one. Idempotent.
    pub(crate) async fn copy_volume(&self, from: &Volume, to: &Volume) -> Result<(), Error> {
        let (from, to) = (self.ensure_volume(from).await?, self.ensure_volume(to).await?);
        let (VolumeSource::Folder(copied) | VolumeSource::Image(copied)) = &to;
        let copied = copied.clone();
        let mut copy = Command::new("cp");
        match (&from, &to) {
            (VolumeSource::Folder(from), VolumeSource::Folder(to)) => {
                // Shares blocks if the file system can, and keeps owners, links and times.
                copy.args(["--archive", "--reflink=auto", "--one-file-system", "--"]);
                copy.arg(from.join(".")).arg(to);
            }
            (VolumeSource::Image(from), VolumeSource::Image(to)) => {
                copy.args(["--reflink=auto", "--sparse=always", "--"]);
                copy.arg(from).arg(to);
            }
            _ => {
                let text = "the volume was created while the platform ran as another user, and cannot be copied";
                return Err(Error::Unsupported(text.to_owned()));
            }
        }
        run_command(copy).await?;
        // It must survive a power loss once its row is `ready`.
        let mut sync = Command::new("sync");
        sync.args(["--file-system", "--"]).arg(copied);
        run_command(sync).await
    }

    /// Removes the files of a volume. Idempotent.
    pub(crate) async fn remove_volume(&self, id: VolumeId) -> Result<(), Error> {
        match self.driver.remove_volume(id.0).await {
            Err(Error::NotFound(_)) => Ok(()),
            removed => removed,
        }
    }
}

async fn run_command(mut command: Command) -> Result<(), Error> {
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let failed = |source: io::Error| Error::Io {
        what: "copying the files of the volume".to_owned(),
        source,
    };
    let ended = command.status().await.map_err(failed)?;
    if ended.success() {
        Ok(())
    } else {
        let program = command.as_std().get_program().display();
        Err(failed(io::Error::other(format!("{program} ended with {ended}"))))
    }
}

fn volume_bytes(volume: &Volume) -> u64 {
    u64::try_from(volume.size_bytes).unwrap_or_default()
}
