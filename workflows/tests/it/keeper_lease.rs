//! The keeper lease: one process of an installation runs deployments.

use std::time::Duration;

use towpath_store::deployment_keepers::Claim;
use towpath_store::{Options, Store};
use towpath_testing::Database;
use towpath_workflows::keeper::{KeeperLease, LeaseLost};
use uuid::Uuid;

const TIME: Duration = Duration::from_secs(3);

async fn postgres() -> Option<(Store, Database)> {
    let database = Database::empty_postgres().await?;
    let store = Store::open(&database.uri, Options::default()).await.unwrap();
    store.migrate().await.unwrap();
    Some((store, database))
}

fn lease(store: &Store, host_id: Uuid) -> KeeperLease {
    let claim = Claim {
        host_id,
        host: "machine".to_owned(),
        pid: 7,
        life: Uuid::now_v7(),
    };
    KeeperLease::new(store.clone(), claim, TIME)
}

#[tokio::test]
async fn a_lease_that_another_process_took_is_lost() {
    let Some((store, _database)) = postgres().await else {
        return;
    };
    let machine = Uuid::now_v7();
    let first = lease(&store, machine);
    let taken = first.acquire().await.unwrap().unwrap();
    let other = lease(&store, Uuid::now_v7());
    let holder = other.acquire().await.unwrap().unwrap_err();
    assert_eq!(holder.to_string(), "process 7 on machine");

    let restarted = lease(&store, machine);
    restarted.acquire().await.unwrap().unwrap();
    assert_eq!(first.renew_until_lost(taken).await, LeaseLost::TakenOver);
    // The lease is lost.
    first.release().await;
    assert!(other.acquire().await.unwrap().is_err());
    restarted.release().await;
    assert!(other.acquire().await.unwrap().is_ok(), "given back, it is free at once");
}

#[tokio::test]
async fn a_lease_ends_here_before_it_does_in_a_database_that_is_silent() {
    let Some((store, _database)) = postgres().await else {
        return;
    };
    let lease = lease(&store, Uuid::now_v7());
    let taken = lease.acquire().await.unwrap().unwrap();
    store.close().await;
    let lost = tokio::time::timeout(TIME, lease.renew_until_lost(taken)).await;
    assert_eq!(lost, Ok(LeaseLost::DatabaseSilent), "its time there was over before");
}
