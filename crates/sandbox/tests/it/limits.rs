//! Limits hold, or are refused.

use towpath_sandbox::{Driver as _, Error, ExecEvent, ExecRequest, Limits};

use crate::fixture::{SandboxFixture, prints, request, run};

#[tokio::test]
async fn limits_hold() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let can = &world.capabilities;
    if !(can.can_limit_memory && can.can_limit_processes && can.can_limit_cpu) {
        eprintln!("skipped: {}", can.missing.join("; "));
        return;
    }
    let mut spec = world.spec();
    spec.limits = Limits {
        memory_bytes: Some(128 << 20),
        cpu_millis: Some(200),
        processes: Some(64),
        disk_bytes: None,
    };
    let (handle, agent) = world.start(&spec, 1).await;
    let hungry = run(
        &agent,
        &request("head -c 500000000 /dev/zero | tail -c 400000000 | wc -c"),
    )
    .await;
    assert_ne!(hungry.stdout.trim(), "400000000", "{hungry:?}");
    let shared = run(
        &agent,
        &request("head -c 500000000 /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x"),
    )
    .await;
    assert_ne!(shared.stdout.trim(), "500000000", "{shared:?}");
    prints(&agent, &request("rm -f /dev/shm/x")).await;
    // A fifth of a processor takes five times as long.
    let script = "import time; begun = time.monotonic()\nwhile time.process_time() < 0.4: pass\n\
                  print(time.monotonic() - begun > 1.2)";
    let slow = run(&agent, &request(&format!("python3 -c '{script}'"))).await;
    if slow.exit_code == 127 {
        eprintln!("skipped: the machine has no python3 in /usr");
    } else {
        assert_eq!(slow.stdout, "True\n");
    }
    // Last, because it leaves no room for another command.
    let bomb = ExecRequest {
        shell: "/bin/sh".to_owned(),
        ..request("i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); echo $i; done")
    };
    let bomb = run(&agent, &bomb).await;
    let begun: u32 = bomb
        .stdout
        .lines()
        .last()
        .and_then(|line| line.parse().ok())
        .unwrap_or_default();
    assert!((10..64).contains(&begun), "{bomb:?}");
    world.driver.destroy(handle.id, 1).await.unwrap();
}

/// The kernel counts instances of inotify to a user. That of a box is none of the host's.
#[tokio::test]
async fn a_box_uses_up_nothing_of_the_hosts_root() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    if !world.has_users() {
        eprintln!("skipped: a box of an account is that account");
        return;
    }
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let script = "import ctypes\nc = ctypes.CDLL(None)\nwhile c.inotify_init1(0) >= 0: pass\n\
                  print(\"full\", flush=True)\ninput()";
    let hog = ExecRequest {
        close_stdin: false,
        ..request(&format!("python3 -c '{script}'"))
    };
    let mut execution = agent.execute(&hog).await.unwrap();
    match execution.events.next().await.unwrap() {
        Some(ExecEvent::Stdout { .. }) => {
            rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).unwrap();
        }
        other => eprintln!("skipped: the machine has no python3 in /usr: {other:?}"),
    }
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn a_limit_that_would_not_hold_is_refused() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let mut spec = world.spec();
    spec.limits.disk_bytes = Some(1 << 30);
    let refused = world.driver.start(&spec, 1).await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
    assert!(refused.to_string().contains("disk_bytes"), "{refused}");
}
