//! Work is shared: with two workers, both own partitions of one export.

use std::collections::BTreeMap;

use towpath_tests::{Layout, Process, World, generate};

use crate::{final_state, load};

#[tokio::test]
async fn two_workers_share_an_export() {
    // One job at a time each, so that no one can take all of them at once.
    let plan = World::plan(Layout::Cluster { workers: 2 }).env("N_JOBS_PER_WORKER", "1");
    let Some(world) = plan.start().await else { return };
    let generated = generate(4, 240, 24);
    let destination = world.api.file_destination("shared").await;
    load::send(&world.api, &generated.bodies).await;
    let project = load::project(&world.api, &generated.project).await;
    let export = load::export(&world.api, &destination, &project, &generated).await;
    let record = world.api.export_ended(&export, load::PATIENCE).await;
    assert_eq!(record["status"], "COMPLETED", "{record}");
    let folder = world.exports().join("shared");
    let rows = load::compare(&folder, &export, &world.tenant.to_string(), &project, &generated);
    assert_eq!(rows, Ok(generated.rows.len()));

    let mut written = BTreeMap::new();
    for worker in world
        .processes
        .iter()
        .filter(|process| process.program().name.starts_with("worker"))
    {
        written.insert(
            worker.program().name.clone(),
            metric(worker, "towpath_export_rows_total").await,
        );
    }
    assert!(
        written.len() == 2 && written.values().all(|rows| *rows > 0.0),
        "rows by worker: {written:?}"
    );
    let all = generated.rows.len();
    assert!(
        (written.values().sum::<f64>() - all as f64).abs() < 0.5,
        "{written:?} of {all}"
    );
    final_state::settles(&world).await;
    world.stop().await;
}

/// A counter of a process, 0 where it has not begun to count.
async fn metric(process: &Process, name: &str) -> f64 {
    let address = process.program().address.expect("every role of a world listens");
    let answer = towpath_tests::http().get(format!("http://{address}/metrics")).send();
    let text = answer.await.unwrap().text().await.unwrap();
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        (labels.is_empty() || labels.starts_with('{')).then(|| value.parse::<f64>().unwrap())
    });
    values.sum()
}
