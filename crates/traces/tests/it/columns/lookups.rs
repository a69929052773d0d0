//! Runs of a trace are found wherever they are, and nothing else is read for that.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value};
use towpath_domain::{ProjectId, SegmentId, Timestamp, TraceRunId};
use towpath_testing::objects::{self, RecordingStore};
use towpath_traces::lookup::{self, FooterCache, Lookup, RowGroupLocation, SegmentQuery};
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::{Key, Row};
use towpath_traces::scan::{PartRef, Request};
use towpath_traces::segment;
use uuid::Uuid;

use super::generate::{Random, operations};
use super::world::{OTHER, PROJECT, TENANT, World, time};
use super::{expected, shown};

type Expected = Vec<(Key, Map<String, Value>)>;

fn traces(rows: &Expected) -> BTreeMap<Uuid, BTreeSet<Key>> {
    let mut traces: BTreeMap<Uuid, BTreeSet<Key>> = BTreeMap::new();
    for (key, row) in rows {
        if let Some(trace) = row["trace_id"].as_str() {
            traces.entry(trace.parse().unwrap()).or_default().insert(*key);
        }
    }
    traces
}

/// The rows of some traces, read out of these row groups only.
async fn read(world: &World, parts: Vec<PartRef>, traces: &BTreeSet<Uuid>) -> Vec<Map<String, Value>> {
    let batches = world
        .read(Request {
            parts,
            ..world.request()
        })
        .await;
    let rows = batches.iter().flat_map(|batch| shown::rows(&batch.rows));
    let of = |row: &Map<String, Value>| row["trace_id"].as_str().and_then(|id| id.parse().ok());
    rows.filter(|row| of(row).is_some_and(|trace| traces.contains(&trace)))
        .collect()
}

#[tokio::test]
async fn what_is_read_of_a_trace_is_all_that_is_known_of_it() {
    for (folds, seed) in [(1, 31), (6, 32), (20, 33)] {
        let (from, to) = (time("2026-05-01T20:00:00Z"), time("2026-05-02T04:00:00Z"));
        let world = World::of(operations(seed, 400, from, to), folds, seed).await;
        let expected = expected::rows(TENANT, PROJECT, &world.accepted);
        let all = traces(&expected);
        let some: Vec<Uuid> = all.keys().copied().step_by(all.len() / 12).collect();
        let one = some.iter().map(|trace| BTreeSet::from([*trace]));
        let several = [some.iter().copied().collect(), BTreeSet::from([Uuid::max()])];
        for wanted in one.chain(several) {
            let parts = world.parts(PROJECT);
            let narrowed = lookup::narrow_to_row_groups(world.store.clone(), PROJECT, parts, &wanted).await;
            let found = read(&world, narrowed.unwrap(), &wanted).await;
            let of = |row: &Map<String, Value>| row["trace_id"].as_str().and_then(|id| id.parse().ok());
            let rows = expected.iter().map(|(_, row)| row);
            let rows: Vec<_> = rows
                .filter(|row| of(row).is_some_and(|trace| wanted.contains(&trace)))
                .collect();
            assert_eq!(found.len(), rows.len(), "{wanted:?}");
            for (found, expected) in found.iter().zip(rows) {
                for (name, value) in found {
                    assert_eq!(value, &expected[name], "{name}");
                }
            }
        }
        // By project, with the first and the last of its runs.
        let lookup = Lookup::new(world.store.clone(), FooterCache::default());
        let places: Vec<RowGroupLocation> = world
            .segments
            .iter()
            .map(|segment| RowGroupLocation {
                path: segment.path.clone(),
                row_groups: None,
            })
            .collect();
        let found = lookup.traces(places, &BTreeSet::from([some[0]])).await.unwrap();
        let (first, last) = found[&PROJECT].bounds().unwrap();
        let keys = &all[&some[0]];
        assert!(keys.contains(&first) && keys.contains(&last));
        assert!(found.keys().all(|project| [PROJECT, OTHER].contains(project)));
    }
}

fn post(id: u128, trace: Uuid, seconds: i64) -> Operation {
    let start = time("2026-05-01").micros() + seconds * 1_000_000;
    Operation {
        verb: Verb::Post,
        id: TraceRunId(Uuid::from_u128(id)),
        project: None,
        fields: Fields {
            trace_id: Some(trace),
            start_time: Some(Timestamp::from_micros(start)),
            ..Fields::default()
        },
    }
}

/// What is said of a run in another row group counts, though it does not say of which trace the run is.
#[tokio::test]
async fn patches_that_name_no_trace_are_read_too() {
    let mut world = World::empty();
    let mut random = Random::new(41);
    let (mine, other) = (random.id(), random.id());
    let own = post(7, mine, 5);
    let noise = |number: u128| (0, post(100 + number, other, i64::try_from(number).unwrap()));
    world.accepted = vec![(1, own.clone())];
    world.write(PROJECT, vec![(1, own), noise(1), noise(9)]).await;
    let patch = Operation {
        verb: Verb::Patch,
        fields: Fields {
            error: Some("late".to_owned()),
            ..Fields::default()
        },
        ..post(7, mine, 5)
    };
    world.write(PROJECT, vec![(2, patch), noise(2), noise(8)]).await;
    world.write(PROJECT, vec![noise(3), noise(7)]).await;
    let wanted = BTreeSet::from([mine]);
    let parts = world.parts(PROJECT);
    let narrowed = lookup::narrow_to_row_groups(world.store.clone(), PROJECT, parts.clone(), &wanted)
        .await
        .unwrap();
    let paths: HashSet<&Path> = narrowed.iter().map(|part| &part.path).collect();
    assert_eq!(paths, HashSet::from([&parts[0].path, &parts[1].path]));
    let rows = read(&world, narrowed, &wanted).await;
    assert_eq!((rows.len(), &rows[0]["error"]), (1, &Value::from("late")));
}

/// A segment of this many row groups, each with three runs of a trace of its own, whose inputs have so many bytes.
async fn segment_of(world: &mut World, row_groups: u128, bytes: usize, random: &mut Random) -> Vec<Uuid> {
    let traces: Vec<Uuid> = (0..row_groups).map(|_| random.id()).collect();
    let mut rows = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let project = ProjectId(Uuid::from_u128(0xbbbb + number as u128));
        for row in 0..3 {
            let mut post = post(number as u128 * 10 + row, *trace, row as i64);
            let inputs: String = (0..bytes / 32).map(|_| random.id().simple().to_string()).collect();
            post.fields.inputs = Some(format!("\"{inputs}\""));
            rows.push((project, Row::from_operation(post, 1)));
        }
    }
    let path = segment::path(TENANT, SegmentId::new());
    let written = segment::write(world.store.clone(), path, TENANT, rows)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(written.parts.len() as u128, row_groups);
    world.segments.push(written);
    traces
}

fn whole(path: &Path) -> Vec<RowGroupLocation> {
    vec![RowGroupLocation {
        path: path.clone(),
        row_groups: None,
    }]
}

/// Requests of a look-up, in a segment of this many row groups: of a trace that is not there, and of one that is.
async fn requests(row_groups: u128, bytes: usize) -> (usize, usize) {
    let mut world = World::empty();
    let mut random = Random::new(51);
    let traces = segment_of(&mut world, row_groups, bytes, &mut random).await;
    let store = RecordingStore::new(Arc::clone(&world.store));
    let path = world.segments[0].path.clone();
    let mut counts = Vec::new();
    for (trace, hits) in [(random.id(), 0), (traces[traces.len() / 2], 3)] {
        let lookup = Lookup::new(Arc::clone(&store) as Arc<dyn ObjectStore>, FooterCache::default());
        let wanted = SegmentQuery {
            traces: BTreeSet::from([trace]),
            ..SegmentQuery::default()
        };
        let found = lookup.search(whole(&path), &wanted).await.unwrap();
        assert_eq!(found.len(), hits);
        counts.push(store.requests().len());
        // What was read of a segment is kept.
        lookup.search(whole(&path), &wanted).await.unwrap();
        let again = store.requests();
        assert!(again.len() <= hits.min(2), "{again:?}");
        assert!(
            again
                .iter()
                .all(|request| matches!(request, objects::Request::Ranges(..)))
        );
    }
    (counts[0], counts[1])
}

#[tokio::test]
async fn requests_do_not_grow_with_row_groups_that_hold_nothing() {
    let (none, some) = requests(4, 60_000).await;
    // The end of the segment has the filters; then the ids of the one row group, and its rows.
    assert_eq!((none, some), (1, 3));
    let (none, some) = requests(200, 0).await;
    let (none_of_more, some_of_more) = requests(800, 0).await;
    assert_eq!((none, some), (none_of_more, some_of_more));
    // The rest of the footer takes a request or two, the filters take one.
    assert!(none <= 5 && some <= none + 3, "{none}, {some}");
}

#[tokio::test]
async fn segments_that_hold_nothing_are_asked_for_their_ends_only() {
    let mut world = World::empty();
    let mut random = Random::new(61);
    let mut traces = Vec::new();
    for _ in 0..40 {
        traces.extend(segment_of(&mut world, 2, 60_000, &mut random).await);
    }
    let store = RecordingStore::new(Arc::clone(&world.store));
    let lookup = Lookup::new(Arc::clone(&store) as Arc<dyn ObjectStore>, FooterCache::default());
    let places: Vec<RowGroupLocation> = world.segments.iter().flat_map(|segment| whole(&segment.path)).collect();
    let wanted = BTreeSet::from([traces[25]]);
    let found = lookup.traces(places, &wanted).await.unwrap();
    assert_eq!(found.len(), 1);
    let requests = store.requests();
    let ends = |request: &&objects::Request| matches!(request, objects::Request::End(_));
    assert_eq!(requests.iter().filter(ends).count(), 40);
    let read: HashSet<&Path> = requests
        .iter()
        .filter(|one| !ends(one))
        .map(objects::Request::path)
        .collect();
    assert_eq!(read, HashSet::from([&world.segments[12].path]));
}

/// As builds before this one wrote it: without a filter of trace ids.
async fn without_filters(store: &Arc<dyn ObjectStore>, path: &Path) {
    let bytes: Bytes = store.get(path).await.unwrap().bytes().await.unwrap();
    let groups = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())
        .unwrap()
        .metadata()
        .num_row_groups();
    let schema = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())
        .unwrap()
        .schema()
        .clone();
    let mut written = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut written, schema, None).unwrap();
    for group in 0..groups {
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
        for batch in reader.with_row_groups(vec![group]).build().unwrap() {
            writer.write(&batch.unwrap()).unwrap();
        }
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    store.put(path, written.into()).await.unwrap();
}

#[tokio::test]
async fn segments_without_filters_are_read() {
    let mut world = World::empty();
    let mut random = Random::new(71);
    let traces = segment_of(&mut world, 5, 0, &mut random).await;
    let path = world.segments[0].path.clone();
    without_filters(&world.store, &path).await;
    let lookup = Lookup::new(world.store.clone(), FooterCache::default());
    for (wanted, hits) in [(traces[3], 3), (random.id(), 0)] {
        let wanted = SegmentQuery {
            traces: BTreeSet::from([wanted]),
            lineage: true,
            ..SegmentQuery::default()
        };
        let found = lookup.search(whole(&path), &wanted).await.unwrap();
        assert_eq!(found.len(), hits);
        assert!(found.iter().all(|hit| hit.row_group == 3 && hit.lineage.is_some()));
    }
    let wanted = SegmentQuery {
        ids: BTreeSet::from([TraceRunId(Uuid::from_u128(21)), TraceRunId(Uuid::from_u128(5))]),
        ..SegmentQuery::default()
    };
    let found = lookup.search(whole(&path), &wanted).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].row_group, found[0].key.id.0), (2, Uuid::from_u128(21)));
}
