//! A backup of an installation at work, and what comes back from it in a place where nothing was.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use towpath_tests::{Exit, Layout, Program, World, environment, generate, run_to_end};

use crate::load;

const DAYS: i64 = 3;

#[tokio::test]
async fn embedded_comes_back_from_a_backup() {
    println!("{}", comes_back(Layout::Embedded).await.unwrap_or_default());
}

#[tokio::test]
async fn a_cluster_comes_back_from_a_backup() {
    println!(
        "{}",
        comes_back(Layout::Cluster { workers: 2 }).await.unwrap_or_default()
    );
}

/// What was seen; `None` without servers.
async fn comes_back(layout: Layout) -> Option<String> {
    let plan = || {
        let plan = World::plan(layout);
        // A cluster keeps its objects in a bucket if there is one available.
        if layout != Layout::Embedded && environment("TOWPATH_TEST_PYTHON").is_some() {
            plan.objects_in_bucket()
        } else {
            plan
        }
    };
    let mut world = plan().start().await?;
    // Half of it is folded by an export, the rest may be in open units.
    let kept = generate(21, 40, DAYS);
    let (early, late) = kept.bodies.split_at(kept.bodies.len() / 2);
    load::send(&world.api, early).await;
    let project = load::project(&world.api, &kept.project).await;
    let destination = world.api.file_destination("before").await;
    let export = load::export(&world.api, &destination, &project, &kept).await;
    assert_eq!(
        world.api.export_ended(&export, load::PATIENCE).await["status"],
        "COMPLETED"
    );
    load::send(&world.api, late).await;

    // Everything above is acknowledged; more comes in while the backup is made.
    let api = world.api.clone();
    let sent = AtomicU32::new(0);
    let sent = &sent;
    let coming = async move {
        let mut bodies = 0;
        for seed in 100.. {
            let more = generate(seed, 20, DAYS);
            for body in more.bodies.chunks(4) {
                load::send(&api, body).await;
                bodies += 1;
                sent.store(bodies, Ordering::Relaxed);
            }
        }
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = world.processes[0].program();
    let making = async {
        for times in 0.. {
            let backup = folder.path().join(format!("backup-{times}"));
            let command = Program {
                name: "backup".into(),
                args: vec!["backup".into(), backup.display().to_string()],
                address: None,
                ..server.clone()
            };
            let before = sent.load(Ordering::Relaxed);
            let (exit, said) = run_to_end(&command).await;
            assert_eq!(exit, Exit::Code(0), "{said}");
            let while_made = sent.load(Ordering::Relaxed) - before;
            // It may be over before anything came.
            if while_made > 0 {
                return (backup, while_made, said);
            }
            assert!(times < 20, "nothing came in while one was made");
        }
        unreachable!("it ends before")
    };
    let (backup, while_made, said) = tokio::select! {
        made = making => made,
        () = coming => unreachable!("it goes on for ever"),
    };
    let seen = format!(
        "{layout:?}: {while_made} bodies meanwhile; {}",
        said.lines().next().unwrap_or_default()
    );
    // The place is lost as a whole.
    for process in &mut world.processes {
        process.kill().await;
    }
    let tenant = world.tenant;
    drop(world);

    let world = plan().restored_from(&backup, tenant).start().await;
    let world = world.expect("the servers are still there");
    let record = world
        .api
        .get(&format!("/api/v1/bulk-exports/{export}"))
        .await
        .expect(200);
    assert_eq!(record["status"], "COMPLETED", "{record}");
    assert_eq!(load::project(&world.api, &kept.project).await, project);
    let again = load::export(&world.api, &destination, &project, &kept).await;
    let record = world.api.export_ended(&again, load::PATIENCE).await;
    assert_eq!(record["status"], "COMPLETED", "{record}");
    let exported = world.exports().join("before");
    let same = load::compare(&exported, &again, &tenant.to_string(), &project, &kept);
    assert_eq!(same.unwrap_or_else(|wrong| panic!("{wrong}")), kept.rows.len());
    // It continues where it was.
    let more = generate(22, 10, DAYS);
    load::send(&world.api, &more.bodies).await;
    tokio::time::timeout(Duration::from_secs(300), world.stop())
        .await
        .expect("it drains");
    Some(seen)
}
