//! A destination is deleted at any moment of an export to it.

use std::time::{Duration, Instant};

use towpath_domain::export::{DestinationKind, ExportStatus};
use towpath_domain::{DestinationId, ExportId, TenantId};
use towpath_durable::Signal;
use towpath_store::exports::listing;
use towpath_store::{Error, destinations};
use towpath_workflows::{delete_destination, run_export};

use crate::fixture::{Database, WorkflowFixture, on_both_databases};

const DELETED: &str = "the destination was deleted";

on_both_databases! {
    everything_on_its_way_to_a_deleted_destination_fails_at_once,
    an_export_is_failed_whatever_it_was_just_doing,
    a_manifest_that_was_just_written_goes_with_its_destination,
    a_schedule_stops_and_says_why,
    what_is_over_stays_as_it_is,
}

impl WorkflowFixture {
    async fn delete(&self, destination: DestinationId) -> towpath_store::Result<()> {
        self.store()
            .write(async |tx| delete_destination::delete(tx, self.tenant, destination).await)
            .await
    }

    /// Another destination in the same bucket, used by later exports.
    async fn elsewhere(&mut self) -> DestinationId {
        let config = self.s3.config("p/q");
        self.destination = self.add_destination(DestinationKind::S3, &config).await;
        self.destination
    }

    async fn is_failed(&self, export: ExportId, context: &str) {
        let row = self.read(export).await;
        assert_eq!(row.status, ExportStatus::Failed, "{context}");
        assert_eq!(row.error.as_deref(), Some(DELETED), "{context}");
        assert!(row.finished_at.is_some());
        for run in self.runs(export).await {
            assert!(run.status.is_final(), "{context}: {run:?}");
            let told = run.errors.contains(DELETED);
            assert_eq!(told, run.status == ExportStatus::Failed, "{context}: {run:?}");
        }
    }
}

async fn everything_on_its_way_to_a_deleted_destination_fails_at_once(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 3).await;
    fixture.drain().await;
    let destination = fixture.elsewhere().await;
    // Exports in all states: running with finished runs, running, backing off and queued; one holds a slot and one
    // waits for it.
    fixture.world.exports.runs_per_export = 2;
    fixture.world.exports.per_workspace = 2;
    let running = fixture.export(3).await;
    let first = fixture.until("export_part").await;
    fixture.perform(first).await;
    let second = fixture.until("export_part").await;
    fixture.s3.fail(crate::s3::Fault::new("parquet", 503, "SlowDown", 4));
    fixture.perform(second).await;
    let third = fixture.until("export_part").await;
    fixture.s3.hang_at("parquet", false);
    let frozen = fixture.freeze(third).await;
    let others = [fixture.export(1).await, fixture.export(1).await];
    fixture.delete(destination).await.unwrap();
    assert!(matches!(fixture.delete(destination).await, Err(Error::NotFound)));

    let statuses: Vec<_> = fixture.runs(running).await.into_iter().map(|run| run.status).collect();
    use ExportStatus::{Completed, Failed};
    assert_eq!(statuses, [Completed, Failed, Failed]);
    for export in others.into_iter().chain([running]) {
        fixture.is_failed(export, "at once").await;
    }
    let run = fixture.runs(running).await.remove(1);
    let errors: serde_json::Value = serde_json::from_str(&run.errors).unwrap();
    assert!(errors["retry_0"].as_str().unwrap().contains("SlowDown"), "{errors}");
    assert_eq!(errors["retry_1"], DELETED);
    let credentials = "SELECT count(*) FROM destination WHERE credentials IS NOT NULL";
    assert_eq!(fixture.count(credentials).await, 1, "those of the first destination");

    fixture.s3.thaw();
    frozen.await;
    fixture.boot().await;
    fixture.drain().await;
    for export in others.into_iter().chain([running]) {
        fixture.is_failed(export, "later").await;
        assert_eq!(fixture.manifest(export), None);
    }
    fixture.assert_tidy().await;
    assert_eq!(fixture.count("SELECT count(*) FROM lane WHERE held <> 0").await, 0);
}

/// At each call of an export to its destination.
async fn an_export_is_failed_whatever_it_was_just_doing(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    let mut deleted = 0;
    for call in (0..200).step_by(on.stride()) {
        let destination = fixture.elsewhere().await;
        let export = fixture.export(1).await;
        fixture.s3.hang(call, true);
        while let Some(job) = fixture.claim().await {
            fixture
                .perform_until_hung(job, async || {
                    fixture.delete(destination).await.unwrap();
                    fixture.is_failed(export, &format!("call {call}")).await;
                    fixture.s3.thaw();
                    Signal::Cancel
                })
                .await;
        }
        let whole = fixture.s3.unhang();
        fixture.drain().await;
        if whole {
            assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
            break;
        }
        deleted += 1;
        fixture.is_failed(export, &format!("after call {call}")).await;
        assert_eq!(fixture.manifest(export), None, "call {call}");
        fixture.assert_tidy().await;
    }
    assert!(deleted >= 4, "{deleted}");
}

/// Its worker reverts its write in a separate task, even if it is dropped half-way: no other process has access any
/// more.
async fn a_manifest_that_was_just_written_goes_with_its_destination(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    let destination = fixture.elsewhere().await;
    let export = fixture.export(1).await;
    let part = fixture.until("export_part").await;
    fixture.perform(part).await;
    let job = fixture.until("run_export").await;
    fixture.s3.hang_at("_manifest.json", true);
    fixture
        .perform_until_hung(job, async || {
            assert!(fixture.manifest(export).is_some());
            fixture.delete(destination).await.unwrap();
            // Its answer never comes.
            Signal::Cancel
        })
        .await;
    fixture.is_failed(export, "all runs had completed").await;
    let patience = Instant::now();
    while fixture.manifest(export).is_some() {
        assert!(patience.elapsed() < Duration::from_secs(180), "the manifest is left");
        tokio::task::yield_now().await;
    }
    fixture.drain().await;
    fixture.assert_tidy().await;
}

async fn a_schedule_stops_and_says_why(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drive().await;
    let kept = fixture.schedule("2026-03-10T09:00:00Z", 4).await;
    let destination = fixture.elsewhere().await;
    let schedule = fixture.schedule("2026-03-10T09:00:00Z", 4).await;
    fixture.delete(destination).await.unwrap();
    let show = async |id| {
        fixture
            .store()
            .read(async |tx| listing::get(tx, fixture.tenant, id).await)
            .await
            .unwrap()
    };
    let shown = show(schedule).await;
    assert_eq!(
        (shown.status, shown.error.as_deref(), shown.destination_id),
        (ExportStatus::Cancelled, Some(DELETED), destination)
    );
    assert!(shown.finished_at.is_some());
    assert_eq!(show(kept).await.status, ExportStatus::Running);
    let active = "SELECT count(*) FROM schedule WHERE ended_at IS NULL";
    assert_eq!(fixture.count(active).await, 1);
    fixture.wait(Duration::from_secs(5 * 3600)).await;
    fixture.drive().await;
    assert!(fixture.spawned(schedule).await.is_empty());
    assert_eq!(fixture.spawned(kept).await.len(), 1);
}

async fn what_is_over_stays_as_it_is(on: Database) {
    let mut fixture = WorkflowFixture::new_on(&on, 1).await;
    let destination = fixture.elsewhere().await;
    let (done, cancelled) = (fixture.export(1).await, fixture.export(1).await);
    fixture.cancel(cancelled).await.unwrap();
    fixture.drain().await;
    // A destination of another workspace is not found.
    let foreign = fixture
        .store()
        .write(async |tx| delete_destination::delete(tx, TenantId::new(), destination).await);
    assert!(matches!(foreign.await, Err(Error::NotFound)));
    fixture.delete(destination).await.unwrap();
    for (export, status) in [(done, ExportStatus::Completed), (cancelled, ExportStatus::Cancelled)] {
        let row = fixture.read(export).await;
        assert_eq!((row.status, row.error, row.destination_id), (status, None, destination));
    }
    assert!(fixture.manifest(done).is_some());
    let gone = fixture
        .store()
        .read(async |tx| destinations::get(tx, fixture.tenant, destination).await);
    assert!(matches!(gone.await, Err(Error::NotFound)));
    // No new exports to it.
    let limits = fixture.world.exports;
    let project = fixture.project().await;
    let content = towpath_domain::export::ExportSpec {
        destination,
        project,
        format_version: towpath_domain::export::FormatVersion::V1,
        compression: towpath_domain::export::Compression::Zstandard,
        fields: None,
        filter: None,
    };
    let range = crate::fixture::time("2026-03-01")..crate::fixture::time("2026-03-02");
    let refused = fixture
        .store()
        .write(async |tx| run_export::start(tx, fixture.tenant, &limits, &content, range).await);
    let refused = refused.await.unwrap_err().to_string();
    assert!(refused.contains("destination"), "{refused}");
    fixture.drain().await;
    fixture.assert_tidy().await;
}

/// An export recorded during the deletion is either refused or fails.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_recorded_while_its_destination_is_deleted_does_not_outlive_it() {
    let Some(server) = Database::postgres() else { return };
    let mut fixture = WorkflowFixture::new_on(&server, 1).await;
    fixture.drain().await;
    let destination = fixture.elsewhere().await;
    let project = fixture.project().await;
    let content = towpath_domain::export::ExportSpec {
        destination,
        project,
        format_version: towpath_domain::export::FormatVersion::V1,
        compression: towpath_domain::export::Compression::Zstandard,
        fields: None,
        filter: None,
    };
    let limits = fixture.world.exports;
    let range = crate::fixture::time("2026-03-01")..crate::fixture::time("2026-03-02");
    // The export is recorded and not committed; the deletion must wait for it.
    let (recorded, waits) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let record = fixture.store().write(async |tx| {
        let export = run_export::start(tx, fixture.tenant, &limits, &content, range).await?;
        recorded.notify_one();
        waits.notified().await;
        Ok(export.id)
    });
    let delete = async {
        recorded.notified().await;
        fixture.delete(destination).await
    };
    let commit = async {
        fixture.until_somebody_waits_for_a_lock().await;
        waits.notify_one();
    };
    let (export, deleted, ()) = tokio::join!(record, delete, commit);
    deleted.unwrap();
    let export = export.unwrap();
    fixture.is_failed(export, "recorded before").await;
    fixture.drain().await;
    fixture.is_failed(export, "and stays so").await;
    fixture.assert_tidy().await;
}
