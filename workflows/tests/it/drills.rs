//! An export is interrupted at every call to its destination, with the same result each time.

use towpath_domain::export::ExportStatus;
use towpath_durable::Signal;

use crate::fixture::WorkflowFixture;
use crate::s3::Fault;

/// More calls than an export makes.
const MANY: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_call_it_goes_on_where_it_was() {
    let fixture = WorkflowFixture::new(1).await;
    let whole = fixture.export(1).await;
    fixture.drain().await;
    let expected = fixture.files(whole);
    assert_eq!(expected.len(), 2);

    let mut killed = 0;
    'calls: for call in 0..MANY {
        // Before the call had its effect, and after it, with a lost response.
        for done in [false, true] {
            let export = fixture.export(1).await;
            fixture.s3.hang(call, done);
            while let Some(job) = fixture.claim().await {
                fixture.perform_until_hung(job, async || Signal::Lost).await;
                fixture.boot().await;
            }
            if fixture.s3.unhang() {
                fixture.drain().await;
                break 'calls;
            }
            killed += 1;
            fixture.drain().await;
            let context = format!("killed at call {call}, done: {done}");
            assert_eq!(fixture.read(export).await.status, ExportStatus::Completed, "{context}");
            assert!(fixture.files(export) == expected, "{context}");
            let manifest = fixture.manifest(export).unwrap();
            assert_eq!(
                manifest["partitions"][0]["files"].as_array().unwrap().len(),
                2,
                "{context}"
            );
            let run = fixture.runs(export).await.remove(0);
            assert_eq!(
                (run.files_written, run.retry_number, run.errors.as_str()),
                (2, 0, "{}"),
                "{context}"
            );
            fixture.assert_tidy().await;
        }
    }
    // Two multipart files and a manifest, each call twice.
    assert!(killed >= 14, "{killed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_at_each_call_it_tries_again_and_says_why() {
    let fixture = WorkflowFixture::new(1).await;
    let whole = fixture.export(1).await;
    let before = fixture.s3.calls().len();
    fixture.drain().await;
    let expected = fixture.files(whole);
    let calls: Vec<_> = fixture.s3.calls().split_off(before);

    let mut seen = std::collections::BTreeSet::new();
    for call in calls {
        // By operation, because each export has its own keys: `PUT …-00001.parquet?partNumber=2`.
        let (method, rest) = call.split_once(' ').unwrap();
        let name = rest.rsplit_once('/').unwrap().1;
        let what = name.rsplit_once('-').map_or(name, |(_, number)| number);
        let what = what
            .split("&uploadId")
            .next()
            .unwrap()
            .split("uploadId")
            .next()
            .unwrap();
        if method == "DELETE" || !seen.insert(what.to_owned()) {
            continue;
        }
        for done in [false, true] {
            let export = fixture.export(1).await;
            // Four failures are one more than the client retries by itself.
            let call: &'static str = Box::leak(what.to_owned().into_boxed_str());
            fixture.s3.fail(Fault {
                done,
                ..Fault::new(call, 503, "SlowDown", 4)
            });
            fixture.drain().await;
            let context = format!("refused {method} {what}, done: {done}");
            assert_eq!(fixture.read(export).await.status, ExportStatus::Completed, "{context}");
            assert!(fixture.files(export) == expected, "{context}");
            let run = fixture.runs(export).await.remove(0);
            // Permission to list is optional. (HEAD requests are identified by the prefix of the parts.)
            let optional = matches!(method, "GET" | "HEAD");
            assert!(method != "GET" || run.errors == "{}", "{context}: {}", run.errors);
            if !what.contains("manifest") && !optional {
                assert!(
                    run.errors.contains("retry_0") && run.errors.contains("SlowDown"),
                    "{context}: {}",
                    run.errors
                );
            }
            assert_eq!(run.files_written, 2, "{context}");
            fixture.assert_tidy().await;
        }
    }
    assert!(seen.len() >= 4, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_a_dead_worker_left_is_given_up() {
    let fixture = WorkflowFixture::new(1).await;
    let export = fixture.export(1).await;
    // The second part of the first file is being sent; the worker dies and cannot clean up.
    let part = fixture.until("export_part").await;
    fixture.s3.fail(Fault::new("DELETE", 403, "AccessDenied", 1));
    fixture.s3.hang(2, true);
    fixture
        .perform_until_hung(part, async || {
            // What it has begun is written down by now, or a moment later.
            while fixture.count("SELECT count(*) FROM export_upload").await == 0 {
                tokio::task::yield_now().await;
            }
            Signal::Lost
        })
        .await;
    fixture.boot().await;
    assert_eq!(fixture.s3.open_uploads(), 1);
    fixture.drain().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    fixture.assert_tidy().await;
}
