//! A destination is deleted at any moment of an export to it.

use std::time::{Duration, Instant};

use towpath_domain::export::{DestinationKind, ExportStatus};
use towpath_domain::{DestinationId, ExportId, TenantId};
use towpath_durable::Signal;
use towpath_store::exports::listing;
use towpath_store::{Error, destinations};
use towpath_workflows::{delete_destination, run_export};

use crate::home::{Database, Home, on_both_databases};

const DELETED: &str = "the destination was deleted";

on_both_databases! {
    everything_on_its_way_to_a_deleted_destination_fails_at_once,
    an_export_is_failed_whatever_it_was_just_doing,
    a_manifest_that_was_just_written_goes_with_its_destination,
    a_schedule_stops_and_says_why,
    what_is_over_stays_as_it_is,
}

impl Home {
    async fn delete(&self, destination: DestinationId) -> towpath_store::Result<()> {
        self.store()
            .write(async |tx| delete_destination::delete(tx, self.tenant, destination).await)
            .await
    }

    /// Another destination below the same bucket, which exports go to from now on.
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
    let mut home = Home::new_on(&on, 3).await;
    home.drain().await;
    let destination = home.elsewhere().await;
    // One is at work, its runs finished, at work, backing off and queued; one has its place; one waits for one.
    home.world.exports.runs_per_export = 2;
    home.world.exports.per_workspace = 2;
    let running = home.export(3).await;
    let first = home.until("export_part").await;
    home.perform(first).await;
    let second = home.until("export_part").await;
    home.s3.fail(crate::s3::Fault::new("parquet", 503, "SlowDown", 4));
    home.perform(second).await;
    let third = home.until("export_part").await;
    home.s3.hang_at("parquet", false);
    let frozen = home.freeze(third).await;
    let others = [home.export(1).await, home.export(1).await];
    home.delete(destination).await.unwrap();
    assert!(matches!(home.delete(destination).await, Err(Error::NotFound)));

    let statuses: Vec<_> = home.runs(running).await.into_iter().map(|run| run.status).collect();
    use ExportStatus::{Completed, Failed};
    assert_eq!(statuses, [Completed, Failed, Failed]);
    for export in others.into_iter().chain([running]) {
        home.is_failed(export, "at once").await;
    }
    let run = home.runs(running).await.remove(1);
    let errors: serde_json::Value = serde_json::from_str(&run.errors).unwrap();
    assert!(errors["retry_0"].as_str().unwrap().contains("SlowDown"), "{errors}");
    assert_eq!(errors["retry_1"], DELETED);
    let credentials = "SELECT count(*) FROM destination WHERE credentials IS NOT NULL";
    assert_eq!(home.count(credentials).await, 1, "those of the first destination");

    home.s3.thaw();
    frozen.await;
    home.boot().await;
    home.drain().await;
    for export in others.into_iter().chain([running]) {
        home.is_failed(export, "later").await;
        assert_eq!(home.manifest(export), None);
    }
    home.assert_tidy().await;
    assert_eq!(home.count("SELECT count(*) FROM lane WHERE held <> 0").await, 0);
}

/// At each call that an export makes to its destination.
async fn an_export_is_failed_whatever_it_was_just_doing(on: Database) {
    let mut home = Home::new_on(&on, 1).await;
    home.drain().await;
    let mut deleted = 0;
    for call in (0..200).step_by(on.stride()) {
        let destination = home.elsewhere().await;
        let export = home.export(1).await;
        home.s3.hang(call, true);
        while let Some(job) = home.claim().await {
            home.perform_until_hung(job, async || {
                home.delete(destination).await.unwrap();
                home.is_failed(export, &format!("call {call}")).await;
                home.s3.thaw();
                Signal::Cancel
            })
            .await;
        }
        let whole = home.s3.unhang();
        home.drain().await;
        if whole {
            assert_eq!(home.read(export).await.status, ExportStatus::Completed);
            break;
        }
        deleted += 1;
        home.is_failed(export, &format!("after call {call}")).await;
        assert_eq!(home.manifest(export), None, "call {call}");
        home.assert_tidy().await;
    }
    assert!(deleted >= 4, "{deleted}");
}

/// Its worker takes it back in a task of its own, also when it is dropped in the middle: nobody else can go there any more.
async fn a_manifest_that_was_just_written_goes_with_its_destination(on: Database) {
    let mut home = Home::new_on(&on, 1).await;
    home.drain().await;
    let destination = home.elsewhere().await;
    let export = home.export(1).await;
    let part = home.until("export_part").await;
    home.perform(part).await;
    let job = home.until("run_export").await;
    home.s3.hang_at("_manifest.json", true);
    home.perform_until_hung(job, async || {
        assert!(home.manifest(export).is_some());
        home.delete(destination).await.unwrap();
        // Its answer never comes.
        Signal::Cancel
    })
    .await;
    home.is_failed(export, "all runs had completed").await;
    let patience = Instant::now();
    while home.manifest(export).is_some() {
        assert!(patience.elapsed() < Duration::from_secs(180), "the manifest is left");
        tokio::task::yield_now().await;
    }
    home.drain().await;
    home.assert_tidy().await;
}

async fn a_schedule_stops_and_says_why(on: Database) {
    let mut home = Home::new_on(&on, 1).await;
    home.drive().await;
    let kept = home.schedule("2026-03-10T09:00:00Z", 4).await;
    let destination = home.elsewhere().await;
    let schedule = home.schedule("2026-03-10T09:00:00Z", 4).await;
    home.delete(destination).await.unwrap();
    let show = async |id| {
        home.store()
            .read(async |tx| listing::get(tx, home.tenant, id).await)
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
    assert_eq!(home.count(active).await, 1);
    home.wait(Duration::from_secs(5 * 3600)).await;
    home.drive().await;
    assert!(home.spawned(schedule).await.is_empty());
    assert_eq!(home.spawned(kept).await.len(), 1);
}

async fn what_is_over_stays_as_it_is(on: Database) {
    let mut home = Home::new_on(&on, 1).await;
    let destination = home.elsewhere().await;
    let (done, cancelled) = (home.export(1).await, home.export(1).await);
    home.cancel(cancelled).await.unwrap();
    home.drain().await;
    // One of another workspace is not there.
    let foreign = home
        .store()
        .write(async |tx| delete_destination::delete(tx, TenantId::new(), destination).await);
    assert!(matches!(foreign.await, Err(Error::NotFound)));
    home.delete(destination).await.unwrap();
    for (export, status) in [(done, ExportStatus::Completed), (cancelled, ExportStatus::Cancelled)] {
        let row = home.read(export).await;
        assert_eq!((row.status, row.error, row.destination_id), (status, None, destination));
    }
    assert!(home.manifest(done).is_some());
    let gone = home
        .store()
        .read(async |tx| destinations::get(tx, home.tenant, destination).await);
    assert!(matches!(gone.await, Err(Error::NotFound)));
    // Nothing new goes there.
    let limits = home.world.exports;
    let project = home.project().await;
    let content = towpath_domain::export::Content {
        destination,
        project,
        format_version: towpath_domain::export::FormatVersion::V1,
        compression: towpath_domain::export::Compression::Zstandard,
        fields: None,
        filter: None,
    };
    let range = crate::home::time("2026-03-01")..crate::home::time("2026-03-02");
    let refused = home
        .store()
        .write(async |tx| run_export::start(tx, home.tenant, &limits, &content, range).await);
    let refused = refused.await.unwrap_err().to_string();
    assert!(refused.contains("destination"), "{refused}");
    home.drain().await;
    home.assert_tidy().await;
}

/// Who records an export while its destination is being deleted either is refused or sees the export fail.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_recorded_while_its_destination_is_deleted_does_not_outlive_it() {
    let Some(server) = Database::postgres() else { return };
    let mut home = Home::new_on(&server, 1).await;
    home.drain().await;
    let destination = home.elsewhere().await;
    let project = home.project().await;
    let content = towpath_domain::export::Content {
        destination,
        project,
        format_version: towpath_domain::export::FormatVersion::V1,
        compression: towpath_domain::export::Compression::Zstandard,
        fields: None,
        filter: None,
    };
    let limits = home.world.exports;
    let range = crate::home::time("2026-03-01")..crate::home::time("2026-03-02");
    // The export is recorded and not committed; the delete has to wait for it.
    let (recorded, waits) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let record = home.store().write(async |tx| {
        let export = run_export::start(tx, home.tenant, &limits, &content, range).await?;
        recorded.notify_one();
        waits.notified().await;
        Ok(export.id)
    });
    let delete = async {
        recorded.notified().await;
        home.delete(destination).await
    };
    let commit = async {
        home.until_somebody_waits_for_a_lock().await;
        waits.notify_one();
    };
    let (export, deleted, ()) = tokio::join!(record, delete, commit);
    deleted.unwrap();
    let export = export.unwrap();
    home.is_failed(export, "recorded before").await;
    home.drain().await;
    home.is_failed(export, "and stays so").await;
    home.assert_tidy().await;
}
