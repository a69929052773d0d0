//! Rate limits: enabling and viewing them as an operator.

use crate::dev::Server;
use crate::{err, out, run, towpath};

#[test]
fn an_operator_sees_who_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start_with(folder, &["--limits", "us"]);
    // 30 per hour, and no such route.
    let statuses: Vec<u16> = (0..32).map(|_| server.get("/generate").0).collect();
    assert_eq!(statuses[..30], [404; 30]);
    assert_eq!(statuses[30..], [429; 2]);

    let seen = server.json(folder, &["limits"]);
    assert_eq!(seen["table"], "us");
    assert_eq!(seen["counted"], "here");
    assert_eq!(seen["items"].as_array().unwrap().len(), 29);
    let caller = &seen["callers"][0];
    assert_eq!(caller["limit"], "generate_key");
    assert_eq!(caller["refused"], 2);
    let text = server.text(folder, &["limits"]);
    assert!(text.starts_with("rules: us; counted in this process\n"), "{text}");
    assert!(text.contains("generate_key") && text.contains("30 of 30"), "{text}");
    assert!(!text.contains("runs_stats"), "what counted nothing is left out: {text}");
    let all = server.text(folder, &["limits", "--all"]);
    assert!(all.contains("runs_stats") && all.contains("1 in 10 s"), "{all}");
}

#[test]
fn without_limits_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let text = server.text(folder.path(), &["limits"]);
    assert!(text.starts_with("there are no limits"), "{text}");
}

#[test]
fn a_file_that_is_wrong_keeps_the_server_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let start = || {
        let listen = ["dev", "--listen", "127.0.0.1:0", "--agent-listen", "127.0.0.1:0"];
        run(
            folder,
            &[&listen[..], &["--data-dir", "data", "--limits", "rules.json"]].concat(),
        )
    };
    let output = start();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("limits.rules: rules.json"), "{}", err(&output));

    let rules =
        r#"{"rules": [{"id": "one", "match": {"always": true}, "identity": ["host"], "count": 1, "interval_s": 1}]}"#;
    std::fs::write(folder.join("rules.json"), rules).unwrap();
    let output = start();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("one: identity: expected"), "{}", err(&output));
    let doctor = towpath(folder, &["doctor", "--data-dir", "data"])
        .env("TOWPATH_LIMITS", "rules.json")
        .output()
        .unwrap();
    assert_eq!(doctor.status.code(), Some(1));
    let said = out(&doctor);
    assert!(said.contains("limits.rules: rules.json: one: identity"), "{said}");
}
