//! The log of events: its order, its pages, and where a reader continues.

use std::sync::atomic::{AtomicBool, Ordering};

use towpath_domain::agent::{EventId, Frame, frame};
use towpath_domain::{RunId, TenantId, ThreadId};
use towpath_store::Store;
use towpath_store::run_events::{self, Batch, FramePosition, NewBatch, Page, ResumePoint};
use towpath_store::threads::{self, NewThread};

use super::{migrated, new};
use crate::database::{Database, waiting};

on_both!(
    events_are_read_in_the_order_of_their_commits,
    a_reader_goes_on_where_it_was,
    the_last_removed_event_of_a_thread_is_known,
);

/// Logs one batch: its frames have the numbers from `first` on and these milliseconds as ids.
async fn log(store: &Store, tenant: TenantId, thread: ThreadId, run: RunId, first: i64, ms: &[i64]) {
    let numbered = (first..).zip(ms);
    let texts = numbered.map(|(number, ms)| {
        let frame = Frame {
            run: Some(run),
            attempt: 1,
            number,
            id: EventId { ms: *ms, seq: 0 },
            event: "values",
            data: "{}",
        };
        frame.encode()
    });
    let mut frames = String::new();
    texts.for_each(|text| frame::append(&mut frames, &text));
    let new = NewBatch {
        run: Some(run),
        attempt: 1,
        first,
        last: first + i64::try_from(ms.len()).unwrap() - 1,
        last_id: EventId {
            ms: *ms.last().unwrap(),
            seq: 0,
        },
        frames: &frames,
        expires_at: None,
    };
    store
        .write(async |tx| run_events::append(tx, tenant, thread, &new).await)
        .await
        .unwrap();
}

/// Milliseconds of the ids of a page, batch by batch.
fn ids(page: &Page) -> Vec<Vec<i64>> {
    let of = |batch: &Batch| {
        frame::split(&batch.frames)
            .map(|text| Frame::decode(text).unwrap().id.ms)
            .collect()
    };
    page.batches.iter().map(of).collect()
}

async fn events_are_read_in_the_order_of_their_commits(database: Database) {
    let store = &database.store;
    let (tenant, thread) = (TenantId::new(), ThreadId::new());
    let (one, two) = (RunId::new(), RunId::new());
    // The end of another run is logged while the first is at work, by a clock that is ahead.
    for (run, first, ms) in [
        (one, 1, &[1000, 1001][..]),
        (two, 1, &[1045]),
        (one, 3, &[1002, 1003]),
        (one, 5, &[1046]),
    ] {
        log(store, tenant, thread, run, first, ms).await;
    }
    let read = async |run: Option<RunId>, after: i64, bytes: i64| {
        store
            .read(async |tx| run_events::read(tx, tenant, thread, run, after, bytes).await)
            .await
            .unwrap()
    };
    let all = read(None, 0, i64::MAX).await;
    assert_eq!(ids(&all), [vec![1000, 1001], vec![1045], vec![1002, 1003], vec![1046]]);
    assert!(!all.more);
    assert_eq!(ids(&read(Some(two), 0, i64::MAX).await), [[1045]]);
    let positions: Vec<i64> = all.batches.iter().map(|batch| batch.log_position).collect();
    assert!(positions.is_sorted_by(|one, next| one < next), "{positions:?}");
    // A page is bounded by bytes, and has one batch at least.
    let size = i64::try_from(all.batches[0].frames.len()).unwrap();
    for (bytes, expected) in [(0, 1), (size, 1), (2 * size, 2), (100 * size, 4)] {
        let page = read(None, 0, bytes).await;
        assert_eq!(
            (page.batches.len(), page.more),
            (expected, expected < 4),
            "{bytes} bytes"
        );
    }
    let rest = read(None, positions[1], 0).await;
    assert_eq!((ids(&rest), rest.more), (vec![vec![1002, 1003]], true));
    let last = store
        .read(async |tx| run_events::last_id(tx, tenant, thread).await)
        .await;
    assert_eq!(last.unwrap(), Some(EventId { ms: 1046, seq: 0 }));
    let pruned = store
        .write(async |tx| {
            let past = tx.now().minus(std::time::Duration::from_secs(1));
            run_events::expire(tx, tenant, thread, one, past).await?;
            run_events::expire(tx, tenant, thread, two, past).await?;
            run_events::prune(tx, 100).await
        })
        .await
        .unwrap();
    assert_eq!(pruned, 4);
    // A caller that read up to there must see what comes now.
    log(store, tenant, thread, one, 6, &[1047]).await;
    assert_eq!(ids(&read(None, positions[3], 0).await), [[1047]]);
}

async fn a_reader_goes_on_where_it_was(database: Database) {
    let store = &database.store;
    let (tenant, thread) = (TenantId::new(), ThreadId::new());
    let (one, two) = (RunId::new(), RunId::new());
    for (run, first, ms) in [(one, 1, &[1000, 1001][..]), (two, 1, &[1045]), (one, 3, &[1002, 1003])] {
        log(store, tenant, thread, run, first, ms).await;
    }
    let all = store
        .read(async |tx| run_events::read(tx, tenant, thread, None, 0, i64::MAX).await)
        .await
        .unwrap();
    let at: Vec<i64> = all.batches.iter().map(|batch| batch.log_position).collect();
    let found = |run, number, nth: usize| {
        Some(FramePosition {
            log_position: at[nth],
            run: Some(run),
            attempt: 1,
            number,
        })
    };
    for (run, ms, after, expected) in [
        // The first batch that goes so far, and the one that holds it, are not always the same.
        (None, 1000, at[0] - 1, found(one, 1, 0)),
        (None, 1002, at[1] - 1, found(one, 3, 2)),
        (None, 1045, at[1] - 1, found(two, 1, 1)),
        (None, 1044, at[1] - 1, None),
        (None, 2000, at[2], None),
        (Some(one), 1002, at[2] - 1, found(one, 3, 2)),
        (Some(two), 1045, at[1] - 1, found(two, 1, 1)),
        // What others wrote last about the run may bear a smaller id.
        (Some(one), 2000, at[2] - 1, None),
        (Some(RunId::new()), 1000, -1, None),
    ] {
        let seen = EventId { ms, seq: 0 };
        let resume = store
            .read(async |tx| run_events::resume(tx, tenant, thread, run, seen).await)
            .await
            .unwrap();
        let expected = ResumePoint { after, found: expected };
        assert_eq!(resume, expected, "after {ms} of {run:?}");
    }
}

/// Two processes log on one thread: a position that is smaller than one that can be read is there, too.
#[tokio::test]
async fn positions_become_visible_in_their_order() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let database = migrated(database).await;
    let store = &database.store;
    let (tenant, thread) = (TenantId::new(), ThreadId::new());
    let (one, two) = (RunId::new(), RunId::new());
    let (logged, wait) = tokio::sync::oneshot::channel();
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let first = async {
        let batch = NewBatch {
            run: Some(one),
            attempt: 1,
            first: 1,
            last: 1,
            last_id: EventId { ms: 2, seq: 0 },
            frames: "",
            expires_at: None,
        };
        store
            .write(async |tx| {
                run_events::append(tx, tenant, thread, &batch).await?;
                logged.send(()).unwrap();
                gone.await.unwrap();
                Ok(())
            })
            .await
            .unwrap();
    };
    let over = AtomicBool::new(false);
    let second = async {
        wait.await.unwrap();
        log(store, tenant, thread, two, 1, &[1]).await;
        over.store(true, Ordering::Relaxed);
    };
    let between = async {
        // The second one waits for the first.
        waiting(store, 1, || over.load(Ordering::Relaxed)).await;
        let end = store
            .read(async |tx| run_events::last_position(tx, tenant, thread, None).await)
            .await;
        assert_eq!(end.unwrap(), 0, "nothing is to be read before the first is committed");
        go.send(()).unwrap();
    };
    tokio::join!(first, second, between);
    let all = store
        .read(async |tx| run_events::read(tx, tenant, thread, None, 0, i64::MAX).await)
        .await
        .unwrap();
    let runs: Vec<Option<RunId>> = all.batches.iter().map(|batch| batch.run_id).collect();
    assert_eq!(runs, [Some(one), Some(two)]);
}

async fn the_last_removed_event_of_a_thread_is_known(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let (kept, temporary, missing) = (ThreadId::new(), ThreadId::new(), ThreadId::new());
    for (id, hidden) in [(kept, false), (temporary, true)] {
        let new = NewThread {
            temporary: hidden,
            ..new(id, "{}")
        };
        store
            .write(async |tx| threads::insert(tx, tenant, &new).await)
            .await
            .unwrap();
    }
    let (one, two) = (RunId::new(), RunId::new());
    // Removes what a run logged.
    let remove = async |run: RunId, first: i64, ms: &[i64]| {
        for thread in [kept, temporary, missing] {
            log(store, tenant, thread, run, first, ms).await;
        }
        let removed = store.write(async |tx| {
            let past = tx.now().minus(std::time::Duration::from_secs(1));
            for thread in [kept, temporary, missing] {
                run_events::expire(tx, tenant, thread, run, past).await?;
            }
            run_events::prune(tx, 100).await
        });
        assert_eq!(removed.await.unwrap(), 3);
    };
    let last = async |tenant: TenantId, thread: ThreadId| {
        let read = store.read(async |tx| run_events::last_removed(tx, tenant, thread).await);
        read.await.unwrap().map(|id| id.ms)
    };
    assert_eq!(last(tenant, kept).await, None);
    remove(one, 1, &[1000, 1045]).await;
    assert_eq!(last(tenant, kept).await, Some(1045));
    // By a clock that is behind.
    remove(two, 1, &[1003]).await;
    assert_eq!(last(tenant, kept).await, Some(1045));
    remove(one, 3, &[1046]).await;
    assert_eq!(last(tenant, kept).await, Some(1046));
    assert_eq!(last(tenant, temporary).await, None, "nobody resumes there");
    assert_eq!(last(tenant, missing).await, None, "the thread was deleted before");
    assert_eq!(last(TenantId::new(), kept).await, None);
    store
        .write(async |tx| threads::delete(tx, tenant, kept).await)
        .await
        .unwrap();
    assert_eq!(last(tenant, kept).await, None);
}
