//! Tests of the binary: its output and its exit codes.

mod backup;
mod config;
mod demo;
mod dev;
mod hostile;
mod limits;
mod move_store;
mod older;
mod operating;
mod quarantine;
mod sandbox;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary in `folder`, with a minimal environment.
fn towpath(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    towpath(folder, arguments)
        .output()
        .expect("the binary was built for this test")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_usage_is_two() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["--no-such-flag"][..],
        &["no-such-command"],
        &["serve"],
        &["serve", "--role", "cook"],
        &["demo", "--runs", "0"],
    ] {
        let output = run(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert_eq!(
            out(&output),
            "",
            "{arguments:?} is an error, so nothing belongs on the output"
        );
    }
}

#[test]
fn the_version_is_for_people_and_programs() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["version"]);
    assert_eq!(out(&output), format!("towpath {}\n", env!("CARGO_PKG_VERSION")));
    let output = run(folder.path(), &["version", "--output", "json"]);
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_database_that_is_away_is_three() {
    let folder = tempfile::tempdir().unwrap();
    // A port without a listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let output = towpath(folder.path(), &["migrate"])
        .env(
            "DATABASE_URI",
            format!("postgres://towpath:hunter2@127.0.0.1:{port}/towpath"),
        )
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert!(!err(&output).contains("hunter2"), "{}", err(&output));
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let made = run(folder.path(), &["keys", "create", "--name", "ci", "--output", "json"]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{}", err(&made)));
    let secret = made["key"].as_str().unwrap();
    let list = || -> serde_json::Value {
        serde_json::from_slice(&run(folder.path(), &["keys", "list", "--output", "json"]).stdout).unwrap()
    };
    let listed = list();
    assert_eq!(
        (listed[0]["id"].as_str(), listed[0]["name"].as_str()),
        (made["id"].as_str(), Some("ci"))
    );
    assert!(!listed.to_string().contains(secret), "a list must not hold secrets");
    assert!(listed[0]["revoked_at"].is_null());
    let again = run(folder.path(), &["keys", "create", "--output", "json"]);
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(
        again["tenant_id"], made["tenant_id"],
        "the second key opens the same workspace"
    );
    assert!(
        run(folder.path(), &["keys", "revoke", made["id"].as_str().unwrap()])
            .status
            .success()
    );
    let revoked = list();
    let of = |id: &serde_json::Value| {
        revoked
            .as_array()
            .unwrap()
            .iter()
            .find(|key| key["id"] == *id)
            .unwrap()
            .clone()
    };
    assert!(of(&made["id"])["revoked_at"].is_string());
    assert!(of(&again["id"])["revoked_at"].is_null());
    let unknown = run(
        folder.path(),
        &["keys", "create", "--workspace", "00000000-0000-0000-0000-000000000001"],
    );
    assert_eq!(unknown.status.code(), Some(2), "{}", err(&unknown));
}
