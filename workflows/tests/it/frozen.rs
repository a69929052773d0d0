//! Workers that are suspended past their lease and continue after the end of the export: nothing of their writes stays.

use std::time::{Duration, Instant};

use towpath_domain::ExportId;
use towpath_domain::export::ExportStatus;
use towpath_durable::ClaimedJob;

use crate::fixture::{Database, WorkflowFixture, kill, on_both_databases};

/// After the late pass, with the default lease.
const LATE: Duration = Duration::from_secs(80);
/// After the last pass for a manifest.
const LAST: Duration = Duration::from_secs(21 * 60);

on_both_databases! {
    a_manifest_of_a_worker_that_wakes_behind_the_clean_up_is_taken_back,
    a_manifest_of_a_worker_that_dies_behind_its_write_is_removed_later,
    a_manifest_that_was_written_twice_stays,
    a_manifest_is_not_begun_once_the_export_is_cancelled,
    the_late_look_waits_for_a_longer_lease,
}

impl WorkflowFixture {
    /// An export of one day up to the write of its manifest.
    async fn before_the_manifest(&self) -> (ExportId, ClaimedJob) {
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
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    // It may be suspended through the first, the late, or the last pass.
    for asleep in [Duration::ZERO, LATE, LAST] {
        // The request was not sent, or only its response is missing.
        for done in [false, true] {
            let context = format!("asleep for {asleep:?}, done: {done}");
            let (export, job) = fixture.before_the_manifest().await;
            fixture.s3.hang_at("_manifest.json", done);
            let frozen = fixture.freeze(job).await;
            fixture.cancel(export).await.unwrap();
            // Its lease expires.
            fixture.boot().await;
            fixture.drive().await;
            fixture.wait(asleep).await;
            fixture.drive().await;
            assert_eq!(fixture.manifest(export), None, "{context}: the clean-up came by");
            fixture.s3.thaw();
            frozen.await;
            assert_eq!(fixture.manifest(export), None, "{context}");
            fixture.is_left_cancelled(export, &context).await;
        }
    }
}

async fn a_manifest_of_a_worker_that_dies_behind_its_write_is_removed_later(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    // After the first pass, and after the late one.
    for asleep in [Duration::ZERO, LATE] {
        let (export, job) = fixture.before_the_manifest().await;
        fixture.s3.hang_at("_manifest.json", false);
        let frozen = fixture.freeze(job).await;
        fixture.cancel(export).await.unwrap();
        fixture.boot().await;
        fixture.drive().await;
        fixture.wait(asleep).await;
        fixture.drive().await;
        fixture.s3.thaw();
        fixture.until_there_is_a_manifest(export).await;
        kill(frozen);
        fixture
            .is_left_cancelled(export, &format!("asleep for {asleep:?}"))
            .await;
    }
}

/// A replaced worker writes the manifest again, and reverts nothing.
async fn a_manifest_that_was_written_twice_stays(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    let (export, job) = fixture.before_the_manifest().await;
    fixture.s3.hang_at("_manifest.json", false);
    let frozen = fixture.freeze(job).await;
    fixture.boot().await;
    fixture.drain().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    let written = fixture.manifest(export).expect("the other worker has written it");
    fixture.s3.thaw();
    frozen.await;
    assert_eq!(fixture.manifest(export), Some(written));
    fixture.wait(LAST).await;
    fixture.drain().await;
    assert!(fixture.manifest(export).is_some());
    fixture.assert_tidy().await;
}

/// Between the last part and the manifest: the worker has not begun it.
async fn a_manifest_is_not_begun_once_the_export_is_cancelled(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    let (export, job) = fixture.before_the_manifest().await;
    fixture.cancel(export).await.unwrap();
    let before = fixture.s3.calls().len();
    fixture.perform(job).await;
    let calls = fixture.s3.calls().split_off(before);
    assert!(calls.iter().all(|call| !call.starts_with("PUT")), "{calls:?}");
    fixture.is_left_cancelled(export, "not begun").await;
}

async fn the_late_look_waits_for_a_longer_lease(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    fixture.lease(Duration::from_secs(600));
    let (export, job) = fixture.before_the_manifest().await;
    fixture.s3.hang_at("_manifest.json", false);
    let frozen = fixture.freeze(job).await;
    fixture.cancel(export).await.unwrap();
    fixture.boot().await;
    fixture.drive().await;
    fixture.wait(LATE).await;
    fixture.drive().await;
    fixture.s3.thaw();
    fixture.until_there_is_a_manifest(export).await;
    kill(frozen);
    fixture.drive().await;
    assert!(fixture.manifest(export).is_some(), "it has been looked for too early");
    fixture.wait(Duration::from_secs(600)).await;
    fixture.drive().await;
    assert_eq!(fixture.manifest(export), None);
    fixture.drain().await;
}

/// The clock of the checking host may be ahead.
#[tokio::test(flavor = "multi_thread")]
async fn the_late_look_goes_by_the_clock_of_the_database() {
    let Some(server) = Database::postgres() else { return };
    let mut fixture = WorkflowFixture::new_on(&server, 1).await;
    fixture.drain().await;
    fixture.lease(Duration::from_secs(600));
    let (export, job) = fixture.before_the_manifest().await;
    fixture.s3.hang_at("_manifest.json", false);
    let frozen = fixture.freeze(job).await;
    fixture.cancel(export).await.unwrap();
    fixture.boot().await;
    fixture.drive().await;
    fixture.wait(LATE).await;
    // Only this host's clock: that of the database is unchanged.
    fixture.clock.advance(Duration::from_secs(3600));
    fixture.drive().await;
    let late =
        "SELECT count(*) FROM job WHERE kind = 'clean_export' AND state = 'scheduled' AND input LIKE '%\"late\"%'";
    assert_ne!(fixture.count(late).await, 0, "the lease of that time runs still");
    kill(frozen);
}
