//! Redis carries hints. Whatever becomes of it, every job is found, and found soon.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use sqlx::PgConnection;
use tokio::time::interval;
use towpath_tests::fault_proxy::{Direction, Mode};
use towpath_tests::{Layout, Random, World, generate};

use crate::{final_state, load};

/// As many as a workspace may have at work, so that none of them waits for a place.
const EXPORTS: usize = 15;

#[tokio::test]
async fn redis_may_vanish_at_any_time() {
    vanish("scan").await;
}

#[tokio::test]
async fn redis_with_ids_of_jobs_may_vanish_at_any_time() {
    vanish("directed").await;
}

#[expect(clippy::print_stdout, reason = "the table of waits is read")]
async fn vanish(dispatch: &str) {
    let Some(mut world) = World::plan(Layout::Cluster { workers: 2 })
        .redis_behind_proxy()
        .env("TOWPATH_QUEUE_DISPATCH", dispatch)
        .start()
        .await
    else {
        return;
    };
    let database = world.database.as_ref().expect("a cluster has a database");
    let mut connection = database.connect().await;
    let destination = world.api.file_destination("hints").await;
    let mut dice = Random::new(3);
    let mut table = Vec::new();

    table.push((
        "there",
        round(&mut world, &destination, &mut dice, &mut connection, RedisFault::None).await,
    ));
    table.push((
        "flushed 20 times a second",
        round(
            &mut world,
            &destination,
            &mut dice,
            &mut connection,
            RedisFault::Flushed,
        )
        .await,
    ));

    world
        .redis_proxy
        .as_ref()
        .expect("asked for")
        .set(Mode::HalfOpen(Direction::Both));
    table.push((
        "half-open",
        round(&mut world, &destination, &mut dice, &mut connection, RedisFault::None).await,
    ));
    world.redis_proxy.as_ref().expect("asked for").set(Mode::ResetAll);
    table.push((
        "connections reset",
        round(&mut world, &destination, &mut dice, &mut connection, RedisFault::None).await,
    ));
    world.redis_proxy.as_ref().expect("asked for").set(Mode::Pass);

    world.redis.as_mut().expect("a cluster has a Redis").stop().await;
    let before = world.redis_proxy.as_ref().expect("asked for").accepted();
    table.push((
        "stopped",
        round(&mut world, &destination, &mut dice, &mut connection, RedisFault::None).await,
    ));
    let tried = world.redis_proxy.as_ref().expect("asked for").accepted() - before;
    world.redis.as_mut().expect("a cluster has a Redis").restart().await;
    table.push((
        "back, empty",
        round(&mut world, &destination, &mut dice, &mut connection, RedisFault::None).await,
    ));

    final_state::settles(&world).await;
    println!("pick-up of jobs with two workers and {dispatch} dispatch, milliseconds from recorded to claimed");
    println!("| Redis | jobs | p50 | p99 |\n|---|---|---|---|");
    for (what, mut waits) in table {
        waits.sort_by(f64::total_cmp);
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
        println!("| {what} | {} | {:.1} | {:.1} |", waits.len(), at(0.5), at(0.99));
    }
    println!("connections tried while it was stopped, all processes: {tried}");
    drop(connection);
    world.stop().await;
}

enum RedisFault {
    None,
    Flushed,
}

/// Sends, exports fifteen times at once, compares each; how long each job of the exports waited for a worker, in
/// milliseconds.
async fn round(
    world: &mut World,
    destination: &str,
    dice: &mut Random,
    connection: &mut PgConnection,
    trouble: RedisFault,
) -> Vec<f64> {
    let generated = generate(dice.next_u64(), 10, 2);
    let api = world.api.clone();
    let work = async {
        load::send(&api, &generated.bodies).await;
        let project = load::project(&api, &generated.project).await;
        let exports = join_all((0..EXPORTS).map(async |_| {
            let export = load::export(&api, destination, &project, &generated).await;
            let record = api.export_ended(&export, load::PATIENCE).await;
            assert_eq!(record["status"], "COMPLETED", "{record}");
            export
        }))
        .await;
        (project, exports)
    };
    let (project, exports) = tokio::select! {
        done = pin!(work) => done,
        () = make(world, trouble) => unreachable!("trouble does not end by itself"),
    };
    let tenant = world.tenant.to_string();
    for export in &exports {
        let compared = load::compare(&world.exports().join("hints"), export, &tenant, &project, &generated);
        assert!(compared.is_ok(), "{export}: {compared:?}");
    }
    // From when a job was recorded; all of them are due at once and none waits for a place.
    let question = "SELECT (extract(epoch FROM j.started_at - j.created_at) * 1000)::float8
         FROM job j WHERE j.started_at IS NOT NULL AND j.kind IN ('run_export', 'export_part')
           AND (j.id IN (SELECT job_id FROM export WHERE project_id = $1::uuid)
             OR j.parent_id IN (SELECT job_id FROM export WHERE project_id = $1::uuid))";
    let waits = sqlx::query_scalar::<_, f64>(question)
        .bind(&project)
        .fetch_all(connection)
        .await;
    let waits = waits.expect("the tables are there");
    assert!(waits.len() >= EXPORTS, "{waits:?}");
    waits
}

async fn make(world: &World, trouble: RedisFault) {
    match trouble {
        RedisFault::None => pending().await,
        RedisFault::Flushed => {
            let mut ticks = interval(Duration::from_millis(50));
            loop {
                ticks.tick().await;
                world.redis.as_ref().expect("a cluster has a Redis").flush().await;
            }
        }
    }
}
