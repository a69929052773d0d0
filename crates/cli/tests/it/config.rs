//! `towpath config`

use serde_json::Value;

use crate::{err, out, run, towpath};

#[test]
fn every_value_says_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("towpath.toml"), "[engine]\nlease_seconds = 7\n").unwrap();
    let output = towpath(
        folder.path(),
        &["config", "show", "--output", "json", "--data-dir", "kept"],
    )
    .env("DATABASE_URI", "postgres://towpath:hunter2@db/towpath")
    .env("TOWPATH_API_KEY", "an operator's own key of some length")
    .output()
    .unwrap();
    assert!(output.status.success(), "{}", err(&output));
    let shown: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| {
        shown
            .iter()
            .find(|entry| entry["key"] == key)
            .unwrap_or_else(|| panic!("no {key}"))
            .clone()
    };
    assert_eq!(of("engine.lease_seconds")["value"], "7");
    assert_eq!(
        of("engine.lease_seconds")["origin"],
        serde_json::json!({ "source": "file", "path": "towpath.toml", "line": 2 })
    );
    assert_eq!(
        of("data_dir")["origin"],
        serde_json::json!({ "source": "flag", "name": "--data-dir" })
    );
    assert_eq!(
        of("database_uri")["origin"],
        serde_json::json!({ "source": "environment", "name": "DATABASE_URI" })
    );
    assert_eq!(of("database_uri")["value"], "postgres://towpath:***@db/towpath");
    assert_eq!(of("api_key")["value"], "***");
    assert_eq!(of("listen")["origin"]["source"], "default");
    for secret in ["hunter2", "operator"] {
        assert!(!out(&output).contains(secret));
    }
}

#[test]
fn output_that_nobody_reads_ends_a_command_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = towpath(folder.path(), &["config", "show"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(141), ""));
}

#[test]
fn what_is_wrong_is_said_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine.toml"), "lissten = \"127.0.0.1:1\"\n").unwrap();
    let output = towpath(folder.path(), &["config", "check"])
        .env("TOWPATH_CONFIG", "mine.toml")
        .env("N_JOBS_PER_WORKER", "many")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = err(&output);
    assert!(
        errors.contains("mine.toml:1: unknown key lissten; did you mean listen?"),
        "{errors}"
    );
    assert!(
        errors.contains(
            "workers.slots: expected a whole number from 1 to 4096, got \"many\" (environment N_JOBS_PER_WORKER)"
        ),
        "{errors}"
    );
}

#[test]
fn settings_that_are_fine_are_fine() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["config", "check", "--for", "worker"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(
        !folder.path().join(".towpath").exists(),
        "looking at settings makes nothing"
    );
}
