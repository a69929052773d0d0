//! Wakes that arrive at a bad moment. The workers here do not poll.

use towpath_domain::job::JobState;

use crate::support::{Database, Op, PATIENCE, Script, World};

/// A child that ends locks its parent's row. A worker that scans meanwhile skips the row, so it must be woken once the
/// row is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ready_parent_that_was_locked_when_a_worker_looked_is_found() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let children = vec![Script::new("b", [Op::Fatal]), Script::new("c", [])];
    let parent = world.start(Script::new("a", [Op::Children(children, None)])).await;
    let claimed = world.claim(1).await.remove(0);
    world.perform(claimed).await;
    let mut claimed = world.claim(2).await;
    let second = claimed.pop().unwrap();
    world.perform(claimed.pop().unwrap()).await;
    assert_eq!(world.job(parent).await.state, JobState::Ready);
    // The end of the second child waits for this table, with its parent's row already locked.
    let (locked, release) = (
        std::sync::Arc::new(tokio::sync::Notify::new()),
        std::sync::Arc::new(tokio::sync::Notify::new()),
    );
    let holding = tokio::spawn({
        let (store, locked, release) = (world.store.clone(), locked.clone(), release.clone());
        async move {
            store
                .write(async |tx| {
                    towpath_store::on!(tx, |conn| sqlx::query("DELETE FROM effect WHERE name = 'none'")
                        .execute(conn)
                        .await
                        .map(drop))?;
                    let towpath_store::Conn::Postgres(conn) = tx.conn() else {
                        unreachable!("only on PostgreSQL")
                    };
                    sqlx::query("LOCK TABLE effect IN EXCLUSIVE MODE").execute(conn).await?;
                    crate::support::stand_still(tx).await?;
                    locked.notify_one();
                    release.notified().await;
                    Ok(())
                })
                .await
        }
    });
    locked.notified().await;
    let settling = world.perform(second);
    let looking = async {
        world.until_somebody_waits_for_a_lock().await;
        let workers = world.patient_workers(1);
        world.until_seen(&workers).await;
        // Its first scan has ended when it claims something else.
        let other = world.start(Script::new("other", [Op::Done])).await;
        world.until_over(other).await;
        assert_eq!(world.job(parent).await.state, JobState::Ready);
        release.notify_one();
        workers
    };
    let ((), workers) = tokio::join!(settling, looking);
    holding.await.unwrap().unwrap();
    assert_eq!(world.until_over(parent).await.state, JobState::Succeeded);
    workers.drain(PATIENCE).await;
}
