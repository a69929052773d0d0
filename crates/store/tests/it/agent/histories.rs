//! Checkpoints, and what becomes of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use towpath_domain::{RunId, ThreadId};
use towpath_store::Store;
use towpath_store::checkpoints::{self, Batch, Blob, Checkpoint, Retention, ThreadNamespace, Write};
use towpath_store::query::Query;

use super::migrated;
use crate::database::Database;

on_both!(
    checkpoints_come_back,
    what_a_run_made_is_taken_back,
    what_a_run_replaced_comes_back,
    history_is_cut_without_orphans,
);

/// `messages` changes with each checkpoint, `model` once.
fn batch(numbers: std::ops::Range<u32>, run: RunId) -> Batch {
    let mut batch = Batch {
        run: Some(run),
        ..Batch::default()
    };
    for number in numbers {
        let id = format!("1f0-{number:04}");
        let versions = json!({"messages": format!("{number:04}"), "model": "0001"});
        batch.checkpoints.push(Checkpoint {
            checkpoint_ns: String::new(),
            checkpoint_id: id.clone(),
            parent_checkpoint_id: (number > 1).then(|| format!("1f0-{:04}", number - 1)),
            checkpoint: json!({"v": 4, "id": id, "channel_versions": versions}).to_string(),
            metadata: json!({"run_id": run, "step": number}).to_string(),
        });
        for (channel, version) in [("messages", format!("{number:04}")), ("model", "0001".to_owned())] {
            let blob = Blob {
                channel: channel.to_owned(),
                version,
                r#type: "json".to_owned(),
                blob: Some(format!("[{number}]").into_bytes()),
            };
            batch.blobs.push((String::new(), blob));
        }
        for (idx, text) in [(0, "a"), (-4, "b")] {
            batch.writes.push((String::new(), write(&id, idx, text)));
        }
    }
    batch
}

fn write(checkpoint: &str, idx: i32, text: &str) -> Write {
    Write {
        checkpoint_id: checkpoint.to_owned(),
        task_id: "task".to_owned(),
        task_path: String::new(),
        idx,
        channel: "messages".to_owned(),
        r#type: Some("json".to_owned()),
        blob: format!("{text:?}").into_bytes(),
    }
}

async fn count(store: &Store, thread: ThreadId) -> [i64; 3] {
    let mut counts = [0; 3];
    for (count, table) in counts.iter_mut().zip([
        "SELECT count(*) FROM checkpoints WHERE thread_id = ",
        "SELECT count(*) FROM checkpoint_blobs WHERE thread_id = ",
        "SELECT count(*) FROM checkpoint_writes WHERE thread_id = ",
    ]) {
        *count = store
            .read(async |tx| {
                let mut query = Query::new(tx, table);
                query.bind(towpath_store::query::Arg::Text(thread.to_string()));
                query.count(tx).await
            })
            .await
            .unwrap();
    }
    counts
}

async fn checkpoints_come_back(database: Database) {
    let store = &database.store;
    let thread = ThreadId::new();
    let run = RunId::new();
    let saved = batch(1..40, run);
    for _ in 0..2 {
        // The second time changes nothing.
        store
            .write(async |tx| checkpoints::save(tx, thread, &saved).await)
            .await
            .unwrap();
    }
    assert_eq!(count(store, thread).await, [39, 40, 78]);
    let place = ThreadNamespace { thread, ns: "" };
    let latest = store
        .read(async |tx| checkpoints::latest(tx, place).await)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(latest.checkpoint_id, "1f0-0039");
    assert_eq!(latest.parent_checkpoint_id.as_deref(), Some("1f0-0038"));
    let parsed: Value = serde_json::from_str(&latest.checkpoint).unwrap();
    assert_eq!(parsed["channel_versions"]["model"], "0001");
    let filter = json!({"run_id": run, "step": 7});
    let listed = store
        .read(async |tx| checkpoints::list(tx, place, Some("1f0-0020"), Some(&filter), 5).await)
        .await
        .unwrap();
    assert_eq!(listed.len(), 1);
    let wanted: BTreeSet<_> = [("messages", "0007"), ("model", "0001"), ("messages", "none")]
        .map(|(channel, version)| (channel.to_owned(), version.to_owned()))
        .into();
    let blobs = store
        .read(async |tx| checkpoints::blobs(tx, place, &wanted).await)
        .await
        .unwrap();
    assert_eq!(blobs.len(), 2);
    let model = &blobs[&("model".to_owned(), "0001".to_owned())];
    assert_eq!(model.blob.as_deref(), Some(&b"[1]"[..]), "the first of a version stays");

    // Special writes are replaced, others stay; also when both stand in one batch.
    let mut more = Batch::default();
    for text in ["x", "y"] {
        more.writes.push((String::new(), write("1f0-0001", -4, text)));
    }
    more.writes.push((String::new(), write("1f0-0001", 0, "z")));
    store
        .write(async |tx| checkpoints::save(tx, thread, &more).await)
        .await
        .unwrap();
    let writes = store
        .read(async |tx| checkpoints::writes(tx, place, &["1f0-0001"]).await)
        .await
        .unwrap();
    let texts: Vec<_> = writes
        .iter()
        .map(|write| (write.idx, String::from_utf8_lossy(&write.blob)))
        .collect();
    assert_eq!(texts, [(-4, "\"y\"".into()), (0, "\"a\"".into())]);
}

async fn what_a_run_made_is_taken_back(database: Database) {
    let store = &database.store;
    let thread = ThreadId::new();
    let (first, second) = (RunId::new(), RunId::new());
    store
        .write(async |tx| {
            checkpoints::save(tx, thread, &batch(1..4, first)).await?;
            // It began with an answer, which is on the checkpoint that asked.
            let mut answer = Batch {
                run: Some(second),
                ..Batch::default()
            };
            answer.writes.push((String::new(), write("1f0-0003", -3, "yes")));
            checkpoints::save(tx, thread, &answer).await?;
            checkpoints::save(tx, thread, &batch(4..6, second)).await?;
            checkpoints::delete_run(tx, thread, second).await
        })
        .await
        .unwrap();
    assert_eq!(
        count(store, thread).await,
        [3, 4, 6],
        "nothing of the second run is left"
    );
    let place = ThreadNamespace { thread, ns: "" };
    let latest = store
        .read(async |tx| checkpoints::latest(tx, place).await)
        .await
        .unwrap();
    assert_eq!(latest.unwrap().checkpoint_id, "1f0-0003");
}

/// A caller that had written it, and whichever run goes first.
async fn what_a_run_replaced_comes_back(database: Database) {
    let store = &database.store;
    let place = |thread| ThreadNamespace { thread, ns: "" };
    let runs = [RunId::new(), RunId::new(), RunId::new()];
    for (taken_back, left) in [([2, 1], ["second", "first"]), ([1, 2], ["third", "first"])] {
        let thread = ThreadId::new();
        let mut made = batch(1..2, runs[0]);
        made.writes.clear();
        store
            .write(async |tx| {
                checkpoints::save(tx, thread, &made).await?;
                for (&run, text) in runs.iter().zip(["first", "second", "third"]) {
                    let mut answer = Batch {
                        run: Some(run),
                        ..Batch::default()
                    };
                    answer.writes.push((String::new(), write("1f0-0001", -4, text)));
                    // The second time replaces what the run itself wrote.
                    checkpoints::save(tx, thread, &answer).await?;
                    checkpoints::save(tx, thread, &answer).await?;
                }
                Ok(())
            })
            .await
            .unwrap();
        for (at, text) in taken_back.into_iter().zip(left) {
            let writes = store
                .write(async |tx| {
                    checkpoints::delete_run(tx, thread, runs[at]).await?;
                    checkpoints::writes(tx, place(thread), &["1f0-0001"]).await
                })
                .await
                .unwrap();
            assert_eq!(writes.len(), 1);
            assert_eq!(String::from_utf8_lossy(&writes[0].blob), format!("{text:?}"));
        }
    }
}

async fn overgrown(store: &Store, threads: &[ThreadId], cut: &Retention) -> BTreeSet<ThreadId> {
    let found = store
        .read(async |tx| checkpoints::threads_over_limit(tx, threads, cut).await)
        .await;
    found.unwrap().into_iter().collect()
}

async fn history_is_cut_without_orphans(database: Database) {
    let store = &database.store;
    let (thread, other) = (ThreadId::new(), ThreadId::new());
    let run = RunId::new();
    let mut nested = batch(1..3, run);
    for checkpoint in &mut nested.checkpoints {
        checkpoint.checkpoint_ns = "sub:1".to_owned();
    }
    for (ns, _) in &mut nested.blobs {
        *ns = "sub:1".to_owned();
    }
    for (ns, _) in &mut nested.writes {
        *ns = "sub:1".to_owned();
    }
    store
        .write(async |tx| {
            checkpoints::save(tx, thread, &batch(1..10, run)).await?;
            checkpoints::save(tx, thread, &nested).await?;
            checkpoints::copy(tx, thread, other).await
        })
        .await
        .unwrap();
    assert_eq!(count(store, other).await, count(store, thread).await);
    let last_two = Retention {
        count: Some(2),
        from: None,
    };
    let both = [thread, other];
    assert_eq!(overgrown(store, &both, &last_two).await, BTreeSet::from(both));
    let gone = store
        .write(async |tx| checkpoints::apply(tx, thread, &last_two).await)
        .await
        .unwrap();
    assert_eq!(overgrown(store, &both, &last_two).await, BTreeSet::from([other]));
    assert_eq!(gone, 7, "of each namespace the last two stay");
    assert_eq!(count(store, thread).await, [4, 6, 8]);
    assert_eq!(count(store, other).await, [11, 13, 22], "the copy is untouched");
    let stored = store
        .read(async |tx| checkpoints::storage(tx, thread).await)
        .await
        .unwrap();
    assert!(stored.checkpoints.count == 4 && stored.checkpoints.bytes > 0);
    let values = stored.channels.values();
    let (versions, bytes) = values.fold((0, 0), |(count, bytes), rows| (count + rows.count, bytes + rows.bytes));
    assert_eq!((versions, bytes), (6, 18), "{stored:?}");
    assert_eq!((stored.pending_writes.count, stored.pending_writes.bytes), (8, 24));
    let late = Retention {
        count: None,
        from: Some("1f0-0005".to_owned()),
    };
    assert_eq!(overgrown(store, &both, &late).await, BTreeSet::from(both));
    let gone = store
        .write(async |tx| checkpoints::apply(tx, other, &late).await)
        .await
        .unwrap();
    assert_eq!(gone, 5, "the latest of the nested ones stays, however old");
    assert_eq!(count(store, other).await[0], 6);
    assert_eq!(overgrown(store, &[other], &late).await, BTreeSet::new());
    assert_eq!(overgrown(store, &both, &Retention::default()).await, BTreeSet::new());
    let again = store
        .write(async |tx| checkpoints::apply(tx, other, &late).await)
        .await
        .unwrap();
    assert_eq!(again, 0);
    store
        .write(async |tx| checkpoints::delete_all(tx, other).await)
        .await
        .unwrap();
    assert_eq!(count(store, other).await, [0, 0, 0]);
}
