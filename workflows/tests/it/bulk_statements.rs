//! Bulk operations on days, jobs or exports use a constant number of statements, because others wait for their locks.

use towpath_domain::ExportId;
use towpath_domain::export::ExportStatus;
use towpath_traces::sample::SampleOperations;
use towpath_workflows::delete_destination;

use crate::fixture::{Database, WorkflowFixture, on_both_databases};

const FEW: u32 = 10;
const MANY: u32 = 2000;

on_both_databases! {
    planning_and_cancelling_take_as_many_statements_for_years_as_for_days,
    deleting_a_destination_takes_as_many_statements_for_many_exports_as_for_a_few,
}

impl WorkflowFixture {
    /// Number of statements that `work` sends.
    async fn statements(&self, work: impl Future<Output = ()>) -> u64 {
        let before = self.store().statements();
        work.await;
        self.store().statements() - before
    }

    async fn open_jobs(&self) -> i64 {
        self.count("SELECT count(*) FROM job WHERE finished_at IS NULL").await
    }

    async fn is_over(&self, export: ExportId, status: ExportStatus, runs: u32) {
        assert_eq!(self.read(export).await.status, status);
        let rows = self.runs(export).await;
        assert_eq!(rows.len(), runs as usize);
        assert!(rows.iter().all(|run| run.status.is_final()));
    }
}

async fn planning_and_cancelling_take_as_many_statements_for_years_as_for_days(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 3).await;
    fixture.send(0..300, SampleOperations::Both).await;
    fixture.drain().await;
    fixture.close_ingest().await;
    let mut planned = Vec::new();
    let mut cancelled = Vec::new();
    for days in [FEW, MANY] {
        let export = fixture.export(days).await;
        let job = fixture.until("run_export").await;
        planned.push(fixture.statements(fixture.perform(job)).await);
        assert_eq!(fixture.open_jobs().await, i64::from(days) + 1);
        assert_eq!(
            fixture.count("SELECT count(*) FROM segment_pin").await,
            3,
            "days with trace runs are pinned"
        );
        let pools = "SELECT count(*) FROM job WHERE state = 'ready' AND kind = 'export_part'";
        assert_eq!(
            fixture.count(pools).await,
            i64::from(days.min(45)),
            "as many as there are places"
        );
        let cancel = async {
            fixture.cancel(export).await.unwrap();
        };
        cancelled.push(fixture.statements(cancel).await);
        fixture.is_over(export, ExportStatus::Cancelled, days).await;
        assert_eq!(fixture.open_jobs().await, 0);
        fixture.assert_tidy().await;
    }
    assert_eq!(planned[0], planned[1]);
    assert_eq!(cancelled[0], cancelled[1]);
    assert!(planned[0] < 60 && cancelled[0] < 60, "{planned:?}, {cancelled:?}");

    // Some are running and some have ended: running ones are signalled, and the others end at once.
    let export = fixture.export(MANY).await;
    let mut parts = Vec::new();
    for _ in 0..3 {
        parts.push(fixture.until("export_part").await);
    }
    fixture.perform(parts.remove(0)).await;
    fixture.cancel(export).await.unwrap();
    assert_eq!(fixture.open_jobs().await, 2);
    for part in parts {
        fixture.perform(part).await;
    }
    fixture.drain().await;
    fixture.is_over(export, ExportStatus::Cancelled, MANY).await;
    assert_eq!(fixture.count("SELECT count(*) FROM lane WHERE held <> 0").await, 0);
    fixture.assert_tidy().await;
}

async fn deleting_a_destination_takes_as_many_statements_for_many_exports_as_for_a_few(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..10, SampleOperations::Both).await;
    fixture.drain().await;
    fixture.close_ingest().await;
    let mut taken = Vec::new();
    for exports in [2, 60] {
        let config = fixture.s3.config("other");
        fixture.destination = fixture
            .add_destination(towpath_domain::export::DestinationKind::S3, &config)
            .await;
        let mut all = Vec::new();
        for _ in 0..exports {
            all.push(fixture.export(1).await);
            fixture.schedule("2026-03-10T09:00:00Z", 4).await;
        }
        let (tenant, destination) = (fixture.tenant, fixture.destination);
        let delete = async {
            let deleted = fixture
                .store()
                .write(async |tx| delete_destination::delete(tx, tenant, destination).await);
            deleted.await.unwrap();
        };
        taken.push(fixture.statements(delete).await);
        for export in all {
            fixture.is_over(export, ExportStatus::Failed, 0).await;
        }
        assert_eq!(fixture.open_jobs().await, 0);
    }
    assert_eq!(taken[0], taken[1]);
}
