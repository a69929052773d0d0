//! Whether a process was given the installation's encryption key.

use std::time::Duration;

use towpath_domain::{TenantId, TraceRunId};
use towpath_store::sealed::{self, Count, KeyStatus};
use towpath_store::sealing::{Keys, Sealer};
use towpath_store::{Store, feedback_tokens};

use crate::database::Database;
use crate::jobs::on_both;

on_both!(
    the_first_key_is_the_installations,
    what_is_sealed_already_names_the_key,
    records_are_counted_by_key,
);

/// With keys of these bytes, the first of which seals.
fn sealer(fills: &[u8]) -> Sealer {
    let keys: Vec<String> = fills.iter().map(|fill| format!("{fill:02x}").repeat(32)).collect();
    Sealer::new(Keys::parse(&keys.join(",")).unwrap())
}

fn id(fill: u8) -> String {
    sealer(&[fill]).key_ids().concat()
}

async fn ensure(store: &Store, fills: &[u8]) -> KeyStatus {
    let sealer = sealer(fills);
    store.write(async |tx| sealed::ensure(tx, &sealer).await).await.unwrap()
}

async fn needed(store: &Store) -> Option<String> {
    store.read(async |tx| sealed::needed_key(tx).await).await.unwrap()
}

async fn seal(store: &Store, fill: u8) {
    let sealer = sealer(&[fill]);
    let new = feedback_tokens::NewToken {
        run: TraceRunId::new(),
        key: "good".to_owned(),
        feedback: None,
        config: None,
        expires_at: store.clock().now().plus(Duration::from_secs(60)),
    };
    let made = store.write(async |tx| feedback_tokens::insert(tx, TenantId::nil(), &sealer, &new).await);
    made.await.unwrap();
}

async fn the_first_key_is_the_installations(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    assert_eq!(needed(&store).await, None, "any key will do");
    assert_eq!(ensure(&store, &[1]).await, KeyStatus::Known);
    assert_eq!(needed(&store).await, Some(id(1)));
    assert_eq!(ensure(&store, &[2]).await, KeyStatus::Unknown { key: id(1) });
    assert_eq!(ensure(&store, &[2, 1]).await, KeyStatus::Known, "while it is replaced");
    assert_eq!(ensure(&store, &[1]).await, KeyStatus::Known);
    let canary = store.read(async |tx| sealed::canary(tx).await).await.unwrap().unwrap();
    assert_eq!(sealed::key_status(&sealer(&[1]), &canary), KeyStatus::Known);
    assert_eq!(
        sealed::key_status(&sealer(&[2]), &canary),
        KeyStatus::Unknown { key: id(1) }
    );
}

async fn what_is_sealed_already_names_the_key(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    seal(&store, 1).await;
    assert_eq!(needed(&store).await, Some(id(1)));
    assert_eq!(ensure(&store, &[2]).await, KeyStatus::Unknown { key: id(1) });
    assert_eq!(ensure(&store, &[2, 1]).await, KeyStatus::Known);
    assert_eq!(needed(&store).await, Some(id(2)), "it is the one that seals");
}

async fn records_are_counted_by_key(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    for fill in [1, 2, 1] {
        seal(&store, fill).await;
    }
    let counts = store.read(async |tx| sealed::counts(tx).await).await.unwrap();
    let count = |fill, rows| Count {
        table: "feedback_token",
        column: "token",
        key: id(fill),
        rows,
    };
    assert_eq!(counts.len(), 2, "{counts:?}");
    for expected in [count(1, 2), count(2, 1)] {
        assert!(counts.contains(&expected), "{expected:?} is not in {counts:?}");
    }
}
