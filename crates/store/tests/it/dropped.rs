//! A caller may be dropped anywhere: a request whose client hung up, a handler whose lease is gone.

use towpath_store::Error;

use crate::database::{Database, Polls, note};

/// Drops a write at each point where it can wait, one after another, with a neighbour in the same group, and writes
/// again after each.
async fn a_write_dropped_anywhere_harms_nobody(database: Database) {
    let mut dropped = 0;
    for polls in 1.. {
        let (one, two) = (format!("dropped {polls}"), format!("dropped {polls} too"));
        let writing = |texts: Vec<String>| {
            let store = database.store.clone();
            async move {
                store
                    .write(async |tx| {
                        for text in &texts {
                            note(tx, text).await?;
                        }
                        Ok(())
                    })
                    .await
            }
        };
        // Tasks of their own: each is polled only when it can go on.
        let before = tokio::spawn(writing(vec![format!("before {polls}")]));
        let dropped_one = tokio::spawn(Polls::new(writing(vec![one.clone(), two.clone()]), polls));
        let after = tokio::spawn(writing(vec![format!("after {polls}")]));
        let before = before.await.unwrap();
        let done = dropped_one.await.unwrap();
        let after = after.await.unwrap();
        before.unwrap();
        after.unwrap();
        let notes = database.notes().await;
        assert!(notes.contains(&format!("before {polls}")) && notes.contains(&format!("after {polls}")));
        assert_eq!(
            notes.contains(&one),
            notes.contains(&two),
            "half of a dropped write was kept"
        );
        match done {
            Some(done) => {
                done.unwrap();
                assert!(notes.contains(&one), "a write that was answered is there");
                break;
            }
            None => dropped += 1,
        }
    }
    println!("dropped at {dropped} points");
    assert!(dropped >= 4, "it was dropped at {dropped} points only");
}

#[tokio::test]
async fn a_write_dropped_anywhere_harms_nobody_on_sqlite() {
    a_write_dropped_anywhere_harms_nobody(Database::sqlite().await).await;
}

#[tokio::test]
async fn a_write_dropped_anywhere_harms_nobody_on_postgres() {
    if let Some(database) = Database::postgres().await {
        a_write_dropped_anywhere_harms_nobody(database).await;
    }
}

/// The same with nobody beside it, so that what it left open is met by the committer or by the next writer.
#[tokio::test]
async fn a_dropped_write_leaves_nothing_open() {
    for pause in [false, true] {
        let database = Database::sqlite().await;
        for polls in 1.. {
            let store = database.store.clone();
            let write = async move {
                store
                    .write(async |tx| note(tx, &format!("dropped {polls}")).await)
                    .await
            };
            let done = tokio::spawn(Polls::new(write, polls)).await.unwrap();
            if pause {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
            database
                .store
                .write(async |tx| note(tx, &format!("after {polls}")).await)
                .await
                .unwrap();
            // Visible to a reader only when committed.
            assert!(database.notes().await.contains(&format!("after {polls}")));
            if done.is_some() {
                println!("done after {polls} polls");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_rolls_back_alone() {
    let database = Database::sqlite().await;
    let good = database.store.write(async |tx| note(tx, "good").await);
    let bad = database.store.write(async |tx| {
        note(tx, "half").await?;
        note(tx, "good").await
    });
    let (good, bad) = tokio::join!(good, bad);
    good.unwrap();
    assert!(matches!(bad, Err(Error::Conflict { column }) if column == "note.text"));
    assert_eq!(database.notes().await, ["good"]);
}
