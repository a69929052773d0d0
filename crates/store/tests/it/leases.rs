//! Leases, as each database keeps them.

use std::time::Duration;

use towpath_domain::{Timestamp, WorkerId};
use towpath_store::{Dialect, Store, leases, on};

use crate::database::Database;
use crate::jobs::on_both;

on_both!(a_renewal_writes_only_where_leases_end_by_time);

async fn alive_until(store: &Store, worker: WorkerId) -> Timestamp {
    let until = store.read(async |tx| {
        Ok(on!(tx, |conn| sqlx::query_scalar(
            "SELECT alive_until FROM lease WHERE worker_id = $1"
        )
        .bind(worker)
        .fetch_one(conn)
        .await)?)
    });
    until.await.unwrap()
}

/// On SQLite it would be a commit of its own, again and again, in a process that has nothing to do.
async fn a_renewal_writes_only_where_leases_end_by_time(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let worker = WorkerId::new();
    let begun = store.write(async |tx| leases::begin(tx, worker, Duration::from_secs(15)).await);
    begun.await.unwrap();
    let before = alive_until(&store, worker).await;
    let renew = async || {
        let renewed = store.write_one(async |tx| leases::renew(tx, worker, Duration::from_secs(60)).await);
        renewed.await.unwrap()
    };
    assert!(renew().await);
    let after = alive_until(&store, worker).await;
    match store.dialect() {
        Dialect::Sqlite => assert_eq!(after, before),
        Dialect::Postgres => assert!(after > before),
    }
    store.write(async |tx| leases::end(tx, worker).await).await.unwrap();
    assert!(!renew().await, "its lease was ended");
}
