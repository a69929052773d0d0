//! What a scan keeps in memory, however many row groups overlap.

use std::sync::Arc;

use object_store::ObjectStore;
use serde_json::{Map, Value};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_testing::objects::RecordingStore;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::Key;
use towpath_traces::scan::{Request, Scan};
use towpath_traces::schema::Selection;
use uuid::Uuid;

use super::generate::{Random, operations};
use super::world::{PROJECT, TENANT, World, drain, keys, time};
use super::{expected, shown};

const MIB: usize = 1 << 20;
/// More than there is.
const ENDLESS: usize = 1 << 40;

/// Text that does not get smaller by compression.
fn noise(random: &mut Random, bytes: usize) -> String {
    let mut text = Vec::with_capacity(bytes + 8);
    while text.len() < bytes {
        text.extend(
            random
                .next()
                .to_le_bytes()
                .map(|byte| b'0' + byte % 64)
                .map(|byte| match byte {
                    b'\\' => b'p',
                    other => other,
                }),
        );
    }
    text.truncate(bytes);
    String::from_utf8(text).unwrap()
}

fn operation(verb: Verb, id: u128, start: i64, fields: Fields) -> Operation {
    Operation {
        verb,
        id: TraceRunId(Uuid::from_u128(id)),
        project: None,
        fields: Fields {
            start_time: Some(Timestamp::from_micros(time("2026-05-01").micros() + start)),
            ..fields
        },
    }
}

/// Segments of posts that all cover the same time.
async fn overlapping(segments: usize, rows: usize, bytes: usize) -> World {
    let mut world = World::empty();
    let mut random = Random::new(11);
    for segment in 0..segments {
        let posts = (0..rows).map(|row| {
            let number = row * segments + segment;
            let fields = Fields {
                name: Some(format!("run {number}")),
                inputs: Some(format!("\"{}\"", noise(&mut random, bytes))),
                ..Fields::default()
            };
            let post = operation(Verb::Post, number as u128, number as i64 * 1000, fields);
            (number as i64, post)
        });
        let posts: Vec<_> = posts.collect();
        world.write(PROJECT, posts).await;
    }
    world
}

/// What a scan showed, and the most bytes that it held and that were held of what it fetched.
struct Scanned {
    keys: Vec<Key>,
    inputs: Vec<String>,
    held: usize,
    fetched: usize,
}

async fn scan(world: &World, memory: usize) -> Scanned {
    let store = RecordingStore::new(Arc::clone(&world.store));
    let below: Arc<dyn ObjectStore> = Arc::clone(&store) as _;
    let request = Request {
        selection: Selection::of(&["id", "name", "inputs"]).unwrap(),
        ..world.request()
    };
    let mut scan = Scan::new(below, request).with_memory(memory);
    let mut scanned = Scanned {
        keys: Vec::new(),
        inputs: Vec::new(),
        held: 0,
        fetched: 0,
    };
    while let Some(batch) = scan.next().await.unwrap() {
        scanned.held = scanned.held.max(scan.memory_bytes());
        scanned.keys.extend(&batch.keys);
        let inputs = shown::rows(&batch.rows).into_iter().map(|mut row| row.remove("inputs"));
        scanned.inputs.extend(inputs.map(|text| match text {
            Some(Value::String(text)) => text,
            other => panic!("{other:?}"),
        }));
    }
    scanned.fetched = store.peak_bytes();
    scanned
}

#[tokio::test]
async fn five_hundred_overlapping_row_groups_take_no_more_than_a_few() {
    let world = overlapping(500, 24, 4096).await;
    let memory = 16 * MIB;
    let bounded = scan(&world, memory).await;
    assert_eq!(bounded.keys.len(), 500 * 24);
    assert!(bounded.keys.is_sorted());
    assert!(bounded.held <= memory, "{} bytes held", bounded.held);
    assert!(bounded.fetched <= memory, "{} bytes fetched", bounded.fetched);
    let endless = scan(&world, ENDLESS).await;
    assert!(
        endless.fetched > 2 * memory,
        "{} bytes: the test shows nothing",
        endless.fetched
    );
    assert!(bounded.keys == endless.keys && bounded.inputs == endless.inputs);
}

#[tokio::test]
async fn few_row_groups_are_fetched_in_one_request_each() {
    let world = overlapping(8, 50, 4096).await;
    let store = RecordingStore::new(Arc::clone(&world.store));
    let below: Arc<dyn ObjectStore> = Arc::clone(&store) as _;
    drain(Scan::new(below, world.request())).await;
    // The footer and the columns.
    assert_eq!(store.requests().len(), 16);
}

/// One row of each would be too much.
#[tokio::test]
async fn large_rows_are_read_again_rather_than_kept() {
    let world = overlapping(40, 3, MIB).await;
    let memory = 12 * MIB;
    let bounded = scan(&world, memory).await;
    assert!(bounded.held <= memory, "{} bytes held", bounded.held);
    assert!(bounded.fetched <= memory, "{} bytes fetched", bounded.fetched);
    let endless = scan(&world, ENDLESS).await;
    assert!(
        endless.fetched > 2 * memory,
        "{} bytes: the test shows nothing",
        endless.fetched
    );
    assert!(bounded.keys == endless.keys && bounded.inputs == endless.inputs);
}

/// All say something about the same trace run, and one of them counts.
#[tokio::test]
async fn parts_of_one_trace_run_are_merged_one_after_another() {
    let mut world = World::empty();
    let mut random = Random::new(12);
    let mut last = String::new();
    for number in 0..60_i64 {
        last = format!("\"{}\"", noise(&mut random, MIB / 2));
        let fields = Fields {
            inputs: Some(last.clone()),
            ..Fields::default()
        };
        let verb = if number == 0 { Verb::Post } else { Verb::Patch };
        let said = (number, operation(verb, 7, 0, fields));
        world.accepted.push(said.clone());
        world.write(PROJECT, vec![said]).await;
    }
    let memory = 8 * MIB;
    let bounded = scan(&world, memory).await;
    assert_eq!(bounded.inputs, [last]);
    assert!(bounded.held <= memory, "{} bytes held", bounded.held);
    assert!(bounded.fetched <= memory, "{} bytes fetched", bounded.fetched);
}

#[tokio::test]
async fn a_scan_shows_the_same_in_any_memory() {
    for (folds, seed) in [(1, 21), (5, 22), (30, 23)] {
        let (from, to) = (time("2026-05-01T20:00:00Z"), time("2026-05-02T04:00:00Z"));
        let world = World::of(operations(seed, 250, from, to), folds, seed).await;
        let expected = expected::rows(TENANT, PROJECT, &world.accepted);
        for memory in [0, 1 << 12, 1 << 18, 3 * MIB, 16 * MIB] {
            let batches = drain(world.scan(world.request()).with_memory(memory)).await;
            let order: Vec<Key> = expected.iter().map(|(key, _)| *key).collect();
            assert!(keys(&batches) == order, "{folds} folds in {memory} bytes");
            let shown: Vec<Map<String, Value>> = batches.iter().flat_map(|batch| shown::rows(&batch.rows)).collect();
            for ((key, expected), shown) in expected.iter().zip(shown) {
                for (name, value) in shown {
                    assert_eq!(value, expected[&name], "{name} of {key:?} in {memory} bytes");
                }
            }
            // From any row on.
            let after = order[order.len() / 3];
            let request = Request {
                after: Some(after),
                ..world.request()
            };
            let rest = drain(world.scan(request).with_memory(memory)).await;
            assert!(
                keys(&rest) == order[order.len() / 3 + 1..],
                "{folds} folds in {memory} bytes"
            );
        }
    }
}
