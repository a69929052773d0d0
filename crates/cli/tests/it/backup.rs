//! Incomplete backups, repeated restores, and their keys.

use std::os::unix::fs::PermissionsExt as _;

use crate::dev::Server;
use crate::{err, run, towpath};

#[test]
fn a_backup_that_is_not_whole_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(Server::start(folder));
    let done = run(folder, &["backup", "copy", "--data-dir", "data"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let piece = folder.join("copy/agent.db");
    let whole = std::fs::read(&piece).unwrap();
    let restore = || run(folder, &["restore", "copy", "--data-dir", "other"]);
    std::fs::remove_file(&piece).unwrap();
    let torn = restore();
    assert_eq!(torn.status.code(), Some(1), "{}", err(&torn));
    assert!(err(&torn).contains("agent.db is missing"), "{}", err(&torn));
    // Of the same length, and still a database.
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&piece, changed).unwrap();
    let torn = restore();
    assert_eq!(torn.status.code(), Some(1), "{}", err(&torn));
    assert!(err(&torn).contains("agent.db has changed"), "{}", err(&torn));
    assert!(!folder.join("other").exists(), "nothing is made");
    std::fs::write(&piece, whole).unwrap();
    let done = restore();
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
}

#[test]
fn a_restore_that_was_interrupted_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder);
    let project = server.project("kept");
    let done = run(folder, &["backup", "copy", "--data-dir", "data"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    drop(server);
    let restore = || run(folder, &["restore", "copy", "--data-dir", "other/data"]);
    let data = folder.join("other/data");
    std::fs::create_dir_all(&data).unwrap();
    // It fails when the objects are restored.
    std::fs::write(data.join("objects"), "in the way").unwrap();
    let broken = restore();
    assert_eq!(broken.status.code(), Some(1), "{}", err(&broken));
    let early = run(folder, &["keys", "list", "--data-dir", "other/data"]);
    assert_eq!(early.status.code(), Some(1), "{}", err(&early));
    assert!(err(&early).contains("was interrupted"), "{}", err(&early));
    std::fs::remove_file(data.join("objects")).unwrap();
    let done = restore();
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let again = restore();
    assert_eq!(again.status.code(), Some(2), "it is an installation: {}", err(&again));
    let restored = Server::start(&folder.join("other"));
    assert_eq!(restored.get(&format!("/api/v1/sessions/{project}")).0, 200);
}

#[test]
fn a_backup_without_keys_needs_the_encryption_key() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(Server::start(folder));
    let done = run(folder, &["backup", "copy", "--without-keys", "--data-dir", "data"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    for file in ["encryption.key", "api.key"] {
        assert!(!folder.join("copy").join(file).exists(), "{file}");
    }
    let key = std::fs::read_to_string(folder.join("data/encryption.key")).unwrap();
    let restore = |keys: Option<&str>| {
        let mut command = towpath(folder, &["restore", "copy", "--data-dir", "other"]);
        command.envs(keys.map(|keys| ("TOWPATH_ENCRYPTION_KEY", keys)));
        command.output().unwrap()
    };
    let without = restore(None);
    assert_eq!(without.status.code(), Some(1), "{}", err(&without));
    assert!(
        err(&without).contains("the backup has no encryption key"),
        "{}",
        err(&without)
    );
    let other = restore(Some(&"ab".repeat(32)));
    assert_eq!(other.status.code(), Some(1), "{}", err(&other));
    assert!(err(&other).contains("sealed under the key"), "{}", err(&other));
    assert!(!folder.join("other").exists(), "nothing is made");
    let done = restore(Some(key.trim()));
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
}

#[test]
fn a_restore_replaces_no_other_key() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(Server::start(folder));
    let done = run(folder, &["backup", "copy", "--data-dir", "data"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    std::fs::create_dir(folder.join("other")).unwrap();
    let kept = folder.join("other/encryption.key");
    std::fs::write(&kept, "ab".repeat(32)).unwrap();
    let refused = run(folder, &["restore", "copy", "--data-dir", "other"]);
    assert_eq!(refused.status.code(), Some(2), "{}", err(&refused));
    assert!(
        err(&refused).contains("encryption.key exists already"),
        "{}",
        err(&refused)
    );
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "ab".repeat(32));
}

#[test]
fn a_start_without_the_encryption_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(Server::start(folder));
    let file = folder.join("data/encryption.key");
    let key = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let start = |keys: Option<&str>| {
        let nowhere = "127.0.0.1:0";
        let arguments = [
            "dev",
            "--listen",
            nowhere,
            "--agent-listen",
            nowhere,
            "--data-dir",
            "data",
        ];
        let mut command = towpath(folder, &arguments);
        command.envs(keys.map(|keys| ("TOWPATH_ENCRYPTION_KEY", keys)));
        command.output().unwrap()
    };
    let missing = start(None);
    assert_eq!(missing.status.code(), Some(1), "{}", err(&missing));
    assert!(err(&missing).contains("encryption.key is missing"), "{}", err(&missing));
    assert!(!file.exists(), "no other key is made");
    let other = start(Some(&"ab".repeat(32)));
    assert_eq!(other.status.code(), Some(1), "{}", err(&other));
    assert!(err(&other).contains("sealed under the key"), "{}", err(&other));
    assert!(!err(&other).contains(key.trim()) && !err(&other).contains(&"ab".repeat(32)));
    // The correct key again.
    std::fs::write(&file, &key).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    drop(Server::start(folder));
}
