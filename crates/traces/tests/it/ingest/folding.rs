//! Flushing: every way to cut operations into bodies, WAL segments and flushes gives the same rows.

use object_store::path::Path;
use proptest::prelude::*;
use towpath_domain::TraceRunId;
use towpath_store::quarantine::Kind;
use towpath_store::{feedback, pending_patches, wal_segments};
use towpath_traces::accept::{RefusalKind, Route};
use towpath_traces::body::Encoding;
use towpath_traces::flush::Options;
use towpath_traces::sample::{Cell, Sample, SampleOperations};

use super::world::{World, column, on_both_databases, sample};

on_both_databases!(
    every_column_of_every_run_is_as_sent,
    patches_that_come_first_in_another_fold_are_merged,
    a_body_sent_twice_changes_nothing,
    little_memory_makes_more_segments_and_the_same_rows,
    a_bare_patch_finds_its_run_in_the_batch_or_in_the_catalog,
    a_bare_patch_waits_for_its_run,
    a_run_sent_again_into_another_project_changes_nothing_there,
    a_damaged_frame_is_set_aside_and_the_others_are_folded,
    a_unit_that_is_not_there_is_quarantined_and_holds_nobody_up,
    feedback_and_attachments_are_kept,
    odd_characters_are_refused_or_folded,
    a_content_type_that_was_acknowledged_with_a_nul_is_folded,
    a_fold_that_comes_second_counts_for_nothing,
);

/// The rows that must be there, in order.
async fn expected(world: &World, sample: &Sample, runs: u64) -> Vec<Vec<Cell>> {
    let project = world.project("canal").await;
    let mut all: Vec<_> = (0..runs)
        .map(|index| sample.expected(index, world.tenant, project))
        .collect();
    all.sort_by_key(|run| (run.start, run.id));
    all.into_iter()
        .map(|run| run.columns.into_iter().map(|(_, cell)| cell).collect())
        .collect()
}

async fn check(world: &World, sample: &Sample, runs: u64) {
    let rows = world.rows(world.project("canal").await).await;
    let wanted = expected(world, sample, runs).await;
    assert_eq!(rows.len(), wanted.len());
    for (row, wanted) in rows.iter().zip(&wanted) {
        for (at, (cell, wanted)) in row.iter().zip(wanted).enumerate() {
            assert_eq!(
                cell,
                wanted,
                "{} of {:?}",
                towpath_traces::schema::EXPORT_FIELDS[at],
                row[0]
            );
        }
    }
}

fn within(flush_bytes: usize) -> Options {
    Options {
        segment_bytes: flush_bytes,
        ..Options::default()
    }
}

async fn every_column_of_every_run_is_as_sent(world: World) {
    let sample = sample(11);
    let wal = world.wal();
    for start in (0..200).step_by(50) {
        wal.append(world.accept(&sample.body(start..start + 50, SampleOperations::Both, Encoding::Zstd)))
            .await
            .unwrap();
    }
    let folded = world.fold().await;
    assert_eq!(folded.operations, sample.operations(0..200, SampleOperations::Both));
    assert_eq!(world.open_units().await, 0);
    check(&world, &sample, 200).await;
    let per_day: Vec<u64> = (0..3)
        .map(|day| sample.count_on(200, super::world::DAY + chrono::Days::new(day)))
        .collect();
    assert_eq!(per_day.iter().sum::<u64>(), 200);
}

async fn patches_that_come_first_in_another_fold_are_merged(world: World) {
    let sample = sample(12);
    world
        .unit(&[world.accept(&sample.body(0..50, SampleOperations::Patches, Encoding::Gzip))])
        .await;
    world.fold().await;
    world
        .unit(&[world.accept(&sample.body(0..50, SampleOperations::Posts, Encoding::Identity))])
        .await;
    world.fold().await;
    check(&world, &sample, 50).await;
}

async fn a_body_sent_twice_changes_nothing(world: World) {
    let sample = sample(13);
    let body = world.accept(&sample.body(0..30, SampleOperations::Both, Encoding::Zstd));
    world.unit(&[body.clone(), body.clone()]).await;
    world.fold().await;
    world.unit(&[body]).await;
    world.fold().await;
    check(&world, &sample, 30).await;
}

async fn little_memory_makes_more_segments_and_the_same_rows(world: World) {
    let sample = sample(14);
    for start in (0..100).step_by(10) {
        world
            .unit(&[world.accept(&sample.body(start..start + 10, SampleOperations::Both, Encoding::Zstd))])
            .await;
    }
    let folded = world.fold_with(&within(30_000)).await;
    assert!(folded.segments.len() > 2);
    check(&world, &sample, 100).await;
}

#[derive(Clone, Debug)]
struct BatchSplit {
    posts: Vec<u8>,
    patches: Vec<u8>,
    folds: Vec<bool>,
    flush: usize,
}

fn cut() -> impl Strategy<Value = BatchSplit> {
    let units = || proptest::collection::vec(0_u8..4, 8);
    (
        units(),
        units(),
        proptest::collection::vec(any::<bool>(), 4),
        prop_oneof![Just(1_usize), Just(10_000), Just(1 << 30)],
    )
        .prop_map(|(posts, patches, folds, flush)| BatchSplit {
            posts,
            patches,
            folds,
            flush,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Pieces of five runs each go, posts and patches apart, to any of four WAL segments; flushes happen in between or
    /// not.
    #[test]
    fn any_cut_into_units_and_folds_gives_the_same_rows(cut in cut()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new().await;
            let sample = sample(15);
            for unit in 0..4_u8 {
                let mut bodies = Vec::new();
                for (which, to) in [(SampleOperations::Posts, &cut.posts), (SampleOperations::Patches, &cut.patches)] {
                    for (piece, _) in to.iter().enumerate().filter(|(_, to)| **to == unit) {
                        let piece = piece as u64 * 5;
                        bodies.push(world.accept(&sample.body(piece..piece + 5, which, Encoding::Identity)));
                    }
                }
                if !bodies.is_empty() {
                    world.unit(&bodies).await;
                }
                if cut.folds[usize::from(unit)] {
                    world.fold_with(&within(cut.flush)).await;
                }
            }
            world.fold_with(&within(cut.flush)).await;
            check(&world, &sample, 40).await;
        });
    }
}

fn post(id: TraceRunId, name: &str) -> String {
    format!(
        r#"{{"id":"{id}","name":"{name}","session_name":"canal","start_time":"2026-03-01T10:00:00Z","inputs":{{"a":1}}}}"#
    )
}

const PATCH: &str = r#"{"outputs":{"b":2},"end_time":"2026-03-01T10:00:01Z","session_name":null}"#;

async fn a_bare_patch_finds_its_run_in_the_batch_or_in_the_catalog(world: World) {
    let (near, far) = (TraceRunId::new(), TraceRunId::new());
    world.unit(&[world.accept_json(Route::Run, &post(far, "far"))]).await;
    world.fold().await;
    world
        .unit(&[
            world.accept_json(Route::Patch(near), PATCH),
            world.accept_json(Route::Run, &post(near, "near")),
            world.accept_json(Route::Patch(far), PATCH),
        ])
        .await;
    let folded = world.fold().await;
    assert!(folded.pending_operations.is_empty());
    let project = world.project("canal").await;
    for (id, name) in [(near, "near"), (far, "far")] {
        let row = world.row(project, id).await.unwrap();
        assert_eq!(row[column("name")], name.into());
        assert_eq!(row[column("outputs")], r#"{"b":2}"#.into());
        assert_eq!(row[column("status")], "success".into());
        assert_eq!(row[column("inputs")], r#"{"a":1}"#.into());
    }
}

async fn a_bare_patch_waits_for_its_run(world: World) {
    let id = TraceRunId::new();
    world
        .unit(&[
            world.accept_json(Route::Patch(id), PATCH),
            world.accept_json(Route::Run, &post(TraceRunId::new(), "x")),
        ])
        .await;
    let folded = world.fold().await;
    assert_eq!((folded.pending_operations.len(), folded.resolved_patches.len()), (1, 0));
    let waiting = async || {
        world
            .store
            .read(async |tx| pending_patches::for_runs(tx, world.tenant, &[id]).await)
            .await
            .unwrap()
            .len()
    };
    assert_eq!(waiting().await, 1);
    world.unit(&[world.accept_json(Route::Run, &post(id, "late"))]).await;
    let folded = world.fold().await;
    assert_eq!((folded.pending_operations.len(), folded.resolved_patches.len()), (0, 1));
    assert_eq!(waiting().await, 0);
    let row = world.row(world.project("canal").await, id).await.unwrap();
    assert_eq!(
        (&row[column("name")], &row[column("outputs")]),
        (&"late".into(), &r#"{"b":2}"#.into())
    );
}

async fn a_run_sent_again_into_another_project_changes_nothing_there(world: World) {
    let (near, far, own) = (TraceRunId::new(), TraceRunId::new(), TraceRunId::new());
    let replayed = |id, name: &str| post(id, name).replace("canal", "harbour");
    world.unit(&[world.accept_json(Route::Run, &post(far, "far"))]).await;
    world.fold().await;
    // In the same batch, from an earlier one, and one that is new there.
    world
        .unit(&[
            world.accept_json(Route::Run, &post(near, "near")),
            world.accept_json(Route::Run, &replayed(near, "again")),
            world.accept_json(Route::Run, &replayed(far, "again")),
            world.accept_json(Route::Run, &replayed(own, "own")),
            world.accept_json(
                Route::Patch(far),
                &PATCH.replace("null", r#""harbour","start_time":"2026-03-01T10:00:00Z""#),
            ),
        ])
        .await;
    world.fold().await;
    let (canal, harbour) = (world.project("canal").await, world.project("harbour").await);
    for (id, name) in [(near, "near"), (far, "far")] {
        assert_eq!(world.row(canal, id).await.unwrap()[column("name")], name.into());
        assert_eq!(world.row(harbour, id).await, None);
    }
    // What is said of it goes where it is.
    assert_eq!(world.row(canal, far).await.unwrap()[column("status")], "success".into());
    assert_eq!(world.row(harbour, own).await.unwrap()[column("name")], "own".into());
    assert_eq!(world.row(canal, own).await, None);
}

async fn a_damaged_frame_is_set_aside_and_the_others_are_folded(world: World) {
    let sample = sample(16);
    let body = |range| world.accept(&sample.body(range, SampleOperations::Both, Encoding::Identity));
    let (good, bad) = (body(0..5), body(5..10));
    let id = world.unit(&[bad.clone(), good]).await;
    let path = world.folder.path().join("objects/wal").join(format!("{id}.unit"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let folded = world.fold().await;
    assert_eq!((folded.quarantined.len(), world.open_units().await), (1, 0));
    check(&world, &sample, 5).await;
    let entry = world.quarantined().await.remove(0);
    assert_eq!(
        (entry.kind, entry.items),
        (Kind::Damaged, i64::from(bad.frame.head.items))
    );
    let kept = world.objects.get(&Path::from(entry.path.as_str())).await.unwrap();
    let range = entry.byte_offset as usize..(entry.byte_offset + entry.bytes) as usize;
    assert_eq!(kept[range], bytes[8..8 + entry.bytes as usize], "it is kept as it is");
}

async fn a_unit_that_is_not_there_is_quarantined_and_holds_nobody_up(world: World) {
    let sample = sample(17);
    let body = |range| world.accept(&sample.body(range, SampleOperations::Both, Encoding::Identity));
    let lost = body(5..10);
    let id = world.unit(std::slice::from_ref(&lost)).await;
    world.unit(&[body(0..5)]).await;
    let path = towpath_traces::wal::object_path(id);
    world.objects.delete(&path).await.unwrap();
    let folded = world.fold().await;
    assert_eq!(folded.missing, [id]);
    assert_eq!(world.open_units().await, 0);
    check(&world, &sample, 5).await;
    let entry = world.quarantined().await.remove(0);
    assert_eq!((entry.kind, entry.path), (Kind::Missing, path.to_string()));
}

async fn feedback_and_attachments_are_kept(world: World) {
    let recorded = towpath_traces::sample::Body {
        content_type: "multipart/form-data; boundary=4528e3d4d75f4db4aacb59cec3612be8".into(),
        content_encoding: None,
        bytes: bytes::Bytes::from_static(include_bytes!("../../data/python-identity.bin")),
    };
    world.unit(&[world.accept(&recorded)]).await;
    let folded = world.fold().await;
    let run = folded.attachments[0].run_id;
    let (judged, files) = world
        .store
        .read(async |tx| {
            Ok((
                feedback::of_run(tx, world.tenant, run).await?,
                feedback::attachments(tx, world.tenant, run).await?,
            ))
        })
        .await
        .unwrap();
    assert_eq!((judged.len(), judged[0].key.as_str()), (1, "helpful"));
    assert_eq!((files.len(), files[0].name.as_str(), files[0].bytes), (1, "boat", 28));
    let bytes = world.objects.get(&Path::from(files[0].path.as_str())).await.unwrap();
    assert!(bytes.starts_with(b"\x89PNG"));
}

/// A multipart body of one part, its head as given.
fn part(head: &[u8], data: &[u8]) -> bytes::Bytes {
    [b"--b\r\n".as_slice(), head, b"\r\n\r\n", data, b"\r\n--b--\r\n"]
        .concat()
        .into()
}

async fn odd_characters_are_refused_or_folded(world: World) {
    let run = TraceRunId::new();
    let attachment = format!("attachment.{run}.boat");
    let head = |name: &[u8], kind: &[u8], more: &[u8]| {
        [
            b"Content-Disposition: form-data; name=\"".as_slice(),
            name,
            b"\"\r\nContent-Type: ",
            kind,
            more,
        ]
        .concat()
    };
    // The head of each part, and whether it may be kept.
    let mut heads: Vec<(Vec<u8>, bool)> = Vec::new();
    for odd in [
        b"\0".as_slice(),
        b"\x01",
        b"\x1f",
        b"\x7f",
        "\u{e9}".as_bytes(),
        b"\xff",
    ] {
        let with = |text: &[u8]| [text, odd, b"x"].concat();
        let name = with(attachment.as_bytes());
        let stored_name = std::str::from_utf8(odd).is_ok_and(|text| !text.chars().any(char::is_control));
        heads.extend([
            (head(attachment.as_bytes(), &with(b"image/png"), b""), false),
            (head(&name, b"image/png", b""), stored_name),
            (head(&with(b"attachment"), b"image/png", b""), false),
            (
                head(attachment.as_bytes(), b"image/png", &with(b"\r\nContent-Length: 1")),
                false,
            ),
        ]);
        // What no one keeps may say anything, as long as it is text.
        let is_text = std::str::from_utf8(odd).is_ok();
        for more in [&b"; filename=\""[..], b"; charset=", b"\r\nX-Other: ", b"\r\nX-Other"] {
            let end: &[u8] = if more.ends_with(b"\"") { b"\"" } else { b": y" };
            let more = [with(more).as_slice(), end].concat();
            heads.push((head(attachment.as_bytes(), b"image/png", &more), is_text));
        }
    }
    let mut kept = 0;
    for (head, keeps) in heads {
        let shown = head.escape_ascii().to_string();
        let accepted = world.try_accept(
            Route::Multipart,
            "multipart/form-data; boundary=b",
            None,
            part(&head, b"y"),
        );
        match accepted {
            Ok(accepted) => {
                assert!(keeps, "accepted: {shown}");
                world.unit(&[accepted]).await;
                assert_eq!(world.fold().await.attachments.len(), 1, "{shown}");
                kept += 1;
            }
            Err(refusal) => {
                assert!(!keeps, "{shown}: {refusal}");
                assert_eq!(refusal.kind(), RefusalKind::Invalid, "{shown}: {refusal}");
                assert!(!refusal.to_string().contains('\0'), "{refusal:?}");
            }
        }
    }
    assert!(kept > 0);
    // Escaped in JSON it is a text like any other.
    let feedback = format!(
        r#"{{"id":"{run}","run_id":"{run}","key":"a\u0000b","comment":"\u0000","feedback_source":{{"type":"\u0000"}}}}"#
    );
    let fields = r#""name":"\u0000","tags":["\u0000"],"status":"\u0000","error":"\u0000","extra":{"\u0000":"\u0000"}"#;
    let post = format!(r#"{{"id":"{run}","session_name":"canal","start_time":"2026-03-01T10:00:00Z",{fields}}}"#);
    let patch = format!("{{{fields}}}");
    world
        .unit(&[
            world.accept_json(Route::Feedback, &feedback),
            world.accept_json(Route::Run, &post),
            world.accept_json(Route::Patch(run), &patch),
            world.accept_json(Route::Patch(TraceRunId::new()), &patch),
        ])
        .await;
    let folded = world.fold().await;
    assert_eq!(
        (
            folded.feedback.len(),
            folded.pending_operations.len(),
            folded.quarantined.len()
        ),
        (1, 1, 0)
    );
    let row = world.row(world.project("canal").await, run).await.unwrap();
    assert_eq!(row[column("name")], "\0".into());
}

/// Older servers took any content type; what they acknowledged must be kept.
async fn a_content_type_that_was_acknowledged_with_a_nul_is_folded(world: World) {
    let run = TraceRunId::new();
    let body = |kind: &str| {
        let head = format!("Content-Disposition: form-data; name=\"attachment.{run}.boat\"\r\nContent-Type: {kind}");
        part(head.as_bytes(), b"y")
    };
    let mut accepted = world
        .try_accept(
            Route::Multipart,
            "multipart/form-data; boundary=b",
            None,
            body("image/png"),
        )
        .unwrap();
    accepted.frame.body = body("image\0png");
    world.unit(&[accepted]).await;
    let folded = world.fold().await;
    assert_eq!((folded.quarantined.len(), world.open_units().await), (0, 0));
    let files = world
        .store
        .read(async |tx| feedback::attachments(tx, world.tenant, run).await)
        .await
        .unwrap();
    assert_eq!(files[0].content_type, "image\u{fffd}png");
}

async fn a_fold_that_comes_second_counts_for_nothing(world: World) {
    let sample = sample(18);
    world
        .unit(&[world.accept(&sample.body(0..5, SampleOperations::Both, Encoding::Identity))])
        .await;
    let open = world
        .store
        .read(async |tx| wal_segments::open(tx, i64::MAX).await)
        .await
        .unwrap();
    let job = towpath_domain::JobId::new();
    let slow = towpath_traces::flush::flush(
        &world.store,
        &world.objects,
        &open,
        &Options::default(),
        async |tenant, id, path| {
            world
                .store
                .write(async |tx| towpath_store::segments::intend(tx, tenant, id, path.as_ref(), Some(job)).await)
                .await
        },
    )
    .await
    .unwrap();
    world.fold().await;
    let late = world
        .store
        .write(async |tx| towpath_traces::flush::record(tx, job, &slow).await)
        .await;
    assert!(matches!(late, Err(towpath_store::Error::Stale)));
    check(&world, &sample, 5).await;
}
