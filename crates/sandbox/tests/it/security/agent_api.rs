//! Requests to the agent, and what a box can do to it.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use towpath_sandbox::{BoxAgent, BoxSpec, Driver as _, ExecEvent, ExecRequest, Limits, VolumeMount, VolumeSource};
use uuid::Uuid;

use super::case::{Tally, result_kind};
use crate::fixture::{SandboxFixture, finish, prints, request, run};

/// As many commands as an agent knows at a time.
const MAX_COMMANDS: usize = 256;
const LINE_BYTES: usize = 50_000_000;
/// More than the buffers of a command, the program and its runtime.
const MAX_AGENT_KIB: u64 = 200 << 10;

/// The cases of this file; the page of cases lists them.
pub const NAMES: [&str; 18] = [
    "more sleeping commands than an agent knows",
    "endless output to a client that does not read",
    "line of 50 MB",
    "user beyond the map",
    "user of the host",
    "negative user",
    "id of a command with a path",
    "NUL in a command",
    "variable with `=` in its name",
    "port of the host through the tunnel",
    "passwd that is a pipe",
    "agent that was killed",
    "limit that the driver cannot hold",
    "volume over /proc",
    "volume outside of the root",
    "host name with a path",
    "layer that is not there",
    "base of another driver",
];

pub async fn perform(world: &SandboxFixture, host_port: u16, tally: &mut Tally) {
    let mut names = NAMES.into_iter();
    let mut settle = |tally: &mut Tally, expected: &str, seen: &str| {
        tally.settle(names.next().unwrap(), expected, seen);
    };
    let (crowded, agent) = world.start(&world.spec(), 1).await;
    let mut last = "done";
    for _ in 0..=MAX_COMMANDS {
        last = result_kind(&agent.execute(&request("exec sleep 1000")).await);
    }
    agent.check_ready().await.unwrap();
    settle(tally, "Busy", last);
    world.driver.destroy(crowded.id, 1).await.unwrap();

    let (handle, agent) = world.start(&world.spec(), 1).await;
    let pid = handle.pid.unwrap();
    settle(tally, "bounded", endless_output(&agent, pid).await);
    let line = ExecRequest {
        timeout_seconds: 300,
        ..request(&format!("head -c {LINE_BYTES} /dev/zero | tr '\\0' x"))
    };
    let received = run(&agent, &line).await.stdout.len();
    settle(tally, &LINE_BYTES.to_string(), &received.to_string());

    for user in ["65536", "1700000000", "-1"] {
        let command = ExecRequest {
            user: Some(user.to_owned()),
            ..request("true")
        };
        // A box of an account has one user, whatever is asked for.
        let expected = if world.has_users() { "Invalid" } else { "done" };
        settle(tally, expected, result_kind(&agent.execute(&command).await));
    }
    let named = ExecRequest::new("../../x", "true");
    settle(tally, "Invalid", result_kind(&agent.execute(&named).await));
    settle(
        tally,
        "Invalid",
        result_kind(&agent.execute(&request("echo a\0b")).await),
    );
    let mut variable = request("true");
    variable.env.insert("A=B".to_owned(), "x".to_owned());
    settle(tally, "Invalid", result_kind(&agent.execute(&variable).await));
    settle(tally, "Refused", result_kind(&agent.connect_port(host_port).await));

    let by_number = |command: &str| ExecRequest {
        user: Some("0".to_owned()),
        shell: "/bin/sh".to_owned(),
        ..request(command)
    };
    prints(&agent, &by_number("mv /etc/passwd /etc/kept; mkfifo /etc/passwd")).await;
    settle(
        tally,
        "answered\n",
        &run(&agent, &by_number("echo answered")).await.stdout,
    );
    prints(&agent, &by_number("mv -f /etc/kept /etc/passwd")).await;

    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    while is_running(world, handle.id).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    settle(tally, "NotRunning", result_kind(&agent.check_ready().await));
    world.driver.destroy(handle.id, 1).await.unwrap();

    for (expected, spec) in impossible_boxes(world) {
        let started = world.driver.start(&spec, 1).await;
        settle(tally, expected, result_kind(&started));
        world.driver.destroy(spec.id, 1).await.unwrap();
    }
    assert!(names.next().is_none(), "a case was left out");
}

async fn is_running(world: &SandboxFixture, id: Uuid) -> bool {
    let boxes = world.driver.inventory().await.unwrap();
    boxes.iter().any(|state| state.id == id && state.is_running)
}

/// Whether the agent keeps to its memory, and answers others, while a client reads nothing.
async fn endless_output(agent: &BoxAgent, pid: i32) -> &'static str {
    let endless = request("exec yes");
    let mut execution = agent.execute(&endless).await.unwrap();
    let first = execution.events.next().await.unwrap();
    assert!(matches!(first, Some(ExecEvent::Stdout { .. })), "{first:?}");
    // The buffers are full once no more is taken.
    let mut reached = 0;
    loop {
        prints(agent, &request("true")).await;
        let tail = agent.tail(&endless.command_id, 1).await.unwrap().stdout_offset;
        if tail == reached {
            break;
        }
        reached = tail;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = resident.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    agent.kill(&endless.command_id).await.unwrap();
    finish(execution).await;
    if kib < MAX_AGENT_KIB { "bounded" } else { "unbounded" }
}

/// Boxes that must not start, and the kinds of the errors.
fn impossible_boxes(world: &SandboxFixture) -> [(&'static str, BoxSpec); 6] {
    let mounted = |path: &str| BoxSpec {
        mounts: vec![VolumeMount {
            source: VolumeSource::Folder(world.path("secret")),
            path: path.to_owned(),
            read_only: true,
        }],
        ..world.spec()
    };
    let limits = Limits {
        disk_bytes: Some(1 << 30),
        ..Limits::default()
    };
    let mut layered = world.spec();
    layered.root.layers = vec![Uuid::now_v7()];
    let mut based = world.spec();
    based.root.base = "../layers".to_owned();
    [
        ("Unsupported", BoxSpec { limits, ..world.spec() }),
        ("Invalid", mounted("/proc")),
        ("Invalid", mounted("/data/../../etc")),
        (
            "Invalid",
            BoxSpec {
                hostname: "../x".to_owned(),
                ..world.spec()
            },
        ),
        ("NotFound", layered),
        ("Invalid", based),
    ]
}
