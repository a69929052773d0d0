//! `towpath migrate-store` where it is refused. Moves themselves: `tests/it/store_move.rs`, `crates/store/tests/it`.

use crate::dev::Server;
use crate::{err, out, run};

const NOBODY: &str = "postgres://towpath:hunter2@127.0.0.1:1/towpath";

#[test]
fn wrong_usage_is_named_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(Server::start(folder));
    for (arguments, part) in [
        (&["--to", NOBODY][..], "--from"),
        (
            &["--from", "nowhere", "--to", NOBODY],
            "there is no database nowhere/towpath.db",
        ),
        (
            &["--from", "data", "--without-agent"],
            "must be the address of an empty PostgreSQL database",
        ),
        (
            &["--from", "data", "--to", "mysql://h/d"],
            "must be the address of an empty PostgreSQL database",
        ),
        (&["--from", "data", "--to", NOBODY], "--agent-to"),
        (
            &["--from", "data", "--to", NOBODY, "--agent-to", NOBODY],
            "a database of its own",
        ),
        (
            &[
                "--from",
                "data",
                "--to",
                NOBODY,
                "--agent-to",
                NOBODY,
                "--without-agent",
            ],
            "cannot be used with",
        ),
        (
            &[
                "--from",
                "sqlite://data/towpath.db",
                "--to",
                NOBODY,
                "--agent-to",
                "postgres://h/d",
            ],
            "--agent-to is for the agent server of towpath dev",
        ),
    ] {
        let output = run(folder, &[&["migrate-store"][..], arguments].concat());
        let text = err(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part), "{arguments:?}: {part} is not in: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn a_server_in_the_folder_is_refused_and_so_is_an_absent_target() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let moving = ["migrate-store", "--from", "data", "--to", NOBODY, "--without-agent"];
    let used = run(folder, &moving);
    assert_eq!(used.status.code(), Some(1), "{}", err(&used));
    assert!(err(&used).contains("another towpath process"), "{}", err(&used));
    // The same file, named by itself.
    let file = ["migrate-store", "--from", "sqlite://data/towpath.db", "--to", NOBODY];
    let used = run(folder, &file);
    assert_eq!(used.status.code(), Some(2), "{}", err(&used));
    assert!(err(&used).contains("another process has"), "{}", err(&used));
    drop(server);
    for arguments in [&moving[..], &file] {
        let absent = run(folder, arguments);
        assert_eq!(absent.status.code(), Some(3), "{}", err(&absent));
        assert!(!err(&absent).contains("hunter2"), "{}", err(&absent));
    }
    assert!(!folder.join("data/towpath.moved").exists());
    // Nothing was moved, so a server starts.
    drop(Server::start(folder));
}

#[test]
fn help_says_what_is_moved_and_what_stays() {
    let folder = tempfile::tempdir().unwrap();
    let help = out(&run(folder.path(), &["migrate-store", "--help"]));
    let words: Vec<&str> = help.split_whitespace().collect();
    let help = words.join(" ");
    for part in [
        "Moved: every row of towpath.db to --to, and of agent.db to --agent-to",
        "Not moved: everything else in the data folder",
        "TOWPATH_OBJECTS",
        "TOWPATH_ENCRYPTION_KEY",
    ] {
        assert!(help.contains(part), "{part} is not in: {help}");
    }
}
