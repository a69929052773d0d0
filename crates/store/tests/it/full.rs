//! A database without room says so, loses nothing it has acknowledged, and continues once there is room again.

use towpath_domain::{TenantId, WorkerId};
use towpath_store::{Error, baseline, jobs};

use crate::database::{Database, note, run};

#[tokio::test]
async fn a_full_database_refuses_and_recovers() {
    let database = Database::sqlite().await;
    database.store.write(async |tx| note(tx, "first").await).await.unwrap();
    database
        .store
        .write(async |tx| run(tx, "PRAGMA max_page_count = 60").await)
        .await
        .unwrap();
    let large = "x".repeat(20_000);
    let mut kept = Vec::new();
    let mut refused = 0;
    for nth in 0..12 {
        let small = format!("small {nth}");
        let big = format!("{nth} {large}");
        // The small one shares its commit with the one there is no room for.
        let writes = tokio::join!(
            database.store.write(async |tx| note(tx, &small).await),
            database.store.write(async |tx| note(tx, &big).await),
        );
        for (text, written) in [(small, writes.0), (big, writes.1)] {
            match written {
                Ok(()) => kept.push(text),
                Err(Error::Full) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(refused > 0, "there was room for everything");
    let notes = database.notes().await;
    for text in &kept {
        assert!(notes.contains(text), "an acknowledged write is gone");
    }
    assert_eq!(notes.len(), kept.len() + 1, "something refused was written");
    database
        .store
        .write(async |tx| run(tx, "PRAGMA max_page_count = 100000").await)
        .await
        .unwrap();
    database.store.write(async |tx| note(tx, &large).await).await.unwrap();
    println!("kept {}, refused {refused}", kept.len());
}

/// A worker that looks for jobs and finds none has written nothing, and says nothing of the disk.
#[tokio::test]
async fn only_a_write_shows_that_there_is_room_again() {
    let database = Database::sqlite().await;
    let store = &database.store;
    let limit = async |pages: &'static str| store.write(async |tx| run(tx, pages).await).await.unwrap();
    limit("PRAGMA max_page_count = 60").await;
    let large = "x".repeat(1_000_000);
    let refused = store.write(async |tx| note(tx, &large).await).await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");

    limit("PRAGMA max_page_count = 100000").await;
    let said = store.check().await;
    assert!(matches!(said, Err(Error::Full)), "{said:?}");

    store.write(async |tx| note(tx, &large).await).await.unwrap();
    store.check().await.unwrap();
}

/// What was changed before the room ran out is undone, and says as little.
#[tokio::test]
async fn half_a_write_does_not_show_that_there_is_room() {
    let database = Database::sqlite().await;
    let store = &database.store;
    let limit = store.write(async |tx| run(tx, "PRAGMA max_page_count = 60").await);
    limit.await.unwrap();
    for times in 0..2 {
        let half = store.write(async |tx| {
            note(tx, "small").await?;
            // Of many rows, so that SQLite undoes this statement and not the whole transaction.
            let many = "INSERT INTO note WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) \
                        SELECT hex(randomblob(1000)) FROM n";
            run(tx, many).await
        });
        let refused = half.await;
        assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
        // Whatever else is in its group, and the look of a worker after it.
        store.write(async |_| Ok(())).await.unwrap();
        let said = store.check().await;
        assert!(matches!(said, Err(Error::Full)), "{times}: {said:?}");
    }
    assert_eq!(database.notes().await, Vec::<String>::new());
}

/// Nor does the claim after it that finds nothing, also where the one before found a job.
#[tokio::test]
async fn an_empty_claim_does_not_show_that_there_is_room() {
    let database = Database::sqlite().await;
    let store = &database.store;
    store.migrate().await.unwrap();
    let record = store.write(async |tx| baseline::backlog(tx, "a", "a", 1, &[TenantId::new()]).await);
    record.await.unwrap();
    let claim = async || {
        store
            .write_one(async |tx| jobs::claim(tx, &jobs::ClaimRequest::new("a", WorkerId::new(), 8)).await)
            .await
            .unwrap()
            .len()
    };
    assert_eq!(claim().await, 1);

    let limit = store.write(async |tx| run(tx, "PRAGMA max_page_count = 60").await);
    limit.await.unwrap();
    let large = "x".repeat(1_000_000);
    let refused = store.write(async |tx| note(tx, &large).await).await;
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    for times in 0..2 {
        assert_eq!(claim().await, 0);
        let said = store.check().await;
        assert!(matches!(said, Err(Error::Full)), "{times}: {said:?}");
    }
}
