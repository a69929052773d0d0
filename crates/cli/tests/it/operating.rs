//! The operators' commands, with a running server and without one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::dev::Server;
use crate::{err, out, run, towpath};

impl Server {
    /// A command for this server, with the key in the data folder.
    fn command(&self, folder: &Path, arguments: &[&str]) -> Output {
        let more = ["--server", &self.url, "--data-dir", "data", "--tenant", &self.tenant];
        run(folder, &[arguments, &more].concat())
    }

    /// Its JSON output; it must succeed.
    #[track_caller]
    pub fn json(&self, folder: &Path, arguments: &[&str]) -> Value {
        let output = self.command(folder, &[arguments, &["--output", "json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
        assert!(!out(&output).contains(&self.key) && !err(&output).contains(&self.key));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {}", out(&output)))
    }

    /// Its table output; it must succeed.
    #[track_caller]
    pub fn text(&self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.command(folder, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
        assert!(!out(&output).contains(&self.key) && !err(&output).contains(&self.key));
        out(&output)
    }

    pub fn project(&self, name: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let answer: Value = runtime.block_on(async {
            let http = reqwest::Client::builder()
                .no_proxy()
                .tls_built_in_root_certs(false)
                .build()
                .unwrap();
            let request = http
                .post(format!("{}/api/v1/sessions", self.url))
                .header("x-api-key", &self.key)
                .header("x-tenant-id", &self.tenant);
            request
                .json(&json!({ "name": name }))
                .send()
                .await
                .unwrap()
                .json()
                .await
                .unwrap()
        });
        answer["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

fn id(value: &Value) -> String {
    value["id"]
        .as_str()
        .unwrap_or_else(|| panic!("no id: {value}"))
        .to_owned()
}

const RANGE: [&str; 4] = ["--start", "2026-03-01", "--end", "2026-03-02"];

#[test]
fn an_operator_sees_and_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    server.project("a project");

    // A destination, and an export with `--wait`.
    let create = [
        "destinations",
        "create",
        "--name",
        "here",
        "--type",
        "file",
        "--prefix",
        "out",
    ];
    let destination = id(&server.json(folder, &create));
    let listed = server.text(folder, &["destinations"]);
    assert!(listed.contains(&destination) && listed.contains("here"), "{listed}");
    let export = [
        &[
            "exports",
            "create",
            "--destination",
            &destination,
            "--project",
            "a project",
        ][..],
        &RANGE,
    ]
    .concat();
    let ended = server.json(folder, &[&export[..], &["--wait"]].concat());
    assert_eq!(ended["status"], "COMPLETED", "{ended}");
    assert_eq!(ended["runs"].as_array().map(Vec::len), Some(1), "one day");

    // Its job, in each view.
    let jobs = server.json(folder, &["jobs", "ls", "--kind", "run_export"]);
    let job = id(&jobs[0]);
    assert_eq!(jobs[0]["state"], "succeeded");
    let shown = server.text(folder, &["jobs", "show", &job]);
    for part in [
        "run_export",
        "it is over: succeeded",
        "export_part",
        "jobs it started",
        "its lane exports:",
    ] {
        assert!(shown.contains(part), "{part} is not in:\n{shown}");
    }
    assert!(
        !shown.contains("input"),
        "what a job was given is shown to those who ask for it"
    );
    assert!(
        server
            .text(folder, &["jobs", "show", &job, "--input"])
            .contains("input")
    );
    let refused = server.command(folder, &["jobs", "retry", &job]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(out(&refused).contains("the job succeeded"), "{}", out(&refused));

    // A paused pool, and the explanation of a job that waits for it.
    let paused = server.text(folder, &["queues", "pause", "exports"]);
    assert!(paused.contains("paused"), "{paused}");
    let waiting = id(&server.json(folder, &export));
    let ready = server.json(folder, &["jobs", "ls", "--state", "ready", "--pool", "exports"]);
    let ready = id(&ready[0]);
    assert_eq!(
        server.text(folder, &["jobs", "explain", &ready]),
        "the pool exports is paused\n"
    );
    let queues = server.json(folder, &["queues"]);
    let exports = queues
        .as_array()
        .unwrap()
        .iter()
        .find(|queue| queue["pool"] == "exports")
        .unwrap();
    assert_eq!((&exports["ready"], &exports["status"]), (&json!(1), &json!("paused")));
    assert_eq!(
        server.json(folder, &["exports", "cancel", &waiting])["status"],
        "CANCELLED"
    );
    let cancelled = server.json(folder, &["jobs", "ls", "--state", "cancelled"]);
    assert_eq!(id(&cancelled[0]), ready);
    let refused = server.command(folder, &["jobs", "retry", &ready]);
    assert!(out(&refused).contains("create a new export"), "{}", out(&refused));
    // With a filter, refusals are not a failure.
    let found = server.json(folder, &["jobs", "retry", "--state", "cancelled"]);
    assert_eq!(
        (&found["done"], found["refused"].as_array().map(Vec::len)),
        (&json!(0), Some(1))
    );

    let drained = server.json(folder, &["queues", "drain", "exports", "--wait"]);
    assert_eq!(drained["status"], "drained");
    assert_eq!(
        server.json(folder, &["queues", "resume", "exports"])["status"],
        "active"
    );

    let second = id(&server.json(folder, &create));
    let deleted = server.json(folder, &["destinations", "delete", &second]);
    assert_eq!(deleted, json!({"id": second, "deleted": true}));
    let listed = server.text(folder, &["destinations"]);
    assert!(listed.contains(&destination) && !listed.contains(&second), "{listed}");
    let again = server.command(folder, &["destinations", "delete", &second]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).contains("destination not found"), "{}", err(&again));

    assert_eq!(server.text(folder, &["dead"]), "there are no dead letters\n");
    let schedules = server.text(folder, &["schedules"]);
    assert!(
        schedules.contains("sweep_traces") && schedules.lines().count() == 2,
        "{schedules}"
    );
    let doctor = run(folder, &["doctor", "--data-dir", "data"]);
    assert!(out(&doctor).contains("uses it"), "{}", out(&doctor));

    let worker = id(&server.json(folder, &["workers"])[0]);
    let drained = server.json(folder, &["workers", "drain", &worker, "--wait"]);
    assert_eq!(drained["status"], "drained");
    let again = id(&server.json(folder, &export));
    let ready = server.json(folder, &["jobs", "ls", "--state", "ready", "--pool", "exports"]);
    let why = server.text(folder, &["jobs", "explain", &id(&ready[0])]);
    assert_eq!(
        why,
        "every worker of the pool exports is draining; resume one or start another\n"
    );
    server.json(folder, &["jobs", "cancel", &id(&ready[0])]);
    assert_eq!(server.json(folder, &["exports", "show", &again])["status"], "CANCELLED");
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let unknown = server.command(folder, &["jobs", "show", "00000000-0000-0000-0000-000000000001"]);
    assert_eq!(
        (unknown.status.code(), err(&unknown)),
        (Some(1), "error: job not found\n".to_owned())
    );
    let wrong = "a key that opens nothing, of some length";
    let refused = run(folder, &["queues", "--server", &server.url, "--api-key", wrong]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        err(&refused).contains("not valid") && !err(&refused).contains(wrong),
        "{}",
        err(&refused)
    );
    for arguments in [
        &["queues", "--server", "nonsense"][..],
        &["queues", "--server", "ftp://127.0.0.1"],
        // There is no key here, and none is sent to other servers.
        &["queues", "--server", &server.url, "--data-dir", "none"],
        &["queues", "--server", "http://192.0.2.1", "--data-dir", "data"],
        &["jobs", "retry"],
        &["jobs", "ls", "--state", "lost"],
        &["exports", "create", "--destination", "x"],
    ] {
        let output = run(folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(!err(&output).contains(&server.key));
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let nobody = towpath(folder, &["queues", "--data-dir", "data"])
        .env("TOWPATH_SERVER", format!("http://127.0.0.1:{port}"))
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{}", err(&nobody));
    assert!(err(&nobody).contains("cannot reach"), "{}", err(&nobody));
    // Help never prints the key from the environment.
    let help = towpath(folder, &["queues", "--help"])
        .env("TOWPATH_API_KEY", wrong)
        .output()
        .unwrap();
    assert!(out(&help).contains("TOWPATH_API_KEY") && !out(&help).contains(wrong));
}

#[test]
fn a_backup_of_a_server_at_work_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let project = server.project("kept");
    let done = run(folder, &["backup", "copy", "--data-dir", "data"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let later = server.project("made later");
    let again = run(folder, &["backup", "copy", "--data-dir", "data"]);
    assert_eq!(again.status.code(), Some(2), "{}", err(&again));
    let onto = run(folder, &["restore", "copy", "--data-dir", "data"]);
    assert_eq!(onto.status.code(), Some(2), "{}", err(&onto));
    let key = server.key.clone();
    drop(server);

    std::fs::create_dir(folder.join("other")).unwrap();
    let done = run(folder, &["restore", "copy", "--data-dir", "other/data"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    for file in ["encryption.key", "api.key"] {
        let mode = std::fs::metadata(folder.join("other/data").join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let restored = Server::start(&folder.join("other"));
    assert_eq!(restored.key, key, "the same key opens it");
    assert_eq!(restored.get(&format!("/api/v1/sessions/{project}")).0, 200);
    assert_eq!(restored.get(&format!("/api/v1/sessions/{later}")).0, 404);

    std::fs::remove_file(folder.join("copy/backup.json")).unwrap();
    let torn = run(folder, &["restore", "copy", "--data-dir", "third"]);
    assert_eq!(torn.status.code(), Some(2), "{}", err(&torn));
    let cluster = towpath(folder, &["backup", "cluster"])
        .env("DATABASE_URI", "postgres://towpath:hunter2@127.0.0.1:1/towpath")
        .output()
        .unwrap();
    assert_eq!(cluster.status.code(), Some(3), "{}", err(&cluster));
    assert!(!err(&cluster).contains("hunter2"), "{}", err(&cluster));
    assert!(!folder.join("cluster").exists(), "nothing is left of one that failed");
    let nested = run(folder, &["backup", "above/inside/copy", "--data-dir", "data"]);
    assert_eq!(nested.status.code(), Some(0), "{}", err(&nested));
    assert!(folder.join("above/inside/copy/backup.json").is_file());
    // Nothing is left of the parents of one that failed.
    std::fs::remove_dir_all(folder.join("data/objects")).unwrap();
    std::fs::write(folder.join("data/objects"), "in the way").unwrap();
    let failed = run(folder, &["backup", "new/copy", "--data-dir", "data"]);
    assert_ne!(failed.status.code(), Some(0), "{}", err(&failed));
    assert!(!folder.join("new").exists(), "nothing is left of one that failed");
}

#[test]
fn who_asks_for_encrypted_checkpoints_is_told_that_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["agent", "dev"] {
        let refused = towpath(folder.path(), &[command, "--data-dir", "data"])
            .env("TOWPATH_LISTEN", "127.0.0.1:0")
            .env("TOWPATH_AGENT_LISTEN", "127.0.0.1:0")
            .env("LANGGRAPH_AES_KEY", "0123456789abcdef")
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{command}: {}", err(&refused));
        assert!(
            err(&refused).contains("LANGGRAPH_AES_KEY"),
            "{command}: {}",
            err(&refused)
        );
        assert!(
            !err(&refused).contains("0123456789abcdef"),
            "{command}: {}",
            err(&refused)
        );
    }
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let listen = ["--data-dir", "data", "--output", "json"];
    let fresh = towpath(folder, &[&["doctor"][..], &listen].concat())
        .env("TOWPATH_LISTEN", "127.0.0.1:0")
        .output()
        .unwrap();
    assert_eq!(fresh.status.code(), Some(0), "{}{}", out(&fresh), err(&fresh));
    assert!(!folder.join("data").exists(), "it looks, and makes nothing");

    let made = run(folder, &["keys", "create", "--data-dir", "data"]);
    assert!(made.status.success(), "{}", err(&made));
    std::fs::write(folder.join("data/api.key"), "a key").unwrap();
    std::fs::set_permissions(folder.join("data/api.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let sick = towpath(folder, &[&["doctor"][..], &listen].concat())
        .env("TOWPATH_LISTEN", "127.0.0.1:0")
        .env("REDIS_URI", format!("redis://:hunter2@127.0.0.1:{port}"))
        .output()
        .unwrap();
    assert_eq!(sick.status.code(), Some(1));
    assert!(!out(&sick).contains("hunter2"), "{}", out(&sick));
    let findings: Value = serde_json::from_slice(&sick.stdout).unwrap();
    let verdict = |check: &str| {
        let found = findings
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check} is not in {findings}"))["verdict"].clone()
    };
    assert_eq!(verdict("keys"), "failed");
    assert_eq!(verdict("redis"), "warning");
    assert_eq!(verdict("database"), "ok");
    assert_eq!(verdict("migrations"), "ok");

    let away = towpath(folder, &["doctor", "--for", "api"])
        .env("TOWPATH_LISTEN", "127.0.0.1:0")
        .env(
            "DATABASE_URI",
            format!("postgres://towpath:hunter2@127.0.0.1:{port}/towpath"),
        )
        .output()
        .unwrap();
    assert_eq!(away.status.code(), Some(1), "{}{}", out(&away), err(&away));
    assert!(
        out(&away).contains("FAILED") && !out(&away).contains("hunter2"),
        "{}",
        out(&away)
    );
}

#[test]
fn shells_and_readers_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = out(&run(folder, &["completions", shell]));
        assert!(script.contains("towpath") && script.contains("destinations"), "{shell}");
    }
    let page = out(&run(folder, &["man"]));
    assert!(page.contains(".TH towpath 1") && page.contains("Exit codes"), "{page}");
    assert!(run(folder, &["man", "--to", "pages"]).status.success());
    for page in ["towpath.1", "towpath-jobs-explain.1", "towpath-exports-create.1"] {
        assert!(folder.join("pages").join(page).is_file(), "{page}");
    }
}

#[test]
fn keys_are_looked_after_by_the_server_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let address = server.url.trim_start_matches("http://");
    // With `--server`, and the key in the data folder.
    let create = [
        "keys",
        "create",
        "--data-dir",
        "data",
        "--server",
        &server.url,
        "--output",
        "json",
    ];
    let made = run(folder, &[&create[..], &["--name", "named"]].concat());
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(
        (&made["tenant_id"], &made["operator"]),
        (&json!(server.tenant), &json!(false))
    );

    // Without `--server`: the folder is in use, so the server at the configured address is asked.
    let keys = |arguments: &[&str]| {
        let output = towpath(folder, &[&["keys"][..], arguments, &["--data-dir", "data"]].concat())
            .env("TOWPATH_LISTEN", address)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
        out(&output)
    };
    assert!(keys(&["create", "--name", "deputy", "--operator"]).contains("an operator key"));
    let listed = keys(&["ls"]);
    for name in ["named", "deputy", "all workspaces"] {
        assert!(listed.contains(name), "{name} is not in\n{listed}");
    }
    assert!(!listed.contains(made["key"].as_str().unwrap()), "{listed}");
    assert!(keys(&["revoke", &id(&made)]).starts_with("revoked "));
    let opened = towpath(folder, &["queues", "--server", &server.url])
        .env("TOWPATH_API_KEY", made["key"].as_str().unwrap())
        .output()
        .unwrap();
    assert_eq!(opened.status.code(), Some(1), "{}", err(&opened));
}
