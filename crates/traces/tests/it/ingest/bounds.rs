//! What flushes and readers take into memory, whatever bodies unpack to.

use bytes::Bytes;
use towpath_domain::{TenantId, TraceRunId};
use towpath_store::{pending_patches, wal_segments};
use towpath_traces::accept::{AcceptedRequest, Route};
use towpath_traces::flush::{self, FlushResult, Options, UnflushedData};

use super::world::{World, column, on_both_databases, sent_by};

on_both_databases!(
    a_fold_that_is_full_leaves_the_rest_to_another,
    a_body_beyond_the_bound_is_folded_alone,
    what_waits_counts_as_memory,
    what_was_put_aside_is_taken_up_in_pages,
    one_frame_is_the_next_of_its_workspace,
    a_reader_stops_at_its_bound,
    a_body_that_was_not_counted_is_unpacked_to_the_bound,
    what_was_put_aside_counts_for_readers,
);

fn post(id: TraceRunId) -> String {
    format!(
        r#"{{"id":"{id}","session_name":"canal","start_time":"2026-03-01T10:00:00Z","inputs":{{"text":"{}"}}}}"#,
        "x".repeat(2000)
    )
}

impl World {
    /// Bodies of one size, of one run each.
    fn posts(&self, count: usize) -> Vec<AcceptedRequest> {
        let ids = std::iter::repeat_with(TraceRunId::new).take(count);
        ids.map(|id| self.accept_json(Route::Run, &post(id))).collect()
    }

    async fn fold_within(&self, decoded_bytes: usize) -> FlushResult {
        let options = Options {
            decoded_bytes,
            ..Options::default()
        };
        self.fold_with(&options).await
    }

    /// What a reader takes into memory of what is open.
    async fn read_within(&self, most: usize) -> Option<UnflushedData> {
        let open = self
            .store
            .read(async |tx| wal_segments::open_of(tx, self.tenant).await)
            .await
            .unwrap();
        flush::read_unflushed(&self.store, &self.objects, &open, most)
            .await
            .unwrap()
    }
}

fn rows(read: &UnflushedData) -> u64 {
    read.parts.iter().map(|(.., rows)| rows).sum()
}

async fn a_fold_that_is_full_leaves_the_rest_to_another(world: World) {
    let bodies = world.posts(7);
    let size = bodies[0].decoded_bytes;
    let one = world.unit(&bodies[..5]).await;
    let two = world.unit(&bodies[5..]).await;
    let mut folds = Vec::new();
    while world.open_units().await > 0 {
        let folded = world.fold_within(2 * size).await;
        folds.push((folded.operations, folded.wal_segments, folded.progress));
    }
    let expected = [
        (2, vec![], Some((one, 2))),
        (2, vec![], Some((one, 4))),
        (2, vec![one], Some((two, 1))),
        (1, vec![two], None),
    ];
    assert_eq!(folds, expected);
    assert_eq!(world.rows(world.project("canal").await).await.len(), 7);
}

async fn a_body_beyond_the_bound_is_folded_alone(world: World) {
    let unit = world.unit(&world.posts(3)).await;
    for frame in [Some(1), Some(2), None] {
        let folded = world.fold_within(1).await;
        assert_eq!(folded.operations, 1);
        assert_eq!(folded.progress, frame.map(|frame| (unit, frame)));
    }
    assert_eq!(world.open_units().await, 0);
    assert_eq!(world.rows(world.project("canal").await).await.len(), 3);
}

/// Small patches take much more memory than they have bytes.
async fn what_waits_counts_as_memory(world: World) {
    let body = || {
        let patches = std::iter::repeat_with(|| format!(r#"{{"id":"{}","outputs":{{"b":2}}}}"#, TraceRunId::new()));
        let patches: Vec<_> = patches.take(50).collect();
        world.accept_json(Route::Batch, &format!(r#"{{"patch":[{}]}}"#, patches.join(",")))
    };
    let bodies = [body(), body()];
    let most = 3 * bodies[0].decoded_bytes;
    let unit = world.unit(&bodies).await;
    let options = Options {
        // Each body is looked up and sorted by itself.
        segment_bytes: 1,
        decoded_bytes: most,
        ..Options::default()
    };
    let folded = world.fold_with(&options).await;
    assert_eq!(
        (folded.pending_operations.len(), folded.progress),
        (50, Some((unit, 1)))
    );
    let folded = world.fold_with(&options).await;
    assert_eq!((folded.pending_operations.len(), folded.wal_segments), (50, vec![unit]));
}

fn patch(number: usize) -> String {
    format!(r#"{{"extra":{{"said_{number}":"{}"}}}}"#, "y".repeat(1000))
}

async fn what_was_put_aside_is_taken_up_in_pages(world: World) {
    let id = TraceRunId::new();
    let patches = (0..5).map(|number| world.accept_json(Route::Patch(id), &patch(number)));
    world.unit(&patches.collect::<Vec<_>>()).await;
    assert_eq!(world.fold().await.pending_operations.len(), 5);
    world.unit(&[world.accept_json(Route::Run, &post(id))]).await;
    let options = Options {
        segment_bytes: 1,
        ..Options::default()
    };
    let folded = world.fold_with(&options).await;
    assert_eq!(folded.resolved_patches.len(), 5);
    assert_eq!(folded.segments.len(), 6, "the post, and a page of each patch");
    let row = world.row(world.project("canal").await, id).await.unwrap();
    let extra = format!("{:?}", row[column("extra")]);
    assert!(
        (0..5).all(|number| extra.contains(&format!("said_{number}"))),
        "{extra}"
    );
    let left = world
        .store
        .read(async |tx| pending_patches::usage(tx, world.tenant).await)
        .await
        .unwrap();
    assert_eq!(left.patches, 0);
}

/// Objects of earlier builds hold what several workspaces sent.
async fn one_frame_is_the_next_of_its_workspace(world: World) {
    let mut bodies = world.posts(3);
    bodies[0] = sent_by(TenantId::new(), bodies[0].clone());
    let unit = world.unit(&bodies).await;
    let mut frame = 0;
    for next in [2, 3] {
        let options = Options {
            frame: Some(frame),
            ..Options::default()
        };
        let folded = world.fold_with(&options).await;
        assert_eq!((folded.operations, folded.progress), (1, Some((unit, next))));
        frame = next;
    }
    let options = Options {
        frame: Some(frame),
        ..Options::default()
    };
    assert_eq!(world.fold_with(&options).await.wal_segments, [unit]);
    assert_eq!(world.rows(world.project("canal").await).await.len(), 2);
}

async fn a_reader_stops_at_its_bound(world: World) {
    let bodies = world.posts(3);
    let size = bodies[0].decoded_bytes;
    world.unit(&bodies).await;
    assert!(world.read_within(3 * size - 1).await.is_none());
    let read = world.read_within(3 * size).await.unwrap();
    assert_eq!(rows(&read), 3);
    assert!(read.bytes >= 3 * size);
}

/// Earlier builds did not say what a body unpacks to.
async fn a_body_that_was_not_counted_is_unpacked_to_the_bound(world: World) {
    let plain = post(TraceRunId::new()).replace(&"x".repeat(2000), &"x".repeat(1 << 20));
    let packed = Bytes::from(zstd::encode_all(plain.as_bytes(), 3).unwrap());
    assert!(packed.len() * 100 < plain.len());
    let mut accepted = world
        .try_accept(Route::Run, "application/json", Some("zstd"), packed)
        .unwrap();
    (accepted.decoded_bytes, accepted.frame.head.decoded_bytes) = (0, 0);
    world.unit(&[accepted]).await;
    assert!(world.read_within(1 << 20).await.is_none());
    let read = world.read_within(2 << 20).await.unwrap();
    assert_eq!(rows(&read), 1);
    assert!(read.bytes >= plain.len());
    world.fold_within(1).await;
    assert_eq!(world.rows(world.project("canal").await).await.len(), 1);
}

async fn what_was_put_aside_counts_for_readers(world: World) {
    let id = TraceRunId::new();
    let patches = (0..5).map(|number| world.accept_json(Route::Patch(id), &patch(number)));
    world.unit(&patches.collect::<Vec<_>>()).await;
    world.fold().await;
    world.unit(&[world.accept_json(Route::Run, &post(id))]).await;
    assert!(world.read_within(5000).await.is_none());
    let read = world.read_within(20_000).await.unwrap();
    assert!(rows(&read) > 0);
    world.fold().await;
    assert_eq!(rows(&world.read_within(5000).await.unwrap()), 0);
}
