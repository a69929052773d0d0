//! Who runs deployments, as each database says it.

use std::time::Duration;

use towpath_store::deployment_keepers::{self, Claim, Keeper};
use towpath_store::{Dialect, Store};
use uuid::Uuid;

use crate::database::Database;
use crate::jobs::on_both;

on_both!(one_process_keeps_deployments, what_is_over_or_was_given_back_is_free);

const LEASE: Duration = Duration::from_secs(60);

fn claim(host_id: Uuid, pid: i64) -> Claim {
    Claim {
        host_id,
        host: format!("machine {pid}"),
        pid,
        life: Uuid::now_v7(),
    }
}

async fn take(store: &Store, claim: &Claim, lease: Duration) -> bool {
    let taken = store.write(async |tx| deployment_keepers::take(tx, claim, lease).await);
    taken.await.unwrap()
}

async fn renew(store: &Store, claim: &Claim) -> bool {
    let renewed = store.write(async |tx| deployment_keepers::renew(tx, claim.life, LEASE).await);
    renewed.await.unwrap()
}

async fn current(store: &Store) -> Option<Keeper> {
    store
        .read(async |tx| deployment_keepers::current(tx).await)
        .await
        .unwrap()
}

async fn one_process_keeps_deployments(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    assert_eq!(current(&store).await, None);
    let (folder, other) = (Uuid::now_v7(), Uuid::now_v7());
    let first = claim(folder, 1);
    assert!(take(&store, &first, LEASE).await);
    let expected = Keeper {
        host_id: folder,
        host: "machine 1".to_owned(),
        pid: 1,
        life: first.life,
        is_alive: true,
    };
    assert_eq!(current(&store).await, Some(expected));
    let second = claim(other, 2);
    match store.dialect() {
        // Its file has one process at a time.
        Dialect::Sqlite => {
            assert!(take(&store, &second, LEASE).await);
            assert!(renew(&store, &second).await && !renew(&store, &first).await);
        }
        Dialect::Postgres => {
            assert!(!take(&store, &second, LEASE).await, "the first one's time is not over");
            assert!(renew(&store, &first).await && !renew(&store, &second).await);
        }
    }
    let restarted = claim(folder, 3);
    assert!(
        take(&store, &restarted, LEASE).await,
        "whoever has the folder's lock has it alone"
    );
    assert!(!renew(&store, &first).await);
    assert!(renew(&store, &restarted).await);
}

async fn what_is_over_or_was_given_back_is_free(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (first, second, third) = (
        claim(Uuid::now_v7(), 1),
        claim(Uuid::now_v7(), 2),
        claim(Uuid::now_v7(), 3),
    );
    // Over before anyone asks.
    assert!(take(&store, &first, Duration::ZERO).await);
    if store.dialect() == Dialect::Postgres {
        assert!(!current(&store).await.unwrap().is_alive);
    }
    assert!(take(&store, &second, LEASE).await);
    store
        .write(async |tx| deployment_keepers::end(tx, first.life).await)
        .await
        .unwrap();
    assert!(renew(&store, &second).await, "the end of another is not its own");
    store
        .write(async |tx| deployment_keepers::end(tx, second.life).await)
        .await
        .unwrap();
    assert_eq!(current(&store).await, None);
    assert!(take(&store, &third, LEASE).await);
}
