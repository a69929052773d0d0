//! Lists of the quarantine, and what names an object, on both databases.

use towpath_domain::{ProjectId, QuarantineId, TenantId, Timestamp};
use towpath_store::quarantine::{self, Entry, Kind};
use towpath_store::{Error, Store, gauges};

use crate::database::Database;

fn entry(tenant_id: TenantId, kind: Kind, path: &str) -> Entry {
    let at = Timestamp::from_micros(1_772_323_200_000_000);
    Entry {
        id: QuarantineId::new(),
        tenant_id,
        kind,
        reason: "for a test".to_owned(),
        path: path.to_owned(),
        byte_offset: 8,
        bytes: 100,
        decoded_bytes: 0,
        items: 3,
        names: "{}".to_owned(),
        projects: None,
        first_start: None,
        last_start: None,
        accepted_at: at,
        created_at: at,
    }
}

async fn put(store: &Store, entries: &[Entry]) {
    store
        .write(async |tx| quarantine::put_all(tx, entries).await)
        .await
        .unwrap();
}

async fn lists_go_on_where_they_ended(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (one, other) = (TenantId::new(), TenantId::new());
    // Those put together came at the same moment, and the first at another.
    put(&store, &[entry(other, Kind::Rejected, "quarantine/a")]).await;
    let many: Vec<Entry> = (0..7)
        .map(|n| entry(if n < 4 { one } else { other }, Kind::Damaged, "quarantine/b"))
        .collect();
    put(&store, &many).await;
    let list = async |tenant| {
        let mut seen: Vec<Entry> = Vec::new();
        loop {
            let after = seen.last().map(Entry::cursor);
            let page = store.read(async |tx| quarantine::list_after(tx, tenant, after, 3).await);
            let page = page.await.unwrap();
            let is_last = page.len() < 3;
            seen.extend(page);
            if is_last {
                return seen;
            }
        }
    };
    let whole = store.read(async |tx| quarantine::list(tx, None, 100, 0).await);
    let whole = whole.await.unwrap();
    assert_eq!(whole.len(), 8);
    assert_eq!(list(None).await, whole);
    let of_one = list(Some(one)).await;
    assert_eq!(of_one.len(), 4);
    assert!(of_one.iter().all(|entry| entry.tenant_id == one));
    // The latest of a workspace come first.
    assert_eq!(list(Some(other)).await.last().unwrap().path, "quarantine/a");

    let usage = store.read(async |tx| {
        let nobody = quarantine::usage_of(tx, TenantId::new()).await?;
        Ok((
            quarantine::usage_of(tx, one).await?,
            nobody,
            gauges::quarantine(tx).await?,
        ))
    });
    let (usage, nobody, all) = usage.await.unwrap();
    assert_eq!((usage.entries, usage.items, usage.bytes), (4, 12, 400));
    assert_eq!((nobody.entries, nobody.items, nobody.bytes), (0, 0, 0));
    assert_eq!((all.entries, all.items, all.bytes), (8, 24, 800));
    store.close().await;
}

async fn an_entry_is_taken_once(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let tenant = TenantId::new();
    let mut kept = entry(tenant, Kind::Missing, "wal/a.unit");
    kept.projects = Some(format!(r#"["{}"]"#, ProjectId::new()));
    put(&store, &[kept.clone(), entry(tenant, Kind::Rejected, "quarantine/a")]).await;
    let missing = store.read(async |tx| quarantine::missing_objects(tx, QuarantineId::nil(), 10).await);
    let missing = missing.await.unwrap();
    assert_eq!(missing.iter().map(|entry| entry.id).collect::<Vec<_>>(), [kept.id]);
    let behind = store.read(async |tx| quarantine::missing_objects(tx, kept.id, 10).await);
    assert_eq!(behind.await.unwrap(), []);

    let paths = ["wal/a.unit", "quarantine/a", "quarantine/nobody's"].map(str::to_owned);
    let needed = async || {
        let found = store.read(async |tx| quarantine::needed(tx, &paths).await).await;
        let mut found = found.unwrap();
        found.sort();
        found
    };
    assert_eq!(needed().await, ["quarantine/a", "wal/a.unit"]);
    let taken = async || store.write(async |tx| quarantine::take(tx, kept.id).await).await;
    let entry = taken().await.unwrap();
    assert_eq!(
        Entry {
            created_at: kept.created_at,
            ..entry
        },
        kept
    );
    assert!(matches!(taken().await, Err(Error::NotFound)));
    assert_eq!(needed().await, ["quarantine/a"]);
    store.close().await;
}

#[tokio::test]
async fn the_quarantine_on_sqlite() {
    lists_go_on_where_they_ended(Database::sqlite().await).await;
    an_entry_is_taken_once(Database::sqlite().await).await;
}

#[tokio::test]
async fn the_quarantine_on_postgres() {
    if let (Some(one), Some(two)) = tokio::join!(Database::postgres(), Database::postgres()) {
        lists_go_on_where_they_ended(one).await;
        an_entry_is_taken_once(two).await;
    }
}
