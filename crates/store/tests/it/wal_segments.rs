//! WAL segments of the write-ahead log, on both databases.

use std::time::Duration;

use tokio::sync::oneshot;
use towpath_domain::json::Object;
use towpath_domain::{JobId, ProjectId, Shard, TenantId, Timestamp, WalSegmentId};
use towpath_store::projects::{self, NewProject};
use towpath_store::wal_segments::{self, Bounds, NewWalSegment, WalSegment, WalSegmentName};
use towpath_store::{Error, Result, Store, Tx, feedback, lanes};
use uuid::Uuid;

use crate::database::{Database, run};

/// As much as there is.
const ALL: Bounds = Bounds {
    bytes: i64::MAX,
    decoded_bytes: i64::MAX,
};

/// The `nth` workspace of the sixth shard.
fn tenant(nth: u128) -> TenantId {
    TenantId(Uuid::from_u128(nth * 16 + 5))
}

fn unit(tenant: TenantId, byte_offset: i64, bytes: i64) -> NewWalSegment {
    NewWalSegment {
        id: WalSegmentId::new(),
        tenant,
        byte_offset,
        bytes,
        decoded_bytes: bytes * 10,
        operations: 1,
    }
}

fn shard() -> Shard {
    Shard::of(tenant(0))
}

async fn add(store: &Store, path: &str, new: &[NewWalSegment]) {
    let added = store.write(async |tx| wal_segments::register(tx, path, new, &[]).await);
    added.await.unwrap();
}

async fn take(store: &Store, bounds: Bounds) -> Vec<WalSegment> {
    let taken = store.write(async |tx| wal_segments::take(tx, JobId::new(), shard(), bounds, &[]).await);
    taken.await.unwrap()
}

fn ids(units: &[WalSegment]) -> Vec<WalSegmentId> {
    units.iter().map(|unit| unit.id).collect()
}

async fn a_flush_becomes_units_of_its_workspaces(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (one, two, project) = (tenant(1), tenant(2), ProjectId::new());
    let new = [unit(one, 8, 100), unit(two, 108, 50)];
    let names: Vec<WalSegmentName> = new
        .iter()
        .map(|unit| WalSegmentName {
            unit_id: unit.id,
            // Every sign that JSON has words for.
            name: "a \"canal\" \\ \u{1} \u{1f6a2}".to_owned(),
            project_id: project,
        })
        .collect();
    let seen = store.write(async |tx| {
        wal_segments::register(tx, "wal/a.unit", &new, &names).await?;
        Ok((
            wal_segments::open_of(tx, one).await?,
            wal_segments::open_of(tx, two).await?,
            wal_segments::names(tx, &[new[0].id]).await?,
            wal_segments::last_open(tx, tenant(3)).await?,
            wal_segments::backlog(tx).await?,
        ))
    });
    let (of_one, of_two, named, of_nobody, backlog) = seen.await.unwrap();
    assert_eq!((ids(&of_one), ids(&of_two)), (vec![new[0].id], vec![new[1].id]));
    let second = &of_two[0];
    assert_eq!((second.byte_offset, second.bytes, second.decoded_bytes), (108, 50, 500));
    assert_eq!((second.shard, second.ordinal), (shard(), None));
    assert!(of_one[0].seq < second.seq, "in the order of the list");
    assert_eq!((named, of_nobody), (names[..1].to_vec(), None));
    assert_eq!(backlog, (2, 150));
    let (last, before) = store
        .read(async |tx| {
            let last = wal_segments::last_open(tx, two).await?.unwrap();
            Ok((last, wal_segments::open_before(tx, two, last - 1).await?))
        })
        .await
        .unwrap();
    assert_eq!((last, before), (second.seq, 0));
}

async fn workspaces_take_turns_and_each_keeps_its_order(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (busy, quiet) = (tenant(1), tenant(2));
    for nth in 0..5 {
        add(&store, &format!("wal/{nth}"), &[unit(busy, 8, 100)]).await;
    }
    add(&store, "wal/quiet", &[unit(quiet, 8, 100)]).await;
    let open = store
        .read(async |tx| wal_segments::open(tx, i64::MAX).await)
        .await
        .unwrap();
    let bounds = |bytes, decoded_bytes| Bounds { bytes, decoded_bytes };
    // The same WAL segments again, until a caller flushes them; each keeps its place.
    let taken = take(&store, bounds(200, i64::MAX)).await;
    assert_eq!(ids(&taken), [open[0].id, open[5].id]);
    let first: Vec<_> = taken.iter().map(|unit| unit.ordinal.unwrap()).collect();
    assert_eq!(first[1], first[0] + 1);
    assert_eq!(take(&store, bounds(200, i64::MAX)).await[1].ordinal, Some(first[1]));
    assert_eq!(
        take(&store, bounds(i64::MAX, 2999)).await.len(),
        2,
        "bounded by what they unpack to"
    );
    assert_eq!(take(&store, bounds(1, 1)).await.len(), 1, "one always fits");
    let all = take(&store, ALL).await;
    assert_eq!(all.len(), 6);
    let places: Vec<_> = all.iter().map(|unit| unit.ordinal.unwrap()).collect();
    assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
    let own = all.iter().filter(|unit| unit.tenant_id == busy);
    assert!(own.is_sorted_by_key(|unit| unit.seq));
    let elsewhere =
        store.write(async |tx| wal_segments::take(tx, JobId::new(), Shard::of(TenantId::nil()), ALL, &[]).await);
    assert!(elsewhere.await.unwrap().is_empty(), "another shard");
}

async fn a_unit_that_was_not_counted_is_taken_to_be_large(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let uncounted = NewWalSegment {
        decoded_bytes: 0,
        ..unit(tenant(1), 8, 100)
    };
    for path in ["wal/one", "wal/two"] {
        let id = WalSegmentId::new();
        add(&store, path, &[NewWalSegment { id, ..uncounted }]).await;
    }
    let bounds = |decoded_bytes| Bounds {
        bytes: i64::MAX,
        decoded_bytes,
    };
    let taken = take(&store, bounds(2000)).await;
    assert_eq!((taken.len(), taken[0].decoded_size()), (1, 1600));
    assert_eq!(take(&store, bounds(3200)).await.len(), 2);
}

/// On PostgreSQL a WAL segment may be seen after one that was registered later.
async fn the_order_is_that_of_folding(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let tenant = tenant(1);
    add(&store, "wal/seen", &[unit(tenant, 8, 100)]).await;
    let seen = take(&store, ALL).await.remove(0);
    let folded = store.write(async |tx| wal_segments::mark_flushed(tx, seen.fold_job.unwrap(), &[seen.id]).await);
    folded.await.unwrap();
    add(&store, "wal/late", &[unit(tenant, 8, 100)]).await;
    store
        .write(async |tx| run(tx, "UPDATE wal_unit SET seq = seq - 100 WHERE path = 'wal/late'").await)
        .await
        .unwrap();
    let open = store
        .read(async |tx| wal_segments::open_of(tx, tenant).await)
        .await
        .unwrap();
    assert!(open[0].seq < seen.seq);
    assert!(
        open[0].order() > seen.order(),
        "whoever reads it does so behind all that is folded"
    );
    let late = take(&store, ALL).await.remove(0);
    assert_eq!(late.ordinal, Some(seen.ordinal.unwrap() + 1));
    assert_eq!(late.order(), late.ordinal.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_becomes_visible_late_is_folded_last() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let tenant = tenant(1);
    let (registered, ready) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let slow = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .write(async |tx| {
                    wal_segments::register(tx, "wal/slow", &[unit(tenant, 8, 100)], &[]).await?;
                    registered.send(()).unwrap();
                    released.await.unwrap();
                    Ok(())
                })
                .await
        }
    });
    ready.await.unwrap();
    add(&store, "wal/fast", &[unit(tenant, 8, 100)]).await;
    let fast = take(&store, ALL).await;
    assert_eq!(fast.len(), 1);
    release.send(()).unwrap();
    slow.await.unwrap().unwrap();
    let both = take(&store, ALL).await;
    assert_eq!((both[0].id, both.len()), (fast[0].id, 2));
    assert!(both[1].seq < both[0].seq && both[1].ordinal > both[0].ordinal);
}

/// Feedback that is changed before its WAL segment is flushed is stored under the number that the flush will give it.
async fn what_is_read_early_is_kept_under_its_lasting_number(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let tenant = tenant(1);
    for path in ["wal/a", "wal/b", "wal/c"] {
        add(&store, path, &[unit(tenant, 8, 100)]).await;
    }
    let open = store
        .read(async |tx| wal_segments::open_of(tx, tenant).await)
        .await
        .unwrap();
    let early = wal_segments::item_seq(open[1].order(), 7);
    let mut row = feedback::Feedback {
        tenant_id: tenant,
        id: Uuid::from_u128(9),
        run_id: None,
        key: "good".to_owned(),
        body: r#"{"score":1}"#.to_owned(),
        seq: early,
        created_at: Timestamp::from_micros(0),
        modified_at: None,
        deleted: false,
    };
    let id = row.id;
    let stored = async || {
        let found = store.read(async |tx| feedback::find(tx, tenant, id).await);
        found.await.unwrap().unwrap()
    };
    let nothing = Object::default();
    store
        .write(async |tx| feedback::update_body(tx, tenant, id, Some(&row), &nothing).await)
        .await
        .unwrap();
    let changed = stored().await;
    let taken = take(&store, ALL).await;
    assert_eq!(ids(&taken), ids(&open), "in the order they came");
    assert_eq!(changed.seq, wal_segments::item_seq(taken[1].order(), 7));
    let lasting = async |seq| {
        store
            .write(async |tx| wal_segments::permanent_seq(tx, tenant, seq).await)
            .await
    };
    assert_eq!(
        lasting(early).await.unwrap(),
        changed.seq,
        "also when it was taken since"
    );
    assert_eq!(lasting(changed.seq).await.unwrap(), changed.seq);
    // The flush that brings it as it was sent changes nothing; what is sent again later does.
    row.seq = changed.seq;
    row.body = r#"{"score":2}"#.to_owned();
    store.write(async |tx| feedback::put(tx, &row).await).await.unwrap();
    assert_eq!(stored().await.body, r#"{"score":1}"#);
    row.seq = wal_segments::item_seq(taken[2].order(), 0);
    store.write(async |tx| feedback::put(tx, &row).await).await.unwrap();
    assert_eq!(stored().await.body, r#"{"score":2}"#);
    store
        .write(async |tx| run(tx, "DELETE FROM wal_unit").await)
        .await
        .unwrap();
    assert!(matches!(lasting(early).await, Err(Error::Stale)));
}

async fn an_object_goes_with_the_last_of_its_units(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let shared = [unit(tenant(1), 8, 100), unit(tenant(2), 108, 100)];
    add(&store, "wal/shared", &shared).await;
    add(&store, "wal/own", &[unit(tenant(1), 8, 100)]).await;
    let open = take(&store, ALL).await;
    let job = open[0].fold_job.unwrap();
    let own = open.iter().find(|unit| unit.path == "wal/own").unwrap().id;
    let far_ahead = Timestamp::parse("2200-01-01").unwrap();
    let folded = async |more: &[WalSegmentId]| {
        let listed = store.write(async |tx| {
            wal_segments::mark_flushed(tx, job, more).await?;
            wal_segments::flushed_before(tx, far_ahead, wal_segments::Position::START, 10).await
        });
        let listed = listed.await.unwrap().into_iter();
        listed
            .map(|unit| (unit.path, unit.object_done))
            .collect::<std::collections::BTreeSet<_>>()
    };
    let seen = folded(&[shared[0].id, own]).await;
    let expected = [("wal/own".to_owned(), true), ("wal/shared".to_owned(), false)];
    assert!(seen.into_iter().eq(expected), "one unit of it is open");
    let forgotten = store.write(async |tx| wal_segments::forget(tx, &[shared[0].id, shared[1].id, own]).await);
    assert_eq!(forgotten.await.unwrap(), 2, "the open one stays");
    assert!(
        store
            .read(async |tx| wal_segments::is_object_referenced(tx, "wal/shared").await)
            .await
            .unwrap()
    );
    assert!(
        !store
            .read(async |tx| wal_segments::is_object_referenced(tx, "wal/own").await)
            .await
            .unwrap()
    );
    let paths = ["wal/own", "wal/shared", "wal/none"].map(str::to_owned);
    let named = store
        .read(async |tx| wal_segments::referenced_objects(tx, &paths).await)
        .await;
    assert_eq!(named.unwrap(), ["wal/shared"]);
    store
        .write(async |tx| run(tx, "UPDATE wal_unit SET state = 'quarantined'").await)
        .await
        .unwrap();
    assert!(folded(&[]).await.is_empty());
    store
        .write(async |tx| run(tx, "UPDATE wal_unit SET state = 'open'").await)
        .await
        .unwrap();
    let seen = folded(&[shared[1].id]).await;
    assert!(seen.into_iter().eq([("wal/shared".to_owned(), true)]));
}

async fn projects_of_a_flush_are_found_or_made_at_once(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (one, two) = (tenant(1), tenant(2));
    let odd = "a \"canal\" \\ \u{1} \u{1f6a2}";
    let seen = store.write(async |tx| {
        let there = projects::ensure(tx, one, "there").await?;
        let named = [(one, odd), (one, "there"), (two, odd), (two, "there")];
        let first = projects::ensure_all(tx, &named).await?;
        assert_eq!(first[1], there);
        assert_eq!(projects::ensure_all(tx, &named).await?, first);
        assert_eq!(projects::by_name(tx, one, odd).await?.unwrap().id, first[0]);
        assert_eq!(
            first.iter().collect::<std::collections::BTreeSet<_>>().len(),
            4,
            "each workspace has its own"
        );
        assert!(projects::ensure_all(tx, &[]).await?.is_empty());
        let bad = projects::ensure_all(tx, &[(one, "")]).await;
        assert!(matches!(bad, Err(Error::Rejected(_))));
        let unknown = ProjectId::new();
        let asked = [(one, there), (one, first[2]), (one, unknown), (two, first[2])];
        assert_eq!(
            projects::missing(tx, &asked).await?,
            asked[1..3],
            "another's, and nobody's"
        );
        projects::delete(tx, one, there).await?;
        assert_eq!(projects::missing(tx, &asked[..1]).await?, asked[..1]);
        projects::deleted(tx, one, &[there, first[0], unknown]).await
    });
    assert_eq!(seen.await.unwrap().len(), 1);
}

/// Two processes make the same projects at the same time: the second waits for the first, and takes those it made.
#[tokio::test(flavor = "multi_thread")]
async fn projects_that_another_process_makes_are_taken() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let tenant = tenant(1);
    let named = [(tenant, "a"), (tenant, "b"), (tenant, "c")];
    let (made, ready) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let first = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .write(async |tx| {
                    let ids = projects::ensure_all(tx, &named[1..]).await?;
                    made.send(()).unwrap();
                    released.await.unwrap();
                    Ok(ids)
                })
                .await
        }
    });
    ready.await.unwrap();
    let second = tokio::spawn({
        let store = store.clone();
        async move { store.write(async |tx| projects::ensure_all(tx, &named).await).await }
    });
    crate::database::waiting(&store, 1, || false).await;
    release.send(()).unwrap();
    let first = first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().unwrap()[1..], first);
}

async fn lock(tx: &mut Tx<'_>) -> Result<()> {
    lanes::lock(tx, "flush:5", 1).await.map(drop)
}

/// A job that enters its lane later is recorded while another works in the lane, and the lane is there when it comes.
#[tokio::test(flavor = "multi_thread")]
async fn keeping_a_lane_waits_for_nobody_who_works_in_it() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    store.write(async |tx| lock(tx).await).await.unwrap();
    let patience = Duration::from_secs(10);
    let worked = store.write(async |tx| {
        lock(tx).await?;
        let kept = store.write(async |tx| lanes::ensure(tx, "flush:5", 1).await);
        tokio::time::timeout(patience, kept).await.expect("keeping waits")
    });
    worked.await.unwrap();
    let kept = store.write(async |tx| {
        lanes::ensure(tx, "flush:5", 1).await?;
        let worked = store.write(async |tx| lock(tx).await);
        tokio::time::timeout(patience, worked).await.expect("working waits")?;
        let pruned = store.write(async |tx| lanes::prune(tx, 10).await);
        assert_eq!(pruned.await?, 0, "somebody keeps it");
        Ok(())
    });
    kept.await.unwrap();
    let pruned = store.write(async |tx| lanes::prune(tx, 10).await);
    assert_eq!(pruned.await.unwrap(), 1);
    store
        .write(async |tx| lanes::ensure(tx, "flush:5", 3).await)
        .await
        .unwrap();
    let made = store.read(async |tx| lanes::get(tx, "flush:5").await).await.unwrap();
    assert_eq!(made.unwrap().places, 3);
}

/// A process of the build before registers a WAL segment of two workspaces while this build is at work.
#[tokio::test]
async fn units_of_an_earlier_build_are_split() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let (one, two) = (tenant(1), tenant(2));
    let seen = store.write(async |tx| {
        let project = NewProject {
            name: "canal".to_owned(),
            ..NewProject::default()
        };
        let project = projects::create(tx, one, &project).await?.id;
        run(
            tx,
            "INSERT INTO wal_unit (id, path, bytes, operations, state, created_at)
             VALUES ('00000000-0000-0000-0000-000000000001', 'wal/old', 100, 2, 'open', now())",
        )
        .await?;
        for (tenant, project) in [(one, project), (one, ProjectId::nil()), (two, ProjectId::nil())] {
            let done = towpath_store::on!(tx, |conn| sqlx::query(
                "INSERT INTO wal_unit_project VALUES ('00000000-0000-0000-0000-000000000001', $1, $2)"
            )
            .bind(tenant)
            .bind(project)
            .execute(conn)
            .await
            .map(drop));
            done?;
        }
        let nil = Shard::of(TenantId::nil());
        assert!(
            wal_segments::take(tx, JobId::new(), nil, ALL, &[]).await?.is_empty(),
            "before it is split"
        );
        assert_eq!(wal_segments::split(tx).await?, 1);
        assert_eq!(wal_segments::split(tx).await?, 0);
        let (of_one, of_two) = (
            wal_segments::open_of(tx, one).await?,
            wal_segments::open_of(tx, two).await?,
        );
        let names = wal_segments::names(tx, &[of_one[0].id, of_two[0].id]).await?;
        Ok((of_one, of_two, names, project))
    });
    let (of_one, of_two, names, project) = seen.await.unwrap();
    for unit in [&of_one[0], &of_two[0]] {
        assert_eq!((unit.path.as_str(), unit.byte_offset, unit.bytes), ("wal/old", 0, 100));
    }
    assert_ne!(of_one[0].id, of_two[0].id);
    let expected = WalSegmentName {
        unit_id: of_one[0].id,
        name: "canal".to_owned(),
        project_id: project,
    };
    assert_eq!(names, [expected]);
}

macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::database::Database::sqlite().await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(database) = $crate::database::Database::postgres().await {
                    super::$name(database).await;
                }
            })*
        }
    };
}

on_both_databases!(
    a_flush_becomes_units_of_its_workspaces,
    workspaces_take_turns_and_each_keeps_its_order,
    a_unit_that_was_not_counted_is_taken_to_be_large,
    the_order_is_that_of_folding,
    what_is_read_early_is_kept_under_its_lasting_number,
    an_object_goes_with_the_last_of_its_units,
    projects_of_a_flush_are_found_or_made_at_once,
);
