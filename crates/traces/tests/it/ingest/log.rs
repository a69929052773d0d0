//! The write-ahead log: acknowledged means registered and on disk, and nothing else is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use object_store::path::Path;
use towpath_domain::{TenantId, Timestamp, WalSegmentId};
use towpath_store::wal_segments;
use towpath_traces::accept::Route;
use towpath_traces::body::Encoding;
use towpath_traces::objects::Objects;
use towpath_traces::sample::SampleOperations;
use towpath_traces::wal::sweep::{FlushedWalk, SweepError};
use towpath_traces::wal::{AppendError, OnRegistered, Options, Wal, frame, object_path, sweep};

use super::faulty_store::FaultyStore;
use super::world::{World, on_both_databases, sample};

on_both_databases!(
    what_is_acknowledged_is_registered_and_reads_back,
    callers_share_units,
    a_failed_registration_fails_its_callers_and_leaves_nothing,
    a_disk_that_cannot_be_written_fails_its_callers,
    a_full_queue_refuses_and_says_when_to_come_back,
    more_than_may_wait_comes_in_once_it_is_folded,
    closing_writes_what_waits_and_takes_no_more,
    an_empty_body_needs_no_unit,
    sweeping_takes_orphans_and_folded_units_and_leaves_the_rest,
    a_unit_that_cannot_be_removed_holds_up_no_other,
    orphans_are_found_in_a_list_without_order,
);

async fn units_on_disk(world: &World) -> usize {
    let folder = Path::from(sweep::FOLDER);
    world
        .objects
        .store()
        .list(Some(&folder))
        .try_collect::<Vec<_>>()
        .await
        .unwrap()
        .len()
}

async fn what_is_acknowledged_is_registered_and_reads_back(world: World) {
    let wal = world.wal();
    let accepted = world.accept(&sample(1).body(0..10, SampleOperations::Both, Encoding::Zstd));
    wal.append(accepted.clone()).await.unwrap();
    let open = world
        .store
        .read(async |tx| wal_segments::open(tx, i64::MAX).await)
        .await
        .unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].operations, i64::from(accepted.frame.head.items));
    let bytes = world.objects.get(&Path::from(open[0].path.as_str())).await.unwrap();
    // The magic of the object, and the WAL segment behind it.
    assert_eq!((open[0].byte_offset, open[0].bytes), (8, bytes.len() as i64 - 8));
    assert_eq!(open[0].decoded_bytes, accepted.decoded_bytes as i64);
    let frames = frame::read(bytes).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(frames, [accepted.frame]);
    let project = world.project("canal").await;
    let (own, names, others) = world
        .store
        .read(async |tx| {
            Ok((
                wal_segments::open_of(tx, world.tenant).await?,
                wal_segments::names(tx, &[open[0].id]).await?,
                wal_segments::open_of(tx, TenantId::new()).await?,
            ))
        })
        .await
        .unwrap();
    assert_eq!((own, others), (open, Vec::new()));
    assert_eq!(names.len(), 1);
    assert_eq!((names[0].name.as_str(), names[0].project_id), ("canal", project));
}

async fn callers_share_units(world: World) {
    let wal = world.wal();
    let accepted = world.accept(&sample(2).body(0..2, SampleOperations::Both, Encoding::Zstd));
    let items = i64::from(accepted.frame.head.items);
    let callers = (0..200).map(|_| {
        let (wal, accepted) = (wal.clone(), accepted.clone());
        tokio::spawn(async move { wal.append(accepted).await })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap().unwrap();
    }
    let open = world
        .store
        .read(async |tx| wal_segments::open(tx, i64::MAX).await)
        .await
        .unwrap();
    assert_eq!(open.iter().map(|unit| unit.operations).sum::<i64>(), 200 * items);
    assert!(open.len() < 100, "{} units for 200 callers", open.len());
    let seqs: Vec<_> = open.iter().map(|unit| unit.seq).collect();
    assert!(seqs.is_sorted());
}

async fn a_failed_registration_fails_its_callers_and_leaves_nothing(world: World) {
    let broken = Arc::new(AtomicBool::new(true));
    let flag = broken.clone();
    let sometimes: OnRegistered = Arc::new(move |_tx, _| {
        let broken = flag.load(Ordering::SeqCst);
        Box::pin(async move {
            if broken {
                Err(towpath_store::Error::NotFound)
            } else {
                Ok(())
            }
        })
    });
    let wal = Wal::new(
        world.store.clone(),
        world.objects.clone(),
        Options::for_store(&world.objects),
        sometimes,
    );
    let accepted = world.accept(&sample(3).body(0..3, SampleOperations::Both, Encoding::Identity));
    assert!(matches!(
        wal.append(accepted.clone()).await,
        Err(AppendError::Unavailable(_))
    ));
    assert_eq!((world.open_units().await, units_on_disk(&world).await), (0, 0));
    broken.store(false, Ordering::SeqCst);
    wal.append(accepted).await.unwrap();
    assert_eq!((world.open_units().await, units_on_disk(&world).await), (1, 1));
}

async fn a_disk_that_cannot_be_written_fails_its_callers(world: World) {
    let wal = world.wal();
    // A file is where the folder should be.
    std::fs::write(world.folder.path().join("objects").join(sweep::FOLDER), b"").unwrap();
    let accepted = world.accept(&sample(4).body(0..1, SampleOperations::Both, Encoding::Identity));
    assert!(matches!(wal.append(accepted).await, Err(AppendError::Unavailable(_))));
    assert_eq!(world.open_units().await, 0);
}

async fn a_full_queue_refuses_and_says_when_to_come_back(world: World) {
    let accepted = world.accept(&sample(5).body(0..5, SampleOperations::Both, Encoding::Identity));
    let options = Options {
        queue_bytes: accepted.frame.body.len(),
        ..Options::for_store(&world.objects)
    };
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (held, signal) = (gate.clone(), entered);
    // The first WAL segment stays in its transaction until it is let go, so the queue behind it fills.
    let slow: OnRegistered = Arc::new(move |_tx, _| {
        let (held, signal) = (held.clone(), signal.clone());
        Box::pin(async move {
            signal.send(()).unwrap();
            held.acquire().await.unwrap().forget();
            Ok(())
        })
    });
    let wal = Wal::new(world.store.clone(), world.objects.clone(), options, slow);
    let first = tokio::spawn({
        let (wal, accepted) = (wal.clone(), accepted.clone());
        async move { wal.append(accepted).await }
    });
    inside.recv().await.unwrap();
    match wal.append(accepted.clone()).await {
        Err(AppendError::Overloaded { retry_after }) => assert!(retry_after.as_secs() >= 2),
        other => panic!("{other:?}"),
    }
    gate.add_permits(10);
    first.await.unwrap().unwrap();
    wal.append(accepted).await.unwrap();
}

async fn more_than_may_wait_comes_in_once_it_is_folded(world: World) {
    let accepted = world.accept(&sample(9).body(0..5, SampleOperations::Both, Encoding::Identity));
    let options = Options {
        backlog_bytes: 1000,
        ..Options::for_store(&world.objects)
    };
    let registered: OnRegistered = Arc::new(|_tx, _| Box::pin(async { Ok(()) }));
    let wal = Wal::new(world.store.clone(), world.objects.clone(), options, registered);
    assert_eq!(wal.admit(1 << 20), Ok(()), "nothing waits");
    wal.append(accepted).await.unwrap();
    let wait = wal.admit(1).unwrap_err();
    assert!(wait.as_secs() >= 2, "{wait:?}");
    world.fold().await;
    let room = async {
        while wal.admit(1).is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(180), room).await.unwrap();
}

async fn closing_writes_what_waits_and_takes_no_more(world: World) {
    let wal = world.wal();
    let accepted = world.accept(&sample(6).body(0..1, SampleOperations::Both, Encoding::Identity));
    // Polled once it is in the queue.
    let mut waiting = std::pin::pin!(wal.append(accepted.clone()));
    assert!(futures::poll!(&mut waiting).is_pending());
    wal.close().await;
    waiting.await.unwrap();
    assert!(matches!(wal.append(accepted).await, Err(AppendError::Closed)));
    assert_eq!(world.open_units().await, 1);
}

async fn an_empty_body_needs_no_unit(world: World) {
    let wal = world.wal();
    wal.append(world.accept_json(Route::Batch, r#"{"post":[],"patch":null}"#))
        .await
        .unwrap();
    assert_eq!(world.open_units().await, 0);
}

async fn sweeping_takes_orphans_and_folded_units_and_leaves_the_rest(world: World) {
    let accepted = world.accept(&sample(7).body(0..5, SampleOperations::Both, Encoding::Identity));
    world.unit(std::slice::from_ref(&accepted)).await;
    world.fold().await;
    world.unit(std::slice::from_ref(&accepted)).await;
    let orphan = object_path(WalSegmentId::new());
    world
        .objects
        .put(&orphan, frame::write(std::iter::once(&accepted.frame)))
        .await
        .unwrap();
    let far_ahead = Timestamp::parse("2200-01-01").unwrap();
    assert_eq!(
        sweep::orphans(&world.store, &world.objects, Timestamp::from_micros(0))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        sweep::orphans(&world.store, &world.objects, far_ahead).await.unwrap(),
        1
    );
    let folded = world
        .store
        .read(async |tx| wal_segments::flushed_before(tx, far_ahead, wal_segments::Position::START, 10).await)
        .await
        .unwrap();
    let gone = sweep::sweep_flushed(&world.objects, &folded).await.unwrap();
    assert_eq!(
        world
            .store
            .write(async |tx| wal_segments::forget(tx, &gone).await)
            .await
            .unwrap(),
        1
    );
    assert_eq!((world.open_units().await, units_on_disk(&world).await), (1, 1));
}

async fn a_unit_that_cannot_be_removed_holds_up_no_other(world: World) {
    let sample = sample(8);
    for (range, is_folded) in [(0..5, false), (5..10, true), (10..15, true)] {
        let accepted = world.accept(&sample.body(range, SampleOperations::Both, Encoding::Identity));
        world.unit(&[accepted]).await;
        if is_folded {
            world.fold().await;
        }
    }
    let far_ahead = Timestamp::parse("2200-01-01").unwrap();
    let folded = world
        .store
        .read(async |tx| wal_segments::flushed_before(tx, far_ahead, wal_segments::Position::START, 10).await)
        .await
        .unwrap();
    assert_eq!(folded.len(), 3);
    let stuck = [folded[0].path.as_str(), folded[1].path.as_str()];
    let odd = FaultyStore::new(world.objects.store().clone(), stuck.map(Path::from));
    let objects = Objects::from_store(odd.clone());
    let left = async || {
        let left = world
            .store
            .read(async |tx| wal_segments::count_flushed(tx, far_ahead, 10).await)
            .await;
        left.unwrap()
    };
    let mut walk = FlushedWalk::new(2);
    let mut go_on = async || {
        let until = Instant::now() + Duration::from_secs(60);
        walk.sweep_next(&world.store, &objects, far_ahead, until).await
    };
    assert!(matches!(go_on().await, Err(SweepError::Objects(_))));
    assert_eq!(left().await, 3, "nothing of the first step can be removed");
    go_on().await.unwrap();
    assert_eq!(left().await, 2, "the one behind them is gone");
    odd.repair();
    go_on().await.unwrap();
    assert_eq!(
        (left().await, units_on_disk(&world).await),
        (0, 0),
        "the walk began anew"
    );
}

/// An id that was made this long after now.
fn made_in(ahead: Duration) -> WalSegmentId {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        + ahead;
    let time = uuid::Timestamp::from_unix(uuid::NoContext, since.as_secs(), 0);
    WalSegmentId(uuid::Uuid::new_v7(time))
}

async fn orphans_are_found_in_a_list_without_order(world: World) {
    let accepted = world.accept(&sample(10).body(0..1, SampleOperations::Both, Encoding::Identity));
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let before = world.store.clock().now().plus(minutes(5));
    let [old, young] = [minutes(0), minutes(60)].map(|ahead| object_path(made_in(ahead)));
    for path in [&old, &young] {
        let pieces = frame::write(std::iter::once(&accepted.frame));
        world.objects.put(path, pieces).await.unwrap();
    }
    // The young one comes first.
    let objects = Objects::from_store(FaultyStore::new(world.objects.store().clone(), []));
    let swept = sweep::orphans(&world.store, &objects, before).await.unwrap();
    assert_eq!((swept, units_on_disk(&world).await), (1, 1));
    assert!(world.objects.get(&old).await.is_err());
    assert!(world.objects.get(&young).await.is_ok(), "it may be registered yet");
}
