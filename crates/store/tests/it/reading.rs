//! Reading continues while a caller writes, and sees only what is committed.

use tokio::sync::Notify;

use crate::database::{Database, note};

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
