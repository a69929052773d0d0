//! The statements of exports on the other database.

use towpath_domain::export::ExportStatus;
use towpath_durable::Signal;

use crate::home::{DAY_ROWS, Database, Home};
use crate::s3::Fault;

#[tokio::test(flavor = "multi_thread")]
async fn exports_complete_fail_and_are_cancelled() {
    let Some(server) = Database::postgres() else { return };
    let home = Home::new_on(&server, 2).await;
    let whole = home.export(3).await;
    home.drive().await;
    assert_eq!(home.read(whole).await.status, ExportStatus::Completed);
    let runs = home.runs(whole).await;
    let rows: Vec<_> = runs.iter().map(|run| (run.files_written, run.rows_written)).collect();
    let rows_per_day = i64::try_from(DAY_ROWS).unwrap();
    assert_eq!(rows, [(2, rows_per_day), (2, rows_per_day), (0, 0)]);
    assert_eq!(home.manifest(whole).unwrap()["rows"], 2 * DAY_ROWS);

    // A worker dies with a file pending; the next one makes the same file.
    let again = home.export(2).await;
    let part = home.until("export_part").await;
    home.s3.hang(3, true);
    home.perform_until_hung(part, async || Signal::Lost).await;
    home.boot().await;
    home.drive().await;
    assert_eq!(home.read(again).await.status, ExportStatus::Completed);
    assert!(home.files(again) == home.files(whole));

    let refused = home.export(2).await;
    home.s3.fail(Fault::new("parquet", 403, "AccessDenied", 1));
    home.drive().await;
    assert_eq!(home.read(refused).await.status, ExportStatus::Failed);
    let runs = home.runs(refused).await;
    assert!(runs.iter().any(|run| run.errors.contains("retry_0")));
    assert!(runs.iter().all(|run| run.status.is_final()));

    let cancelled = home.export(2).await;
    let part = home.until("export_part").await;
    home.s3.hang(2, true);
    home.perform_until_hung(part, async || {
        home.cancel(cancelled).await.unwrap();
        Signal::Cancel
    })
    .await;
    home.drive().await;
    assert_eq!(home.cancel(cancelled).await.unwrap().status, ExportStatus::Cancelled);
    assert_eq!(home.manifest(cancelled), None);
    assert_eq!(home.count("SELECT count(*) FROM segment_pin").await, 0);
    assert_eq!(home.count("SELECT count(*) FROM export_upload").await, 0);
    assert_eq!(
        home.count("SELECT count(*) FROM export_run WHERE finished_at IS NULL")
            .await,
        0
    );
}
