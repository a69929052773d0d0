//! What a claim takes and reads.

use std::ops::Range;
use std::time::Duration;

use towpath_domain::{JobId, TenantId, WorkerId};
use towpath_durable::{ClaimedJob, Start};
use towpath_queue::Queue;
use towpath_store::jobs::{self, ClaimPosition, ClaimRequest};
use towpath_store::{Dialect, on, workers as worker_rows};

use crate::on_each;
use crate::peers::{rows_read, walk_and_count_reads};
use crate::support::{Op, PATIENCE, Script, World, fenced};

fn claimer(n: i64, marks: &[ClaimPosition]) -> ClaimRequest<'_> {
    ClaimRequest {
        positions: marks,
        ..ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), n)
    }
}

async fn claim(world: &World, n: i64, marks: &[ClaimPosition]) -> Vec<ClaimedJob> {
    let claimer = claimer(n, marks);
    world
        .store
        .write(async |tx| jobs::claim(tx, &claimer).await)
        .await
        .unwrap()
}

/// As a claim batch without completions.
async fn turn(world: &World, n: i64, marks: &[ClaimPosition]) -> Vec<ClaimedJob> {
    let claimer = claimer(n, marks);
    let turned = world
        .store
        .write(async |tx| jobs::complete_and_claim(tx, &[], &[], &claimer).await);
    turned.await.unwrap().claimed
}

async fn record(world: &World, tenant: TenantId, priority: i64) -> JobId {
    let script = Script::new("idle", [Op::Done]);
    let recorded = world
        .store
        .write(async |tx| towpath_durable::start(tx, &script, Start::new(tenant).priority(priority)).await);
    recorded.await.unwrap()
}

fn ids(claimed: &[ClaimedJob]) -> Vec<JobId> {
    claimed.iter().map(|job| job.id).collect()
}

on_each! {
    async fn a_claim_goes_on_behind_its_marks(world) {
        let (a, b) = (world.tenant, TenantId::new());
        let mut of_a = Vec::new();
        for _ in 0..7 {
            of_a.push(record(&world, a, 0).await);
        }
        let of_b = [record(&world, b, 0).await, record(&world, b, 0).await];
        let lower = record(&world, a, -1).await;
        let first = claim(&world, 2, &[]).await;
        let [at_a, at_b] = [a, b].map(|tenant| first.iter().find(|job| job.tenant_id == tenant).unwrap());
        assert_eq!([at_a.id, at_b.id], [of_a[0], of_b[0]]);
        let (at_a, at_b) = (ClaimPosition::from(at_a), ClaimPosition::from(at_b));
        let higher = record(&world, a, 1).await;

        // Half of them each.
        assert_eq!(ids(&claim(&world, 2, &[at_a, at_b]).await).len(), 2);
        if world.store.dialect() == Dialect::Sqlite {
            assert_eq!(world.job(higher).await.attempt, 1, "SQLite always looks from the front");
            return;
        }
        let (third, fourth) = (of_a[2], of_a[3]);
        assert_eq!(world.job(of_a[1]).await.attempt, 1);
        assert_eq!(world.job(of_b[1]).await.attempt, 1);
        // Only of the named tenants, only of that priority, in order, by a batch as by a claim.
        assert_eq!(ids(&claim(&world, 1, &[at_a]).await), [third]);
        assert_eq!(ids(&turn(&world, 1, &[at_a]).await), [fourth]);
        let skipped = ClaimPosition { id: of_a[4], run_at: world.job(of_a[4]).await.run_at, ..at_a };
        assert_eq!(ids(&claim(&world, 9, &[skipped]).await), [of_a[5], of_a[6]]);
        assert_eq!(ids(&turn(&world, 9, &[skipped, at_b]).await), []);
        // Half of one is one, and it is the first tenant's.
        let more_of_b = record(&world, b, 0).await;
        assert_eq!(ids(&claim(&world, 1, &[at_b, at_a]).await), [more_of_b]);
        assert_eq!(ids(&claim(&world, 9, &[]).await), [higher, of_a[4], lower]);
    }
}

on_each! {
    async fn nothing_is_claimed_behind_a_mark_while_the_pool_is_paused(world) {
        record(&world, world.tenant, 0).await;
        let next = record(&world, world.tenant, 0).await;
        let first = claim(&world, 1, &[]).await;
        let mark = ClaimPosition::from(&first[0]);
        world.store.write(async |tx| towpath_store::pools::pause(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(ids(&claim(&world, 1, &[mark]).await), []);
        world.store.write(async |tx| towpath_store::pools::resume(tx, Script::POOL_NAME).await).await.unwrap();
        assert_eq!(ids(&claim(&world, 1, &[mark]).await), [next]);
    }
}

on_each! {
    async fn behind_its_marks_a_claim_reads_what_it_takes(world) {
        world.backlog(20_000).await;
        let store = world.store.with_own_pool(1).unwrap();
        let mut held = Vec::new();
        let mut marks = Vec::new();
        let mut reads = Vec::new();
        // The first batch does a full scan.
        for _ in 0..12 {
            let claimer = claimer(16, &marks);
            let turn = store.write(async |tx| {
                let before = rows_read(tx).await?;
                let turned = jobs::complete_and_claim(tx, &held, &[], &claimer).await?;
                assert!(turned.not_completed.is_empty());
                let between = rows_read(tx).await?;
                let claimed = jobs::claim(tx, &claimer).await?;
                Ok((turned.claimed, claimed, [between - before, rows_read(tx).await? - between]))
            });
            let (turned, claimed, read) = turn.await.unwrap();
            // The second one continued after the position of the first, and skipped its jobs.
            assert_eq!([turned.len(), claimed.len()], [16, 16]);
            marks = claimed.last().map(ClaimPosition::from).into_iter().collect();
            held = turned.iter().map(fenced).collect();
            reads.push(read);
        }
        println!("{:?}: turns and claims of 16 read {reads:?} rows", store.dialect());
        assert!(reads.iter().flatten().all(|read| *read < 500), "{reads:?}");
    }
}

on_each! {
    async fn who_belongs_before_a_backlog_is_found_while_there_is_one(world) {
        world.backlog(2000).await;
        let workers = world.workers_with(8, Duration::from_secs(1), &Queue::local());
        world.until_noted("idle starts", 100).await;
        let older = Start::new(world.tenant).at(towpath_domain::Timestamp::from_micros(0));
        let script = Script::new("older", [Op::Done]);
        let older = world.store.write(async |tx| towpath_durable::start(tx, &script, older.clone()).await).await.unwrap();
        let late = [record(&world, world.tenant, 1).await, record(&world, TenantId::new(), 0).await, older];
        let deadline = tokio::time::Instant::now() + PATIENCE;
        for job in late {
            while !world.job(job).await.state.is_final() {
                assert!(tokio::time::Instant::now() < deadline, "{job} waits behind the backlog");
                // It never ends by itself.
                if world.count("SELECT count(*) FROM job WHERE state = 'ready'").await < 2000 {
                    world.backlog(2000).await;
                }
            }
        }
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_drained_worker_claims_again_once_resumed(world) {
        let workers = world.workers(1);
        world.until_seen(&workers).await;
        let drained = world.store.write(async |tx| worker_rows::drain(tx, workers.id()).await).await;
        assert!(drained.unwrap(), "it has a row");
        let _ = workers.drain_requested().wait_for(|requested| *requested).await;
        let jobs = [world.start(Script::new("a", [Op::Done])).await, world.start(Script::new("b", [Op::Done])).await];
        for _ in 0..50 {
            world.count("SELECT count(*) FROM job").await;
        }
        // A claim that was open when the drain arrived may still take a job, and the worker has one slot.
        let ready = world.count("SELECT count(*) FROM job WHERE state = 'ready'").await;
        assert!(ready >= 1, "drained workers begin no claim");
        let resumed = world.store.write(async |tx| worker_rows::resume(tx, workers.id()).await).await;
        assert!(resumed.unwrap(), "it is still there");
        for job in jobs {
            world.until_over(job).await;
        }
        assert!(!*workers.drain_requested().borrow());
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn while_a_turn_waits_for_a_row_another_one_goes_on(world) {
        if world.store.dialect() == Dialect::Sqlite {
            return; // Whoever locks anything there locks everything.
        }
        let mut jobs = Vec::new();
        for nth in 0..24 {
            let ops = [Op::Gate(format!("gate {nth}")), Op::Done];
            jobs.push(world.start(Script::new("gated", ops)).await);
        }
        let workers = world.workers(16);
        // By then it knows that no other worker exists.
        world.until_seen(&workers).await;
        world.until_noted("gated starts", 16).await;
        let store = world.store.with_own_pool(1).unwrap();
        let open = |gates: Range<i32>| gates.for_each(|nth| world.shared.open(&format!("gate {nth}")));
        let drained = store.write(async |tx| {
            crate::support::stand_still(tx).await?;
            on!(tx, |conn| sqlx::query("SELECT FROM job WHERE id = $1 FOR UPDATE").bind(jobs[0]).execute(conn).await.map(drop))?;
            open(0..1);
            world.until_somebody_waits_for_a_lock().await;
            open(1..5);
            world.until_noted("gated starts", 20).await;
            // A draining worker starts no other batch.
            let draining = workers.draining();
            let drained = tokio::spawn(workers.drain(PATIENCE));
            draining.cancelled().await;
            open(5..24);
            for _ in 0..50 {
                world.count("SELECT count(*) FROM job").await;
            }
            Ok(drained)
        });
        drained.await.unwrap().await.unwrap();
        assert_eq!(world.shared.count("gated starts"), 21, "the turn that waited began before");
        assert_eq!(world.count("SELECT count(*) FROM job WHERE state = 'succeeded' AND attempt = 1").await, 21);
        assert_eq!(world.count("SELECT count(*) FROM job WHERE state = 'ready' AND attempt = 0").await, 3);
    }
}

on_each! {
    async fn jobs_that_run_elsewhere_are_not_read(world) {
        let store = world.store.with_own_pool(1).unwrap();
        world.backlog(1000).await;
        if store.dialect() == Dialect::Postgres {
            // No job is running, so by the statistics the index of running jobs is the cheapest path to everything.
            let tidy = store.read(async |tx| Ok(on!(tx, |conn| sqlx::query("VACUUM ANALYZE job").execute(conn).await.map(drop))?));
            tidy.await.unwrap();
        }
        walk_and_count_reads(&world, &store).await;
        world.execute(
            "UPDATE job SET state = 'running', worker_id = id, lease_until = run_at WHERE state = 'ready' AND id IN
             (SELECT id FROM job WHERE state = 'ready' ORDER BY id DESC LIMIT 800)",
        ).await;
        let reads = walk_and_count_reads(&world, &store).await;
        println!("{:?}: with 800 jobs running, a claim, a look, a step and an end of 16 read {reads:?} rows", store.dialect());
        assert!(reads.iter().all(|read| *read < 500), "{reads:?}");
    }
}
