use std::time::Duration;

use towpath_domain::export::ExportStatus;
use towpath_store::on;

use crate::fixture::{Database, WorkflowFixture, on_both_databases};
use crate::s3::Fault;

on_both_databases! {
    twenty_one_attempts_thirty_seconds_apart,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_destination_forbids_fails_the_export_at_once() {
    let fixture = WorkflowFixture::new(3).await;
    fixture.drain().await;
    let export = fixture.export(3).await;
    let first = fixture.until("export_part").await;
    fixture.perform(first).await;
    fixture.s3.fail(Fault::new("parquet", 403, "AccessDenied", 1));
    let second = fixture.until("export_part").await;
    fixture.perform(second).await;
    // The failing child makes its parent ready; the third child has not started.
    let parent = fixture.claim_from("exports").await.unwrap();
    fixture.perform(parent).await;

    let row = fixture.read(export).await;
    assert_eq!(row.status, ExportStatus::Failed);
    assert!(
        row.error
            .unwrap()
            .contains("Access denied: AccessDenied (403) for key p/q/export_id=")
    );
    let runs = fixture.runs(export).await;
    let statuses: Vec<_> = runs.iter().map(|run| run.status).collect();
    assert_eq!(
        statuses,
        [ExportStatus::Completed, ExportStatus::Failed, ExportStatus::Cancelled]
    );
    assert!(
        runs[1]
            .errors
            .starts_with(r#"{"retry_0":"Access denied: AccessDenied (403)"#),
        "{}",
        runs[1].errors
    );
    fixture.drain().await;
    assert_eq!(fixture.files(export).len(), 2, "finished files stay");
    assert_eq!(fixture.manifest(export), None);
    fixture.assert_tidy().await;
}

async fn twenty_one_attempts_thirty_seconds_apart(on: Database) {
    let fixture = WorkflowFixture::new_on(&on, 1).await;
    fixture.drain().await;
    let export = fixture.export(1).await;
    fixture.s3.fail(Fault::new("parquet", 503, "SlowDown", usize::MAX));
    fixture.drive().await;
    for attempt in 1..=20 {
        let run = fixture.runs(export).await.remove(0);
        assert_eq!(run.status, ExportStatus::Running);
        let errors: serde_json::Map<_, _> = serde_json::from_str(&run.errors).unwrap();
        assert_eq!(errors.len(), attempt);
        fixture.wait(Duration::from_secs(29)).await;
        assert!(fixture.claim().await.is_none(), "the delay is fixed");
        fixture.wait(Duration::from_secs(1)).await;
        fixture.drive().await;
    }
    let run = fixture.runs(export).await.remove(0);
    assert_eq!(run.status, ExportStatus::Failed);
    let errors: serde_json::Map<_, _> = serde_json::from_str(&run.errors).unwrap();
    assert_eq!(errors.len(), 21);
    assert!(errors.contains_key("retry_0") && errors.contains_key("retry_20"));
    assert_eq!(fixture.read(export).await.status, ExportStatus::Failed);
    fixture.drain().await;
    fixture.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_says_how_far_attempts_are_apart() {
    let mut fixture = WorkflowFixture::new(1).await;
    fixture.world.exports.run_retry = Duration::from_secs(3);
    fixture.drain().await;
    let export = fixture.export(1).await;
    fixture.s3.fail(Fault::new("parquet", 503, "SlowDown", usize::MAX));
    fixture.drive().await;
    fixture.wait(Duration::from_secs(2)).await;
    assert!(fixture.claim().await.is_none(), "it is not due yet");
    fixture.wait(Duration::from_secs(1)).await;
    fixture.drive().await;
    let run = fixture.runs(export).await.remove(0);
    let errors: serde_json::Map<_, _> = serde_json::from_str(&run.errors).unwrap();
    assert_eq!(errors.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_gone_fails_the_export() {
    let fixture = WorkflowFixture::new(1).await;
    let export = fixture.export(1).await;
    let part = fixture.until("export_part").await;
    let gone = fixture.store().write(async |tx| {
        Ok(on!(tx, |conn| sqlx::query("DELETE FROM destination")
            .execute(conn)
            .await
            .map(drop))?)
    });
    gone.await.unwrap();
    fixture.perform(part).await;
    fixture.drain().await;
    let row = fixture.read(export).await;
    assert_eq!(row.status, ExportStatus::Failed);
    assert!(row.error.unwrap().contains("the destination was deleted"));
    fixture.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_arrived_short_is_made_again() {
    let fixture = WorkflowFixture::new(1).await;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    let expected = fixture.files(whole);
    let export = fixture.export(1).await;
    fixture.s3.shorten(1);
    fixture.drain().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    assert!(fixture.files(export) == expected, "the file is whole");
    let run = fixture.runs(export).await.remove(0);
    assert!(
        run.errors.contains("retry_0") && run.errors.contains("bytes arrived"),
        "{}",
        run.errors
    );
    assert_eq!(run.files_written, 2);
    fixture.assert_tidy().await;
}

/// A completed upload may return status 200 with an error in the body.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_inside_a_good_answer_is_an_error() {
    let fixture = WorkflowFixture::new(1).await;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    let expected = fixture.files(whole);
    for (times, attempts) in [(2, 1), (4, 2)] {
        let export = fixture.export(1).await;
        fixture
            .s3
            .fail(Fault::new("parquet?uploadId", 200, "InternalError", times));
        fixture.drain().await;
        assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
        assert!(fixture.files(export) == expected);
        let run = fixture.runs(export).await.remove(0);
        assert_eq!(run.errors.contains("retry_0"), attempts > 1, "{}", run.errors);
        fixture.assert_tidy().await;
    }
}

/// Permanent errors: the client does not retry, and the run does not either.
#[tokio::test(flavor = "multi_thread")]
async fn what_lasts_is_told_apart_from_what_passes() {
    let cases = [
        (401, "Unauthorized", "Access denied: Unauthorized (401)"),
        (403, "SomethingNew", "Access denied: SomethingNew (403)"),
        (400, "ExpiredToken", "Access denied: ExpiredToken (400)"),
        (
            403,
            "InvalidAccessKeyId",
            "Key ID you provided does not exist: InvalidAccessKeyId (403)",
        ),
        (404, "NoSuchBucket", "Bucket is not valid: NoSuchBucket (404)"),
    ];
    for (status, code, told) in cases {
        let fixture = WorkflowFixture::new(1).await;
        fixture.drain().await;
        let export = fixture.export(1).await;
        fixture.s3.fail(Fault::new("parquet", status, code, 1));
        fixture.drain().await;
        let row = fixture.read(export).await;
        assert_eq!(row.status, ExportStatus::Failed, "{code}");
        assert!(row.error.as_deref().unwrap_or_default().contains(told), "{row:?}");
        let run = fixture.runs(export).await.remove(0);
        assert!(
            run.errors.starts_with(&format!(r#"{{"retry_0":"{told}"#)),
            "{}",
            run.errors
        );
        assert!(!run.errors.contains("retry_1"), "{}", run.errors);
        fixture.assert_tidy().await;
    }
}

/// Three of ten calls fail with 500 or 503, half of these after the call had its effect.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_storm_every_export_comes_out_the_same() {
    let fixture = WorkflowFixture::new(2).await;
    let whole = fixture.export(2).await;
    fixture.drain().await;
    let expected = fixture.files(whole);
    for seed in 1..=6 {
        let before = fixture.s3.calls().len();
        fixture.s3.storm(Some(seed));
        let export = fixture.export(2).await;
        fixture.drain().await;
        fixture.s3.storm(None);
        assert_eq!(
            fixture.read(export).await.status,
            ExportStatus::Completed,
            "seed {seed}"
        );
        assert!(fixture.files(export) == expected, "seed {seed}");
        let manifest = fixture.manifest(export).unwrap();
        let files = manifest["partitions"].as_array().unwrap().iter();
        let files: usize = files.map(|day| day["files"].as_array().unwrap().len()).sum();
        assert_eq!(files, expected.len(), "seed {seed}");
        assert!(fixture.s3.calls().len() > before + 10, "seed {seed}");
        // An abort may have failed in the storm; the next export run of this name would repeat it.
        for run in fixture.runs(export).await {
            assert_eq!(run.files_written, 2, "seed {seed}");
        }
        fixture.assert_tidy().await;
    }
}
