//! Databases and backups of builds before the first release: each command that would use one reports it and fails.

use std::path::Path;

use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

use crate::{err, out, run};

/// Makes a database look like that of such a build: its first migration had another content.
fn age(file: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let uri = format!("sqlite://{}", file.display());
        let mut database = SqliteConnection::connect(&uri).await.unwrap();
        let aged = sqlx::query("UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 1");
        assert_eq!(aged.execute(&mut database).await.unwrap().rows_affected(), 1);
        database.close().await.unwrap();
    });
}

/// A data folder with a database.
fn data(folder: &Path) {
    let made = run(folder, &["keys", "create", "--data-dir", "data"]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
}

/// Expects that a command fails with one line that contains all `parts`.
#[track_caller]
fn refused(folder: &Path, arguments: &[&str], parts: &[&str]) {
    let output = run(folder, arguments);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{arguments:?}: {text}");
    for part in parts {
        assert!(lines[0].contains(part), "{arguments:?}: {part} is not in: {text}");
    }
}

const WHAT_TO_DO: [&str; 2] = ["older build", "start with a new data folder or an empty database"];

#[test]
fn commands_refuse_the_database_of_an_older_build() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    data(folder);
    let database = folder.join("data/towpath.db");
    age(&database);
    let before = std::fs::read(&database).unwrap();
    let parts = [&["data/towpath.db"][..], &WHAT_TO_DO].concat();
    let nowhere = "127.0.0.1:0";
    for arguments in [
        &["migrate"][..],
        &["dev", "--listen", nowhere, "--agent-listen", nowhere],
        &["serve", "--role", "all", "--listen", nowhere],
        &["keys", "list"],
        &["backup", "copy"],
        &[
            "migrate-store",
            "--from",
            "data",
            "--to",
            "postgres://127.0.0.1:1/towpath",
        ],
    ] {
        refused(folder, &[arguments, &["--data-dir", "data"]].concat(), &parts);
    }
    assert_eq!(std::fs::read(&database).unwrap(), before, "it is left as it is");
    assert!(!folder.join("copy").exists());

    let doctor = run(folder, &["doctor", "--data-dir", "data", "--output", "json"]);
    let findings: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let found = findings
        .iter()
        .find(|finding| finding["check"] == "migrations")
        .unwrap();
    assert_eq!(found["verdict"], "failed", "{}", out(&doctor));
    assert!(found.to_string().contains("older build"), "{found}");
}

#[test]
fn commands_refuse_the_agent_database_of_an_older_build() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    data(folder);
    let agent = folder.join("data/agent.db");
    std::fs::copy(folder.join("data/towpath.db"), &agent).unwrap();
    age(&agent);
    let parts = [&["data/agent.db"][..], &WHAT_TO_DO].concat();
    let nowhere = "127.0.0.1:0";
    for arguments in [
        &["dev", "--listen", nowhere, "--agent-listen", nowhere][..],
        &["agent", "--listen", nowhere],
        &["backup", "copy"],
    ] {
        refused(folder, &[arguments, &["--data-dir", "data"]].concat(), &parts);
    }
    assert!(!folder.join("copy").exists());
}

#[test]
fn restore_refuses_a_backup_of_another_build() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    data(folder);
    let deployment = folder.join("data/deployments/agents/one");
    std::fs::create_dir_all(&deployment).unwrap();
    for copy in [folder.join("data/agent.db"), deployment.join("agent.db")] {
        std::fs::copy(folder.join("data/towpath.db"), copy).unwrap();
    }
    // Only `backup.json` is checked: a PostgreSQL dump shows nothing else before it is loaded.
    let about = |format: u32, migrations: &[i64]| {
        let file = folder.join("copy/backup.json");
        let mut about: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        about["format"] = json!(format);
        about["migrations"] = json!(migrations);
        std::fs::write(&file, about.to_string()).unwrap();
    };
    let backup = || {
        let _ = std::fs::remove_dir_all(folder.join("copy"));
        let made = run(folder, &["backup", "copy", "--data-dir", "data"]);
        assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    };
    let restore = ["restore", "copy", "--data-dir", "other"];
    let older: Vec<i64> = (1..=18).collect();
    for format in [1, 2] {
        backup();
        about(format, &older);
        refused(folder, &restore, &[&["the backup copy"][..], &WHAT_TO_DO].concat());
    }
    for (format, migrations) in [(3, &[1, 9000][..]), (4, &[1])] {
        backup();
        about(format, migrations);
        refused(folder, &restore, &["the backup copy", "newer than this one"]);
    }
    for database in ["towpath.db", "agent.db", "deployments/agents/one/agent.db"] {
        backup();
        age(&folder.join("copy").join(database));
        refused(folder, &restore, &[&["copy/", database][..], &WHAT_TO_DO].concat());
    }
    assert!(!folder.join("other").exists(), "nothing is made before it is known");
    backup();
    let done = run(folder, &restore);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
}
