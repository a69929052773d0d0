//! Commands: output, input, ends.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use towpath_sandbox::{Driver as _, Error, ExecEvent, ExecRequest, PtySize};

use crate::fixture::{SandboxFixture, finish, prints, request, run};

#[tokio::test]
async fn a_command_says_what_it_says_and_ends_as_it_ends() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
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
    assert!(matches!(agent.check_ready().await, Err(Error::NotRunning)));
}

#[tokio::test]
async fn the_same_id_attaches_and_never_runs_twice() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
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
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
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
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
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
async fn who_looks_at_a_command_is_no_client_of_it() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let reader = ExecRequest {
        close_stdin: false,
        ..request("echo out; echo err >&2; read line; echo \"$line\"")
    };
    let id = reader.command_id.clone();
    let mut execution = agent.execute(&reader).await.unwrap();
    for _ in ["out", "err"] {
        execution.events.next().await.unwrap();
    }
    let tail = agent.tail(&id, 100).await.unwrap();
    assert_eq!(
        (tail.stdout.as_str(), tail.stderr.as_str(), tail.exit_code),
        ("out\n", "err\n", None)
    );
    let end = agent.tail(&id, 2).await.unwrap();
    assert_eq!((end.stdout_offset, end.stdout.as_str()), (2, "t\n"));
    assert!(matches!(agent.tail("unknown", 1).await, Err(Error::NotFound(_))));

    execution.input.write(b"in\n").await.unwrap();
    assert_eq!(finish(execution).await.stdout, "in\n");
    let tail = agent.tail(&id, 100).await.unwrap();
    assert_eq!((tail.stdout.as_str(), tail.exit_code), ("out\nin\n", Some(0)));
    let known = agent.commands().await.unwrap();
    let known = known.iter().find(|command| command.command_id == id).unwrap();
    assert_eq!(known.exit_code, Some(0));
    world.driver.destroy(handle.id, 1).await.unwrap();
}

/// Output that no client asks for does not hold the command at a full buffer.
#[tokio::test]
async fn a_client_may_leave_output_out() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let long = request("head -c 20000000 /dev/zero | tr '\\0' x");
    drop(agent.execute(&long).await.unwrap());
    // So much is kept without a client. Only then does the client come.
    while agent.tail(&long.command_id, 1).await.unwrap().stdout_offset < 8_000_000 {}
    let rest = agent.attach(&long.command_id, u64::MAX, 0).await.unwrap();
    let outcome = finish(rest).await;
    assert_eq!((outcome.exit_code, outcome.timed_out), (0, false));
    assert!(outcome.stdout.len() < 12_100_000, "{}", outcome.stdout.len());
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn a_client_that_goes_is_missed_also_where_nobody_reads_its_input() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let deaf = ExecRequest {
        close_stdin: false,
        kill_on_disconnect: true,
        ..request("sleep 1000")
    };
    let mut execution = agent.execute(&deaf).await.unwrap();
    let flood = vec![b'x'; 256 << 10];
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(500), execution.input.write(&flood)).await {
        written.unwrap();
    }
    drop(execution);
    let ended = async {
        loop {
            let known = agent.commands().await.unwrap();
            let known = known.into_iter().find(|known| known.command_id == deaf.command_id);
            if let Some(exit_code) = known.unwrap().exit_code {
                return exit_code;
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
    assert_eq!(ended.expect("the command is killed with its client"), 137);
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn what_a_command_leaves_behind_keeps_nobody_waiting() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let daemon = request("(while echo tick; do sleep 0.01; done) & echo $! > /tmp/pid");
    let ended = tokio::time::timeout(Duration::from_secs(30), run(&agent, &daemon)).await;
    assert_eq!(ended.expect("the command ends with its own process").exit_code, 0);
    prints(&agent, &request("kill -0 $(cat /tmp/pid)")).await;
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn a_terminal_is_one() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
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
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    assert!(matches!(agent.connect_port(80).await, Err(Error::Refused(80))));
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
    let mut connection = agent.connect_port(80).await.unwrap();
    connection.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "HELLO");
    world.driver.destroy(handle.id, 1).await.unwrap();
}
