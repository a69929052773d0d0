use std::collections::HashSet;

use futures::TryStreamExt;
use towpath_domain::{SegmentId, TraceRunId};
use towpath_traces::columnar::Error;
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::Row;
use towpath_traces::segment::{self, GROUP_ROWS, Segment};
use uuid::Uuid;

use super::generate::{Random, operations};
use super::world::{OTHER, PROJECT, TENANT, World, time};

fn small(number: u128, seconds: i64) -> Row {
    let start = time("2026-05-01").micros() + seconds * 1_000_000;
    let fields = Fields {
        start_time: Some(towpath_domain::Timestamp::from_micros(start)),
        ..Fields::default()
    };
    Row::from_operation(
        Operation {
            verb: Verb::Post,
            id: TraceRunId(Uuid::from_u128(number)),
            project: None,
            fields,
        },
        5,
    )
}

#[tokio::test]
async fn parts_say_what_is_in_the_row_groups() {
    let world = World::of(
        operations(1, 900, time("2026-05-01T20:00:00Z"), time("2026-05-02T04:00:00Z")),
        1,
        1,
    )
    .await;
    let written = &world.segments[0];
    let stored = world.bytes(&written.path).await;
    assert_eq!(stored.len() as u64, written.bytes);
    assert_eq!(written.parts.len(), 4, "two projects, two days");
    let opened = Segment::open(world.store.clone(), written.path.clone()).await.unwrap();
    assert_eq!(opened.row_groups(), 4);
    for (at, part) in written.parts.iter().enumerate() {
        assert_eq!(part.row_group, at);
        opened.check_owner(at, TENANT, part.project).unwrap();
        let rows: Vec<Row> = opened.rows(at).unwrap().try_collect().await.unwrap();
        assert_eq!(rows.len() as u64, part.rows);
        assert!(rows.iter().all(|row| row.day() == Some(part.day)));
        let keys: Vec<_> = rows.iter().map(|row| row.key().unwrap()).collect();
        assert!(keys.is_sorted() && keys.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(opened.keys(at).await.unwrap(), keys);
        assert_eq!(
            (part.min_sort_time, part.max_sort_time),
            (keys[0].sort_time, keys[keys.len() - 1].sort_time)
        );
        assert_eq!(part.min_seq, rows.iter().map(|row| row.seqs().0).min().unwrap());
        assert_eq!(part.max_seq, rows.iter().map(|row| row.seqs().1).max().unwrap());
    }
    assert_eq!(written.rows, written.parts.iter().map(|part| part.rows).sum::<u64>());
}

#[tokio::test]
async fn the_same_rows_in_any_order_give_the_same_segment() {
    let accepted: Vec<_> = operations(2, 300, time("2026-05-01"), time("2026-05-02"))
        .into_iter()
        .zip(0..)
        .collect();
    let mut rows: Vec<_> = accepted
        .iter()
        .filter(|(operation, _)| operation.sort_time().is_some())
        .map(|(operation, seq)| (PROJECT, Row::from_operation(operation.clone(), *seq)))
        .collect();
    let world = World::empty();
    let mut seen = HashSet::new();
    for round in 0..3 {
        let path = segment::path(TENANT, SegmentId::new());
        segment::write(world.store.clone(), path.clone(), TENANT, rows.clone())
            .await
            .unwrap()
            .unwrap();
        seen.insert(world.bytes(&path).await);
        Random::new(round).shuffle(&mut rows);
    }
    assert_eq!(seen.len(), 1);
}

#[tokio::test]
async fn a_large_group_becomes_several_row_groups() {
    let world = World::empty();
    let count = GROUP_ROWS + 100;
    let rows = (0..count).map(|number| (PROJECT, small(number as u128, number as i64 / 10)));
    let path = segment::path(TENANT, SegmentId::new());
    let written = segment::write(world.store.clone(), path.clone(), TENANT, rows)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        written.parts.iter().map(|part| part.rows).collect::<Vec<_>>(),
        [GROUP_ROWS as u64, 100]
    );
    assert!(written.parts[0].max_sort_time <= written.parts[1].min_sort_time);
    let opened = Segment::open(world.store.clone(), path).await.unwrap();
    assert_eq!(opened.keys(0).await.unwrap().len(), GROUP_ROWS);
}

#[tokio::test]
async fn heavy_rows_fill_a_row_group_early() {
    let world = World::empty();
    let rows = (0..20).map(|number| {
        let mut operation = operations(3, 1, time("2026-05-01"), time("2026-05-02")).remove(0);
        operation.id = TraceRunId(Uuid::from_u128(number));
        operation.fields.inputs = Some(format!("\"{}\"", "x".repeat(4 << 20)));
        (PROJECT, Row::from_operation(operation, 1))
    });
    let path = segment::path(TENANT, SegmentId::new());
    let written = segment::write(world.store.clone(), path.clone(), TENANT, rows)
        .await
        .unwrap()
        .unwrap();
    assert!(written.parts.len() >= 3, "{} row groups", written.parts.len());
    let opened = Segment::open(world.store.clone(), path).await.unwrap();
    let rows: Vec<Row> = opened.rows(0).unwrap().try_collect().await.unwrap();
    assert_eq!(rows[0].fields().inputs.as_ref().unwrap().len(), (4 << 20) + 2);
}

#[tokio::test]
async fn trace_runs_are_found_by_id() {
    let world = World::of(
        operations(4, 800, time("2026-05-01T20:00:00Z"), time("2026-05-02T04:00:00Z")),
        1,
        4,
    )
    .await;
    let opened = Segment::open(world.store.clone(), world.segments[0].path.clone())
        .await
        .unwrap();
    let (_, known) = world
        .accepted
        .iter()
        .find(|(_, operation)| operation.fields.dotted_order.is_some())
        .unwrap();
    let unknown: Vec<_> = (0..500).map(|number| TraceRunId(Uuid::from_u128(number))).collect();
    assert!(opened.locate(&unknown).await.unwrap().is_empty());
    let found = opened.locate(&[unknown[3], known.id]).await.unwrap();
    assert!(!found.is_empty() && found.iter().all(|at| at.id == known.id));
    let own = found.iter().find(|at| at.project == PROJECT).unwrap();
    assert_eq!(Some(own.sort_time), known.sort_time());
    assert_eq!(own.dotted_order, known.fields.dotted_order);
    assert_eq!(own.day, own.sort_time.day());
    assert_eq!(world.segments[0].parts[own.row_group].day, own.day);
    assert!(found.iter().all(|at| [PROJECT, OTHER].contains(&at.project)));
}

#[tokio::test]
async fn nothing_is_written_for_nothing_or_for_a_row_without_a_place() {
    let world = World::empty();
    let path = segment::path(TENANT, SegmentId::new());
    assert_eq!(
        segment::write(world.store.clone(), path.clone(), TENANT, [])
            .await
            .unwrap(),
        None
    );
    let operation = Operation {
        verb: Verb::Patch,
        id: TraceRunId::nil(),
        project: None,
        fields: Fields::default(),
    };
    let lost = segment::write(
        world.store.clone(),
        path,
        TENANT,
        [(PROJECT, Row::from_operation(operation, 1))],
    )
    .await;
    assert!(matches!(lost, Err(Error::NoLocation(_))));
    let listed: Vec<_> = world.store.list(None).try_collect::<Vec<_>>().await.unwrap();
    assert!(listed.is_empty());
}

#[tokio::test]
async fn another_parquet_file_is_no_segment() {
    let world = World::empty();
    let path = object_store::path::Path::from("x.parquet");
    object_store::ObjectStoreExt::put(&*world.store, &path, "PAR1 something else PAR1".into())
        .await
        .unwrap();
    let opened = Segment::open(world.store.clone(), path).await;
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
}
