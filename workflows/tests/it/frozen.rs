//! Workers that are stopped past their lease and go on when the export is over: nothing of what they write then stays.

use std::time::{Duration, Instant};

use towpath_domain::ExportId;
use towpath_domain::export::ExportStatus;
use towpath_durable::Claimed;

use crate::home::{Database, Home, kill, on_both_databases};

/// Behind the late look, with the lease as it is by default.
const LATE: Duration = Duration::from_secs(80);
/// Behind the last look for a manifest.
const LAST: Duration = Duration::from_secs(21 * 60);

on_both_databases! {
    a_manifest_of_a_worker_that_wakes_behind_the_clean_up_is_taken_back,
    a_manifest_of_a_worker_that_dies_behind_its_write_is_removed_later,
    a_manifest_that_was_written_twice_stays,
    a_manifest_is_not_begun_once_the_export_is_cancelled,
    the_late_look_waits_for_a_longer_lease,
}

impl Home {
    /// An export of one day up to where its manifest is written.
    async fn before_the_manifest(&self) -> (ExportId, Claimed) {
        let export = self.export(1).await;
        let part = self.until("export_part").await;
        self.perform(part).await;
        (export, self.until("run_export").await)
    }

    async fn until_there_is_a_manifest(&self, export: ExportId) {
        let patience = Instant::now();
        while self.manifest(export).is_none() {
            assert!(patience.elapsed() < Duration::from_secs(180), "no manifest appears");
            tokio::task::yield_now().await;
        }
    }

    async fn is_left_cancelled(&self, export: ExportId, context: &str) {
        self.drain().await;
        assert_eq!(self.read(export).await.status, ExportStatus::Cancelled, "{context}");
        assert_eq!(self.manifest(export), None, "{context}");
        self.assert_tidy().await;
    }
}

async fn a_manifest_of_a_worker_that_wakes_behind_the_clean_up_is_taken_back(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drain().await;
    // It may sleep through the first look, through the late one, and through the last.
    for asleep in [Duration::ZERO, LATE, LAST] {
        // Its request waits on this side, or was done and only the answer waits.
        for done in [false, true] {
            let context = format!("asleep for {asleep:?}, done: {done}");
            let (export, job) = home.before_the_manifest().await;
            home.s3.hang_at("_manifest.json", done);
            let frozen = home.freeze(job).await;
            home.cancel(export).await.unwrap();
            // Its lease ends.
            home.boot().await;
            home.drive().await;
            home.wait(asleep).await;
            home.drive().await;
            assert_eq!(home.manifest(export), None, "{context}: the clean-up came by");
            home.s3.thaw();
            frozen.await;
            assert_eq!(home.manifest(export), None, "{context}");
            home.is_left_cancelled(export, &context).await;
        }
    }
}

async fn a_manifest_of_a_worker_that_dies_behind_its_write_is_removed_later(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drain().await;
    // Behind the first look, and behind the late one.
    for asleep in [Duration::ZERO, LATE] {
        let (export, job) = home.before_the_manifest().await;
        home.s3.hang_at("_manifest.json", false);
        let frozen = home.freeze(job).await;
        home.cancel(export).await.unwrap();
        home.boot().await;
        home.drive().await;
        home.wait(asleep).await;
        home.drive().await;
        home.s3.thaw();
        home.until_there_is_a_manifest(export).await;
        kill(frozen);
        home.is_left_cancelled(export, &format!("asleep for {asleep:?}")).await;
    }
}

/// A worker that was replaced writes the manifest once more, and takes nothing back.
async fn a_manifest_that_was_written_twice_stays(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drain().await;
    let (export, job) = home.before_the_manifest().await;
    home.s3.hang_at("_manifest.json", false);
    let frozen = home.freeze(job).await;
    home.boot().await;
    home.drain().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed);
    let written = home.manifest(export).expect("the other worker has written it");
    home.s3.thaw();
    frozen.await;
    assert_eq!(home.manifest(export), Some(written));
    home.wait(LAST).await;
    home.drain().await;
    assert!(home.manifest(export).is_some());
    home.assert_tidy().await;
}

/// Between the last part and the manifest: the worker has not begun it.
async fn a_manifest_is_not_begun_once_the_export_is_cancelled(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drain().await;
    let (export, job) = home.before_the_manifest().await;
    home.cancel(export).await.unwrap();
    let before = home.s3.calls().len();
    home.perform(job).await;
    let calls = home.s3.calls().split_off(before);
    assert!(calls.iter().all(|call| !call.starts_with("PUT")), "{calls:?}");
    home.is_left_cancelled(export, "not begun").await;
}

async fn the_late_look_waits_for_a_longer_lease(on: Database) {
    let mut home = Home::new_on(&on, 1).await;
    home.drain().await;
    home.lease(Duration::from_secs(600));
    let (export, job) = home.before_the_manifest().await;
    home.s3.hang_at("_manifest.json", false);
    let frozen = home.freeze(job).await;
    home.cancel(export).await.unwrap();
    home.boot().await;
    home.drive().await;
    home.wait(LATE).await;
    home.drive().await;
    home.s3.thaw();
    home.until_there_is_a_manifest(export).await;
    kill(frozen);
    home.drive().await;
    assert!(home.manifest(export).is_some(), "it has been looked for too early");
    home.wait(Duration::from_secs(600)).await;
    home.drive().await;
    assert_eq!(home.manifest(export), None);
    home.drain().await;
}

/// The clock of the host that looks may be ahead.
#[tokio::test(flavor = "multi_thread")]
async fn the_late_look_goes_by_the_clock_of_the_database() {
    let Some(server) = Database::postgres() else { return };
    let mut home = Home::new_on(&server, 1).await;
    home.drain().await;
    home.lease(Duration::from_secs(600));
    let (export, job) = home.before_the_manifest().await;
    home.s3.hang_at("_manifest.json", false);
    let frozen = home.freeze(job).await;
    home.cancel(export).await.unwrap();
    home.boot().await;
    home.drive().await;
    home.wait(LATE).await;
    // Of this host alone: the database knows nothing of it.
    home.clock.advance(Duration::from_secs(3600));
    home.drive().await;
    let late =
        "SELECT count(*) FROM job WHERE kind = 'clean_export' AND state = 'scheduled' AND input LIKE '%\"late\"%'";
    assert_ne!(home.count(late).await, 0, "the lease of that time runs still");
    kill(frozen);
}
