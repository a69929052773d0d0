//! Reading continues while a caller writes, and sees only what is committed.

use std::time::Duration;

use tokio::sync::Notify;
use towpath_store::{Options, Store};

use crate::database::{Database, note};
use crate::migrations::EmptyDatabase;

async fn a_reader_sees_only_whole_commits(database: Database) {
    let looked = Notify::new();
    let writing = async {
        for nth in 0..200 {
            // A reader may need as long for its first connection as all these writes take.
            if nth == 100 {
                looked.notified().await;
            }
            database
                .store
                .write(async |tx| {
                    note(tx, &format!("{nth} a")).await?;
                    note(tx, &format!("{nth} b")).await
                })
                .await
                .unwrap();
        }
    };
    let reading = async {
        let mut looks = 0;
        loop {
            let seen = database.notes().await.len();
            looks += 1;
            looked.notify_one();
            assert_eq!(seen % 2, 0, "half of a commit was seen");
            if seen == 400 {
                return looks;
            }
            tokio::task::yield_now().await;
        }
    };
    let ((), looks) = tokio::join!(writing, reading);
    println!("looked {looks} times");
    assert!(looks > 1);
}

#[tokio::test]
async fn a_reader_sees_only_whole_commits_on_sqlite() {
    a_reader_sees_only_whole_commits(Database::sqlite().await).await;
}

#[tokio::test]
async fn a_reader_sees_only_whole_commits_on_postgres() {
    if let Some(database) = Database::postgres().await {
        a_reader_sees_only_whole_commits(database).await;
    }
}

async fn calls_for_connections_are_counted(fresh: EmptyDatabase) {
    let options = Options {
        connections: 1,
        acquire_timeout: Duration::from_millis(50),
        ..Options::default()
    };
    let store = Store::open(&fresh.uri, options).await.unwrap();
    // The first connection may take longer to open than such a timeout.
    let opened = async || store.read(async |_| Ok(())).await.is_ok();
    while !opened().await {}
    let before = store.connections();
    assert_eq!((before.limit, before.busy, before.idle), (1, 0, 1));
    let during = store.read(async |_| {
        let second = store.read(async |_| Ok(())).await;
        Ok((second.is_err(), store.connections()))
    });
    let (is_refused, during) = during.await.unwrap();
    assert!(is_refused, "there is no second connection");
    assert_eq!((during.limit, during.busy, during.idle), (1, 1, 0));
    assert_eq!((during.waits, during.failures), (before.waits + 1, before.failures + 1));
    let after = store.connections();
    assert_eq!((after.busy, after.idle), (0, 1));
    assert_eq!((after.waits, after.failures), (during.waits, during.failures));
    store.close().await;
}

#[tokio::test]
async fn calls_for_connections_are_counted_on_sqlite() {
    calls_for_connections_are_counted(EmptyDatabase::sqlite()).await;
}

#[tokio::test]
async fn calls_for_connections_are_counted_on_postgres() {
    if let Some(fresh) = EmptyDatabase::postgres().await {
        calls_for_connections_are_counted(fresh).await;
    }
}

#[tokio::test]
async fn a_reader_does_not_wait_for_a_writer() {
    let database = Database::sqlite().await;
    database.store.write(async |tx| note(tx, "first").await).await.unwrap();
    let notes = database
        .store
        .write(async |tx| {
            note(tx, "second").await?;
            Ok(database.notes().await)
        })
        .await
        .unwrap();
    assert_eq!(notes, ["first"], "read in the middle of the write");
    assert_eq!(database.notes().await, ["first", "second"]);
}
