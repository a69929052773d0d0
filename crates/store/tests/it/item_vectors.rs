//! What of items is embedded, on both databases.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Map;
use towpath_domain::agent::namespace::Namespace;
use towpath_domain::{JobId, TenantId};
use towpath_store::item_vectors::pgvector::{self, Missing};
use towpath_store::item_vectors::{self, EmbeddedItem, ItemIndex, PendingItem};
use towpath_store::{Store, items};

use crate::database::{Database, run};

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                super::$name(super::migrated(super::Database::sqlite().await).await).await;
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(database) = super::Database::postgres().await {
                    super::$name(super::migrated(database).await).await;
                }
            }
        }
    )*};
}

on_both!(
    vectors_are_those_of_the_item_as_it_is,
    vectors_go_with_their_item,
    a_changed_setting_queues_all_items,
    a_job_ends_when_nothing_is_due,
    without_a_setting_nothing_is_left,
    vectors_are_read_by_name_number_and_filter,
);

async fn migrated(database: Database) -> Database {
    database.store.migrate().await.unwrap();
    database
}

fn space(dotted: &str) -> Namespace {
    let labels = dotted.split('.').filter(|label| !label.is_empty());
    Namespace::part("namespace", labels.map(str::to_owned).collect()).unwrap()
}

/// Writes and queues an item.
async fn put(store: &Store, tenant: TenantId, namespace: &str, key: &str, value: &str) {
    let namespace = space(namespace);
    store
        .write(async |tx| {
            items::put(tx, tenant, &namespace, key, value, None, None).await?;
            item_vectors::enqueue(tx, tenant, &namespace, key).await
        })
        .await
        .unwrap();
}

async fn configure(store: &Store, tenant: TenantId, embedder: &str, fields: &str) -> bool {
    store
        .write(async |tx| item_vectors::configure(tx, tenant, embedder, fields).await)
        .await
        .unwrap()
}

async fn index(store: &Store, tenant: TenantId) -> ItemIndex {
    let read = store.read(async |tx| item_vectors::get(tx, tenant).await).await;
    read.unwrap().expect("there is a setting")
}

async fn pending(store: &Store, tenant: TenantId) -> Vec<PendingItem> {
    store
        .read(async |tx| item_vectors::pending(tx, tenant, 100, 1 << 20).await)
        .await
        .unwrap()
}

/// Saves one vector for each of these items, and says how many were as they are.
async fn save(store: &Store, tenant: TenantId, items: &[PendingItem]) -> usize {
    let space = index(store, tenant).await.space;
    let embedded: Vec<EmbeddedItem> = items
        .iter()
        .map(|item| EmbeddedItem {
            item: item.clone(),
            vectors: vec![item.key.clone().into_bytes()],
        })
        .collect();
    store
        .write(async |tx| item_vectors::save(tx, tenant, space, &embedded).await)
        .await
        .unwrap()
}

/// Keys, parts and numbers of the vectors of a space, in their order.
async fn vectors(store: &Store, tenant: TenantId, space: i64, after: i64) -> Vec<(String, i64, i64)> {
    store
        .read(async |tx| {
            let mut found = Vec::new();
            item_vectors::each_after(tx, tenant, space, after, 1000, |vector| {
                found.push((vector.key, vector.part, vector.seq));
                ControlFlow::Continue(())
            })
            .await?;
            Ok(found)
        })
        .await
        .unwrap()
}

async fn vectors_are_those_of_the_item_as_it_is(database: Database) {
    let (store, tenant) = (&database.store, TenantId::new());
    configure(store, tenant, "e", "[]").await;
    put(store, tenant, "users", "a", "{}").await;
    put(store, tenant, "users", "b", "{}").await;
    put(
        store,
        tenant,
        &format!("{0}.{0}", "n".repeat(900)),
        &"k".repeat(1000),
        "{}",
    )
    .await;
    let read = pending(store, tenant).await;
    assert_eq!(read.len(), 3);
    // Written while it was being embedded.
    put(store, tenant, "users", "b", r#"{"n":1}"#).await;
    assert_eq!(save(store, tenant, &read).await, 2);
    let left = pending(store, tenant).await;
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].key.as_str(), left[0].value.as_str()), ("b", r#"{"n":1}"#));
    assert_eq!(save(store, tenant, &left).await, 1);
    assert!(pending(store, tenant).await.is_empty());
    let space = index(store, tenant).await.space;
    let all = vectors(store, tenant, space, 0).await;
    assert_eq!(all.len(), 3);
    let last = index(store, tenant).await.last_seq;
    assert_eq!(all.last().unwrap(), &("b".to_owned(), 0, last));
    // Several vectors of one item, then fewer.
    put(store, tenant, "users", "a", "{}").await;
    let item = pending(store, tenant).await.remove(0);
    let embedded = |count: usize| EmbeddedItem {
        item: item.clone(),
        vectors: vec![vec![7]; count],
    };
    let many = [embedded(3)];
    store
        .write(async |tx| item_vectors::save(tx, tenant, space, &many).await)
        .await
        .unwrap();
    let parts: Vec<i64> = vectors(store, tenant, space, last)
        .await
        .iter()
        .map(|row| row.1)
        .collect();
    assert_eq!(parts, [0, 1, 2]);
    put(store, tenant, "users", "a", "{}").await;
    let none = [embedded(0)];
    store
        .write(async |tx| item_vectors::save(tx, tenant, space, &none).await)
        .await
        .unwrap();
    assert_eq!(vectors(store, tenant, space, 0).await.len(), 2);
    // What was embedded by another setting.
    put(store, tenant, "users", "a", "{}").await;
    let stale = [embedded(1)];
    let saved = store.write(async |tx| item_vectors::save(tx, tenant, space + 1, &stale).await);
    assert_eq!(saved.await.unwrap(), 0);
    assert_eq!(pending(store, tenant).await.len(), 1);
}

async fn vectors_go_with_their_item(database: Database) {
    let (store, tenant) = (&database.store, TenantId::new());
    configure(store, tenant, "e", "[]").await;
    for key in ["deleted", "expired", "none", "queued"] {
        put(store, tenant, "users", key, "{}").await;
    }
    let read = pending(store, tenant).await;
    save(store, tenant, &read).await;
    let users = space("users");
    store
        .write(async |tx| {
            items::put(tx, tenant, &users, "expired", "{}", Some(1e-9), None).await?;
            item_vectors::enqueue(tx, tenant, &users, "expired").await?;
            item_vectors::enqueue(tx, tenant, &users, "queued").await?;
            items::put(tx, tenant, &users, "none", "{}", None, Some(&[])).await?;
            item_vectors::remove(tx, tenant, &users, "none").await?;
            items::delete(tx, tenant, &users, "deleted").await?;
            items::delete(tx, tenant, &users, "queued").await
        })
        .await
        .unwrap();
    let space = index(store, tenant).await.space;
    let left = vectors(store, tenant, space, 0).await;
    assert_eq!(left.iter().map(|row| row.0.as_str()).collect::<Vec<_>>(), ["expired"]);
    // The clock is the machine's: it has expired once the sweep's time is later.
    let mut gone = 0;
    while gone == 0 {
        gone = store.write(async |tx| items::sweep(tx, 100).await).await.unwrap();
    }
    assert!(vectors(store, tenant, space, 0).await.is_empty());
    assert!(pending(store, tenant).await.is_empty());
}

async fn a_changed_setting_queues_all_items(database: Database) {
    let (store, tenant, other) = (&database.store, TenantId::new(), TenantId::new());
    for nth in 0..25 {
        put(store, tenant, &format!("n.{nth}"), "k", "{}").await;
    }
    put(store, other, "n", "k", "{}").await;
    let users = space("users");
    store
        .write(async |tx| items::put(tx, tenant, &users, "none", "{}", None, Some(&[])).await)
        .await
        .unwrap();
    let paths = ["a.b".to_owned()];
    store
        .write(async |tx| items::put(tx, tenant, &users, "own", "{}", None, Some(&paths)).await)
        .await
        .unwrap();
    assert!(configure(store, tenant, "e", "[]").await);
    assert!(!configure(store, tenant, "e", "[]").await, "it is the same");
    let walk = async || {
        let mut walks = 0;
        while index(store, tenant).await.walking {
            store
                .write(async |tx| item_vectors::walk(tx, tenant, 10).await)
                .await
                .unwrap();
            walks += 1;
        }
        walks
    };
    assert_eq!(walk().await, 3);
    let queued = pending(store, tenant).await;
    assert_eq!(queued.len(), 26, "all but the one of which nothing is embedded");
    let own = queued.iter().find(|item| item.key == "own").unwrap();
    assert_eq!(own.index_paths.as_deref(), Some(r#"["a.b"]"#));
    save(store, tenant, &queued).await;
    // Other fields: the vectors can still be compared.
    let before = index(store, tenant).await;
    assert!(configure(store, tenant, "e", r#"["text"]"#).await);
    let after = index(store, tenant).await;
    assert!(after.walking && after.space == before.space);
    walk().await;
    let queued = pending(store, tenant).await;
    assert_eq!(queued.len(), 26);
    // Another embedder: they cannot.
    assert!(configure(store, tenant, "f", r#"["text"]"#).await);
    let space = index(store, tenant).await.space;
    assert_ne!(space, before.space);
    assert!(vectors(store, tenant, space, 0).await.is_empty());
    assert_eq!(save(store, tenant, &queued).await, 26);
    assert_eq!(vectors(store, tenant, space, 0).await.len(), 26);
    assert!(vectors(store, tenant, before.space, 0).await.is_empty());
    assert_eq!(pending(store, other).await.len(), 1, "another workspace is as it was");
}

async fn a_job_ends_when_nothing_is_due(database: Database) {
    let (store, tenant) = (&database.store, TenantId::new());
    let (job, other) = (JobId::new(), JobId::new());
    configure(store, tenant, "e", "[]").await;
    let set = async |job| {
        let set = store
            .write(async |tx| item_vectors::set_job(tx, tenant, job).await)
            .await;
        set.unwrap()
    };
    let release = async |job| {
        let released = store
            .write(async |tx| item_vectors::release_job(tx, tenant, job).await)
            .await;
        released.unwrap()
    };
    assert!(set(job).await && !set(other).await);
    assert!(!release(job).await, "it still walks");
    put(store, tenant, "users", "a", "{}").await;
    store
        .write(async |tx| item_vectors::walk(tx, tenant, 10).await)
        .await
        .unwrap();
    assert!(!release(job).await, "an item is due");
    let items = pending(store, tenant).await;
    let due = store.clock().now().plus(Duration::from_secs(3600));
    store
        .write(async |tx| item_vectors::postpone(tx, tenant, &items, due).await)
        .await
        .unwrap();
    assert!(pending(store, tenant).await.is_empty());
    assert!(!release(other).await && release(job).await);
    assert!(set(other).await);
    let summaries = store.read(async |tx| item_vectors::summaries(tx).await).await.unwrap();
    let summary = summaries.iter().find(|summary| summary.tenant_id == tenant).unwrap();
    assert_eq!((summary.waiting, summary.failing), (1, 1));
    store
        .write(async |tx| item_vectors::clear_job(tx, tenant, other).await)
        .await
        .unwrap();
    assert!(set(job).await);
    // It is written again, and tried at once.
    put(store, tenant, "users", "a", "{}").await;
    assert_eq!(pending(store, tenant).await[0].attempts, 0);
}

async fn without_a_setting_nothing_is_left(database: Database) {
    let (store, tenant) = (&database.store, TenantId::new());
    configure(store, tenant, "e", "[]").await;
    for nth in 0..5 {
        put(store, tenant, "users", &nth.to_string(), "{}").await;
    }
    let items = pending(store, tenant).await;
    save(store, tenant, &items).await;
    put(store, tenant, "users", "queued", "{}").await;
    let forget = async || store.write(async |tx| item_vectors::forget(tx, tenant).await).await;
    assert!(forget().await.unwrap() && !forget().await.unwrap());
    let clear = async || {
        let left = store.write(async |tx| item_vectors::clear(tx, tenant, 2).await).await;
        left.unwrap()
    };
    while clear().await {}
    assert_eq!(
        store
            .read(async |tx| item_vectors::get(tx, tenant).await)
            .await
            .unwrap(),
        None
    );
    assert!(vectors(store, tenant, 1, 0).await.is_empty());
    assert!(pending(store, tenant).await.is_empty());
}

async fn vectors_are_read_by_name_number_and_filter(database: Database) {
    let (store, tenant) = (&database.store, TenantId::new());
    configure(store, tenant, "e", "[]").await;
    put(store, tenant, "users.ann", "a", r#"{"n":1}"#).await;
    put(store, tenant, "users.bob", "b", r#"{"n":2}"#).await;
    put(store, tenant, "usersx", "c", r#"{"n":1}"#).await;
    let items = pending(store, tenant).await;
    save(store, tenant, &items).await;
    let space_of_vectors = index(store, tenant).await.space;
    let names: Vec<(String, String)> = [
        ("users.ann", "a"),
        ("users.bob", "b"),
        ("usersx", "c"),
        ("users", "missing"),
    ]
    .map(|(namespace, key)| (namespace.to_owned(), key.to_owned()))
    .to_vec();
    let by_name = store.read(async |tx| item_vectors::of_items(tx, tenant, space_of_vectors, &names).await);
    let mut keys: Vec<String> = by_name.await.unwrap().into_iter().map(|vector| vector.key).collect();
    keys.sort();
    assert_eq!(keys, ["a", "b", "c"]);
    let users = space("users");
    let filter: Map<String, serde_json::Value> = serde_json::from_str(r#"{"n": 1}"#).unwrap();
    let none = Map::new();
    for (filter, expected) in [(&none, vec!["a", "b"]), (&filter, vec!["a"])] {
        let among = store.read(async |tx| items::search_among(tx, tenant, &users, filter, &names).await);
        let mut keys: Vec<String> = among.await.unwrap().into_iter().map(|item| item.key).collect();
        keys.sort();
        assert_eq!(keys, expected);
        let mut keys = store
            .read(async |tx| {
                let mut keys = Vec::new();
                items::each_vector(tx, tenant, &users, filter, space_of_vectors, |vector| {
                    keys.push(vector.key);
                })
                .await?;
                Ok(keys)
            })
            .await
            .unwrap();
        keys.sort();
        assert_eq!(keys, expected);
    }
}

#[tokio::test]
async fn pgvector_finds_what_is_near_where_it_is_installed() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let database = migrated(database).await;
    let (store, tenant) = (&database.store, TenantId::new());
    configure(store, tenant, "e", "[]").await;
    for key in ["a", "b", "c"] {
        put(store, tenant, "users", key, "{}").await;
    }
    let space_of_vectors = index(store, tenant).await.space;
    let embedded: Vec<EmbeddedItem> = pending(store, tenant)
        .await
        .into_iter()
        .map(|item| {
            let numbers: [f32; 2] = match item.key.as_str() {
                "a" => [1.0, 0.0],
                "b" => [1.0, 1.0],
                _ => [0.0, 1.0],
            };
            EmbeddedItem {
                item,
                vectors: vec![numbers.iter().flat_map(|number| number.to_le_bytes()).collect()],
            }
        })
        .collect();
    store
        .write(async |tx| item_vectors::save(tx, tenant, space_of_vectors, &embedded).await)
        .await
        .unwrap();
    let missing = async || {
        let missing = store.read(async |tx| pgvector::missing(tx, tenant, space_of_vectors, 2, 10).await);
        missing.await.unwrap()
    };
    let nearest = async || {
        let nearest = store.read(async |tx| pgvector::nearest(tx, tenant, space_of_vectors, &[0.1, 1.0]).await);
        let names = nearest.await.unwrap();
        names.map(|names| names.into_iter().map(|(_, key)| key).collect::<Vec<_>>())
    };
    assert_eq!((missing().await, nearest().await), (Missing::Unavailable, None));
    let installed = store.write(async |tx| run(tx, "CREATE EXTENSION vector").await).await;
    if let Err(error) = installed {
        eprintln!("skipped: this PostgreSQL server has no pgvector: {error:?}");
        return;
    }
    let Missing::Vectors(vectors) = missing().await else {
        panic!("nothing was copied yet")
    };
    assert_eq!((vectors.len(), nearest().await), (3, None));
    // Deleted while it was being copied.
    let users = space("users");
    store
        .write(async |tx| items::delete(tx, tenant, &users, "b").await)
        .await
        .unwrap();
    store
        .write(async |tx| pgvector::add(tx, tenant, space_of_vectors, 2, &vectors).await)
        .await
        .unwrap();
    assert_eq!(missing().await, Missing::Nothing);
    assert_eq!(nearest().await.unwrap(), ["c", "a"]);
    store
        .write(async |tx| items::delete(tx, tenant, &users, "c").await)
        .await
        .unwrap();
    assert_eq!(nearest().await.unwrap(), ["a"]);
}
