//! `towpath sandbox` with a running server.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::dev::Server;
use crate::{err, out, towpath};

/// Time limit of the machine to release a sandbox.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments after a sandbox are its command, so the server comes first.
fn command(server: &Server, folder: &Path, arguments: &[&str]) -> Command {
    let usual = ["sandbox", "--server", &server.url, "--data-dir", "data"];
    towpath(folder, &[&usual[..], arguments].concat())
}

fn ended(server: &Server, folder: &Path, arguments: &[&str]) -> Output {
    command(server, folder, arguments).output().unwrap()
}

/// Its output; it must succeed.
#[track_caller]
fn prints(server: &Server, folder: &Path, arguments: &[&str]) -> String {
    let output = ended(server, folder, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
    out(&output)
}

fn has_user_namespaces() -> bool {
    let tried = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .output();
    tried.is_ok_and(|output| output.status.success())
}

#[test]
fn what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    assert_eq!(
        prints(&server, folder, &["ls"]),
        "there are no sandboxes in this workspace\n"
    );
    assert_eq!(prints(&server, folder, &["ls", "--json"]).trim(), "[]");
    for arguments in [
        &["exec", "nowhere", "true"][..],
        &["logs", "nowhere"],
        &["rm", "nowhere"],
        &["cp", "nowhere:/tmp/a", "-"],
    ] {
        let refused = ended(&server, folder, arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(
            err(&refused).contains("Sandbox 'nowhere' not found"),
            "{}",
            err(&refused)
        );
    }
    for arguments in [&["cp", "a", "b"][..], &["cp", "a:/b", "c:/d"], &["exec", "nowhere"]] {
        assert_eq!(
            ended(&server, folder, arguments).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

#[test]
fn commands_and_files_go_in_and_out() {
    if !has_user_namespaces() {
        eprintln!("skipped: this machine has no user namespaces, so it has no sandboxes");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let made = prints(
        &server,
        folder,
        &["create", "yard", "--env", "STAGE=test", "--label", "a=b"],
    );
    assert_eq!(made, "yard\n");
    let listed: Value = serde_json::from_str(&prints(&server, folder, &["ls", "--json"])).unwrap();
    assert_eq!(listed[0]["status"], "ready");
    assert_eq!(listed[0]["isolation"], "namespace");

    // One argument is a shell command line, several are a program and its arguments.
    assert_eq!(prints(&server, folder, &["exec", "yard", "echo $STAGE"]), "test\n");
    assert_eq!(
        prints(&server, folder, &["exec", "yard", "echo", "$STAGE", "a  b"]),
        "$STAGE a  b\n"
    );
    let failed = ended(&server, folder, &["exec", "yard", "echo out; echo err >&2; exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
    assert_eq!((out(&failed).as_str(), err(&failed).as_str()), ("out\n", "err\n"));
    let late = ended(&server, folder, &["exec", "--timeout", "1", "yard", "sleep 1000"]);
    assert_eq!(late.status.code(), Some(124), "{}", err(&late));

    let mut reading = command(&server, folder, &["exec", "yard", "cat; echo end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = "ä line\n".repeat(20_000);
    let (mut stdin, sent) = (reading.stdin.take().unwrap(), input.clone());
    // Concurrent with the read: the output equals the input, which exceeds the capacity of a pipe.
    let writer = std::thread::spawn(move || stdin.write_all(sent.as_bytes()));
    let read = reading.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(read.status.code(), Some(0));
    assert!(out(&read) == format!("{input}end\n"), "{} bytes", read.stdout.len());

    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    std::fs::write(folder.join("a.bin"), &bytes).unwrap();
    prints(&server, folder, &["cp", "a.bin", "yard:"]);
    assert_eq!(
        prints(&server, folder, &["exec", "yard", "wc -c < ~/a.bin"]),
        "300000\n"
    );
    prints(&server, folder, &["cp", "yard:a.bin", "back.bin"]);
    assert!(std::fs::read(folder.join("back.bin")).unwrap() == bytes);
    let missing = ended(&server, folder, &["cp", "yard:nothing", "c"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(!folder.join("c").exists());

    let id = prints(&server, folder, &["exec", "--detach", "yard", "echo detached; exit 5"]);
    let followed = ended(&server, folder, &["logs", "--follow", "yard", id.trim()]);
    assert_eq!(
        (out(&followed).as_str(), followed.status.code()),
        ("detached\n", Some(5))
    );
    assert_eq!(prints(&server, folder, &["logs", "yard", id.trim()]), "detached\n");
    assert!(prints(&server, folder, &["ps", "yard"]).contains(id.trim()));

    assert_eq!(prints(&server, folder, &["stop", "yard"]), "stopped yard\n");
    // A command restarts it, with its files.
    assert_eq!(prints(&server, folder, &["exec", "yard", "ls ~"]), "a.bin\n");
    assert_eq!(prints(&server, folder, &["rm", "yard"]), "deleted yard\n");
    gone(&server, folder);
}

/// Sandboxes outlive the server, so it ends after their last job.
fn gone(server: &Server, folder: &Path) {
    let began = Instant::now();
    loop {
        let jobs = server.json(folder, &["jobs", "ls", "--pool", "sandboxes"]);
        let open = ["scheduled", "blocked", "ready", "running", "waiting"];
        let is_open = |job: &Value| job["state"].as_str().is_some_and(|state| open.contains(&state));
        if !jobs.as_array().unwrap().iter().any(is_open) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{jobs}");
    }
}
