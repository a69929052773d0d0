//! Commands: output, input, ends.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use towpath_sandbox::{Driver as _, Error, ExecEvent, ExecRequest, PtySize};

use crate::world::{World, finish, prints, request, run};

#[tokio::test]
async fn a_command_says_what_it_says_and_ends_as_it_ends() {
    let Some(world) = World::new().await else { return };
    let mut spec = world.spec();
    spec.env.insert("OF_BOX".to_owned(), "1".to_owned());
    let (handle, agent) = world.start(&spec, 1).await;
    let outcome = run(&agent, &request("echo out; echo err >&2; exit 7")).await;
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.exit_code),
        ("out\n", "err\n", 7)
    );
    assert_eq!(run(&agent, &request("kill -9 $$")).await.exit_code, 137);
    let mut with_values = request("echo $OF_BOX $OWN $HOME; pwd; hostname");
    with_values.env.insert("OWN".to_owned(), "2".to_owned());
    with_values.cwd = Some("/tmp".to_owned());
    assert_eq!(prints(&agent, &with_values).await, "1 2 /home/user\n/tmp\ntest-box\n");
    assert_eq!(
        prints(&agent, &request("printf 'a\\377b\\303\\244'")).await,
        "a\u{fffd}bä"
    );
    if world.has_users() {
        assert_eq!(prints(&agent, &request("id -u; id -un")).await, "1000\nuser\n");
    }
    let missing = ExecRequest {
        cwd: Some("/nowhere".to_owned()),
        ..request("true")
    };
    assert!(matches!(agent.execute(&missing).await, Err(Error::NotFound(_))));
    let without_shell = ExecRequest {
        shell: "/bin/no-such-shell".to_owned(),
        ..request("echo sh")
    };
    assert_eq!(prints(&agent, &without_shell).await, "sh\n");
    world.driver.destroy(handle.id, 1).await.unwrap();
    assert!(matches!(agent.hello().await, Err(Error::NotRunning)));
}

#[tokio::test]
async fn the_same_id_attaches_and_never_runs_twice() {
    let Some(world) = World::new().await else { return };
    let spec = world.spec();
    let (handle, agent) = world.start(&spec, 1).await;
    let once = request("echo x >> /tmp/count; cat /tmp/count");
    let first = run(&agent, &once).await;
    let again = run(&agent, &once).await;
    assert_eq!(first, again);
    assert_eq!(prints(&agent, &request("cat /tmp/count")).await, "x\n");
    let rest = agent.attach(&once.command_id, 1, 0).await.unwrap();
    assert_eq!(finish(rest).await.stdout, "\n");
    assert!(matches!(agent.attach("unknown", 0, 0).await, Err(Error::NotFound(_))));
    world.driver.destroy(handle.id, 1).await.unwrap();
}

/// A reader that is cut off again and again misses no byte of what is larger than every buffer.
#[tokio::test]
async fn cuts_lose_nothing() {
    const BYTES: u64 = 40_000_000;
    let Some(world) = World::new().await else { return };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let long = request(&format!("seq -w 1 100000000 | head -c {BYTES}"));
    drop(agent.execute(&long).await.unwrap());
    let (mut received, mut expected) = (0, 1_u64);
    let mut line = Vec::new();
    'cuts: loop {
        let mut execution = agent.attach(&long.command_id, received, 0).await.unwrap();
        for _ in 0..20 {
            match execution.events.next().await.unwrap() {
                Some(ExecEvent::Stdout { offset, data }) => {
                    assert_eq!(offset, received);
                    received += data.len() as u64;
                    for byte in data {
                        if byte == b'\n' {
                            assert_eq!(String::from_utf8_lossy(&line), format!("{expected:09}"));
                            expected += 1;
                            line.clear();
                        } else {
                            line.push(byte);
                        }
                    }
                }
                Some(ExecEvent::Exit { exit_code, .. }) => {
                    assert_eq!(exit_code, 0);
                    break 'cuts;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(received, BYTES);
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn input_reaches_the_command_and_kill_its_group() {
    let Some(world) = World::new().await else { return };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let reader = ExecRequest {
        close_stdin: false,
        ..request("cat; echo end")
    };
    let mut execution = agent.execute(&reader).await.unwrap();
    execution.input.write(b"one\n").await.unwrap();
    execution.input.close().await.unwrap();
    assert_eq!(finish(execution).await.stdout, "one\nend\n");

    let sleeper = request("sleep 1000 & echo ready; wait");
    let mut execution = agent.execute(&sleeper).await.unwrap();
    assert!(matches!(
        execution.events.next().await.unwrap(),
        Some(ExecEvent::Stdout { .. })
    ));
    agent.kill(&sleeper.command_id).await.unwrap();
    assert_eq!(finish(execution).await.exit_code, 137);
    prints(&agent, &request("while pgrep -x sleep > /dev/null; do :; done")).await;

    let slow = ExecRequest {
        timeout_seconds: 1,
        ..request("sleep 1000")
    };
    let outcome = run(&agent, &slow).await;
    assert_eq!((outcome.exit_code, outcome.timed_out), (137, true));
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn what_a_command_leaves_behind_keeps_nobody_waiting() {
    let Some(world) = World::new().await else { return };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let daemon = request("(while echo tick; do sleep 0.01; done) & echo $! > /tmp/pid");
    let ended = tokio::time::timeout(Duration::from_secs(30), run(&agent, &daemon)).await;
    assert_eq!(ended.expect("the command ends with its own process").exit_code, 0);
    prints(&agent, &request("kill -0 $(cat /tmp/pid)")).await;
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn a_terminal_is_one() {
    let Some(world) = World::new().await else { return };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let terminal = ExecRequest {
        pty: Some(PtySize { rows: 30, cols: 100 }),
        ..request("test -t 0 && stty size; read line; echo got $line")
    };
    let mut execution = agent.execute(&terminal).await.unwrap();
    execution.input.write(b"typed\n").await.unwrap();
    let outcome = finish(execution).await;
    assert!(outcome.stdout.contains("30 100"), "{outcome:?}");
    assert!(outcome.stdout.contains("got typed"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn a_port_of_the_box_can_be_reached() {
    let Some(world) = World::new().await else { return };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    assert!(matches!(agent.dial(80).await, Err(Error::Refused(80))));
    let server = "import socket; s = socket.create_server(('127.0.0.1', 80)); print('ready', flush=True); \
                  c, _ = s.accept(); c.sendall(c.recv(100).upper())";
    let mut execution = agent
        .execute(&request(&format!("python3 -c \"{server}\"")))
        .await
        .unwrap();
    let Some(ExecEvent::Stdout { .. }) = execution.events.next().await.unwrap() else {
        eprintln!("skipped: the machine has no python3 in /usr");
        return world.driver.destroy(handle.id, 1).await.unwrap();
    };
    let mut connection = agent.dial(80).await.unwrap();
    connection.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "HELLO");
    world.driver.destroy(handle.id, 1).await.unwrap();
}
