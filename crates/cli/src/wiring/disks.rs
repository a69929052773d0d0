//! Watches how much room there is on the disks of this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::time::{MissedTickBehavior, interval};
use towpath_domain::{Disk, Disks};

use crate::config::Settings;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A disk, and which folders are on it.
struct Watched {
    name: &'static str,
    disk: Disk,
    folders: Vec<PathBuf>,
    /// Bytes that have to be free.
    least: f64,
}

/// Looks at the disks now, and from now on as long as the process lives.
pub fn watch(settings: &Settings) -> Disks {
    let disks = Disks::default();
    if settings.disk_least_free_bytes == 0 {
        return disks;
    }
    let least = settings.disk_least_free_bytes as f64;
    let objects = settings.objects_folder();
    let mut watched = [
        Watched {
            name: "data",
            disk: disks.data.clone(),
            folders: std::iter::once(settings.data_dir.clone()).chain(objects).collect(),
            least,
        },
        Watched {
            name: "exports",
            disk: disks.exports.clone(),
            folders: vec![settings.file_root.clone()],
            least,
        },
    ];
    // Before the first request is taken.
    watched.iter().for_each(Watched::look);
    tokio::spawn(async move {
        let mut clock = interval(LOOK_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            // A file system of another machine may let this wait.
            let look = tokio::task::spawn_blocking(move || {
                watched.iter().for_each(Watched::look);
                watched
            });
            match look.await {
                Ok(looked) => watched = looked,
                Err(error) => {
                    tracing::error!(%error, "disks are not watched any more");
                    return;
                }
            }
        }
    });
    disks
}

impl Watched {
    fn look(&self) {
        let Some(free) = self.folders.iter().filter_map(|folder| free(folder)).reduce(f64::min) else {
            return;
        };
        // A little more before it takes work again, so that it does not come and go with every file.
        let enough = if self.disk.is_low() {
            self.least * 1.125
        } else {
            self.least
        };
        let low = free < enough;
        if self.disk.set_low(low) == low {
            return;
        }
        let free_mb = (free / f64::from(1 << 20)).floor();
        if low {
            tracing::warn!(
                disk = self.name,
                free_mb,
                "less is free than disk.least_free_mb: new work is refused or waits"
            );
        } else {
            tracing::info!(disk = self.name, free_mb, "there is room on the disk again");
        }
    }
}

/// Bytes that this process may still write there. A folder that is yet to be made is where its parent is.
fn free(folder: &Path) -> Option<f64> {
    let found = folder.ancestors().find_map(|folder| statvfs(folder).ok())?;
    Some(found.blocks_available() as f64 * found.fragment_size() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_below_its_floor_is_low() {
        let folder = tempfile::tempdir().unwrap();
        let yet_to_come = folder.path().join("a/b");
        let free = free(&yet_to_come).unwrap();
        let mut watched = Watched {
            name: "test",
            disk: Disk::default(),
            folders: vec![yet_to_come],
            least: free * 4.0,
        };
        watched.look();
        assert!(watched.disk.is_low());
        watched.least = free / 4.0;
        watched.look();
        assert!(!watched.disk.is_low());
    }
}
