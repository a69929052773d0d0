//! `towpath traces quarantine` with a running server, and the doctor's report of a quarantine.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_store::quarantine::{self, Entry, Kind};
use towpath_store::{Options, Store};
use towpath_traces::accept::{self, Request, Route};
use towpath_traces::body::Limits;
use towpath_traces::wal::frame;

use crate::dev::Server;
use crate::{err, out, run, towpath};

const BODY: &str = r#"{"post": [{"id": "0194fdc2-0000-7000-8000-000000000001", "name": "one", "run_type": "chain",
    "session_name": "canal", "start_time": "2026-03-01T10:00:00Z", "inputs": {}}]}"#;

/// Adds an entry to the quarantine of an unused data folder, with its object unless that is missing.
fn quarantined(folder: &Path, tenant: TenantId, kind: Kind) -> Entry {
    let id = QuarantineId::new();
    let at = Timestamp::parse("2026-03-01T12:00:00Z").unwrap();
    let request = Request {
        tenant,
        route: Route::Batch,
        content_type: "application/json",
        content_encoding: None,
        body: BODY.into(),
        received_at: at,
    };
    let accepted = accept::accept(request, &Limits::default()).unwrap();
    let object = frame::write(std::iter::once(&accepted.frame)).concat();
    let entry = Entry {
        id,
        tenant_id: tenant,
        kind,
        reason: "it cannot be merged".to_owned(),
        path: format!("quarantine/{tenant}/{id}.unit"),
        byte_offset: 8,
        bytes: object.len() as i64 - 8,
        decoded_bytes: BODY.len() as i64,
        items: 1,
        names: "{}".to_owned(),
        projects: None,
        first_start: None,
        last_start: None,
        accepted_at: at,
        created_at: at,
    };
    if kind != Kind::Missing {
        let file = folder.join("data/objects").join(&entry.path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, object).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let uri = format!("sqlite://{}", folder.join("data/towpath.db").display());
        let store = Store::open(&uri, Options::default()).await.unwrap();
        let put = store
            .write(async |tx| quarantine::put_all(tx, std::slice::from_ref(&entry)).await)
            .await;
        put.unwrap();
        store.close().await;
    });
    entry
}

fn command(server: &Server, folder: &Path, arguments: &[&str]) -> Output {
    let more = ["--server", &server.url, "--data-dir", "data"];
    run(folder, &[&["traces", "quarantine"], arguments, &more].concat())
}

/// Its JSON output; it must succeed.
#[track_caller]
fn json(server: &Server, folder: &Path, arguments: &[&str]) -> Value {
    let output = command(server, folder, &[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {}", out(&output)))
}

/// Verdict and text of the doctor about the quarantine.
fn diagnosis(folder: &Path, listen: &str) -> (String, String) {
    let output = towpath(folder, &["doctor", "--data-dir", "data", "--output", "json"])
        .env("TOWPATH_LISTEN", listen)
        .output()
        .unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", err(&output)));
    let found = findings.as_array().unwrap().iter();
    let mut found = found.filter(|finding| finding["check"] == "quarantine");
    let finding = found.next().unwrap_or_else(|| panic!("nothing of it in {findings}"));
    let text = |name: &str| finding[name].as_str().unwrap().to_owned();
    (text("verdict"), text("text"))
}

#[test]
fn an_operator_looks_after_the_quarantine() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let tenant: TenantId = server.tenant.parse().unwrap();
    let nothing = command(&server, folder, &[]);
    assert_eq!(out(&nothing), "the quarantine is empty\n", "{}", err(&nothing));
    drop(server);
    let free = "127.0.0.1:0";
    assert_eq!(diagnosis(folder, free).0, "ok");
    let entry = quarantined(folder, tenant, Kind::Rejected);
    let missing = quarantined(folder, tenant, Kind::Missing);
    let foreign = quarantined(folder, TenantId::new(), Kind::Rejected);
    let (verdict, text) = diagnosis(folder, free);
    assert_eq!(verdict, "warning");
    assert!(text.contains("3 entries with 3 operations of 2 workspaces"), "{text}");
    assert!(text.contains("towpath traces quarantine ls"), "{text}");

    let server = Server::start(folder);
    // The doctor asks the process that has the database open.
    let (verdict, text) = diagnosis(folder, server.url.trim_start_matches("http://"));
    assert_eq!(verdict, "warning");
    assert!(text.contains("3 entries"), "{text}");
    let listed = json(&server, folder, &["ls"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    let own = json(&server, folder, &["ls", "--tenant", &tenant.to_string()]);
    assert_eq!(own.as_array().map(Vec::len), Some(2));
    let table = out(&command(&server, folder, &["ls"]));
    for part in [
        &entry.id.to_string(),
        "rejected",
        "2026-03-01 12:00:00Z",
        "it cannot be merged",
    ] {
        assert!(table.contains(part), "{part} is not in:\n{table}");
    }

    let id = entry.id.to_string();
    let shown = command(&server, folder, &["show", &id, "--body", "body.json"]);
    assert_eq!(shown.status.code(), Some(0), "{}", err(&shown));
    for part in [
        "any in the workspace",
        "POST /runs/batch",
        "application/json",
        "identity",
        &entry.path,
    ] {
        assert!(out(&shown).contains(part), "{part} is not in:\n{}", out(&shown));
    }
    assert!(!out(&shown).contains("session_name"));
    assert_eq!(std::fs::read_to_string(folder.join("body.json")).unwrap(), BODY);
    let refused = command(
        &server,
        folder,
        &["show", &missing.id.to_string(), "--body", "none.json"],
    );
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).contains(&missing.path), "{}", err(&refused));
    assert!(!folder.join("none.json").exists());

    let refused = command(&server, folder, &["retry", &missing.id.to_string()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        out(&refused).contains("missing in the object store"),
        "{}",
        out(&refused)
    );
    let retried = json(&server, folder, &["retry", &id]);
    assert_eq!(retried, json!({"done": 1, "items": 1, "refused": []}));
    let unknown = command(&server, folder, &["show", &id]);
    assert_eq!(
        (unknown.status.code(), err(&unknown)),
        (Some(1), "error: quarantine entry not found\n".to_owned())
    );
    for arguments in [
        &["retry"][..],
        &["drop", &missing.id.to_string()],
        &["drop", "--all"],
        &["drop", "--all", "--yes", &id],
        &["show", &id, "--frame", "1"],
        &["ls", "--json", "--output", "table"],
    ] {
        let output = command(&server, folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
    }
    let all = ["drop", "--all", "--tenant", &tenant.to_string(), "--yes"];
    let dropped = command(&server, folder, &all);
    assert_eq!(
        out(&dropped),
        "dropped: 1 entry with 1 operation\n",
        "{}",
        err(&dropped)
    );
    let left = json(&server, folder, &["ls"]);
    assert_eq!(left[0]["id"], foreign.id.to_string());
    assert_eq!(left.as_array().map(Vec::len), Some(1));
}
