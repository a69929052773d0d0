//! Disks without room, under everything that writes.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use reqwest::Method;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use towpath_tests::{Layout, Random, World, until};

use super::round::{ExportTarget, Fault, Ingest, folder, round, start};
use crate::{final_state, load};

/// How much must be free, in megabytes.
const FLOOR: &str = "TOWPATH_DISK_MIN_FREE_MB";

/// SQLite, the log of ingest, segments and exports on one small disk.
#[tokio::test]
async fn the_data_folder_may_run_full() {
    let Some(disk) = SmallDisk::mount(96, "data") else {
        return;
    };
    let plan = World::plan(Layout::Embedded).data_in(&disk.place).env(FLOOR, "0");
    let world = start(plan).await.expect("the embedded world needs no server");
    let place = folder(&world, "disk").await;
    let mut dice = Random::new(13);
    for time in ["", ", again"] {
        let fault = Fault {
            name: format!("data folder without room{time}"),
            unavailable: "objects",
            ingest: Ingest::Refuses,
            lasts: Duration::from_secs(5),
        };
        full(&world, &place, &disk, &mut dice, &fault, async |_| 1).await;
    }
    finish(world).await;
}

/// Below the floor new work is refused or waits, before anything fails.
#[tokio::test]
async fn the_data_folder_may_run_short_of_room() {
    let Some(mut disk) = SmallDisk::mount(256, "data") else {
        return;
    };
    disk.spared_mb = 32.0;
    let plan = World::plan(Layout::Embedded).data_in(&disk.place).env(FLOOR, "64");
    let world = start(plan).await.expect("the embedded world needs no server");
    let place = folder(&world, "short").await;
    let fault = Fault {
        name: "data folder short of room".to_owned(),
        unavailable: "disk",
        ingest: Ingest::Refuses,
        lasts: Duration::from_secs(5),
    };
    full(&world, &place, &disk, &mut Random::new(16), &fault, async |_| 1).await;
    finish(world).await;
}

/// Only the folder of `file` destinations is full: ingest continues, and the export retries.
#[tokio::test]
async fn the_folder_of_exports_may_run_full() {
    let Some(disk) = SmallDisk::mount(16, "data/exports") else {
        return;
    };
    let data = disk.place.parent().expect("it lies in the data folder");
    let plan = World::plan(Layout::Embedded).data_in(data).env(FLOOR, "0");
    let world = start(plan).await.expect("the embedded world needs no server");
    let place = folder(&world, "exports").await;
    let fault = Fault {
        name: "folder of exports without room".to_owned(),
        unavailable: "",
        ingest: Ingest::Works,
        lasts: Duration::ZERO,
    };
    // No part of an export is over before the folder is full.
    load::ask(&world.api, Method::POST, "/internal/queues/export_parts/pause", None).await;
    let refused = async |world: &World| {
        load::ask(&world.api, Method::POST, "/internal/queues/export_parts/resume", None).await;
        until("an export run to tell why it failed", load::PATIENCE, async || {
            let list = load::ask(&world.api, Method::GET, "/api/v1/bulk-exports", None).await;
            let newest = list[0]["id"].as_str()?.to_owned();
            let path = format!("/api/v1/bulk-exports/{newest}/runs");
            let runs = load::ask(&world.api, Method::GET, &path, None).await;
            let errors = runs
                .as_array()?
                .iter()
                .filter_map(|run| run["errors"]["retry_0"].as_str());
            let told: Vec<&str> = errors.collect();
            for error in &told {
                let why = "Destination is not available: no storage space for key exports/export_id=";
                assert!(error.starts_with(why), "{error}");
            }
            (!told.is_empty()).then_some(told.len())
        })
        .await
    };
    full(&world, &place, &disk, &mut Random::new(14), &fault, refused).await;
    let left = Command::new("find").arg(&disk.place).args(["-name", "*.part"]).output();
    assert_eq!(
        left.expect("find is there").stdout,
        b"",
        "unfinished files were left behind"
    );
    finish(world).await;
}

/// A limit on the size of files, as `ulimit -f` sets it: no disk is full, and no file grows.
#[tokio::test]
async fn files_may_not_grow() {
    let world = start(World::plan(Layout::Embedded)).await;
    let world = world.expect("the embedded world needs no server");
    let place = folder(&world, "limit").await;
    let fault = Fault {
        name: "files may not grow (RLIMIT_FSIZE)".to_owned(),
        unavailable: "database",
        ingest: Ingest::Refuses,
        lasts: Duration::from_secs(5),
    };
    let pid = world.processes[0].pid().expect("it runs").to_string();
    let limit = |bytes: &str| {
        let done = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--fsize={bytes}:")])
            .status();
        assert!(done.expect("prlimit is there").success());
    };
    let begin = async |_: &World| limit("4096");
    let end = async |_: &World| {
        limit("unlimited");
        1
    };
    round(&world, &place, &mut Random::new(15), &fault, begin, end).await;
    finish(world).await;
}

/// A round on a disk that is full until `seen` has seen what it wanted to see.
async fn full(
    world: &World,
    place: &ExportTarget,
    disk: &SmallDisk,
    dice: &mut Random,
    fault: &Fault,
    seen: impl AsyncFnOnce(&World) -> usize,
) {
    let ballast = RefCell::new(None);
    let begin = async |_: &World| {
        ballast.replace(Some(Ballast::fill(&disk.place, disk.spared_mb)));
    };
    let end = async |world: &World| {
        let hits = seen(world).await;
        ballast.take();
        hits
    };
    round(world, place, dice, fault, begin, end).await;
}

/// Nothing is left behind, and the database is whole.
async fn finish(world: World) {
    final_state::settles(&world).await;
    let file = format!("sqlite://{}", world.data().join("towpath.db").display());
    let mut connection = SqliteConnection::connect(&file).await.expect("the database is there");
    let whole: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await
        .expect("the database can be read");
    assert_eq!(whole, "ok");
    connection.close().await.expect("a connection for reading");
    world.stop().await;
}

/// A disk of a test's own in memory. Unmounted when dropped.
struct SmallDisk {
    place: PathBuf,
    /// What a ballast leaves free, in megabytes.
    spared_mb: f64,
    _folder: TempDir,
}

impl SmallDisk {
    /// Of so many megabytes, at a path below a folder of its own; `None`, said in one line, where this user may not
    /// mount.
    fn mount(megabytes: u32, at: &str) -> Option<Self> {
        let folder = tempfile::Builder::new()
            .prefix("towpath-disk.")
            .tempdir()
            .expect("a temporary folder");
        let place = folder.path().join(at);
        std::fs::create_dir_all(&place).expect("the folder is ours");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(&place)
            .output();
        if mounted.is_ok_and(|done| done.status.success()) {
            return Some(Self {
                place,
                spared_mb: 0.0,
                _folder: folder,
            });
        }
        eprintln!("skipped: mounting a small disk takes root");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process of the test may still be about to end.
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

/// What fills a disk: a file that takes all there is, or all but a part. Dropping it makes room again.
struct Ballast(PathBuf);

impl Ballast {
    fn fill(folder: &Path, spared_mb: f64) -> Self {
        use std::io::Write as _;
        let path = folder.join("ballast");
        let mut file = std::fs::File::create(&path).expect("the disk takes a name");
        if spared_mb > 0.0 {
            let piece = vec![1; 1 << 20];
            while free_mb(folder) > spared_mb {
                file.write_all(&piece).expect("there is room");
            }
            return Self(path);
        }
        // Down to the last byte: a rest would take small files.
        for size in [1 << 20, 4096, 1] {
            let piece = vec![1; size];
            while let Ok(1..) = file.write(&piece) {}
        }
        Self(path)
    }
}

fn free_mb(folder: &Path) -> f64 {
    let found = statvfs(folder).expect("the disk is there");
    found.blocks_available() as f64 * found.fragment_size() as f64 / f64::from(1 << 20)
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
