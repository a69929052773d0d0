//! A statement that takes too long. On PostgreSQL, where the server ends it.

use towpath_store::{Store, on};

use crate::database::{Database, run};

async fn ask(store: &Store, text: &'static str) -> String {
    store
        .read(async |tx| Ok(on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_slow_statement_costs_its_caller_alone() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let limit = ask(&store, "SHOW statement_timeout").await;
    assert_eq!(
        limit, "8s",
        "also of the session that migrated, which had none for that"
    );
    let session = ask(&store, "SELECT pg_backend_pid()::text").await;
    let slow = store
        .write(async |tx| {
            run(tx, "SET LOCAL statement_timeout = '20ms'").await?;
            run(tx, "SELECT pg_sleep(60)").await
        })
        .await
        .unwrap_err();
    assert!(slow.is_transient(), "{slow:?}");
    assert_eq!(ask(&store, "SELECT pg_backend_pid()::text").await, session);
    assert_eq!(ask(&store, "SHOW statement_timeout").await, "8s");
}
