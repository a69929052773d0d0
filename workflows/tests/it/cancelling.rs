use std::time::Duration;

use towpath_domain::export::{EXPORT_LIMIT, ExportStatus};
use towpath_durable::Signal;

use crate::home::Home;

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_at_each_call_nothing_is_left_at_work() {
    let home = Home::new(1).await;
    home.drain().await;
    let mut cancelled = 0;
    for call in 0..200 {
        let export = home.export(1).await;
        home.s3.hang(call, true);
        while let Some(job) = home.claim().await {
            home.perform_until_hung(job, async || {
                let row = home.cancel(export).await.unwrap();
                assert_eq!(row.status, ExportStatus::Cancelled);
                Signal::Cancel
            })
            .await;
        }
        home.drain().await;
        if home.s3.unhang() {
            assert_eq!(home.read(export).await.status, ExportStatus::Completed);
            break;
        }
        cancelled += 1;
        assert_eq!(home.read(export).await.status, ExportStatus::Cancelled, "call {call}");
        assert!(
            home.runs(export).await.iter().all(|run| run.status.is_final()),
            "call {call}"
        );
        assert_eq!(home.manifest(export), None, "call {call}");
        home.assert_tidy().await;
    }
    assert!(cancelled >= 7, "{cancelled}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_export_is_cancelled_at_once_and_stays_so() {
    let home = Home::new(3).await;
    let export = home.export(3).await;
    assert_eq!(home.cancel(export).await.unwrap().status, ExportStatus::Cancelled);
    assert_eq!(home.cancel(export).await.unwrap().status, ExportStatus::Cancelled);
    home.drain().await;
    assert!(home.runs(export).await.is_empty());

    // Waiting for its parts, of which one is finished.
    let export = home.export(3).await;
    let part = home.until("export_part").await;
    home.perform(part).await;
    home.cancel(export).await.unwrap();
    home.drain().await;
    let statuses: Vec<_> = home.runs(export).await.into_iter().map(|run| run.status).collect();
    assert_eq!(
        statuses,
        [
            ExportStatus::Completed,
            ExportStatus::Cancelled,
            ExportStatus::Cancelled
        ]
    );
    assert_eq!(home.files(export).len(), 2, "finished files stay");
    assert_eq!(home.manifest(export), None);

    let export = home.export(1).await;
    home.drain().await;
    let refused = home.cancel(export).await.unwrap_err();
    assert!(refused.to_string().contains("COMPLETED"), "{refused}");
    home.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_72_hours_at_work_it_is_timed_out() {
    let home = Home::new(2).await;
    home.drain().await;
    let export = home.export(2).await;
    // Waiting for a place does not count.
    home.clock.advance(EXPORT_LIMIT);
    let part = home.until("export_part").await;
    home.perform(part).await;
    home.clock.advance(EXPORT_LIMIT - Duration::from_secs(1));
    towpath_durable::end_overdue(home.store(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(home.read(export).await.status, ExportStatus::Running);
    home.clock.advance(Duration::from_secs(1));
    towpath_durable::end_overdue(home.store(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(home.read(export).await.status, ExportStatus::TimedOut);
    home.drain().await;
    let statuses: Vec<_> = home.runs(export).await.into_iter().map(|run| run.status).collect();
    assert_eq!(statuses, [ExportStatus::Completed, ExportStatus::Cancelled]);
    home.assert_tidy().await;
}
