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
use towpath_traces::sample::SampleOperations;
use towpath_traces::wal::{self, OnRegistered, Wal};
use towpath_workflows::flush_wal::{self, Barrier, FlushWal};
use towpath_workflows::quarantine;
use uuid::Uuid;

use crate::fixture::{Database, PROJECT, WorkflowFixture, on_both_databases};

const OPEN_UNITS: &str = "SELECT count(*) FROM wal_unit WHERE state = 'open'";
const LIVE_ROWS: &str = "SELECT CAST(SUM(rows) AS bigint) FROM segment WHERE state = 'live'";
const OPEN_FOLDS: &str = "SELECT count(*) FROM job WHERE kind = 'flush_wal' AND finished_at IS NULL";

#[tokio::test(flavor = "multi_thread")]
async fn many_units_share_one_fold_and_none_is_left() {
    let fixture = WorkflowFixture::empty(1).await;
    for from in 0..10 {
        fixture.send(from * 10..(from + 1) * 10, SampleOperations::Both).await;
    }
    assert_eq!(fixture.count(OPEN_FOLDS).await, 1);
    // It waits a moment for more data.
    assert!(fixture.claim().await.is_none());
    fixture.clock.advance(Duration::from_secs(2));
    let fold = fixture.claim().await.unwrap();

    // Data that arrives during one flush is left to the next.
    fixture.send(100..110, SampleOperations::Both).await;
    assert_eq!(fixture.count(OPEN_FOLDS).await, 2);
    fixture.perform(fold).await;
    fixture.drain().await;
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM wal_unit WHERE state <> 'folded'")
            .await,
        0
    );
    assert_eq!(
        fixture
            .count("SELECT CAST(SUM(rows) AS INTEGER) FROM segment WHERE state = 'live'")
            .await,
        110
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_that_ends_badly_gives_back_what_it_took() {
    let fixture = WorkflowFixture::empty(1).await;
    fixture.send(0..10, SampleOperations::Both).await;
    fixture.clock.advance(Duration::from_secs(2));
    let fold = fixture.claim().await.unwrap();
    let id = fold.id;
    fixture
        .store()
        .write(async |tx| towpath_durable::cancel(tx, id).await)
        .await
        .unwrap();
    fixture.perform(fold).await;
    let state = fixture
        .store()
        .read(async |tx| towpath_store::jobs::get(tx, id).await)
        .await
        .unwrap()
        .unwrap()
        .state;
    assert_eq!(state, JobState::Cancelled);
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM wal_unit WHERE state = 'open' AND fold_job IS NULL")
            .await,
        1
    );
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM segment WHERE state = 'writing'")
            .await,
        0
    );

    // The next one includes it.
    fixture.send(10..20, SampleOperations::Both).await;
    fixture.drain().await;
    assert_eq!(
        fixture
            .count("SELECT CAST(SUM(rows) AS INTEGER) FROM segment WHERE state = 'live'")
            .await,
        20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_attempt_began_goes_though_another_fold_was_faster() {
    let fixture = WorkflowFixture::empty(1).await;
    fixture.send(0..10, SampleOperations::Both).await;
    fixture.clock.advance(Duration::from_secs(2));
    let first = fixture.until("flush_wal").await;
    // It requests its own flush, which waits in the lane and then has nothing to do.
    fixture.export(1).await;
    fixture.drive().await;
    fixture.perform(first).await;
    let idle = fixture.until("flush_wal").await;
    fixture.intend(&idle).await;
    fixture.perform(idle).await;
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM segment WHERE state = 'writing'")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_not_there_is_quarantined_and_the_others_are_folded() {
    let fixture = WorkflowFixture::empty(1).await;
    fixture.send(0..10, SampleOperations::Both).await;
    let path: String = fixture
        .store()
        .read(async |tx| Ok(towpath_store::wal_segments::open(tx, i64::MAX).await?.remove(0).path))
        .await
        .unwrap();
    let path = Path::from(path);
    let bytes = fixture.world.objects.get(&path).await.unwrap();
    fixture.world.objects.delete(&path).await.unwrap();
    fixture.send(10..20, SampleOperations::Both).await;
    fixture.drain().await;
    assert_eq!(fixture.count(LIVE_ROWS).await, 10);
    let entry = fixture.in_quarantine().await.remove(0);
    assert_eq!((entry.kind, entry.path.as_str()), (Kind::Missing, path.as_ref()));
    let early = quarantine::retry(fixture.store(), &fixture.world.objects, entry.id).await;
    assert!(early.unwrap_err().to_string().contains("missing in the object store"));

    // The folder is mounted again.
    fixture.world.objects.put(&path, vec![bytes]).await.unwrap();
    quarantine::retry(fixture.store(), &fixture.world.objects, entry.id)
        .await
        .unwrap();
    fixture.drain().await;
    assert_eq!(fixture.count(LIVE_ROWS).await, 20);
    assert!(fixture.in_quarantine().await.is_empty());
}

/// Each body alone is more than a flush processes at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_unpacks_to_much_is_folded_in_parts() {
    let mut fixture = WorkflowFixture::empty(1).await;
    fixture.world.sizes.fold_decoded_bytes = 1;
    futures::future::join_all((0..10).map(|nth| fixture.send(nth..nth + 1, SampleOperations::Both))).await;
    assert!(fixture.count(OPEN_UNITS).await < 10, "units of several bodies");
    fixture.drain().await;
    assert_eq!(
        (fixture.count(OPEN_UNITS).await, fixture.count(LIVE_ROWS).await),
        (0, 10)
    );
    let segments = fixture.count("SELECT count(*) FROM segment WHERE state = 'live'").await;
    assert_eq!(segments, 10, "a fold for each body");
    assert!(fixture.in_quarantine().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_folded_is_quarantined_alone() {
    one_of_five_cannot_be_folded(WorkflowFixture::empty(1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_folded_is_quarantined_alone_of_a_unit_in_parts() {
    let mut fixture = WorkflowFixture::empty(1).await;
    fixture.world.sizes.fold_decoded_bytes = 1;
    one_of_five_cannot_be_folded(fixture).await;
}

/// The pending data of one of the trace runs cannot be read, so none of its operations can be flushed.
async fn one_of_five_cannot_be_folded(fixture: WorkflowFixture) {
    let runs: Vec<TraceRunId> = (0..5).map(|_| TraceRunId::new()).collect();
    let spoilt = runs[2];
    let put = fixture
        .store()
        .write(async |tx| pending_patches::put(tx, fixture.tenant, spoilt, 1, "{").await);
    put.await.unwrap();
    let post = |run: TraceRunId| {
        let body =
            format!(r#"{{"id":"{run}","name":"a","session_name":"{PROJECT}","start_time":"2026-03-01T10:00:00Z"}}"#);
        fixture.submit(Route::Run, "application/json", body)
    };
    futures::future::join_all(runs.iter().map(|run| post(*run))).await;
    fixture.drain().await;
    assert_eq!(fixture.count(LIVE_ROWS).await, 4);
    assert_eq!(fixture.count(OPEN_UNITS).await, 0);
    let entries = fixture.in_quarantine().await;
    assert_eq!(entries.len(), 1);
    let entry = &entries[0];
    assert_eq!(
        (entry.kind, entry.items, entry.tenant_id),
        (Kind::Rejected, 1, fixture.tenant)
    );
    let kept = quarantine::frames(&fixture.world.objects, entry)
        .await
        .unwrap()
        .unwrap();
    let body = kept[0].as_ref().unwrap().body.clone();
    assert!(String::from_utf8_lossy(&body).contains(&spoilt.to_string()));

    // It is repaired.
    let mended = fixture
        .store()
        .write(async |tx| pending_patches::remove(tx, fixture.tenant, spoilt, 1).await);
    mended.await.unwrap();
    quarantine::retry(fixture.store(), &fixture.world.objects, entry.id)
        .await
        .unwrap();
    fixture.drain().await;
    assert_eq!(fixture.count(LIVE_ROWS).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_waits_for_its_units_also_when_they_are_more_than_a_fold_takes() {
    let mut fixture = WorkflowFixture::empty(1).await;
    // One WAL segment per round, and more segments than a flush has rounds.
    fixture.world.sizes.fold_bytes = 1;
    for nth in 0..20 {
        fixture.send(nth..nth + 1, SampleOperations::Both).await;
    }
    let export = fixture.export(1).await;
    fixture.drive().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    let runs = fixture.runs(export).await;
    assert_eq!(runs.iter().map(|run| run.rows_written).sum::<i64>(), 20);
    fixture.drain().await;
}

on_both_databases!(
    a_fold_that_was_cancelled_before_it_began_is_replaced,
    an_export_waits_for_what_names_another_project,
    a_fold_of_an_earlier_build_leaves_the_work_to_those_of_the_shards,
    shards_are_folded_beside_each_other,
);

async fn a_fold_that_was_cancelled_before_it_began_is_replaced(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..10, SampleOperations::Both).await;
    fixture.wait(Duration::from_secs(3)).await;
    let ready = fixture.lane_jobs(fixture.tenant).await.remove(0);
    fixture
        .store()
        .write(async |tx| towpath_durable::cancel(tx, ready).await)
        .await
        .unwrap();
    let ensure_left = async || {
        flush_wal::ensure_orphans(fixture.store(), flush_wal::DEFAULT_DELAY)
            .await
            .unwrap()
    };
    assert_eq!(
        (fixture.count(OPEN_FOLDS).await, fixture.count(OPEN_UNITS).await),
        (0, 1)
    );
    assert_eq!(ensure_left().await, 0, "younger than five seconds");
    fixture.wait(Duration::from_secs(3)).await;
    assert_eq!(ensure_left().await, 1);
    fixture.drain().await;
    assert_eq!(fixture.count(OPEN_UNITS).await, 0);
    assert_eq!(ensure_left().await, 0);
}

/// A patch of a trace run goes to its location, whatever project it names.
async fn an_export_waits_for_what_names_another_project(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..1, SampleOperations::Posts).await;
    fixture.drain().await;
    let id = fixture.sample.expected(0, fixture.tenant, fixture.project().await).id;
    let patch = r#"{"session_name":"elsewhere","extra":{"metadata":{"late":"yes"}}}"#;
    fixture.append(Route::Patch(TraceRunId(id)), patch).await;
    // Nothing else would flush it before the end of the export.
    let export = fixture.export(1).await;
    fixture.drive().await;
    assert_eq!(fixture.read(export).await.status, ExportStatus::Completed);
    assert_eq!(fixture.count(OPEN_UNITS).await, 0);
    let rows = fixture.rows(export);
    let extra = rows.column_by_name("extra").unwrap().as_string::<i32>();
    assert!(extra.value(0).contains(r#""late":"yes""#), "{}", extra.value(0));
    fixture.drain().await;
}

/// One that an export waits for, and one without.
async fn a_fold_of_an_earlier_build_leaves_the_work_to_those_of_the_shards(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    fixture.send(0..10, SampleOperations::Both).await;
    fixture.wait(Duration::from_secs(3)).await;
    let own = fixture.lane_jobs(fixture.tenant).await.remove(0);
    let old = |barrier| FlushWal {
        mark: JobId::new(),
        shard: None,
        barrier,
    };
    let recorded = fixture.store().write(async |tx| {
        towpath_durable::cancel(tx, own).await?;
        let start = || Start::new(TenantId::nil()).lane(Lane::new("fold", 1));
        let (tenant, last_seq) = (fixture.tenant, 0);
        let barrier = old(Some(Barrier { tenant, last_seq }));
        towpath_durable::start(tx, &barrier, start()).await?;
        towpath_durable::start(tx, &old(None), start()).await
    });
    recorded.await.unwrap();
    let barrier = fixture.claim().await.unwrap();
    let input: serde_json::Value = serde_json::from_str(&barrier.input).unwrap();
    assert!(input["shard"].is_null() && input["barrier"].is_object());
    let id = barrier.id;
    fixture.perform(barrier).await;
    let waits = async || {
        let job = fixture.store().read(async |tx| towpath_store::jobs::get(tx, id).await);
        !job.await.unwrap().unwrap().state.is_final()
    };
    assert!(waits().await && fixture.count(OPEN_UNITS).await == 1);
    fixture.drain().await;
    assert!(!waits().await);
    assert_eq!(fixture.count(OPEN_UNITS).await, 0);
}

/// A running flush in one lane does not block other shards.
async fn shards_are_folded_beside_each_other(on: Database) {
    let fixture = WorkflowFixture::empty_on(&on, 1).await;
    let mut last = *fixture.tenant.0.as_bytes();
    last[15] ^= 1;
    let other = TenantId(Uuid::from_bytes(last));
    fixture.send(0..10, SampleOperations::Both).await;
    let mut accepted = fixture.accept(0..10, SampleOperations::Both);
    accepted.frame.head.tenant = other;
    fixture.append_accepted(accepted).await;
    fixture.wait(Duration::from_secs(3)).await;
    let first = fixture.claim().await.unwrap();
    let second = fixture.claim().await.expect("another lane has a place of its own");
    assert_ne!(first.lane, second.lane);
    assert!(fixture.claim().await.is_none());
    tokio::join!(fixture.perform(first), fixture.perform(second));
    assert_eq!(fixture.count(OPEN_UNITS).await, 0);
}

async fn lock(tx: &mut Tx<'_>, lane: &str) -> towpath_store::Result<()> {
    towpath_store::lanes::lock(tx, lane, 1).await.map(drop)
}

/// While a flush is in a transaction that holds its lane, other data is still acknowledged: two processes, and no
/// registration waits.
#[tokio::test(flavor = "multi_thread")]
async fn registering_waits_for_no_fold() {
    let Some(server) = Database::postgres() else { return };
    let fixture = WorkflowFixture::empty_on(&server, 1).await;
    let key = format!("flush:{}", Shard::of(fixture.tenant).number());
    let again = fixture.another_wal();
    // It exists since the first flush.
    let made = fixture.store().write(async |tx| lock(tx, &key).await);
    made.await.unwrap();
    let sent = fixture.store().write(async |tx| {
        lock(tx, &key).await?;
        // The first one must record a flush, the second one finds it.
        for (nth, wal) in [fixture.wal(), &again].into_iter().enumerate() {
            let accepted = fixture.accept(nth as u64 * 10..nth as u64 * 10 + 10, SampleOperations::Both);
            let appended = tokio::time::timeout(Duration::from_secs(5), wal.append(accepted)).await;
            appended.expect("it waits for the lane").unwrap();
        }
        Ok(())
    });
    sent.await.unwrap();
    assert_eq!(
        (fixture.count(OPEN_FOLDS).await, fixture.count(OPEN_UNITS).await),
        (1, 2)
    );
    fixture.drain().await;
    assert_eq!(fixture.count(OPEN_UNITS).await, 0);
}

/// A WAL segment is being registered, and the flush it relies on starts before the commit: it cannot see the segment
/// yet, and does not wait. The missed segment is found later.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_registered_while_the_last_fold_ends_is_folded() {
    let Some(server) = Database::postgres() else { return };
    let fixture = WorkflowFixture::empty_on(&server, 1).await;
    let ensured = fixture
        .store()
        .write(async |tx| flush_wal::ensure(tx, &[Shard::of(fixture.tenant)], flush_wal::DEFAULT_DELAY).await)
        .await;
    ensured.unwrap();
    fixture.wait(Duration::from_secs(2)).await;
    // It is ready, so a registration of a segment records no other one.
    assert_eq!(towpath_durable::ready_due(fixture.store()).await.unwrap(), 1);
    let (registered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let on_registered: OnRegistered = {
        let (registered, release) = (registered.clone(), release.clone());
        Arc::new(move |tx, shards| {
            let (registered, release) = (registered.clone(), release.clone());
            Box::pin(async move {
                flush_wal::ensure(tx, shards, flush_wal::DEFAULT_DELAY).await?;
                registered.notify_one();
                release.notified().await;
                Ok(())
            })
        })
    };
    let objects = &fixture.world.objects;
    let options = wal::Options::for_store(objects);
    let wal = Wal::new(fixture.store().clone(), objects.clone(), options, on_registered);
    let accepted = fixture.accept(0..10, SampleOperations::Both);
    let sending = tokio::spawn(async move { wal.append(accepted).await });
    registered.notified().await;
    assert_eq!(fixture.count(OPEN_FOLDS).await, 1);
    let fold = fixture.claim().await.unwrap();
    tokio::select! {
        () = fixture.perform(fold) => {}
        () = fixture.until_somebody_waits_for_a_lock() => panic!("the fold and the registration wait for each other"),
    }
    release.notify_one();
    sending.await.unwrap().unwrap();
    assert_eq!(
        (fixture.count(OPEN_FOLDS).await, fixture.count(OPEN_UNITS).await),
        (0, 1)
    );
    let ensure_left = async || {
        flush_wal::ensure_orphans(fixture.store(), flush_wal::DEFAULT_DELAY)
            .await
            .unwrap()
    };
    assert_eq!(ensure_left().await, 0, "it has only just come");
    fixture.wait(Duration::from_secs(6)).await;
    assert_eq!(ensure_left().await, 1);
    assert_eq!(ensure_left().await, 0, "its fold is there");
    fixture.drain().await;
    assert_eq!(fixture.count("SELECT count(*) FROM wal_unit").await, 1);
    assert_eq!(fixture.count(OPEN_UNITS).await, 0, "the unit was left behind");
}
