use std::time::Duration;

use towpath_domain::export::{EXPORT_LIMIT, ExportStatus};
use towpath_durable::Signal;

use crate::fixture::WorkflowFixture;

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_at_each_call_nothing_is_left_at_work() {
    let fixture = WorkflowFixture::new(1).await;
    fixture.drain().await;
    let mut cancelled = 0;
    for call in 0..200 {
        let export = fixture.export(1).await;
        fixture.s3.hang(call, true);
        while let Some(job) = fixture.claim().await {
            fixture
                .perform_until_hung(job, async || {
                    let row = fixture.cancel(export).await.unwrap();
                    assert_eq!(row.status, ExportStatus::Cancelled);
                    Signal::Cancel
                })
                .await;
        }
        fixture.drain().await;
        if fixture.s3.unhang() {
            assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
            break;
        }
        cancelled += 1;
        assert_eq!(
            fixture.read(export).await.status,
            ExportStatus::Cancelled,
            "call {call}"
        );
        assert!(
            fixture.runs(export).await.iter().all(|run| run.status.is_final()),
            "call {call}"
        );
        assert_eq!(fixture.manifest(export), None, "call {call}");
        fixture.assert_tidy().await;
    }
    assert!(cancelled >= 7, "{cancelled}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_export_is_cancelled_at_once_and_stays_so() {
    let fixture = WorkflowFixture::new(3).await;
    let export = fixture.export(3).await;
    assert_eq!(fixture.cancel(export).await.unwrap().status, ExportStatus::Cancelled);
    assert_eq!(fixture.cancel(export).await.unwrap().status, ExportStatus::Cancelled);
    fixture.drain().await;
    assert!(fixture.runs(export).await.is_empty());

    // Waiting for its parts, one of which has finished.
    let export = fixture.export(3).await;
    let part = fixture.until("export_part").await;
    fixture.perform(part).await;
    fixture.cancel(export).await.unwrap();
    fixture.drain().await;
    let statuses: Vec<_> = fixture.runs(export).await.into_iter().map(|run| run.status).collect();
    assert_eq!(
        statuses,
        [
            ExportStatus::Completed,
            ExportStatus::Cancelled,
            ExportStatus::Cancelled
        ]
    );
    assert_eq!(fixture.files(export).len(), 2, "finished files stay");
    assert_eq!(fixture.manifest(export), None);

    let export = fixture.export(1).await;
    fixture.drain().await;
    let refused = fixture.cancel(export).await.unwrap_err();
    assert!(refused.to_string().contains("COMPLETED"), "{refused}");
    fixture.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_72_hours_at_work_it_is_timed_out() {
    let fixture = WorkflowFixture::new(2).await;
    fixture.drain().await;
    let export = fixture.export(2).await;
    // Waiting for a slot does not count.
    fixture.clock.advance(EXPORT_LIMIT);
    let part = fixture.until("export_part").await;
    fixture.perform(part).await;
    fixture.clock.advance(EXPORT_LIMIT - Duration::from_secs(1));
    towpath_durable::end_overdue(fixture.store(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(fixture.read(export).await.status, ExportStatus::Running);
    fixture.clock.advance(Duration::from_secs(1));
    towpath_durable::end_overdue(fixture.store(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(fixture.read(export).await.status, ExportStatus::TimedOut);
    fixture.drain().await;
    let statuses: Vec<_> = fixture.runs(export).await.into_iter().map(|run| run.status).collect();
    assert_eq!(statuses, [ExportStatus::Completed, ExportStatus::Cancelled]);
    fixture.assert_tidy().await;
}
