//! A caller dropped at each statement, which was executed or was not.

use super::*;

async fn open() -> (tempfile::TempDir, Sqlite) {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("a.db"), &Options::default(), Arc::default())
        .await
        .unwrap();
    store
        .write(async |tx| run(tx, "CREATE TABLE note (text TEXT)").await)
        .await
        .unwrap();
    (folder, store)
}

async fn run(tx: &mut Tx<'_>, text: &'static str) -> Result<()> {
    Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?)
}

async fn count(store: &Sqlite) -> i64 {
    store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar("SELECT count(*) FROM note")
                .fetch_one(conn)
                .await)?)
        })
        .await
        .unwrap()
}

/// What was executed for the caller before it was dropped, where it was, and how many notes of its are kept.
const STORIES: [(&[&str], At, i64); 7] = [
    (&[], At::Begins, 0),
    (&["BEGIN IMMEDIATE"], At::Begins, 0),
    (&["BEGIN IMMEDIATE"], At::Inside, 0),
    (&["BEGIN IMMEDIATE", "SAVEPOINT caller"], At::Inside, 0),
    (
        &["BEGIN IMMEDIATE", "SAVEPOINT caller", "INSERT INTO note VALUES ('a')"],
        At::Inside,
        0,
    ),
    (
        &["BEGIN IMMEDIATE", "SAVEPOINT caller", "INSERT INTO note VALUES ('a')"],
        At::Leaves,
        1,
    ),
    (
        &[
            "BEGIN IMMEDIATE",
            "SAVEPOINT caller",
            "INSERT INTO note VALUES ('a')",
            "RELEASE caller",
        ],
        At::Leaves,
        1,
    ),
];

#[tokio::test]
async fn whoever_comes_next_puts_it_right() {
    for (statements, at, kept) in STORIES {
        let (_folder, store) = open().await;
        {
            let mut writer = store.writer.lock().await;
            for statement in statements {
                writer.conn.execute(*statement).await.unwrap();
            }
            writer.open = at != At::Begins;
            writer.at = at;
        }
        store
            .write(async |tx| run(tx, "INSERT INTO note VALUES ('next')").await)
            .await
            .unwrap();
        assert_eq!(count(&store).await, kept + 1, "after {statements:?}");
        assert!(store.writer.lock().await.at == At::Rest);
    }
}

/// SQLite rolled back the whole transaction while a caller of the same group already waited for its commit.
#[tokio::test]
async fn a_group_that_vanished_is_not_answered_as_committed() {
    for (at, begun_anew) in [(At::Inside, false), (At::Asks, true)] {
        let (_folder, store) = open().await;
        let committed = {
            let mut writer = store.writer.lock().await;
            writer.enter().await.unwrap();
            writer.conn.execute("INSERT INTO note VALUES ('lost')").await.unwrap();
            let committed = writer.leave(Hints::default()).await.unwrap();
            writer.conn.execute("ROLLBACK").await.unwrap();
            if begun_anew {
                writer.conn.execute("BEGIN").await.unwrap();
            }
            writer.at = at;
            committed
        };
        store
            .write(async |tx| run(tx, "INSERT INTO note VALUES ('next')").await)
            .await
            .unwrap();
        assert!(matches!(committed.await.unwrap(), Err(Refused::Unavailable(_))));
        assert_eq!(count(&store).await, 1);
    }
}
