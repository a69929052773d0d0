//! An export is interrupted at every call it makes to its destination, and comes out the same each time.

use towpath_domain::export::ExportStatus;
use towpath_durable::Signal;

use crate::home::Home;
use crate::s3::Fault;

/// More calls than an export makes.
const MANY: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_call_it_goes_on_where_it_was() {
    let home = Home::new(1).await;
    let whole = home.export(1).await;
    home.drain().await;
    let expected = home.files(whole);
    assert_eq!(expected.len(), 2);

    let mut killed = 0;
    'calls: for call in 0..MANY {
        // Before the call had its effect, and after: the answer is what was lost.
        for done in [false, true] {
            let export = home.export(1).await;
            home.s3.hang(call, done);
            while let Some(job) = home.claim().await {
                home.perform_until_hung(job, async || Signal::Lost).await;
                home.boot().await;
            }
            if home.s3.unhang() {
                home.drain().await;
                break 'calls;
            }
            killed += 1;
            home.drain().await;
            let context = format!("killed at call {call}, done: {done}");
            assert_eq!(home.read(export).await.status, ExportStatus::Completed, "{context}");
            assert!(home.files(export) == expected, "{context}");
            let manifest = home.manifest(export).unwrap();
            assert_eq!(
                manifest["partitions"][0]["files"].as_array().unwrap().len(),
                2,
                "{context}"
            );
            let run = home.runs(export).await.remove(0);
            assert_eq!(
                (run.files_written, run.retry_number, run.errors.as_str()),
                (2, 0, "{}"),
                "{context}"
            );
            home.assert_tidy().await;
        }
    }
    // Two files in parts and a manifest, each call twice.
    assert!(killed >= 14, "{killed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_at_each_call_it_tries_again_and_says_why() {
    let home = Home::new(1).await;
    let whole = home.export(1).await;
    let before = home.s3.calls().len();
    home.drain().await;
    let expected = home.files(whole);
    let calls: Vec<_> = home.s3.calls().split_off(before);

    let mut seen = std::collections::BTreeSet::new();
    for call in calls {
        // By what it is, since each export has keys of its own: `PUT …-00001.parquet?partNumber=2`.
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
            let export = home.export(1).await;
            // Four times is once more than the client repeats it by itself.
            let call: &'static str = Box::leak(what.to_owned().into_boxed_str());
            home.s3.fail(Fault {
                done,
                ..Fault::new(call, 503, "SlowDown", 4)
            });
            home.drain().await;
            let context = format!("refused {method} {what}, done: {done}");
            assert_eq!(home.read(export).await.status, ExportStatus::Completed, "{context}");
            assert!(home.files(export) == expected, "{context}");
            let run = home.runs(export).await.remove(0);
            // To look is a right that is optional. (What a HEAD asks for is the beginning of what parts are put to.)
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
            home.assert_tidy().await;
        }
    }
    assert!(seen.len() >= 4, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_a_dead_worker_left_is_given_up() {
    let home = Home::new(1).await;
    let export = home.export(1).await;
    // The second part of the first file is on its way; the worker dies and cannot tidy up behind itself.
    let part = home.until("export_part").await;
    home.s3.fail(Fault::new("DELETE", 403, "AccessDenied", 1));
    home.s3.hang(2, true);
    home.perform_until_hung(part, async || {
        // What it has begun is written down by now, or a moment later.
        while home.count("SELECT count(*) FROM export_upload").await == 0 {
            tokio::task::yield_now().await;
        }
        Signal::Lost
    })
    .await;
    home.boot().await;
    assert_eq!(home.s3.open_uploads(), 1);
    home.drain().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed);
    home.assert_tidy().await;
}
