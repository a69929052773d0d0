//! Row groups that are copied into a file give the same rows as those that are read and written again.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow::compute::concat_batches;
use futures::future::BoxFuture;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use towpath_domain::export::FormatVersion;
use towpath_domain::{ExportRunId, SegmentId, Timestamp};
use towpath_traces::compact::{Day, Pricing, compact};
use towpath_traces::flush::FlushError;
use towpath_traces::objects::Objects;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::parquet_file::{Compression, End, FileOptions, FileWritten, file_name, write_file};
use towpath_traces::row::Key;
use towpath_traces::row_source::{Enrichment, RowSource};
use towpath_traces::scan::{PartRef, Request, ScanBatch};
use towpath_traces::schema::Selection;
use uuid::Uuid;

use super::generate::{Random, operations};
use super::shown;
use super::world::{PROJECT, TENANT, World, time};

/// Segments of a day, one after another in time; some rows have a part of theirs in a later one, so that its time
/// reaches back.
async fn world(seed: u64, folds: usize, late_one_in: usize) -> World {
    let mut random = Random::new(seed);
    let all = operations(seed, 3000, time("2026-05-01"), time("2026-05-02"));
    let mut world = World::empty();
    world.accepted = all.into_iter().enumerate().map(|(at, o)| (at as i64, o)).collect();
    let window = |operation: &Operation, accepted: &[(i64, Operation)]| {
        let own = |(_, known): &&(i64, Operation)| known.id == operation.id && known.sort_time().is_some();
        let at = accepted
            .iter()
            .find(own)
            .and_then(|(_, known)| known.sort_time())
            .unwrap();
        usize::try_from((at.micros() - time("2026-05-01").micros()) * folds as i64 / 86_400_000_000).unwrap()
    };
    let mut spread: Vec<Vec<(i64, Operation)>> = vec![Vec::new(); folds];
    let accepted = world.accepted.clone();
    for operation in &accepted {
        let own = window(&operation.1, &accepted).min(folds - 1);
        let late = late_one_in > 0 && random.one_in(late_one_in);
        let fold = if late {
            (own + 1 + random.below(3)).min(folds - 1)
        } else {
            own
        };
        spread[fold].push(operation.clone());
    }
    for fold in spread.into_iter().filter(|fold| !fold.is_empty()) {
        world.write(PROJECT, fold).await;
    }
    world
}

pub async fn export(world: &World, request: Request, options: &FileOptions, least: Option<u64>) -> Vec<FileWritten> {
    let folder = format!("{least:?}-{:?}", options.version);
    let mut feed = match least {
        Some(least) => RowSource::splicing(world.store.clone(), request, least),
        None => RowSource::new(world.scan(request)),
    };
    let mut written = Vec::new();
    loop {
        let path = Path::from(folder.as_str()).join(file_name(ExportRunId::nil(), written.len() as u32));
        let sealed = write_file(&mut feed, world.store.clone(), path, options, End::Roll, &mut |_| {}).await;
        match sealed.unwrap() {
            Some(sealed) => written.push(sealed.complete().await.unwrap()),
            None => return written,
        }
    }
}

pub async fn rows(world: &World, files: &[FileWritten]) -> (RecordBatch, Vec<i64>) {
    let (mut batches, mut groups) = (Vec::new(), Vec::new());
    for file in files {
        let bytes = world.bytes(&file.path).await;
        assert_eq!(bytes.len() as u64, file.bytes);
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
        groups.extend(
            reader
                .metadata()
                .row_groups()
                .iter()
                .map(parquet::file::metadata::RowGroupMetaData::num_rows),
        );
        batches.extend(reader.build().unwrap().map(Result::unwrap));
    }
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(all.num_rows() as u64, files.iter().map(|file| file.rows).sum::<u64>());
    (all, groups)
}

pub fn options(selection: Selection, version: FormatVersion) -> FileOptions {
    FileOptions {
        version,
        part_bytes: 100_000,
        ..FileOptions::new(selection, Compression::Zstandard)
    }
}

#[tokio::test]
async fn copied_rows_are_the_scanned_rows() {
    let selections = [
        Selection::all(),
        Selection::of(&["id", "outputs"]).unwrap(),
        Selection::of(&["parent_run_ids", "tags", "status", "first_token_time"]).unwrap(),
        Selection::of(&["end_time"]).unwrap(),
    ];
    for (seed, late) in [(31, 0), (32, 400), (33, 40), (34, 3)] {
        let world = world(seed, 12, late).await;
        for selection in &selections {
            for version in [FormatVersion::V1, FormatVersion::V2Beta] {
                let request = Request {
                    selection: selection.clone(),
                    ..world.request()
                };
                let options = options(selection.clone(), version);
                let scanned = export(&world, request.clone(), &options, None).await;
                let copied = export(&world, request, &options, Some(1)).await;
                let (scanned, _) = rows(&world, &scanned).await;
                let (copied, groups) = rows(&world, &copied).await;
                assert!(copied == scanned, "seed {seed}, {version:?}, {selection:?}");
                assert_eq!(copied.schema(), options.selection.schema_of(version));
                // All twelve are copied when nothing is late; hardly any when much is.
                match late {
                    0 => assert_eq!(groups.len(), 12),
                    400 => assert!(groups.len() > 1),
                    _ => {}
                }
            }
        }
    }
}

/// Posts in one segment, patches in two later ones: rows and row groups stay, whatever the patches say.
#[tokio::test]
async fn late_patches_change_their_columns_and_no_more() {
    let text = |value: &str| Some(value.to_owned());
    let said = [
        ("nothing", Fields::default()),
        (
            "extra",
            Fields {
                extra: Some(vec![("k".to_owned(), "1".to_owned())]),
                ..Fields::default()
            },
        ),
        (
            "usage",
            Fields {
                outputs: text(r#"{"usage_metadata":{"input_tokens":3,"output_tokens":4,"total_tokens":7}}"#),
                end_time: Some(time("2026-05-03T00:00:00Z")),
                ..Fields::default()
            },
        ),
        (
            "error",
            Fields {
                error: text("it broke"),
                ..Fields::default()
            },
        ),
        (
            "status",
            Fields {
                status: text("interrupted"),
                ..Fields::default()
            },
        ),
        (
            "events",
            Fields {
                events: text(r#"[{"name":"new_token","time":"2026-05-01T00:00:01Z"}]"#),
                ..Fields::default()
            },
        ),
        (
            "name, tags, serialized",
            Fields {
                name: text("another"),
                tags: Some(vec!["late".to_owned()]),
                serialized: text("{}"),
                ..Fields::default()
            },
        ),
        (
            "inputs, type, example",
            Fields {
                inputs: text("[1]"),
                run_type: text("llm"),
                reference_example_id: Some(Uuid::from_u128(5)),
                start_time: Some(time("2026-05-01T07:00:00Z")),
                ..Fields::default()
            },
        ),
        (
            "parent",
            Fields {
                parent_run_id: Some(Uuid::from_u128(6)),
                trace_id: Some(Uuid::from_u128(7)),
                ..Fields::default()
            },
        ),
    ];
    for (seed, (name, fields)) in said.into_iter().enumerate() {
        let mut random = Random::new(seed as u64);
        let all = operations(40 + seed as u64, 900, time("2026-05-01"), time("2026-05-04"));
        let mut seen = HashSet::new();
        let posts = all
            .into_iter()
            .filter(|o| o.verb == Verb::Post && o.sort_time().is_some() && seen.insert(o.id));
        let mut world = World::empty();
        world.accepted = posts.enumerate().map(|(at, o)| (at as i64, o)).collect();
        let posts = world.accepted.clone();
        let mut late = [Vec::new(), Vec::new()];
        for (at, post) in &posts {
            if random.one_in(3) {
                let (fields, verb) = (fields.clone(), Verb::Patch);
                let patch = Operation {
                    verb,
                    fields,
                    ..post.clone()
                };
                late[random.below(2)].push((10_000 + at, patch));
            }
        }
        world.write(PROJECT, posts.clone()).await;
        let groups_of_posts = world.parts(PROJECT).len();
        for late in late {
            world.write(PROJECT, late).await;
        }
        for version in [FormatVersion::V1, FormatVersion::V2Beta] {
            let options = options(Selection::all(), version);
            let (scanned, _) = rows(&world, &export(&world, world.request(), &options, None).await).await;
            let (copied, groups) = rows(&world, &export(&world, world.request(), &options, Some(1)).await).await;
            assert!(copied == scanned, "{name}, {version:?}");
            assert_eq!(copied.num_rows(), posts.len());
            assert_eq!(groups.len(), groups_of_posts, "{name}");
        }
        // A post that might be the first: its day is merged row by row.
        world.write(PROJECT, vec![(20_000, posts[0].1.clone())]).await;
        let options = options(Selection::all(), FormatVersion::V1);
        let (scanned, _) = rows(&world, &export(&world, world.request(), &options, None).await).await;
        let (copied, _) = rows(&world, &export(&world, world.request(), &options, Some(1)).await).await;
        assert!(copied == scanned, "{name}, with a second post");
    }
}

/// Fills in a text for every row, of which few fit into a batch.
struct LongTexts;

impl Enrichment for LongTexts {
    fn applies_to(&self, keys: &[Key]) -> bool {
        !keys.is_empty()
    }

    fn enrich(&self, batch: ScanBatch) -> BoxFuture<'_, towpath_traces::columnar::Result<ScanBatch>> {
        Box::pin(async move {
            let keys: Vec<Key> = batch.keys.iter().take(7).copied().collect();
            let rows = batch.rows.slice(0, keys.len());
            let mut columns = rows.columns().to_vec();
            let texts = keys.iter().map(|key| Some(key.id.to_string()));
            let at = rows.schema().index_of("feedback_stats").unwrap();
            columns[at] = Arc::new(texts.collect::<StringArray>());
            let rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
            Ok(ScanBatch { rows, keys })
        })
    }
}

#[tokio::test]
async fn what_stands_beside_rows_is_filled_in_piece_by_piece() {
    let world = world(41, 3, 30).await;
    let options = options(Selection::of(&["id", "feedback_stats"]).unwrap(), FormatVersion::V1);
    let request = Request {
        selection: options.selection.clone(),
        ..world.request()
    };
    let order: Vec<_> = super::world::keys(&world.read(request.clone()).await);
    let mut feed = RowSource::splicing(world.store.clone(), request, 1).with_enrichment(Arc::new(LongTexts));
    // Files that end within a batch give the rest of it back.
    let options = FileOptions {
        file_rows: 1000,
        ..options
    };
    let mut files = Vec::new();
    loop {
        let path = Path::from("beside").join(file_name(ExportRunId::nil(), files.len() as u32));
        let sealed = write_file(&mut feed, world.store.clone(), path, &options, End::Roll, &mut |_| {}).await;
        match sealed.unwrap() {
            Some(sealed) => files.push(sealed.complete().await.unwrap()),
            None => break,
        }
    }
    let (all, _) = rows(&world, &files).await;
    let found: Vec<_> = shown::rows(&all)
        .into_iter()
        .map(|row| (row["id"].clone(), row["feedback_stats"].clone()))
        .collect();
    let expected: Vec<_> = order
        .iter()
        .map(|key| (key.id.to_string().into(), key.id.to_string().into()))
        .collect();
    assert_eq!(found, expected);
    assert!(files.len() > 1);
}

#[tokio::test]
async fn a_range_cuts_through_what_would_be_copied() {
    let world = world(35, 10, 0).await;
    for (from, to) in [("02:00", "21:30"), ("00:00", "09:36"), ("05:01", "06:02")] {
        let moment = |clock: &str| time(&format!("2026-05-01T{clock}:00Z"));
        let request = Request {
            range: moment(from)..moment(to),
            ..world.request()
        };
        let options = options(Selection::all(), FormatVersion::V1);
        let scanned = export(&world, request.clone(), &options, None).await;
        let copied = export(&world, request, &options, Some(1)).await;
        assert!(
            rows(&world, &copied).await.0 == rows(&world, &scanned).await.0,
            "{from} to {to}"
        );
    }
}

/// Files of any size, each made again from the cursor before it, by size and up to its last row.
#[tokio::test]
async fn a_file_with_copied_row_groups_made_again_has_the_same_bytes() {
    let world = world(36, 12, 30).await;
    for (file_rows, version) in [
        (1, FormatVersion::V1),
        (700, FormatVersion::V2Beta),
        (1500, FormatVersion::V1),
    ] {
        let options = FileOptions {
            file_rows,
            ..options(Selection::all(), version)
        };
        let files = export(&world, world.request(), &options, Some(100)).await;
        assert!(files.len() > 1);
        let mut after: Option<Key> = None;
        for file in &files {
            let request = Request {
                after,
                ..world.request()
            };
            for end in [End::At(file.last), End::Roll] {
                let mut feed = RowSource::splicing(world.store.clone(), request.clone(), 100);
                let path = Path::from("again");
                let sealed = write_file(&mut feed, world.store.clone(), path.clone(), &options, end, &mut |_| {}).await;
                let again = sealed.unwrap().unwrap().complete().await.unwrap();
                assert_eq!(
                    (again.rows, again.bytes, again.last),
                    (file.rows, file.bytes, file.last)
                );
                assert!(world.bytes(&path).await == world.bytes(&file.path).await, "{end:?}");
            }
            after = Some(file.last);
        }
    }
}

/// A file whose rows were read may end inside a row group that is copied when it is made again: fewer rows are worth
/// copying by then, or feedback on one of them was taken back.
#[tokio::test]
async fn a_file_may_end_inside_of_what_would_be_copied() {
    // With row groups that stand alone, and with such of which later ones patch some columns.
    for (seed, late) in [(41, 0), (42, 40)] {
        let world = world(seed, 5, late).await;
        let options = FileOptions {
            file_rows: 1,
            ..options(Selection::all(), FormatVersion::V1)
        };
        let files = export(&world, world.request(), &options, None).await;
        assert!(files.len() > 1);
        let (all, _) = rows(&world, &files).await;
        let mut after: Option<Key> = None;
        let mut before = 0;
        for file in &files {
            let request = Request {
                after,
                ..world.request()
            };
            let mut feed = RowSource::splicing(world.store.clone(), request, 1);
            let mut again = Vec::new();
            for (name, end) in [("again", End::At(file.last)), ("rest", End::Roll)] {
                let options = FileOptions {
                    file_rows: u64::MAX,
                    ..options.clone()
                };
                let path = Path::from(name);
                let sealed = write_file(&mut feed, world.store.clone(), path, &options, end, &mut |_| {}).await;
                if let Some(sealed) = sealed.unwrap() {
                    again.push(sealed.complete().await.unwrap());
                }
            }
            assert_eq!((again[0].rows, again[0].last), (file.rows, file.last));
            // Nothing of the row group is lost or doubled after the end.
            let (found, _) = rows(&world, &again).await;
            assert!(found == all.slice(before, all.num_rows() - before), "seed {seed}");
            before += usize::try_from(file.rows).unwrap();
            after = Some(file.last);
        }
    }
}

#[tokio::test]
async fn a_cursor_inside_of_a_row_group_reads_its_rest() {
    let world = world(37, 5, 0).await;
    let options = options(Selection::all(), FormatVersion::V1);
    let order = super::world::keys(&world.read(world.request()).await);
    for cut in [0, 17, order.len() / 2, order.len() - 2] {
        let request = Request {
            after: Some(order[cut]),
            ..world.request()
        };
        let files = export(&world, request, &options, Some(1)).await;
        let (found, _) = rows(&world, &files).await;
        assert_eq!(found.num_rows(), order.len() - cut - 1);
        assert_eq!(shown::rows(&found.slice(0, 1))[0]["id"], order[cut + 1].id.to_string());
    }
}

/// Whatever was flushed in whatever order: compacted as a whole, in two steps, or with what came later, the rows are
/// the same, and they still merge with later operations.
#[tokio::test]
async fn compaction_in_any_grouping_gives_the_same_rows() {
    let world = world(38, 9, 5).await;
    let options = options(Selection::all(), FormatVersion::V1);
    let (expected, _) = rows(&world, &export(&world, world.request(), &options, None).await).await;
    let parts = world.parts(PROJECT);
    let objects = Objects::memory();
    for part in &parts {
        let bytes = world.bytes(&part.path).await;
        objects.put(&part.path, vec![bytes]).await.unwrap();
    }
    let mut random = Random::new(4);
    for round in 0..12 {
        let mut left = parts.clone();
        // Some come together first, then all, or all but one.
        for step in 0..1 + round % 3 {
            random.shuffle(&mut left);
            let take = if step == round % 3 {
                left.len() - round % 2
            } else {
                2 + random.below(left.len() - 2)
            };
            let rest = left.split_off(take);
            left = merged(&objects, left).await;
            left.extend(rest);
        }
        let request = Request {
            parts: left,
            ..world.request()
        };
        let mut copy = World::empty();
        copy.store = objects.store().clone();
        let files = export(&copy, request, &options, Some(1)).await;
        assert!(rows(&copy, &files).await.0 == expected, "round {round}");
    }
}

pub async fn merged(objects: &Objects, parts: Vec<PartRef>) -> Vec<PartRef> {
    let day = Day {
        tenant: TENANT,
        project: PROJECT,
        day: time("2026-05-01").day(),
    };
    let intend = async |_, _: SegmentId, _: &Path| Ok::<_, std::convert::Infallible>(());
    let made: Result<Vec<_>, FlushError<_>> = compact(objects, &day, parts, &Pricing::default(), intend).await;
    let made = made.unwrap();
    assert_eq!(made.len(), 1);
    let part = |part: &towpath_traces::segment::Part| PartRef {
        path: made[0].written.path.clone(),
        row_group: part.row_group,
        min_sort_time: part.min_sort_time,
        max_sort_time: part.max_sort_time,
    };
    made[0].written.parts.iter().map(part).collect()
}

/// A large day: row groups have their rows, and what the catalog is told of them is true.
#[tokio::test]
async fn row_groups_have_twenty_thousand_rows() {
    let mut world = World::empty();
    let all = operations(39, 45_000, time("2026-05-01"), time("2026-05-02"));
    world.accepted = all
        .into_iter()
        .filter(|operation| operation.sort_time().is_some())
        .enumerate()
        .map(|(at, o)| (at as i64, o))
        .collect();
    let half = world.accepted.len() / 2;
    let (first, second) = (world.accepted[..half].to_vec(), world.accepted[half..].to_vec());
    world.write(PROJECT, first).await;
    world.write(PROJECT, second).await;
    let objects = Objects::memory();
    for segment in &world.segments {
        objects
            .put(&segment.path, vec![world.bytes(&segment.path).await])
            .await
            .unwrap();
    }
    let parts = merged(&objects, world.parts(PROJECT)).await;
    assert_eq!(parts.len(), 3, "20,480 rows, 20,480 rows, and the rest");
    let mut reach = Timestamp::from_micros(0);
    for part in &parts {
        assert!(reach <= part.min_sort_time && part.min_sort_time <= part.max_sort_time);
        reach = part.max_sort_time;
    }
    let mut copy = World::empty();
    copy.store = objects.store().clone();
    let request = Request {
        parts,
        ..world.request()
    };
    let options = options(Selection::all(), FormatVersion::V1);
    let files = export(&copy, request, &options, Some(8192)).await;
    let (_, groups) = rows(&copy, &files).await;
    assert_eq!(groups[..2], [20_480, 20_480]);
    assert_eq!(groups.iter().sum::<i64>(), 45_000);
}
