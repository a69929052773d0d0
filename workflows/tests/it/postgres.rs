//! The statements of exports on PostgreSQL.

use towpath_domain::export::ExportStatus;
use towpath_durable::Signal;

use crate::fixture::{DAY_ROWS, Database, WorkflowFixture};
use crate::s3::Fault;

#[tokio::test(flavor = "multi_thread")]
async fn exports_complete_fail_and_are_cancelled() {
    let Some(server) = Database::postgres() else { return };
    let fixture = WorkflowFixture::new_on(&server, 2).await;
    let whole = fixture.export(3).await;
    fixture.drive().await;
    assert_eq!(fixture.read(whole).await.status, ExportStatus::Completed);
    let runs = fixture.runs(whole).await;
    let rows: Vec<_> = runs.iter().map(|run| (run.files_written, run.rows_written)).collect();
    let rows_per_day = i64::try_from(DAY_ROWS).unwrap();
    assert_eq!(rows, [(2, rows_per_day), (2, rows_per_day), (0, 0)]);
    assert_eq!(fixture.manifest(whole).unwrap()["rows"], 2 * DAY_ROWS);

    // A worker dies with a pending file; the next one creates the same file.
    let again = fixture.export(2).await;
    let part = fixture.until("export_part").await;
    fixture.s3.hang(3, true);
    fixture.perform_until_hung(part, async || Signal::Lost).await;
    fixture.boot().await;
    fixture.drive().await;
    assert_eq!(fixture.read(again).await.status, ExportStatus::Completed);
    assert!(fixture.files(again) == fixture.files(whole));

    let refused = fixture.export(2).await;
    fixture.s3.fail(Fault::new("parquet", 403, "AccessDenied", 1));
    fixture.drive().await;
    assert_eq!(fixture.read(refused).await.status, ExportStatus::Failed);
    let runs = fixture.runs(refused).await;
    assert!(runs.iter().any(|run| run.errors.contains("retry_0")));
    assert!(runs.iter().all(|run| run.status.is_final()));

    let cancelled = fixture.export(2).await;
    let part = fixture.until("export_part").await;
    fixture.s3.hang(2, true);
    fixture
        .perform_until_hung(part, async || {
            fixture.cancel(cancelled).await.unwrap();
            Signal::Cancel
        })
        .await;
    fixture.drive().await;
    assert_eq!(fixture.cancel(cancelled).await.unwrap().status, ExportStatus::Cancelled);
    assert_eq!(fixture.manifest(cancelled), None);
    assert_eq!(fixture.count("SELECT count(*) FROM segment_pin").await, 0);
    assert_eq!(fixture.count("SELECT count(*) FROM export_upload").await, 0);
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM export_run WHERE finished_at IS NULL")
            .await,
        0
    );
}
