//! A caller may be dropped anywhere: a request whose client hung up, a handler whose lease is gone.

use towpath_store::{Conn, Error, Result, Tx};

use crate::database::{Database, Polls, note};

/// Drops writes at the points where they wait, each between two neighbours of the same group.
async fn a_write_dropped_anywhere_harms_nobody(database: Database) {
    let mut dropped = 0;
    for nth in 0.. {
        if nth >= 200 && dropped > 20 {
            break;
        }
        // Each poll of a write does more of it where the machine is busy, and fewer are dropped.
        assert!(nth < 2000, "only {dropped} of {nth} writes were dropped");
        let polls = 1 + nth % 6;
        let (one, two) = (format!("dropped {nth}"), format!("dropped {nth} too"));
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
        // Tasks of their own: each is polled only when it can continue.
        let before = tokio::spawn(writing(vec![format!("before {nth}")]));
        let dropped_one = tokio::spawn(Polls::new(writing(vec![one.clone(), two.clone()]), polls));
        let after = tokio::spawn(writing(vec![format!("after {nth}")]));
        let before = before.await.unwrap();
        let done = dropped_one.await.unwrap();
        let after = after.await.unwrap();
        before.unwrap();
        after.unwrap();
        let notes = database.notes().await;
        assert!(notes.contains(&format!("before {nth}")) && notes.contains(&format!("after {nth}")));
        dropped += u32::from(was_dropped(done, &notes, &one, &two));
    }
}

/// Whether a write of two notes was dropped before its answer; both are there or neither, and both if it was answered.
fn was_dropped(answer: Option<Result<()>>, notes: &[String], one: &String, two: &String) -> bool {
    assert_eq!(
        notes.contains(one),
        notes.contains(two),
        "half of a dropped write was kept"
    );
    let dropped = answer.is_none();
    if let Some(answered) = answer {
        answered.unwrap();
        assert!(notes.contains(one), "a write that was answered is there");
    }
    dropped
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

/// The same with no one beside it, so that what it left open is met by the committer or by the next writer.
#[tokio::test]
async fn a_dropped_write_leaves_nothing_open() {
    for pause in [false, true] {
        let database = Database::sqlite().await;
        for nth in 0..100 {
            let polls = 1 + nth % 6;
            let store = database.store.clone();
            let write = async move {
                store
                    .write(async |tx| note(tx, &format!("dropped {polls}")).await)
                    .await
            };
            tokio::spawn(Polls::new(write, polls)).await.unwrap();
            if pause {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
            database
                .store
                .write(async |tx| note(tx, &format!("after {nth}")).await)
                .await
                .unwrap();
            // Visible to a reader only when committed.
            assert!(database.notes().await.contains(&format!("after {nth}")));
        }
    }
}

/// One call that is a transaction by itself on SQLite, dropped wherever it waits.
#[tokio::test]
async fn a_single_call_dropped_anywhere_harms_nobody() {
    let database = Database::sqlite().await;
    let mut dropped = 0;
    for nth in 0..200 {
        let (one, two) = (format!("dropped {nth} one"), format!("dropped {nth} two"));
        let store = database.store.clone();
        let write = async move { store.write_one(async |tx| two_notes(tx, nth).await).await };
        let done = tokio::spawn(Polls::new(write, 1 + nth % 4)).await.unwrap();
        let after = format!("after {nth}");
        database.store.write(async |tx| note(tx, &after).await).await.unwrap();
        let notes = database.notes().await;
        assert!(notes.contains(&after));
        dropped += u32::from(was_dropped(done, &notes, &one, &two));
    }
    println!("dropped {dropped} of 200");
    assert!(dropped > 20, "only {dropped} were dropped");
}

#[tokio::test]
async fn a_single_call_that_fails_is_undone() {
    let database = Database::sqlite().await;
    let store = &database.store;
    store.write(async |tx| note(tx, "dropped 1 two").await).await.unwrap();
    let refused = store.write_one(async |tx| two_notes(tx, 1).await).await;
    assert!(matches!(refused, Err(Error::Conflict { column }) if column == "note.text"));
    store.write_one(async |tx| two_notes(tx, 2).await).await.unwrap();
    assert_eq!(
        database.notes().await,
        ["dropped 1 two", "dropped 2 one", "dropped 2 two"]
    );
}

/// Two statements that are one call and one transaction.
async fn two_notes(tx: &mut Tx<'_>, nth: usize) -> Result<()> {
    let Conn::Sqlite(conn) = tx.conn() else {
        unreachable!("these are tests of SQLite")
    };
    let nth = i64::try_from(nth).unwrap();
    sqlx::query(
        "BEGIN IMMEDIATE;
         INSERT INTO note VALUES (format('dropped %d one', $1));
         INSERT INTO note VALUES (format('dropped %d two', $1));
         COMMIT",
    )
    .bind(nth)
    .execute(conn)
    .await?;
    Ok(())
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
