//! Boxes outlive the platform; generations, captures, and what is left at the end.

use std::path::Path;
use std::time::{Duration, Instant};

use towpath_sandbox::{BoxSpec, BoxState, Driver as _, Error, ExecEvent, ExecRequest};
use uuid::Uuid;

use crate::fixture::{SandboxFixture, finish, prints, request, run};

#[tokio::test]
async fn commands_outlive_the_platform() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let long = ExecRequest {
        close_stdin: false,
        ..request("echo begun; read line; echo $line")
    };
    let mut execution = agent.execute(&long).await.unwrap();
    assert!(matches!(
        execution.events.next().await.unwrap(),
        Some(ExecEvent::Stdout { .. })
    ));
    drop((execution, agent));
    let status = std::fs::read_to_string(format!("/proc/{}/status", handle.pid.unwrap())).unwrap();
    let own = format!("PPid:\t{}\n", std::process::id());
    assert!(!status.contains(&own), "the box is a child of the platform");

    let platform = world.reopen();
    assert_eq!(platform.adopt(handle.id, 2).await.unwrap(), None);
    let adopted = platform.adopt(handle.id, 1).await.unwrap().expect("the box runs");
    assert_eq!(adopted, handle);
    let mut execution = platform.agent(&adopted).attach(&long.command_id, 6, 0).await.unwrap();
    execution.input.write(b"still here\n").await.unwrap();
    assert_eq!(finish(execution).await.stdout, "still here\n");
    platform.destroy(handle.id, 1).await.unwrap();
}

/// A platform that was killed during its self-test leaves a box. No inventory has it, and the next self-test removes it.
#[tokio::test]
async fn the_box_of_a_self_test_is_removed_by_the_next() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the version tells a self-test from a box of a client"
    )]
    let id = Uuid::new_v4();
    let spec = BoxSpec { id, ..world.spec() };
    world.start(&spec, 1).await;
    assert!(world.driver.inventory().await.unwrap().is_empty());
    let next = world.reopen();
    assert!(next.adopt(spec.id, 1).await.unwrap().is_some());
    next.capabilities().await.unwrap();
    assert_eq!(next.adopt(spec.id, 1).await.unwrap(), None);
    let folder = world.path("boxes").join("boxes").join(spec.id.to_string());
    assert!(!folder.exists());
}

/// A server may stop, or be killed, while its self-test runs. Nothing waits for the next one then.
#[tokio::test]
async fn the_box_of_a_self_test_ends_with_its_platform() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let platform = world.reopen();
    let probe = tokio::spawn(async move { platform.capabilities().await.map(drop) });
    let (runs, boxes) = (world.path("boxes/runs"), world.path("boxes/boxes"));
    let entries = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
    until("the start of the self-test", || entries(&runs) > 0).await;
    // Of a process that ends, its end of the pipe to the guard is closed in the same way.
    probe.abort();
    until("the end of its box", || entries(&runs) == 0 && entries(&boxes) == 0).await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_older_generation_is_refused() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let spec = world.spec();
    let (first, agent) = world.start(&spec, 3).await;
    prints(&agent, &request("echo kept > file")).await;
    assert_eq!(
        world.driver.start(&spec, 3).await.unwrap(),
        first,
        "a repeated start changes nothing"
    );
    let (second, agent) = world.start(&spec, 4).await;
    assert_ne!(first.pid, second.pid);
    assert_eq!(prints(&agent, &request("cat file")).await, "kept\n");
    assert!(matches!(
        world.driver.start(&spec, 3).await,
        Err(Error::Stale { newest: 4, .. })
    ));
    assert!(matches!(
        world.driver.stop(spec.id, 3, Duration::ZERO).await,
        Err(Error::Stale { .. })
    ));
    let mark = |generation, is_running| BoxState {
        id: spec.id,
        generation,
        is_running,
    };
    assert_eq!(world.driver.inventory().await.unwrap(), [mark(4, true)]);
    world.driver.stop(spec.id, 4, Duration::from_secs(1)).await.unwrap();
    assert_eq!(world.driver.inventory().await.unwrap(), [mark(4, false)]);
    let mut fresh = spec.clone();
    fresh.fresh = true;
    let (_, agent) = world.start(&fresh, 5).await;
    assert_ne!(run(&agent, &request("cat file")).await.exit_code, 0);
    world.driver.destroy(spec.id, 5).await.unwrap();
    assert!(matches!(
        world.driver.start(&spec, 5).await,
        Err(Error::Stale { newest: 5, .. })
    ));
    world.driver.forget(spec.id).await.unwrap();
    assert!(world.driver.inventory().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_stop_lets_commands_end() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let spec = world.spec();
    let (_, agent) = world.start(&spec, 1).await;
    let tidy = request("trap 'echo tidied > file; exit' TERM; echo ready; while true; do sleep 0.01; done");
    let mut execution = agent.execute(&tidy).await.unwrap();
    assert!(matches!(
        execution.events.next().await.unwrap(),
        Some(ExecEvent::Stdout { .. })
    ));
    world.driver.stop(spec.id, 1, Duration::from_secs(30)).await.unwrap();
    let (_, agent) = world.start(&spec, 2).await;
    assert_eq!(prints(&agent, &request("cat file")).await, "tidied\n");
    world.driver.destroy(spec.id, 2).await.unwrap();
}

#[tokio::test]
async fn a_capture_can_be_forked() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (origin, agent) = world.start(&world.spec(), 1).await;
    prints(
        &agent,
        &request("echo one > file; echo gone > other; mkdir -p folder; touch folder/x"),
    )
    .await;
    let layer = Uuid::now_v7();
    if !world.capabilities.can_freeze {
        eprintln!("skipped: {}", world.capabilities.missing.join("; "));
        world.driver.stop(origin.id, 1, Duration::ZERO).await.unwrap();
    }
    let sealed = world.driver.capture_layer(origin.id, 1, layer).await.unwrap();
    assert_eq!(world.driver.capture_layer(origin.id, 1, layer).await.unwrap(), sealed);

    let mut fork = world.spec();
    fork.root.layers = vec![layer];
    let (second, other) = world.start(&fork, 1).await;
    assert_eq!(
        prints(
            &other,
            &request("cat file; rm other; rm -r folder; mkdir folder; echo two > file")
        )
        .await,
        "one\n"
    );
    let deeper = Uuid::now_v7();
    world.driver.stop(second.id, 1, Duration::ZERO).await.unwrap();
    world.driver.capture_layer(second.id, 1, deeper).await.unwrap();
    let mut third = world.spec();
    third.root.layers = vec![deeper, layer];
    let (third, agent) = world.start(&third, 1).await;
    assert_eq!(
        prints(&agent, &request("cat file; ls other folder 2>/dev/null; true")).await,
        "two\nfolder:\n"
    );
    if world.capabilities.can_freeze {
        let agent = world.driver.agent(&origin);
        assert_eq!(
            prints(&agent, &request("cat file other")).await,
            "one\ngone\n",
            "the origin goes on"
        );
    }
    for id in [origin.id, second.id, third.id] {
        world.driver.destroy(id, 1).await.unwrap();
    }
    world.driver.remove_layer(deeper).await.unwrap();
    world.driver.remove_layer(layer).await.unwrap();
}

/// A box that is gone leaves no process, group, mount or folder.
#[tokio::test]
async fn nothing_stays_behind() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    agent.execute(&request("setsid sleep 1000 & sleep 1000")).await.unwrap();
    world.driver.destroy(handle.id, 1).await.unwrap();
    world.driver.forget(handle.id).await.unwrap();
    let name = format!("{}.1", handle.id);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", handle.pid.unwrap())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    for folder in ["boxes/boxes", "boxes/runs"] {
        assert_eq!(std::fs::read_dir(world.path(folder)).unwrap().count(), 0, "{folder}");
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&name));
    for controller in ["memory", "pids", "cpu", "freezer", "."] {
        let group = format!("/sys/fs/cgroup/{controller}/{name}");
        assert!(!Path::new(&group).exists(), "{group}");
    }
}
