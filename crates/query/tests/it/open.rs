//! Unflushed data, and how much of it a reader loads into memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use towpath_domain::{JobId, Shard, TenantId, Timestamp, TraceRunId};
use towpath_query::{Bounds, Error, Reader};
use towpath_store::{Options, Store, segments, wal_segments};
use towpath_testing::Database;
use towpath_testing::objects::RecordingStore;
use towpath_traces::accept::{self, Request, Route};
use towpath_traces::body::Limits;
use towpath_traces::flush;
use towpath_traces::objects::Objects;
use towpath_traces::wal::{self, OnRegistered, Wal};

struct World {
    store: Store,
    objects: Objects,
    watched: Arc<RecordingStore>,
    wal: Wal,
    tenant: TenantId,
    _database: Database,
}

async fn migrate(uri: &str) {
    let store = Store::open(uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}

/// These bounds for decoded data, without waiting.
fn within(decoded_bytes: usize) -> Bounds {
    Bounds {
        decoded_bytes: decoded_bytes as i64,
        max_wait: Duration::ZERO,
        ..Bounds::default()
    }
}

impl World {
    async fn new() -> Self {
        let database = Database::sqlite(migrate).await;
        let store = Store::open(&database.uri, Options::default()).await.unwrap();
        let watched = RecordingStore::new(Arc::new(InMemory::new()));
        let below: Arc<dyn ObjectStore> = Arc::clone(&watched) as _;
        let objects = Objects::from_store(below);
        let nothing: OnRegistered = Arc::new(|_tx, _| Box::pin(async { Ok(()) }));
        let options = wal::Options::for_store(&objects);
        Self {
            wal: Wal::new(store.clone(), objects.clone(), options, nothing),
            store,
            objects,
            watched,
            tenant: TenantId::new(),
            _database: database,
        }
    }

    /// Sends a body and returns its decoded size.
    async fn send(&self, route: Route, json: String) -> usize {
        let request = Request {
            tenant: self.tenant,
            route,
            content_type: "application/json",
            content_encoding: None,
            body: Bytes::from(json),
            received_at: Timestamp::parse("2026-03-01T12:00:00Z").unwrap(),
        };
        let accepted = accept::accept(request, &Limits::default()).unwrap();
        let decoded_bytes = accepted.decoded_bytes;
        self.wal.append(accepted).await.unwrap();
        decoded_bytes
    }

    async fn post(&self, id: TraceRunId) -> usize {
        let text = "x".repeat(2000);
        let post = format!(
            r#"{{"id":"{id}","session_name":"canal","start_time":"2026-03-01T10:00:00Z","inputs":{{"text":"{text}"}}}}"#
        );
        self.send(Route::Run, post).await
    }

    /// Flushes everything that is open.
    async fn fold(&self) {
        let (job, shard) = (JobId::new(), Shard::of(self.tenant));
        let all = wal_segments::Bounds {
            bytes: i64::MAX,
            decoded_bytes: i64::MAX,
        };
        let taken = self
            .store
            .write(async |tx| wal_segments::take(tx, job, shard, all, &[]).await)
            .await
            .unwrap();
        let options = flush::Options::default();
        let folded = flush::flush(
            &self.store,
            &self.objects,
            &taken,
            &options,
            async |tenant, id, path| {
                self.store
                    .write(async |tx| segments::intend(tx, tenant, id, path.as_ref(), Some(job)).await)
                    .await
            },
        )
        .await
        .unwrap();
        self.store
            .write(async |tx| flush::record(tx, job, &folded).await)
            .await
            .unwrap();
    }

    fn reader(&self, bounds: Bounds) -> Reader {
        Reader::with_bounds(self.store.clone(), self.objects.clone(), bounds)
    }

    /// Number of these trace runs that a reader sees; `None` if the flush is behind.
    async fn seen(&self, bounds: Bounds, runs: &[TraceRunId]) -> Option<usize> {
        match self.reader(bounds).snapshot(self.tenant).await {
            Ok(snapshot) => Some(snapshot.locate(runs).await.unwrap().len()),
            Err(Error::FlushBehind) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Number of reads of the log since the last call.
    fn log_reads(&self) -> usize {
        let requests = self.watched.requests().into_iter();
        requests
            .filter(|request| request.path().as_ref().starts_with("wal/"))
            .count()
    }
}

#[tokio::test]
async fn what_a_reader_cannot_hold_waits_for_the_fold() {
    let world = World::new().await;
    let runs = [TraceRunId::new(), TraceRunId::new(), TraceRunId::new()];
    let mut size = 0;
    for run in runs {
        size += world.post(run).await;
    }
    assert_eq!(world.seen(within(size), &runs).await, Some(3));
    assert_eq!(world.seen(within(size - 1), &runs).await, None);
    let as_sent = Bounds {
        bytes: 100,
        ..within(size)
    };
    assert_eq!(world.seen(as_sent, &runs).await, None);
    world.fold().await;
    assert_eq!(world.seen(within(size - 1), &runs).await, Some(3));
    assert_eq!(world.seen(as_sent, &runs).await, Some(3));
}

/// The catalog knows the size of WAL segments, but not of the patches that a run finds waiting.
#[tokio::test]
async fn what_turns_out_too_large_waits_for_the_fold() {
    let world = World::new().await;
    let run = TraceRunId::new();
    let patch = format!(r#"{{"outputs":{{"text":"{}"}}}}"#, "y".repeat(5000));
    world.send(Route::Patch(run), patch).await;
    world.fold().await;
    world.post(run).await;
    assert_eq!(world.seen(within(5000), &[run]).await, None);
    assert_eq!(world.seen(within(10_000), &[run]).await, Some(1));
    world.fold().await;
    assert_eq!(world.seen(within(5000), &[run]).await, Some(1));
}

#[tokio::test]
async fn what_is_kept_for_the_next_query_is_bounded() {
    let world = World::new().await;
    let size = world.post(TraceRunId::new()).await;
    world.log_reads();
    for (recent_bytes, reads) in [(100, 2), (1 << 20, 1)] {
        let reader = world.reader(Bounds {
            recent_bytes,
            ..within(10 * size)
        });
        for _ in 0..2 {
            reader.snapshot(world.tenant).await.unwrap();
        }
        assert_eq!(world.log_reads(), reads);
    }
}

/// Queries that would together exceed the memory limit wait for each other.
#[tokio::test]
async fn queries_share_what_they_may_hold() {
    let world = World::new().await;
    let run = TraceRunId::new();
    world.post(run).await;
    let bounds = Bounds {
        together_bytes: 1,
        recent_bytes: 0,
        ..Bounds::default()
    };
    let reader = world.reader(bounds);
    let snapshots = (0..4).map(|_| reader.snapshot(world.tenant));
    for snapshot in futures::future::join_all(snapshots).await {
        assert_eq!(snapshot.unwrap().locate(&[run]).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn feedback_that_is_sent_again_is_on_its_newest_run_alone() {
    let world = World::new().await;
    let [one, two] = [TraceRunId::new(), TraceRunId::new()];
    let id = TraceRunId::new();
    let give = async |run: TraceRunId| {
        let body = format!(r#"{{"id":"{id}","run_id":"{run}","key":"good"}}"#);
        world.send(Route::Feedback, body).await;
    };
    let on = async |run: TraceRunId| {
        let snapshot = world.reader(Bounds::default()).snapshot(world.tenant).await.unwrap();
        snapshot.feedback(&[run]).await.unwrap().len()
    };
    give(one).await;
    give(two).await;
    assert_eq!((on(one).await, on(two).await), (0, 1), "both are unflushed");
    world.fold().await;
    assert_eq!((on(one).await, on(two).await), (0, 1), "both are flushed");
    give(one).await;
    assert_eq!(
        (on(one).await, on(two).await),
        (1, 0),
        "one is unflushed, on another run"
    );
}
