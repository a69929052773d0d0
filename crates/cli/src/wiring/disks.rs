//! Monitors the free space on the disks of this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::time::{MissedTickBehavior, interval};
use towpath_domain::{DiskStatus, DiskStatuses};

use crate::config::Settings;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A disk and the folders on it.
struct WatchedDisk {
    name: &'static str,
    disk: DiskStatus,
    folders: Vec<PathBuf>,
    /// Minimum of free bytes.
    least: f64,
}

/// Measures the disks now, and then regularly until the process ends.
pub fn watch(settings: &Settings) -> DiskStatuses {
    let disks = DiskStatuses::default();
    if settings.disk_least_free_bytes == 0 {
        return disks;
    }
    let least = settings.disk_least_free_bytes as f64;
    let objects = settings.objects_folder();
    let mut watched = [
        WatchedDisk {
            name: "data",
            disk: disks.data.clone(),
            folders: std::iter::once(settings.data_dir.clone()).chain(objects).collect(),
            least,
        },
        WatchedDisk {
            name: "exports",
            disk: disks.exports.clone(),
            folders: vec![settings.file_root.clone()],
            least,
        },
    ];
    // The first request needs a value.
    watched.iter().for_each(WatchedDisk::measure);
    tokio::spawn(async move {
        let mut clock = interval(POLL_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            // A network file system may block.
            let look = tokio::task::spawn_blocking(move || {
                watched.iter().for_each(WatchedDisk::measure);
                watched
            });
            match look.await {
                Ok(looked) => watched = looked,
                Err(error) => {
                    tracing::error!(%error, "disk monitoring has stopped");
                    return;
                }
            }
        }
    });
    disks
}

impl WatchedDisk {
    fn measure(&self) {
        let Some(free) = self.folders.iter().filter_map(|folder| free(folder)).reduce(f64::min) else {
            return;
        };
        // The threshold for recovery is a little higher, so that the state does not flap.
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
                "free space is below disk.min_free_mb: new work is refused or waits"
            );
        } else {
            tracing::info!(disk = self.name, free_mb, "free space is above disk.min_free_mb again");
        }
    }
}

/// Bytes that this process may still write there. For a missing folder, the disk of its parent counts.
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
        let mut watched = WatchedDisk {
            name: "test",
            disk: DiskStatus::default(),
            folders: vec![yet_to_come],
            least: free * 4.0,
        };
        watched.measure();
        assert!(watched.disk.is_low());
        watched.least = free / 4.0;
        watched.measure();
        assert!(!watched.disk.is_low());
    }
}
