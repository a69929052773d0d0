//! The long-term store, on both databases.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_domain::TenantId;
use towpath_domain::agent::namespace::Namespace;
use towpath_store::Store;
use towpath_store::items::{self, Item};
use uuid::Uuid;

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
    items_that_are_read_live_on,
    namespaces_are_those_of_a_model,
    of_many_namespaces_only_those_asked_for_are_in_memory,
);

async fn migrated(database: Database) -> Database {
    database.store.migrate().await.unwrap();
    database
}

fn space(dotted: &str) -> Namespace {
    let labels = dotted.split('.').filter(|label| !label.is_empty());
    Namespace::part("namespace", labels.map(str::to_owned).collect()).unwrap()
}

async fn put(store: &Store, tenant: TenantId, namespace: &str, key: &str, minutes: Option<f64>) {
    let space = space(namespace);
    store
        .write(async |tx| items::put(tx, tenant, &space, key, "{}", minutes, None).await)
        .await
        .unwrap();
}

async fn get(store: &Store, tenant: TenantId, namespace: &str, key: &str) -> Item {
    let space = space(namespace);
    let read = store.read(async |tx| items::get(tx, tenant, &space, key).await).await;
    read.unwrap().expect("the item is there")
}

async fn items_that_are_read_live_on(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let long = "n".repeat(900);
    let long = format!("{long}.{long}");
    put(store, tenant, long.as_str(), "k", Some(5.0)).await;
    put(store, tenant, "users", "changed", Some(5.0)).await;
    put(store, tenant, "users", "mortal no more", Some(5.0)).await;
    put(store, tenant, "users", "eternal", None).await;
    let mut read = vec![get(store, tenant, &long, "k").await];
    for key in ["changed", "mortal no more", "eternal"] {
        read.push(get(store, tenant, "users", key).await);
    }
    // Written between the look and the refresh: what they live now counts.
    put(store, tenant, "users", "changed", Some(600.0)).await;
    put(store, tenant, "users", "mortal no more", None).await;
    let before = read[0].expires_at.unwrap();
    let refresh = async |read: &[Item]| {
        let read: Vec<&Item> = read.iter().collect();
        let sent = store.statements();
        store
            .write(async |tx| items::refresh(tx, tenant, &read).await)
            .await
            .unwrap();
        store.statements() - sent
    };
    refresh(&read).await;
    let refreshed = get(store, tenant, &long, "k").await;
    assert!(refreshed.expires_at.unwrap() > before, "its five minutes began anew");
    let changed = get(store, tenant, "users", "changed").await;
    let lives = changed.expires_at.unwrap().since(changed.updated_at);
    assert!(lives >= Duration::from_secs(600 * 60), "{lives:?}");
    for key in ["mortal no more", "eternal"] {
        assert_eq!(get(store, tenant, "users", key).await.expires_at, None, "{key}");
    }
    let one = refresh(&read[..1]).await;
    for nth in 0..300 {
        put(store, tenant, "many", &nth.to_string(), Some(5.0)).await;
    }
    let space = space("many");
    let none = serde_json::Map::new();
    let many = store
        .read(async |tx| items::search(tx, tenant, &space, &none, 1000, 0).await)
        .await;
    let many = many.unwrap();
    assert_eq!(many.len(), 300);
    assert_eq!(refresh(&many).await, one, "as many statements for 300 items as for one");
}

async fn namespaces_are_those_of_a_model(database: Database) {
    let store = &database.store;
    let (tenant, other) = (TenantId::new(), TenantId::new());
    let long = "x".repeat(800);
    let long = format!("a.{long}.{long}.b");
    let all = [
        "a",
        "a.b",
        "a.b.c",
        "a.c",
        "a-b",
        "a-b.c",
        "a b.c",
        "A.b",
        "b.a",
        "b.a.b",
        "b.c.a.b",
        "ü.b",
        "a.ü",
        long.as_str(),
        "ab",
    ];
    for namespace in all {
        for key in ["k", "l"] {
            put(store, tenant, namespace, key, None).await;
        }
    }
    // Found by index under another name.
    put(store, tenant, "a", &"k".repeat(1100), None).await;
    put(store, other, "not.ours", "k", None).await;
    let wanted = |labels: &[&str], part: &[&str]| {
        part.len() <= labels.len()
            && part
                .iter()
                .zip(labels)
                .all(|(want, label)| *want == "*" || want == label)
    };
    for prefix in ["", "a", "a.b", "*", "*.b", "b.*", "a-b"] {
        for suffix in ["", "b", "a.b", "*.b", "c"] {
            for depth in [None, Some(1), Some(2)] {
                for (limit, offset) in [(100, 0), (2, 0), (3, 2), (1, 50)] {
                    let asked = format!("prefix {prefix:?}, suffix {suffix:?}, depth {depth:?}, {limit} from {offset}");
                    let part = |part: &'static str| -> Vec<&'static str> {
                        part.split('.').filter(|one| !one.is_empty()).collect()
                    };
                    let mut expected: Vec<Vec<String>> = Vec::new();
                    for namespace in BTreeSet::from(all) {
                        let labels: Vec<&str> = namespace.split('.').collect();
                        let (mut back, mut end) = (labels.clone(), part(suffix));
                        back.reverse();
                        end.reverse();
                        let cut = labels.iter().take(depth.unwrap_or(usize::MAX));
                        let cut: Vec<String> = cut.map(|label| (*label).to_owned()).collect();
                        if wanted(&labels, &part(prefix)) && wanted(&back, &end) && !expected.contains(&cut) {
                            expected.push(cut);
                        }
                    }
                    let expected: Vec<_> = expected.into_iter().skip(offset).take(limit).collect();
                    let (prefix, suffix) = (space(prefix), space(suffix));
                    let found = store
                        .read(async |tx| items::namespaces(tx, tenant, &prefix, &suffix, depth, limit, offset).await)
                        .await
                        .unwrap();
                    assert_eq!(found, expected, "{asked}");
                }
            }
        }
    }
}

/// The most memory this process has had, in bytes.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes * 1024
}

/// A hundred thousand, of 400 bytes each: all of them would take a hundred megabytes.
async fn of_many_namespaces_only_those_asked_for_are_in_memory(database: Database) {
    const MOST: u64 = 48 << 20;
    let store = &database.store;
    let tenant = TenantId(Uuid::from_u128(1));
    let text = match store.dialect() {
        towpath_store::Dialect::Sqlite => {
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
             INSERT INTO store_item (tenant_id, namespace, key, value, created_at, updated_at)
             SELECT x'00000000000000000000000000000001', 'top.' || printf('%0400d', i) || '.end', 'k', '{}', 0, 0 FROM n"
        }
        towpath_store::Dialect::Postgres => {
            "INSERT INTO store_item (tenant_id, namespace, key, value, created_at, updated_at)
             SELECT '00000000-0000-0000-0000-000000000001', 'top.' || lpad(i::text, 400, '0') || '.end', 'k', '{}', now(), now()
             FROM generate_series(1, 100000) AS i"
        }
    };
    store.write(async |tx| run(tx, text).await).await.unwrap();
    let before = most_memory();
    for (prefix, suffix, depth) in [
        ("top", "", None),
        ("", "end", None),
        ("*", "", None),
        ("top", "*.end", Some(2)),
    ] {
        let (prefix, suffix) = (space(prefix), space(suffix));
        let found = store
            .read(async |tx| items::namespaces(tx, tenant, &prefix, &suffix, depth, 3, 2).await)
            .await
            .unwrap();
        let numbers: Vec<u32> = found.iter().map(|labels| labels[1].parse().unwrap()).collect();
        assert_eq!(numbers, [3, 4, 5]);
    }
    let more = most_memory() - before;
    assert!(
        more < MOST,
        "listing three of 100,000 namespaces took {} MB",
        more >> 20
    );
}
