//! The drill of exports that are asked for right after the last 202: several processes take bodies in at once, and when
//! the last body is acknowledged, another process is asked for the export. It holds every acknowledged trace run once,
//! with every value.
//!
//! No process dies here. What this drill looks for is between two processes: a body that one of them has acknowledged
//! and the export of another does not see.
//!
//! `TOWPATH_TEST_EXPORT_ROUNDS` is the number of rounds of each layout (default 10); `long` is 500.

use std::time::Instant;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::json;
use towpath_tests::{Api, Body, Layout, Random, World, environment, generate};

use crate::{final_state, load};

const DAYS: i64 = 2;
/// They make seven bodies, so that each of three processes has more than one.
const TREES: usize = 24;
const ROUNDS: usize = 10;
const LONG: usize = 500;
/// Processes of the cluster that take bodies in.
const API_PROCESSES: usize = 3;
/// Short, so that folds are under way while bodies come in and while the export plans.
const FOLD_DELAY_MS: &str = "50";
const PREFIX: &str = "acknowledged";

#[tokio::test]
async fn embedded_exports_all_that_was_acknowledged() {
    println!("{}", drill(Layout::Embedded).await.unwrap_or_default());
}

#[tokio::test]
async fn a_cluster_exports_all_that_any_of_its_processes_acknowledged() {
    println!("{}", drill(Layout::Cluster { workers: 2 }).await.unwrap_or_default());
}

/// What happened, to be printed; `None` without servers.
async fn drill(layout: Layout) -> Option<String> {
    let plan = World::plan(layout)
        .api_processes(API_PROCESSES)
        .env("TOWPATH_INGEST_FLUSH_DELAY_MS", FOLD_DELAY_MS);
    let world = plan.start().await?;
    let destination = world.api.file_destination(PREFIX).await;
    let mut dice = Random::new(4);
    let (began, mut rows) = (Instant::now(), 0);
    let rounds = rounds();
    for number in 1..=rounds {
        match round(&world, &destination, dice.next_u64()).await {
            Ok(compared) => rows += compared,
            Err(wrong) => panic!("{layout:?}, round {number} of {rounds}, {wrong}"),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let processes = world.apis.len();
    final_state::settles(&world).await;
    world.stop().await;
    Some(format!(
        "export drill, {layout:?}: {rounds} rounds, {processes} processes that take \
         bodies in, {rows} rows compared in 29 columns, {seconds:.1} s"
    ))
}

fn rounds() -> usize {
    match environment("TOWPATH_TEST_EXPORT_ROUNDS").as_deref() {
        None => ROUNDS,
        Some("long") => LONG,
        Some(text) => text
            .parse()
            .expect("TOWPATH_TEST_EXPORT_ROUNDS is a number of rounds, or long"),
    }
}

/// One project, sent and exported. How many rows were compared, or what is wrong with them.
async fn round(world: &World, destination: &str, seed: u64) -> Result<usize, String> {
    let generated = generate(seed, TREES, DAYS);
    // Before anything is sent: afterwards a question for its id would give the server time.
    let made = world.api.post("/sessions", &json!({ "name": generated.project })).await;
    let made = made.expect(200);
    let project = made["id"].as_str().expect("a project has an id");
    let last = send(&world.apis, &generated.bodies).await;
    let other = &world.apis[(last + 1) % world.apis.len()];
    let export = load::export(other, destination, project, &generated).await;
    let record = other.export_ended(&export, load::PATIENCE).await;
    if record["status"] != "COMPLETED" {
        return Err(format!("project {}: {record}", generated.project));
    }
    let folder = world.exports().join(PREFIX);
    let tenant = world.tenant.to_string();
    load::compare_all(&folder, &[&export], &tenant, project, &generated)
        .map_err(|wrong| format!("project {}, export {export}:\n{wrong}", generated.project))
}

/// Sends the bodies, a share of them through each process at the same time. The number of the process that acknowledged
/// last.
async fn send(apis: &[Api], bodies: &[Body]) -> usize {
    let mut sending: FuturesUnordered<_> = apis
        .iter()
        .enumerate()
        .map(async |(number, api)| {
            let share: Vec<Body> = bodies.iter().skip(number).step_by(apis.len()).cloned().collect();
            load::send(api, &share).await;
            number
        })
        .collect();
    let mut last = 0;
    while let Some(number) = sending.next().await {
        last = number;
    }
    last
}
