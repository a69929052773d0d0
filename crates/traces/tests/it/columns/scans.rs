use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::DataType;
use serde_json::{Map, Value};
use towpath_traces::columnar::Error;
use towpath_traces::row::Key;
use towpath_traces::scan::{Request, ScanBatch};
use towpath_traces::schema::{EXPORT_FIELDS, Selection, export_schema};

use super::generate::{Random, operations};
use super::world::{OTHER, PROJECT, TENANT, World, drain, keys, time};
use super::{expected, shown};

async fn world(folds: usize, seed: u64) -> World {
    World::of(
        operations(seed, 1500, time("2026-05-01T20:00:00Z"), time("2026-05-02T04:00:00Z")),
        folds,
        seed,
    )
    .await
}

fn rows(batches: &[ScanBatch]) -> Vec<Map<String, Value>> {
    batches.iter().flat_map(|batch| shown::rows(&batch.rows)).collect()
}

fn check(expected: &[(Key, Map<String, Value>)], batches: &[ScanBatch]) {
    assert_eq!(keys(batches), expected.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    for ((key, expected), found) in expected.iter().zip(rows(batches)) {
        for name in EXPORT_FIELDS {
            assert_eq!(found[name], expected[name], "{name} of {key:?}");
        }
    }
}

#[tokio::test]
async fn a_scan_shows_what_a_merge_in_memory_shows_in_all_columns() {
    for (folds, seed) in [(1, 1), (2, 2), (7, 3), (25, 4)] {
        let world = world(folds, seed).await;
        let expected = expected::rows(TENANT, PROJECT, &world.accepted);
        let mut scan = world.scan(world.request());
        let mut batches = Vec::new();
        while let Some(batch) = scan.next().await.unwrap() {
            assert_eq!(batch.rows.schema(), export_schema());
            batches.push(batch);
        }
        check(&expected, &batches);
        assert_eq!(expected.len(), 1500);
        assert_eq!(scan.merged() > 0, folds > 1, "merged {}", scan.merged());
    }
}

/// Bytes of the largest column of texts.
fn largest_column(rows: &RecordBatch) -> usize {
    let columns = rows.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().iter().flatten().map(str::len).sum(),
        DataType::List(_) => {
            let lists = column.as_list::<i32>().iter().flatten();
            lists
                .map(|list| list.as_string::<i32>().iter().flatten().map(str::len).sum::<usize>())
                .sum()
        }
        _ => 0_usize,
    });
    columns.max().unwrap_or(0)
}

/// Rows of very different weight, some of them merged: a batch has what fits into it, or one row.
#[tokio::test]
async fn a_batch_never_exceeds_its_bytes() {
    let mut random = Random::new(12);
    let mut all = operations(12, 600, time("2026-05-01T20:00:00Z"), time("2026-05-02T04:00:00Z"));
    for operation in &mut all {
        let text = |length| Some(format!("\"{}\"", "x".repeat(length)));
        match random.below(12) {
            0 => operation.fields.inputs = text(5_000 + random.below(20_000)),
            1 => operation.fields.error = text(random.below(9_000)),
            2 => operation.fields.tags = Some(vec!["t".repeat(random.below(9_000)); 2]),
            3 => operation.fields.name = text(random.below(9_000)),
            _ => {}
        }
    }
    for folds in [1, 6] {
        let world = World::of(all.clone(), folds, 12).await;
        let expected = keys(&world.read(world.request()).await);
        for most in [1_usize, 700, 8_000, 100_000] {
            for selection in [Selection::all(), Selection::of(&["tags", "name"]).unwrap()] {
                let request = Request {
                    selection,
                    ..world.request()
                };
                let batches = drain(world.scan(request).with_batch_bytes(most)).await;
                assert_eq!(keys(&batches), expected);
                for batch in &batches {
                    let bytes = largest_column(&batch.rows);
                    assert!(batch.keys.len() == 1 || bytes <= most, "{bytes} of {most}");
                }
                assert!(most > 1 || batches.len() == expected.len());
                // Not one row at a time where more fit in.
                assert!(
                    most < 100_000 || batches.len() < expected.len() / 10,
                    "{} batches",
                    batches.len()
                );
            }
        }
    }
}

#[tokio::test]
async fn a_scan_resumed_at_any_row_goes_on_the_same() {
    let world = world(6, 5).await;
    let whole = rows(&world.read(world.request()).await);
    let order = keys(&world.read(world.request()).await);
    let mut random = Random::new(9);
    let mut cuts: Vec<usize> = (0..25).map(|_| random.below(order.len())).collect();
    cuts.extend([0, 1, order.len() - 2, order.len() - 1]);
    for cut in cuts {
        let after = Some(order[cut]);
        let tail = world
            .read(Request {
                after,
                ..world.request()
            })
            .await;
        assert_eq!(keys(&tail), order[cut + 1..], "after row {cut}");
        assert!(rows(&tail) == whole[cut + 1..], "after row {cut}");
    }
}

#[tokio::test]
async fn a_range_takes_its_start_and_leaves_its_end() {
    let world = world(4, 6).await;
    let expected = expected::rows(TENANT, PROJECT, &world.accepted);
    let (start, end) = (expected[300].0.sort_time, expected[900].0.sort_time);
    let range = start..end;
    let within: Vec<_> = expected
        .into_iter()
        .filter(|(key, _)| range.contains(&key.sort_time))
        .collect();
    check(
        &within,
        &world
            .read(Request {
                range,
                ..world.request()
            })
            .await,
    );
    // Days meet without gap and without overlap.
    let midnight = time("2026-05-02");
    let first = world
        .read(Request {
            range: time("2026-05-01")..midnight,
            ..world.request()
        })
        .await;
    let second = world
        .read(Request {
            range: midnight..time("2026-05-03"),
            ..world.request()
        })
        .await;
    assert_eq!(
        [keys(&first), keys(&second)].concat(),
        keys(&world.read(world.request()).await)
    );
    assert!(!first.is_empty() && !second.is_empty());
    let nothing = world
        .read(Request {
            range: time("2026-06-01")..time("2026-07-01"),
            ..world.request()
        })
        .await;
    assert!(nothing.is_empty());
}

#[tokio::test]
async fn a_projection_shows_the_same_values() {
    let world = world(5, 7).await;
    let whole = rows(&world.read(world.request()).await);
    for names in EXPORT_FIELDS.map(|name| vec![name]).into_iter().chain([
        vec!["id", "status", "total_tokens"],
        vec!["first_token_time", "is_root", "name"],
        vec!["start_time", "extra", "prompt_cost"],
    ]) {
        let selection = Selection::of(&names).unwrap();
        let batches = world
            .read(Request {
                selection: selection.clone(),
                ..world.request()
            })
            .await;
        assert!(batches.iter().all(|batch| batch.rows.schema() == selection.schema()));
        let found = rows(&batches);
        assert_eq!(found.len(), whole.len());
        for (found, whole) in found.iter().zip(&whole) {
            for name in &names {
                assert_eq!(found[*name], whole[*name], "{name}");
            }
        }
    }
}

#[tokio::test]
async fn patches_alone_are_shown_too() {
    let mut world = World::empty();
    let all = operations(8, 200, time("2026-05-01"), time("2026-05-02"));
    let patches: Vec<_> = all
        .into_iter()
        .filter(|operation| operation.sort_time().is_some())
        .collect();
    let mut seen = std::collections::HashSet::new();
    // The first operation of each trace run is its post: leave it out.
    world.accepted = patches
        .into_iter()
        .filter(|operation| !seen.insert(operation.id))
        .zip(0..)
        .map(|(o, seq)| (seq, o))
        .collect();
    world
        .accepted
        .retain(|(_, operation)| operation.verb == towpath_traces::operation::Verb::Patch);
    let (first, second) = world.accepted.split_at(world.accepted.len() / 2);
    let (first, second) = (first.to_vec(), second.to_vec());
    world.write(PROJECT, first).await;
    world.write(PROJECT, second).await;
    let expected = expected::rows(TENANT, PROJECT, &world.accepted);
    assert!(expected.len() > 100);
    check(&expected, &world.read(world.request()).await);
}

#[tokio::test]
async fn rows_of_another_project_or_workspace_are_never_shown() {
    let world = world(2, 10).await;
    let foreign = Request {
        project: OTHER,
        ..world.request()
    };
    assert!(matches!(world.scan(foreign).next().await, Err(Error::Corrupt { .. })));
    let foreign = Request {
        tenant: towpath_domain::TenantId::nil(),
        ..world.request()
    };
    assert!(matches!(world.scan(foreign).next().await, Err(Error::Corrupt { .. })));
    let own = Request {
        project: OTHER,
        parts: world.parts(OTHER),
        ..world.request()
    };
    assert!(!drain(world.scan(own)).await.is_empty());
}

#[tokio::test]
async fn a_missing_segment_says_which() {
    let world = world(1, 11).await;
    let mut request = world.request();
    request.parts[0].path = "segments/gone.parquet".into();
    let error = world.scan(request).next().await.unwrap_err();
    assert!(
        matches!(error.object_store(), Some(object_store::Error::NotFound { .. })),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "cannot read segments/gone.parquet");
}
