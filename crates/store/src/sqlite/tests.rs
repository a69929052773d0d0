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

const BEGIN: &str = "BEGIN IMMEDIATE";
const SAVE: &str = "SAVEPOINT caller";
const NOTE: &str = "INSERT INTO note VALUES ('a')";
const RELEASE: &str = "RELEASE caller";
const BACK: &str = "ROLLBACK TO caller";

/// What was executed for a first caller, that is done or was dropped, and for a second one, that was dropped; where it
/// was, and how many of their notes are kept.
const STORIES: [(&[&str], WriterState, i64); 13] = [
    (&[], WriterState::Beginning, 0),
    (&[BEGIN], WriterState::Beginning, 0),
    (&[BEGIN, SAVE], WriterState::Beginning, 0),
    (&[BEGIN, SAVE], WriterState::InClosure, 0),
    (&[BEGIN, SAVE, NOTE], WriterState::InClosure, 0),
    (&[BEGIN, SAVE, NOTE, BACK], WriterState::InClosure, 0),
    (&[BEGIN, SAVE, NOTE, BACK, RELEASE], WriterState::InClosure, 0),
    (&[BEGIN, SAVE, NOTE], WriterState::OpeningSavepoint, 1),
    (&[BEGIN, SAVE, NOTE, RELEASE], WriterState::OpeningSavepoint, 1),
    (&[BEGIN, SAVE, NOTE, RELEASE, SAVE], WriterState::OpeningSavepoint, 1),
    (&[BEGIN, SAVE, NOTE, RELEASE, SAVE, NOTE], WriterState::InClosure, 1),
    // A call that is a transaction by itself.
    (&[BEGIN, NOTE], WriterState::Beginning, 0),
    (&[BEGIN, NOTE, "COMMIT"], WriterState::Beginning, 1),
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
            writer.open = at != WriterState::Beginning;
            writer.savepoint_open = writer.open;
            writer.state = at;
        }
        store
            .write(async |tx| run(tx, "INSERT INTO note VALUES ('next')").await)
            .await
            .unwrap();
        assert_eq!(count(&store).await, kept + 1, "after {statements:?}");
        assert!(store.writer.lock().await.state == WriterState::Idle);
    }
}

/// A caller that fails takes nothing along of those before it and after it.
#[tokio::test]
async fn a_caller_that_fails_fails_alone() {
    let (_folder, store) = open().await;
    let mut writer = store.writer.lock().await;
    let mut answers = Vec::new();
    for fails in [true, false, true, true, false, false] {
        writer.enter().await.unwrap();
        writer.conn.execute(NOTE).await.unwrap();
        if fails {
            writer.roll_back_unfinished(None).await;
        } else {
            answers.push(writer.leave(Hints::default()));
        }
    }
    drop(writer);
    store.commit_signal.notify_one();
    for answer in answers {
        assert!(answer.await.unwrap().is_ok());
    }
    assert_eq!(count(&store).await, 3);
}

/// SQLite rolled back the whole transaction while a caller of the same group already waited for its commit.
#[tokio::test]
async fn a_group_that_vanished_is_not_answered_as_committed() {
    for (at, begun_anew) in [
        (WriterState::Idle, false),
        (WriterState::OpeningSavepoint, false),
        (WriterState::InClosure, false),
        (WriterState::CheckingTransaction, true),
    ] {
        let (_folder, store) = open().await;
        let committed = {
            let mut writer = store.writer.lock().await;
            writer.enter().await.unwrap();
            writer.conn.execute("INSERT INTO note VALUES ('lost')").await.unwrap();
            let committed = writer.leave(Hints::default());
            writer.conn.execute("ROLLBACK").await.unwrap();
            if begun_anew {
                writer.conn.execute("BEGIN").await.unwrap();
            }
            writer.state = at;
            committed
        };
        store
            .write(async |tx| run(tx, "INSERT INTO note VALUES ('next')").await)
            .await
            .unwrap();
        assert!(matches!(committed.await.unwrap(), Err(CommitFailure::Unavailable(_))));
        assert_eq!(count(&store).await, 1);
    }
}

/// A call that is a transaction by itself is so only while no other caller writes; with others it shares their commit.
#[tokio::test]
async fn a_single_call_joins_whoever_writes() {
    let (_folder, store) = open().await;
    let alone = async || {
        store
            .write_one(async |tx| {
                let alone = tx.is_single_statement();
                run(tx, NOTE).await?;
                Ok(alone)
            })
            .await
            .unwrap()
    };
    assert!(alone().await);

    // The committer comes after the call that already waits.
    let mut writer = store.writer.lock().await;
    writer.enter().await.unwrap();
    writer.conn.execute(NOTE).await.unwrap();
    let committed = writer.leave(Hints::default());
    let joins = alone();
    tokio::pin!(joins);
    assert!(futures::poll!(joins.as_mut()).is_pending());
    drop(writer);
    store.commit_signal.notify_one();
    assert!(!joins.await);
    assert!(committed.await.unwrap().is_ok());
    assert_eq!(count(&store).await, 3);

    let writer = store.writer.lock().await;
    let (first, second) = (alone(), alone());
    let both = futures::future::join(first, second);
    tokio::pin!(both);
    assert!(futures::poll!(both.as_mut()).is_pending());
    drop(writer);
    assert_eq!(both.await, (false, false), "the first saw the second wait");
    assert_eq!(count(&store).await, 5);
    assert_eq!(store.waiting_callers.load(Ordering::Relaxed), 0);

    // Who wrote in company expects it for a while, and is alone again when no one came.
    for _ in 0..GROUP_EXPECTATION {
        assert!(!alone().await);
    }
    assert!(alone().await);
}
