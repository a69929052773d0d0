use std::time::Duration;

use towpath_domain::export::ExportStatus;
use towpath_store::on;

use crate::home::{Database, Home, on_both_databases};
use crate::s3::Fault;

on_both_databases! {
    twenty_one_attempts_thirty_seconds_apart,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_destination_forbids_fails_the_export_at_once() {
    let home = Home::new(3).await;
    home.drain().await;
    let export = home.export(3).await;
    let first = home.until("export_part").await;
    home.perform(first).await;
    home.s3.fail(Fault::new("parquet", 403, "AccessDenied", 1));
    let second = home.until("export_part").await;
    home.perform(second).await;
    // The failing child readies its parent; the third has not begun.
    let parent = home.claim_from("exports").await.unwrap();
    home.perform(parent).await;

    let row = home.read(export).await;
    assert_eq!(row.status, ExportStatus::Failed);
    assert!(
        row.error
            .unwrap()
            .contains("Access denied: AccessDenied (403) for key p/q/export_id=")
    );
    let runs = home.runs(export).await;
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
    home.drain().await;
    assert_eq!(home.files(export).len(), 2, "finished files stay");
    assert_eq!(home.manifest(export), None);
    home.assert_tidy().await;
}

async fn twenty_one_attempts_thirty_seconds_apart(on: Database) {
    let home = Home::new_on(&on, 1).await;
    home.drain().await;
    let export = home.export(1).await;
    home.s3.fail(Fault::new("parquet", 503, "SlowDown", usize::MAX));
    home.drive().await;
    for attempt in 1..=20 {
        let run = home.runs(export).await.remove(0);
        assert_eq!(run.status, ExportStatus::Running);
        let errors: serde_json::Map<_, _> = serde_json::from_str(&run.errors).unwrap();
        assert_eq!(errors.len(), attempt);
        home.wait(Duration::from_secs(29)).await;
        assert!(home.claim().await.is_none(), "the delay is fixed");
        home.wait(Duration::from_secs(1)).await;
        home.drive().await;
    }
    let run = home.runs(export).await.remove(0);
    assert_eq!(run.status, ExportStatus::Failed);
    let errors: serde_json::Map<_, _> = serde_json::from_str(&run.errors).unwrap();
    assert_eq!(errors.len(), 21);
    assert!(errors.contains_key("retry_0") && errors.contains_key("retry_20"));
    assert_eq!(home.read(export).await.status, ExportStatus::Failed);
    home.drain().await;
    home.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_says_how_far_attempts_are_apart() {
    let mut home = Home::new(1).await;
    home.world.exports.run_retry = Duration::from_secs(3);
    home.drain().await;
    let export = home.export(1).await;
    home.s3.fail(Fault::new("parquet", 503, "SlowDown", usize::MAX));
    home.drive().await;
    home.wait(Duration::from_secs(2)).await;
    assert!(home.claim().await.is_none(), "it is not due yet");
    home.wait(Duration::from_secs(1)).await;
    home.drive().await;
    let run = home.runs(export).await.remove(0);
    let errors: serde_json::Map<_, _> = serde_json::from_str(&run.errors).unwrap();
    assert_eq!(errors.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_gone_fails_the_export() {
    let home = Home::new(1).await;
    let export = home.export(1).await;
    let part = home.until("export_part").await;
    let gone = home.store().write(async |tx| {
        Ok(on!(tx, |conn| sqlx::query("DELETE FROM destination")
            .execute(conn)
            .await
            .map(drop))?)
    });
    gone.await.unwrap();
    home.perform(part).await;
    home.drain().await;
    let row = home.read(export).await;
    assert_eq!(row.status, ExportStatus::Failed);
    assert!(row.error.unwrap().contains("the destination was deleted"));
    home.assert_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_arrived_short_is_made_again() {
    let home = Home::new(1).await;
    let whole = home.export(1).await;
    home.drain().await;
    let expected = home.files(whole);
    let export = home.export(1).await;
    home.s3.shorten(1);
    home.drain().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed);
    assert!(home.files(export) == expected, "the file is whole");
    let run = home.runs(export).await.remove(0);
    assert!(
        run.errors.contains("retry_0") && run.errors.contains("bytes arrived"),
        "{}",
        run.errors
    );
    assert_eq!(run.files_written, 2);
    home.assert_tidy().await;
}

/// Completing an upload may be answered well and hold an error all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_inside_a_good_answer_is_an_error() {
    let home = Home::new(1).await;
    let whole = home.export(1).await;
    home.drain().await;
    let expected = home.files(whole);
    for (times, attempts) in [(2, 1), (4, 2)] {
        let export = home.export(1).await;
        home.s3
            .fail(Fault::new("parquet?uploadId", 200, "InternalError", times));
        home.drain().await;
        assert_eq!(home.read(export).await.status, ExportStatus::Completed);
        assert!(home.files(export) == expected);
        let run = home.runs(export).await.remove(0);
        assert_eq!(run.errors.contains("retry_0"), attempts > 1, "{}", run.errors);
        home.assert_tidy().await;
    }
}

/// What stays as it is however often it is tried: the client does not repeat it, the run does not try again.
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
        let home = Home::new(1).await;
        home.drain().await;
        let export = home.export(1).await;
        home.s3.fail(Fault::new("parquet", status, code, 1));
        home.drain().await;
        let row = home.read(export).await;
        assert_eq!(row.status, ExportStatus::Failed, "{code}");
        assert!(row.error.as_deref().unwrap_or_default().contains(told), "{row:?}");
        let run = home.runs(export).await.remove(0);
        assert!(
            run.errors.starts_with(&format!(r#"{{"retry_0":"{told}"#)),
            "{}",
            run.errors
        );
        assert!(!run.errors.contains("retry_1"), "{}", run.errors);
        home.assert_tidy().await;
    }
}

/// Three calls of ten end with 500 or 503, every other of these although the call was done.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_storm_every_export_comes_out_the_same() {
    let home = Home::new(2).await;
    let whole = home.export(2).await;
    home.drain().await;
    let expected = home.files(whole);
    for seed in 1..=6 {
        let before = home.s3.calls().len();
        home.s3.storm(Some(seed));
        let export = home.export(2).await;
        home.drain().await;
        home.s3.storm(None);
        assert_eq!(home.read(export).await.status, ExportStatus::Completed, "seed {seed}");
        assert!(home.files(export) == expected, "seed {seed}");
        let manifest = home.manifest(export).unwrap();
        let files = manifest["partitions"].as_array().unwrap().iter();
        let files: usize = files.map(|day| day["files"].as_array().unwrap().len()).sum();
        assert_eq!(files, expected.len(), "seed {seed}");
        assert!(home.s3.calls().len() > before + 10, "seed {seed}");
        // A call to give something up may have failed in the storm; the next export of this run's name would do it.
        for run in home.runs(export).await {
            assert_eq!(run.files_written, 2, "seed {seed}");
        }
        home.assert_tidy().await;
    }
}
