//! Jobs that are recorded in the transaction of the next claim: on SQLite, by the claimer of this process.

use std::sync::Arc;

use futures::future::BoxFuture;
use towpath_domain::TenantId;
use towpath_durable::{BatchedWrite, Start};
use towpath_queue::Queue;
use towpath_store::{self as store, Dialect, Tx};
use towpath_workers::Workers;

use crate::on_each;
use crate::support::{Database, Op, PATIENCE, Script, World};

/// A script to record. One with the name [`Script::REFUSED`] is refused.
#[derive(Debug)]
struct Recorded {
    tenant: TenantId,
    script: Script,
}

impl BatchedWrite for Recorded {
    fn write<'a, 'c: 'a>(
        &'a self,
        tx: &'a mut Tx<'c>,
        all: &'a [Arc<dyn BatchedWrite>],
    ) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async move {
            for Self { tenant, script } in towpath_durable::of_type(all) {
                if script.name == Script::REFUSED {
                    return Err(store::Error::NotFound);
                }
                towpath_durable::start(tx, script, Start::new(*tenant)).await?;
            }
            Ok(())
        })
    }
}

impl World {
    /// Whether a script with `op` was recorded in a claim batch of the workers.
    async fn joins(&self, name: &str, op: Op) -> bool {
        let recorded = Recorded {
            tenant: self.tenant,
            script: Script::new(name, [op]),
        };
        self.engine
            .record_with_next_claim(Script::POOL_NAME, Arc::new(recorded))
            .await
    }

    /// Workers that are not woken and do not poll within a test. They have a lease.
    async fn deaf_workers(&self, slots: usize) -> Workers {
        let workers = self.workers_with(slots, PATIENCE * 4, &Queue::local());
        workers.leased().await;
        workers
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_joins_a_turn_is_claimed_by_it() {
    let world = World::new(Database::sqlite().await).await;
    let _workers = world.deaf_workers(4).await;
    for name in ["a", "b", "c"] {
        assert!(world.joins(name, Op::Effect(name.to_owned())).await);
    }
    world.until_drained().await;
    let effects = world.effects().await;
    assert!(
        ["a", "b", "c"].iter().all(|name| effects.iter().any(|e| e == name)),
        "{effects:?}"
    );
    world.check_invariants().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_recorded_though_every_slot_is_taken() {
    let world = World::new(Database::sqlite().await).await;
    let _workers = world.deaf_workers(1).await;
    assert!(world.joins("first", Op::Gate("lock".to_owned())).await);
    world.until_noted("first at lock", 1).await;
    assert!(world.joins("second", Op::Done).await);
    assert_eq!(world.count("SELECT count(*) FROM job WHERE state = 'ready'").await, 1);
    world.shared.open("lock");
    world.until_drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_refused_takes_no_other_along() {
    let world = World::new(Database::sqlite().await).await;
    let _workers = world.deaf_workers(2).await;
    let (refused, _) = tokio::join!(
        world.joins(Script::REFUSED, Op::Done),
        world.joins("neighbour", Op::Done)
    );
    assert!(!refused);
    // Another request may have been in the same transaction, and would then be recorded alone.
    assert!(world.joins("next", Op::Done).await);
    world.until_drained().await;
    let ended = world.count("SELECT count(*) FROM job WHERE state = 'succeeded'").await;
    assert!((1..=2).contains(&ended), "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_recorded_where_nobody_claims() {
    let world = World::new(Database::sqlite().await).await;
    assert!(!world.joins("before", Op::Done).await);
    let workers = world.deaf_workers(1).await;
    assert!(world.joins("meanwhile", Op::Done).await);
    world.until_drained().await;
    workers.drain(PATIENCE).await;
    assert!(!world.joins("after", Op::Done).await);
    assert_eq!(world.count("SELECT count(*) FROM job").await, 1);
}

on_each! {
    async fn processes_that_share_a_database_wake_each_other_instead(world) {
        let workers = world.workers(1);
        workers.leased().await;
        let alone = world.store.dialect() == Dialect::Sqlite;
        assert_eq!(world.joins("any", Op::Done).await, alone);
        assert_eq!(world.count("SELECT count(*) FROM job").await, i64::from(alone));
    }
}
