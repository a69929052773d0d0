//! The start that a row shows is where it is, whatever its client sent and whichever server stored it.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, TimestampNanosecondArray};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use towpath_domain::export::FormatVersion;
use towpath_domain::{SegmentId, Timestamp};
use towpath_traces::objects::Objects;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::{Key, Row, RowsBuilder};
use towpath_traces::schema::Selection;
use towpath_traces::segment::{self, Part, Segment, Written};

use super::generate::operations;
use super::splices::{export, merged, options, rows};
use super::world::{PROJECT, TENANT, World, keys, time};
use super::{expected, shown};

/// Posts of one day that know their place. Every third says another start, months away from it.
fn posts(seed: u64, count: usize) -> Vec<(i64, Operation)> {
    let mut posts: Vec<Operation> = operations(seed, count, time("2026-05-01"), time("2026-05-02"))
        .into_iter()
        .filter(|operation| operation.verb == Verb::Post && operation.fields.dotted_order.is_some())
        .collect();
    posts.dedup_by_key(|post| post.id);
    for (number, post) in posts.iter_mut().enumerate() {
        if number.is_multiple_of(3) {
            post.fields.start_time = Some(time("2025-11-11T11:11:11Z"));
        }
    }
    posts
        .into_iter()
        .enumerate()
        .map(|(at, post)| (at as i64, post))
        .collect()
}

/// Where a row came from, as version 1 wrote it of a post alone: which fields it set, as bits.
fn provenance(fields: &Fields) -> Vec<u8> {
    let set = [
        fields.trace_id.is_some(),
        fields.parent_run_id.is_some(),
        fields.dotted_order.is_some(),
        fields.reference_example_id.is_some(),
        fields.name.is_some(),
        fields.run_type.is_some(),
        fields.start_time.is_some(),
        fields.end_time.is_some(),
        fields.status.is_some(),
        fields.error.is_some(),
        fields.tags.is_some(),
        fields.inputs.is_some(),
        fields.outputs.is_some(),
        fields.events.is_some(),
        fields.serialized.is_some(),
        fields.extra.is_some(),
    ];
    let mut bits = set.iter().rev().fold(0_u32, |bits, set| bits << 1 | u32::from(*set));
    let mut bytes = vec![0x11, 0, 0];
    while bits >= 0x80 {
        bytes.push((bits & 0x7f) as u8 | 0x80);
        bits >>= 7;
    }
    bytes.extend([bits as u8, 0, 0, 0]);
    bytes
}

/// A segment as servers wrote it when `start_time` held what the client sent.
async fn write_old(world: &mut World, posts: &[(i64, Operation)]) {
    let mut posts = posts.to_vec();
    let key = |post: &Operation| Key {
        sort_time: post.sort_time().unwrap(),
        id: post.id,
    };
    posts.sort_by_key(|(_, post)| key(post));
    let mut builder = RowsBuilder::new(TENANT, PROJECT);
    for (seq, post) in &posts {
        builder.push(&Row::from_operation(post.clone(), *seq)).unwrap();
    }
    let batch = builder.finish().unwrap();
    let starts = posts
        .iter()
        .map(|(_, post)| post.fields.start_time.map(|time| time.micros() * 1000));
    let provenances = posts.iter().map(|(_, post)| provenance(&post.fields));
    let mut columns = batch.columns().to_vec();
    let position = |name: &str| batch.schema().index_of(name).unwrap();
    columns[position("start_time")] = Arc::new(starts.collect::<TimestampNanosecondArray>()) as ArrayRef;
    columns[position("_tp_provenance")] = Arc::new(BinaryArray::from_iter_values(provenances));
    let batch = RecordBatch::try_new(batch.schema(), columns).unwrap();

    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    let bytes = writer.into_inner().unwrap();
    let path = segment::path(TENANT, SegmentId::new());
    world.segments.push(Written {
        path: path.clone(),
        bytes: bytes.len() as u64,
        rows: posts.len() as u64,
        parts: vec![Part {
            row_group: 0,
            project: PROJECT,
            day: time("2026-05-01").day(),
            rows: posts.len() as u64,
            min_sort_time: key(&posts[0].1).sort_time,
            max_sort_time: key(&posts[posts.len() - 1].1).sort_time,
            min_seq: 0,
            max_seq: posts.iter().map(|(seq, _)| *seq).max().unwrap(),
        }],
        price_version: 0,
    });
    world.store.put(&path, bytes.into()).await.unwrap();
}

/// Scanned and copied rows of all versions, which must be those that the rule gives.
async fn check(world: &World) {
    let expected = expected::rows(TENANT, PROJECT, &world.accepted);
    let batches = world.read(world.request()).await;
    assert_eq!(keys(&batches), expected.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    let found: Vec<_> = batches.iter().flat_map(|batch| shown::rows(&batch.rows)).collect();
    for ((key, expected), found) in expected.iter().zip(&found) {
        assert_eq!(found["start_time"], key.sort_time.micros() * 1000);
        assert_eq!(found, expected, "{key:?}");
    }
    for selection in [Selection::all(), Selection::of(&["start_time", "end_time"]).unwrap()] {
        for version in [FormatVersion::V1, FormatVersion::V2Beta] {
            let request = towpath_traces::scan::Request {
                selection: selection.clone(),
                ..world.request()
            };
            let options = options(selection.clone(), version);
            let (scanned, _) = rows(world, &export(world, request.clone(), &options, None).await).await;
            let (copied, _) = rows(world, &export(world, request, &options, Some(1)).await).await;
            assert!(copied == scanned, "{version:?}");
        }
    }
}

/// Sent starts of all rows of the segments, in order.
async fn sent(world: &World) -> Vec<Option<Timestamp>> {
    let mut sent = Vec::new();
    for part in world.parts(PROJECT) {
        let segment = Segment::open(world.store.clone(), part.path).await.unwrap();
        let rows: Vec<Row> = segment.rows(part.row_group).unwrap().try_collect().await.unwrap();
        sent.extend(rows.iter().map(|row| row.fields().start_time));
    }
    sent
}

/// What the footer of a segment says of `start_time`.
async fn noted(world: &World) -> Vec<bool> {
    let mut noted = Vec::new();
    for segment in &world.segments {
        let reader = SerializedFileReader::new(world.bytes(&segment.path).await).unwrap();
        let said = reader.metadata().file_metadata().key_value_metadata().cloned();
        noted.push(
            said.unwrap_or_default()
                .iter()
                .any(|entry| entry.key == "towpath.start_time"),
        );
    }
    noted
}

/// The same rows, compacted.
async fn compacted(world: &World) -> World {
    let objects = Objects::memory();
    for segment in &world.segments {
        let bytes = world.bytes(&segment.path).await;
        objects.put(&segment.path, vec![bytes]).await.unwrap();
    }
    let parts = merged(&objects, world.parts(PROJECT)).await;
    let mut copy = World::empty();
    copy.store = objects.store().clone();
    copy.accepted = world.accepted.clone();
    let path = parts[0].path.clone();
    let day = time("2026-05-01").day();
    let parts = parts.into_iter().map(|part| Part {
        row_group: part.row_group,
        project: PROJECT,
        day,
        rows: 0,
        min_sort_time: part.min_sort_time,
        max_sort_time: part.max_sort_time,
        min_seq: 0,
        max_seq: 0,
    });
    copy.segments = vec![Written {
        path,
        bytes: 0,
        rows: 0,
        parts: parts.collect(),
        price_version: 0,
    }];
    copy
}

#[tokio::test]
async fn what_was_sent_is_kept_and_the_place_is_shown() {
    let mut world = World::empty();
    world.accepted = posts(51, 400);
    world.write(PROJECT, world.accepted.clone()).await;
    check(&world).await;
    assert_eq!(noted(&world).await, [true]);
    let before = sent(&world).await;
    assert!(before.contains(&Some(time("2025-11-11T11:11:11Z"))));
    let compacted = compacted(&world).await;
    check(&compacted).await;
    assert_eq!(noted(&compacted).await, [true]);
    assert_eq!(sent(&compacted).await, before);
}

#[tokio::test]
async fn segments_of_older_servers_show_where_rows_stand() {
    let mut world = World::empty();
    world.accepted = posts(52, 400);
    let old = world.accepted.clone();
    write_old(&mut world, &old).await;
    assert_eq!(noted(&world).await, [false]);
    check(&world).await;
    let before = sent(&world).await;
    assert!(before.contains(&Some(time("2025-11-11T11:11:11Z"))));
    let alone = compacted(&world).await;
    check(&alone).await;
    // Rows that no one changed pass through as they are stored.
    assert_eq!(noted(&alone).await, [false]);
    assert_eq!(sent(&alone).await, before);

    // Late patches of some, and rows of a newer server in the same day.
    let late = |at: usize, (_, post): &(i64, Operation)| Operation {
        verb: Verb::Patch,
        fields: Fields {
            start_time: Some(time("2026-12-24")),
            end_time: Some(time("2026-05-03")),
            dotted_order: post.fields.dotted_order.clone().filter(|_| at.is_multiple_of(2)),
            ..Fields::default()
        },
        ..post.clone()
    };
    let patches = world.accepted.iter().enumerate().filter(|(at, _)| at.is_multiple_of(5));
    let patches: Vec<_> = patches.map(|(at, post)| (10_000 + at as i64, late(at, post))).collect();
    let new: Vec<_> = posts(53, 100)
        .into_iter()
        .map(|(seq, post)| (20_000 + seq, post))
        .collect();
    world.accepted.extend(patches.iter().cloned());
    world.write(PROJECT, patches).await;
    check(&world).await;
    world.accepted.extend(new.iter().cloned());
    world.write(PROJECT, new).await;
    check(&world).await;
    let compacted = compacted(&world).await;
    check(&compacted).await;
    assert_eq!(noted(&compacted).await, [false]);
}
