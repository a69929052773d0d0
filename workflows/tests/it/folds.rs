use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use object_store::path::Path;
use tokio::sync::Notify;
use towpath_domain::export::ExportStatus;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Shard, TenantId, TraceRunId};
use towpath_durable::{Lane, Start};
use towpath_store::quarantine::Kind;
use towpath_store::{Tx, pending_patches};
use towpath_traces::accept::Route;
use towpath_traces::sample::Which;
use towpath_traces::wal::{self, OnRegistered, Wal};
use towpath_workflows::fold_units::{self, Barrier, FoldUnits};
use towpath_workflows::quarantine;
use uuid::Uuid;

use crate::home::{Database, Home, PROJECT, on_both_databases};

const OPEN_UNITS: &str = "SELECT count(*) FROM wal_unit WHERE state = 'open'";
const LIVE_ROWS: &str = "SELECT CAST(SUM(rows) AS bigint) FROM segment WHERE state = 'live'";
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
async fn a_unit_that_is_not_there_is_quarantined_and_the_others_are_folded() {
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
    home.drain().await;
    assert_eq!(home.count(LIVE_ROWS).await, 10);
    let entry = home.in_quarantine().await.remove(0);
    assert_eq!((entry.kind, entry.path.as_str()), (Kind::Missing, path.as_ref()));
    let early = quarantine::retry(home.store(), &home.world.objects, entry.id).await;
    assert!(early.unwrap_err().to_string().contains("not in the object store"));

    // The folder is mounted again.
    home.world.objects.put(&path, vec![bytes]).await.unwrap();
    quarantine::retry(home.store(), &home.world.objects, entry.id)
        .await
        .unwrap();
    home.drain().await;
    assert_eq!(home.count(LIVE_ROWS).await, 20);
    assert!(home.in_quarantine().await.is_empty());
}

/// Each body by itself is more than a fold takes at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_unpacks_to_much_is_folded_in_parts() {
    let mut home = Home::empty(1).await;
    home.world.sizes.fold_decoded_bytes = 1;
    futures::future::join_all((0..10).map(|nth| home.send(nth..nth + 1, Which::Both))).await;
    assert!(home.count(OPEN_UNITS).await < 10, "units of several bodies");
    home.drain().await;
    assert_eq!((home.count(OPEN_UNITS).await, home.count(LIVE_ROWS).await), (0, 10));
    let segments = home.count("SELECT count(*) FROM segment WHERE state = 'live'").await;
    assert_eq!(segments, 10, "a fold for each body");
    assert!(home.in_quarantine().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_folded_is_quarantined_alone() {
    one_of_five_cannot_be_folded(Home::empty(1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_folded_is_quarantined_alone_of_a_unit_in_parts() {
    let mut home = Home::empty(1).await;
    home.world.sizes.fold_decoded_bytes = 1;
    one_of_five_cannot_be_folded(home).await;
}

/// What earlier folds have put aside for one of the trace runs cannot be read, so none of its operations can be folded.
async fn one_of_five_cannot_be_folded(home: Home) {
    let runs: Vec<TraceRunId> = (0..5).map(|_| TraceRunId::new()).collect();
    let spoilt = runs[2];
    let put = home
        .store()
        .write(async |tx| pending_patches::put(tx, home.tenant, spoilt, 1, "{").await);
    put.await.unwrap();
    let post = |run: TraceRunId| {
        let body =
            format!(r#"{{"id":"{run}","name":"a","session_name":"{PROJECT}","start_time":"2026-03-01T10:00:00Z"}}"#);
        home.submit(Route::Run, "application/json", body)
    };
    futures::future::join_all(runs.iter().map(|run| post(*run))).await;
    home.drain().await;
    assert_eq!(home.count(LIVE_ROWS).await, 4);
    assert_eq!(home.count(OPEN_UNITS).await, 0);
    let entries = home.in_quarantine().await;
    assert_eq!(entries.len(), 1);
    let entry = &entries[0];
    assert_eq!(
        (entry.kind, entry.items, entry.tenant_id),
        (Kind::Rejected, 1, home.tenant)
    );
    let kept = quarantine::frames(&home.world.objects, entry).await.unwrap().unwrap();
    let body = kept[0].as_ref().unwrap().body.clone();
    assert!(String::from_utf8_lossy(&body).contains(&spoilt.to_string()));

    // Somebody mends it.
    let mended = home
        .store()
        .write(async |tx| pending_patches::remove(tx, home.tenant, spoilt, 1).await);
    mended.await.unwrap();
    quarantine::retry(home.store(), &home.world.objects, entry.id)
        .await
        .unwrap();
    home.drain().await;
    assert_eq!(home.count(LIVE_ROWS).await, 5);
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

on_both_databases!(
    a_fold_that_was_cancelled_before_it_began_is_replaced,
    an_export_waits_for_what_names_another_project,
    a_fold_of_an_earlier_build_leaves_the_work_to_those_of_the_shards,
    shards_are_folded_beside_each_other,
);

async fn a_fold_that_was_cancelled_before_it_began_is_replaced(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    home.send(0..10, Which::Both).await;
    home.wait(Duration::from_secs(3)).await;
    let ready = home.lane_jobs(home.tenant).await.remove(0);
    home.store()
        .write(async |tx| towpath_durable::cancel(tx, ready).await)
        .await
        .unwrap();
    let ensure_left = async || fold_units::ensure_left(home.store(), fold_units::DELAY).await.unwrap();
    assert_eq!((home.count(OPEN_FOLDS).await, home.count(OPEN_UNITS).await), (0, 1));
    assert_eq!(ensure_left().await, 0, "younger than five seconds");
    home.wait(Duration::from_secs(3)).await;
    assert_eq!(ensure_left().await, 1);
    home.drain().await;
    assert_eq!(home.count(OPEN_UNITS).await, 0);
    assert_eq!(ensure_left().await, 0);
}

/// A change of a trace run goes to where that lies, whatever project it names.
async fn an_export_waits_for_what_names_another_project(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    home.send(0..1, Which::Posts).await;
    home.drain().await;
    let id = home.sample.expected(0, home.tenant, home.project().await).id;
    let patch = r#"{"session_name":"elsewhere","extra":{"metadata":{"late":"yes"}}}"#;
    home.append(Route::Patch(TraceRunId(id)), patch).await;
    // Nothing else would fold it before the export is over.
    let export = home.export(1).await;
    home.drive().await;
    assert_eq!(home.read(export).await.status, ExportStatus::Completed);
    assert_eq!(home.count(OPEN_UNITS).await, 0);
    let rows = home.rows(export);
    let extra = rows.column_by_name("extra").unwrap().as_string::<i32>();
    assert!(extra.value(0).contains(r#""late":"yes""#), "{}", extra.value(0));
    home.drain().await;
}

/// One that an export waits for, and one that nobody does.
async fn a_fold_of_an_earlier_build_leaves_the_work_to_those_of_the_shards(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    home.send(0..10, Which::Both).await;
    home.wait(Duration::from_secs(3)).await;
    let own = home.lane_jobs(home.tenant).await.remove(0);
    let old = |barrier| FoldUnits {
        mark: JobId::new(),
        shard: None,
        barrier,
    };
    let recorded = home.store().write(async |tx| {
        towpath_durable::cancel(tx, own).await?;
        let start = || Start::new(TenantId::nil()).lane(Lane::new("fold", 1));
        let (tenant, last_seq) = (home.tenant, 0);
        let barrier = old(Some(Barrier { tenant, last_seq }));
        towpath_durable::start(tx, &barrier, start()).await?;
        towpath_durable::start(tx, &old(None), start()).await
    });
    recorded.await.unwrap();
    let barrier = home.claim().await.unwrap();
    let input: serde_json::Value = serde_json::from_str(&barrier.input).unwrap();
    assert!(input["shard"].is_null() && input["barrier"].is_object());
    let id = barrier.id;
    home.perform(barrier).await;
    let waits = async || {
        let job = home.store().read(async |tx| towpath_store::jobs::get(tx, id).await);
        !job.await.unwrap().unwrap().state.is_final()
    };
    assert!(waits().await && home.count(OPEN_UNITS).await == 1);
    home.drain().await;
    assert!(!waits().await);
    assert_eq!(home.count(OPEN_UNITS).await, 0);
}

/// A fold that is under way in one lane keeps no other shard waiting.
async fn shards_are_folded_beside_each_other(on: Database) {
    let home = Home::empty_on(&on, 1).await;
    let mut last = *home.tenant.0.as_bytes();
    last[15] ^= 1;
    let other = TenantId(Uuid::from_bytes(last));
    home.send(0..10, Which::Both).await;
    let mut accepted = home.accept(0..10, Which::Both);
    accepted.frame.head.tenant = other;
    home.append_accepted(accepted).await;
    home.wait(Duration::from_secs(3)).await;
    let first = home.claim().await.unwrap();
    let second = home.claim().await.expect("another lane has a place of its own");
    assert_ne!(first.lane, second.lane);
    assert!(home.claim().await.is_none());
    tokio::join!(home.perform(first), home.perform(second));
    assert_eq!(home.count(OPEN_UNITS).await, 0);
}

async fn lock(tx: &mut Tx<'_>, lane: &str) -> towpath_store::Result<()> {
    towpath_store::lanes::lock(tx, lane, 1).await.map(drop)
}

/// While a fold is in a transaction that holds its lane, others are still acknowledged: two processes, and none of their
/// registrations waits.
#[tokio::test(flavor = "multi_thread")]
async fn registering_waits_for_no_fold() {
    let Some(server) = Database::postgres() else { return };
    let home = Home::empty_on(&server, 1).await;
    let key = format!("fold:{}", Shard::of(home.tenant).number());
    let again = home.another_wal();
    // It is there since the first fold.
    let made = home.store().write(async |tx| lock(tx, &key).await);
    made.await.unwrap();
    let sent = home.store().write(async |tx| {
        lock(tx, &key).await?;
        // The first has to record a fold, the second finds it there.
        for (nth, wal) in [home.wal(), &again].into_iter().enumerate() {
            let accepted = home.accept(nth as u64 * 10..nth as u64 * 10 + 10, Which::Both);
            let appended = tokio::time::timeout(Duration::from_secs(5), wal.append(accepted)).await;
            appended.expect("it waits for the lane").unwrap();
        }
        Ok(())
    });
    sent.await.unwrap();
    assert_eq!((home.count(OPEN_FOLDS).await, home.count(OPEN_UNITS).await), (1, 2));
    home.drain().await;
    assert_eq!(home.count(OPEN_UNITS).await, 0);
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
