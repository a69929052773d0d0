use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use tokio::sync::Notify;
use towpath_domain::Shard;
use towpath_domain::export::ExportStatus;
use towpath_domain::job::JobState;
use towpath_traces::sample::Which;
use towpath_traces::wal::{self, OnRegistered, Wal};
use towpath_workflows::fold_units;

use crate::home::{Database, Home};

const OPEN_UNITS: &str = "SELECT count(*) FROM wal_unit WHERE state = 'open'";
const OPEN_FOLDS: &str = "SELECT count(*) FROM job WHERE kind = 'fold_units' AND finished_at IS NULL";

#[tokio::test(flavor = "multi_thread")]
async fn many_units_share_one_fold_and_none_is_left() {
    let home = Home::empty(1).await;
    for from in 0..10 {
        home.send(from * 10..(from + 1) * 10, Which::Both).await;
    }
    assert_eq!(home.count(OPEN_FOLDS).await, 1);
    // It waits a moment for company.
    assert!(home.claim().await.is_none());
    home.clock.advance(Duration::from_secs(2));
    let fold = home.claim().await.unwrap();

    // What comes while one is at work is for the next.
    home.send(100..110, Which::Both).await;
    assert_eq!(home.count(OPEN_FOLDS).await, 2);
    home.perform(fold).await;
    home.drain().await;
    assert_eq!(
        home.count("SELECT count(*) FROM wal_unit WHERE state <> 'folded'")
            .await,
        0
    );
    assert_eq!(
        home.count("SELECT CAST(SUM(rows) AS INTEGER) FROM segment WHERE state = 'live'")
            .await,
        110
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_that_ends_badly_gives_back_what_it_took() {
    let home = Home::empty(1).await;
    home.send(0..10, Which::Both).await;
    home.clock.advance(Duration::from_secs(2));
    let fold = home.claim().await.unwrap();
    let id = fold.id;
    home.store()
        .write(async |tx| towpath_durable::cancel(tx, id).await)
        .await
        .unwrap();
    home.perform(fold).await;
    let state = home
        .store()
        .read(async |tx| towpath_store::jobs::get(tx, id).await)
        .await
        .unwrap()
        .unwrap()
        .state;
    assert_eq!(state, JobState::Cancelled);
    assert_eq!(
        home.count("SELECT count(*) FROM wal_unit WHERE state = 'open' AND fold_job IS NULL")
            .await,
        1
    );
    assert_eq!(
        home.count("SELECT count(*) FROM segment WHERE state = 'writing'").await,
        0
    );

    // The next one takes it along.
    home.send(10..20, Which::Both).await;
    home.drain().await;
    assert_eq!(
        home.count("SELECT CAST(SUM(rows) AS INTEGER) FROM segment WHERE state = 'live'")
            .await,
        20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_attempt_began_goes_though_another_fold_was_faster() {
    let home = Home::empty(1).await;
    home.send(0..10, Which::Both).await;
    home.clock.advance(Duration::from_secs(2));
    let first = home.until("fold_units").await;
    // It asks for a fold of its own, which waits for its turn and has nothing to do then.
    home.export(1).await;
    home.drive().await;
    home.perform(first).await;
    let idle = home.until("fold_units").await;
    home.intend(&idle).await;
    home.perform(idle).await;
    assert_eq!(
        home.count("SELECT count(*) FROM segment WHERE state = 'writing'").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_not_there_stays_open_and_the_others_are_folded() {
    let home = Home::empty(1).await;
    home.send(0..10, Which::Both).await;
    let path: String = home
        .store()
        .read(async |tx| Ok(towpath_store::units::open(tx, i64::MAX).await?.remove(0).path))
        .await
        .unwrap();
    let path = Path::from(path);
    let bytes = home.world.objects.get(&path).await.unwrap();
    home.world.objects.delete(&path).await.unwrap();
    home.send(10..20, Which::Both).await;
    home.clock.advance(Duration::from_secs(2));
    home.drive().await;
    assert_eq!(
        home.count("SELECT count(*) FROM wal_unit WHERE state = 'open'").await,
        1
    );
    assert_eq!(
        home.count("SELECT CAST(SUM(rows) AS INTEGER) FROM segment WHERE state = 'live'")
            .await,
        10
    );

    // The folder is mounted again.
    home.world.objects.put(&path, vec![bytes]).await.unwrap();
    home.drain().await;
    assert_eq!(
        home.count("SELECT CAST(SUM(rows) AS INTEGER) FROM segment WHERE state = 'live'")
            .await,
        20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_waits_for_its_units_also_when_they_are_more_than_a_fold_takes() {
    let mut home = Home::empty(1).await;
    // One unit a round, and more units than a fold has rounds.
    home.world.sizes.fold_bytes = 1;
    for nth in 0..20 {
        home.send(nth..nth + 1, Which::Both).await;
    }
    let export = home.export(1).await;
    home.drive().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed);
    let runs = home.runs(export).await;
    assert_eq!(runs.iter().map(|run| run.rows_written).sum::<i64>(), 20);
    home.drain().await;
}

/// A unit is being registered, and the fold it counts on begins before that is committed: it cannot see the unit yet, and
/// waits for nobody. What nobody folds is found all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_registered_while_the_last_fold_ends_is_folded() {
    let Some(server) = Database::postgres() else { return };
    let home = Home::empty_on(&server, 1).await;
    let ensured = home
        .store()
        .write(async |tx| fold_units::ensure(tx, &[Shard::of(home.tenant)], fold_units::DELAY).await)
        .await;
    ensured.unwrap();
    home.wait(Duration::from_secs(2)).await;
    // It is ready, so that whoever registers a unit records no other.
    assert_eq!(towpath_durable::ready_due(home.store()).await.unwrap(), 1);
    let (registered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let on_registered: OnRegistered = {
        let (registered, release) = (registered.clone(), release.clone());
        Arc::new(move |tx, shards| {
            let (registered, release) = (registered.clone(), release.clone());
            Box::pin(async move {
                fold_units::ensure(tx, shards, fold_units::DELAY).await?;
                registered.notify_one();
                release.notified().await;
                Ok(())
            })
        })
    };
    let objects = &home.world.objects;
    let options = wal::Options::for_store(objects);
    let wal = Wal::new(home.store().clone(), objects.clone(), options, on_registered);
    let accepted = home.accept(0..10, Which::Both);
    let sending = tokio::spawn(async move { wal.append(accepted).await });
    registered.notified().await;
    assert_eq!(home.count(OPEN_FOLDS).await, 1);
    let fold = home.claim().await.unwrap();
    tokio::select! {
        () = home.perform(fold) => {}
        () = home.until_somebody_waits_for_a_lock() => panic!("the fold and the registration wait for each other"),
    }
    release.notify_one();
    sending.await.unwrap().unwrap();
    assert_eq!((home.count(OPEN_FOLDS).await, home.count(OPEN_UNITS).await), (0, 1));
    let ensure_left = async || fold_units::ensure_left(home.store(), fold_units::DELAY).await.unwrap();
    assert_eq!(ensure_left().await, 0, "it has only just come");
    home.wait(Duration::from_secs(6)).await;
    assert_eq!(ensure_left().await, 1);
    assert_eq!(ensure_left().await, 0, "its fold is there");
    home.drain().await;
    assert_eq!(home.count("SELECT count(*) FROM wal_unit").await, 1);
    assert_eq!(home.count(OPEN_UNITS).await, 0, "the unit was left behind");
}
