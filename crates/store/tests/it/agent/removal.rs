//! Checkpoints that go, and what goes with them, on both databases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::json;
use towpath_domain::{RunId, ThreadId};
use towpath_store::Store;
use towpath_store::checkpoints::{self, Batch, Blob, Checkpoint, Retention, ThreadNamespace, Write};
use towpath_store::query::{Arg, Query};

use super::migrated;
use crate::database::Database;

on_both!(
    long_histories_are_cut,
    calls_of_subgraphs_go_with_their_root,
    what_goes_is_what_a_model_says,
);

/// Versions by channel.
type Versions = BTreeMap<String, String>;

/// A checkpoint with the blobs that are new with it, and one write.
#[derive(Clone, Debug)]
struct CheckpointSpec {
    ns: String,
    id: String,
    run: RunId,
    /// The root checkpoint whose task called the subgraph.
    root: Option<String>,
    versions: Versions,
    new: Versions,
}

fn batch_of(made: &[CheckpointSpec]) -> Batch {
    let mut batch = Batch::default();
    for one in made {
        let parents = one.root.iter().map(|root| (String::new(), json!(root)));
        let parents: serde_json::Map<_, _> = parents.collect();
        batch.checkpoints.push(Checkpoint {
            checkpoint_ns: one.ns.clone(),
            checkpoint_id: one.id.clone(),
            parent_checkpoint_id: None,
            checkpoint: json!({"v": 4, "id": one.id, "channel_versions": one.versions}).to_string(),
            metadata: json!({"run_id": one.run, "parents": parents}).to_string(),
        });
        for (channel, version) in &one.new {
            let blob = Blob {
                channel: channel.clone(),
                version: version.clone(),
                r#type: "json".to_owned(),
                blob: Some(b"[1]".to_vec()),
            };
            batch.blobs.push((one.ns.clone(), blob));
        }
        let write = Write {
            checkpoint_id: one.id.clone(),
            task_id: "task".to_owned(),
            task_path: String::new(),
            idx: 0,
            channel: "log".to_owned(),
            r#type: Some("json".to_owned()),
            blob: b"[1]".to_vec(),
        };
        batch.writes.push((one.ns.clone(), write));
    }
    batch
}

async fn save(store: &Store, thread: ThreadId, made: &[CheckpointSpec]) {
    let batch = batch_of(made);
    store
        .write(async |tx| checkpoints::save(tx, thread, &batch).await)
        .await
        .unwrap();
}

/// What is there of a thread: checkpoints, blobs, and the checkpoints that have writes.
#[derive(Debug, PartialEq, Eq)]
struct StoredHistory {
    checkpoints: BTreeSet<(String, String)>,
    blobs: BTreeSet<(String, String, String)>,
    written: BTreeSet<(String, String)>,
}

async fn there(store: &Store, thread: ThreadId) -> StoredHistory {
    let rows = async |text: &str| -> Vec<(String, String, String)> {
        let read = store.read(async |tx| {
            let mut query = Query::new(tx, text);
            query.bind(Arg::Text(thread.to_string()));
            query.fetch_all(tx).await
        });
        read.await.unwrap()
    };
    let pairs = |rows: Vec<(String, String, String)>| rows.into_iter().map(|(ns, id, _)| (ns, id)).collect();
    StoredHistory {
        checkpoints: pairs(
            rows("SELECT checkpoint_ns, checkpoint_id, '' AS x FROM checkpoints WHERE thread_id = ").await,
        ),
        blobs: rows("SELECT checkpoint_ns, channel, version FROM checkpoint_blobs WHERE thread_id = ")
            .await
            .into_iter()
            .collect(),
        written: pairs(
            rows("SELECT checkpoint_ns, checkpoint_id, '' AS x FROM checkpoint_writes WHERE thread_id = ").await,
        ),
    }
}

/// A line of checkpoints with ten channels, three of which change with each.
fn line(numbers: std::ops::Range<usize>, run: RunId, versions: &mut Versions) -> Vec<CheckpointSpec> {
    numbers
        .map(|number| {
            let mut new = Versions::new();
            for nth in 0..3 {
                let channel = format!("channel_{}", (number * 3 + nth) % 10);
                new.insert(channel, format!("{number:032}.{nth}"));
            }
            versions.extend(new.clone());
            CheckpointSpec {
                ns: String::new(),
                id: format!("1f0-{number:06}"),
                run,
                root: None,
                versions: versions.clone(),
                new,
            }
        })
        .collect()
}

async fn long_histories_are_cut(database: Database) {
    let store = &database.store;
    let thread = ThreadId::new();
    let (first, second) = (RunId::new(), RunId::new());
    let mut versions = Versions::new();
    save(store, thread, &line(0..2999, first, &mut versions)).await;
    save(store, thread, &line(2999..3000, second, &mut versions)).await;
    let began = Instant::now();
    let gone = store
        .write(async |tx| checkpoints::delete_run(tx, thread, second).await)
        .await
        .unwrap();
    assert_eq!(gone, 1);
    let left = there(store, thread).await;
    assert_eq!((left.checkpoints.len(), left.blobs.len()), (2999, 2999 * 3));
    let cut = Retention {
        count: Some(1000),
        from: None,
    };
    let gone = store
        .write(async |tx| checkpoints::apply(tx, thread, &cut).await)
        .await
        .unwrap();
    assert_eq!(gone, 1999);
    let gone = store
        .write(async |tx| checkpoints::keep_latest(tx, thread).await)
        .await
        .unwrap();
    assert_eq!(gone, 999);
    let took = began.elapsed();
    let left = there(store, thread).await;
    assert_eq!(
        (left.checkpoints.len(), left.blobs.len(), left.written.len()),
        (1, 10, 1),
        "the values of the latest state stay"
    );
    // PostgreSQL ends a statement after 8 s; what compares everything with everything takes minutes.
    println!("a rollback and two cuts of 3,000 checkpoints took {took:?}");
}

/// A call is of the namespace `node:task`. Without a task it is a subgraph that keeps its state.
fn call(ns: &str, number: u32, root: &str) -> CheckpointSpec {
    let versions = Versions::from([("messages".to_owned(), format!("{number:04}.{ns}"))]);
    CheckpointSpec {
        ns: ns.to_owned(),
        id: format!("1f0-{number:04}"),
        run: RunId::new(),
        root: Some(root.to_owned()),
        new: versions.clone(),
        versions,
    }
}

async fn calls_of_subgraphs_go_with_their_root(database: Database) {
    let store = &database.store;
    let thread = ThreadId::new();
    let root = |number: u32| CheckpointSpec {
        root: None,
        ..call("", number, "")
    };
    let made = [
        root(1),
        call("memory", 2, "1f0-0001"),
        call("sub:1", 3, "1f0-0001"),
        call("sub:1", 4, "1f0-0001"),
        call("sub:1|deeper:1", 5, "1f0-0001"),
        root(6),
        call("sub:6", 7, "1f0-0006"),
        call("sub:6|deeper:6", 8, "1f0-0006"),
        root(9),
        call("sub:9", 10, "1f0-0009"),
        call("sub:9", 11, "1f0-0009"),
    ];
    save(store, thread, &made).await;
    let namespaces = async || -> Vec<(String, String)> { there(store, thread).await.checkpoints.into_iter().collect() };
    let names = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter()
            .map(|(ns, id)| ((*ns).to_owned(), (*id).to_owned()))
            .collect()
    };
    let cut = Retention {
        count: Some(2),
        from: None,
    };
    store
        .write(async |tx| checkpoints::apply(tx, thread, &cut).await)
        .await
        .unwrap();
    let expected = [
        ("", "1f0-0006"),
        ("", "1f0-0009"),
        ("memory", "1f0-0002"),
        ("sub:6", "1f0-0007"),
        ("sub:6|deeper:6", "1f0-0008"),
        ("sub:9", "1f0-0010"),
        ("sub:9", "1f0-0011"),
    ];
    assert_eq!(
        namespaces().await,
        names(&expected),
        "the calls of the first checkpoint went with it"
    );
    store
        .write(async |tx| checkpoints::keep_latest(tx, thread).await)
        .await
        .unwrap();
    let expected = [("", "1f0-0009"), ("memory", "1f0-0002"), ("sub:9", "1f0-0011")];
    assert_eq!(
        namespaces().await,
        names(&expected),
        "what the latest checkpoint waits for stays, and what keeps its state from call to call"
    );
    assert_eq!(there(store, thread).await.blobs.len(), 3);
}

/// Numbers that come back with their seed.
struct Random(u64);

impl Random {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }
}

/// Checkpoints of branches, subgraphs and copies, of several runs.
fn tree(
    dice: &mut Random,
    runs: &[RunId],
    numbers: std::ops::Range<usize>,
    made: &mut Vec<CheckpointSpec>,
) -> Vec<CheckpointSpec> {
    let channels = ["a", "b", "c", "d"];
    let mut more = Vec::new();
    for number in numbers {
        let roots: Vec<CheckpointSpec> = made.iter().filter(|one| one.ns.is_empty()).cloned().collect();
        let (ns, root) = match (dice.roll(4), roots.len()) {
            (0, count @ 1..) => {
                let root = &roots[dice.roll(count)].id;
                let ns = [
                    format!("sub:{root}"),
                    format!("sub:{root}|deeper:{root}"),
                    "memory".to_owned(),
                ];
                (ns[dice.roll(3)].clone(), Some(root.clone()))
            }
            _ => (String::new(), None),
        };
        let here: Vec<CheckpointSpec> = made.iter().filter(|one| one.ns == ns).cloned().collect();
        let from = (!here.is_empty()).then(|| here[dice.roll(here.len())].clone());
        let mut versions = from.map(|from| from.versions).unwrap_or_default();
        let mut new = Versions::new();
        // None: a copy.
        for _ in 0..dice.roll(3) {
            new.insert(
                channels[dice.roll(4)].to_owned(),
                format!("{number:08}.{}", dice.roll(1000)),
            );
        }
        versions.extend(new.clone());
        let one = CheckpointSpec {
            ns,
            id: format!("1f0-{number:06}"),
            run: runs[dice.roll(runs.len())],
            root,
            versions,
            new,
        };
        made.push(one.clone());
        more.push(one);
    }
    more
}

/// What is left when `stays` says which checkpoints are not removed by themselves.
fn left(
    made: &mut Vec<CheckpointSpec>,
    before: &StoredHistory,
    stays: impl Fn(&CheckpointSpec) -> bool,
) -> StoredHistory {
    let all = made.clone();
    made.retain(&stays);
    let some_went = made.len() < all.len();
    let roots: BTreeSet<String> = made
        .iter()
        .filter(|one| one.ns.is_empty())
        .map(|one| one.id.clone())
        .collect();
    if some_went {
        made.retain(|one| !one.ns.contains(':') || one.root.as_ref().is_none_or(|root| roots.contains(root)));
    }
    let key = |one: &CheckpointSpec| (one.ns.clone(), one.id.clone());
    let names = |made: &[CheckpointSpec]| -> BTreeSet<(String, String, String)> {
        let of = |one: &CheckpointSpec| {
            let ns = one.ns.clone();
            one.versions
                .clone()
                .into_iter()
                .map(move |(channel, version)| (ns.clone(), channel, version))
        };
        made.iter().flat_map(of).collect()
    };
    let checkpoints: BTreeSet<_> = made.iter().map(key).collect();
    let (named, kept) = (names(&all), names(made));
    StoredHistory {
        blobs: before
            .blobs
            .iter()
            .filter(|blob| kept.contains(*blob) || !named.contains(*blob))
            .cloned()
            .collect(),
        written: checkpoints.clone(),
        checkpoints,
    }
}

async fn what_goes_is_what_a_model_says(database: Database) {
    let store = &database.store;
    for seed in 1..=12_u64 {
        let mut dice = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let thread = ThreadId::new();
        let (mut made, mut number) = (Vec::new(), 0);
        for step in 0..10 {
            let runs: Vec<RunId> = (0..4).map(|_| RunId::new()).collect();
            let more = tree(&mut dice, &runs, number..number + 12, &mut made);
            number += 12;
            save(store, thread, &more).await;
            let before = there(store, thread).await;
            let expected = if dice.roll(2) == 0 {
                let run = runs[dice.roll(4)];
                store
                    .write(async |tx| checkpoints::delete_run(tx, thread, run).await)
                    .await
                    .unwrap();
                left(&mut made, &before, |one| one.run != run)
            } else {
                let cut = Retention {
                    count: Some(1 + dice.roll(20) as i64),
                    from: Some(format!("1f0-{:06}", dice.roll(number))),
                };
                store
                    .write(async |tx| checkpoints::apply(tx, thread, &cut).await)
                    .await
                    .unwrap();
                let (count, from) = (usize::try_from(cut.count.unwrap()).unwrap(), cut.from.unwrap());
                let all = made.clone();
                let stays = |one: &CheckpointSpec| {
                    let later = all
                        .iter()
                        .filter(|other| other.ns == one.ns && other.id > one.id)
                        .count();
                    later < count && (later == 0 || one.id >= from)
                };
                left(&mut made, &before, stays)
            };
            let found = there(store, thread).await;
            assert_eq!(found, expected, "seed {seed}, step {step}");
        }
        let place = ThreadNamespace { thread, ns: "" };
        let all = store.read(async |tx| checkpoints::list(tx, place, None, None, i64::MAX).await);
        assert!(!all.await.unwrap().is_empty(), "seed {seed}");
    }
}
