//! Access of a process with the platform's own user, such as code of a deployment, to the platform.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{err, out, run, towpath};

/// A key that is only in the environment of the server.
const CANARY: &str = "canary-of-the-environment-0123456789abcdef";
/// The user of tests that run as root.
const NOBODY: &str = "65534";

/// Killed when it is dropped.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs programs as a user other than root, because root reads everything.
struct Account {
    is_root: bool,
}

impl Account {
    /// `None`, with a message, if this machine cannot run programs as another user.
    fn find(folder: &Path) -> Option<Self> {
        let is_root = folder.metadata().unwrap().uid() == 0;
        let account = Self { is_root };
        if is_root {
            std::os::unix::fs::chown(folder, NOBODY.parse().ok(), NOBODY.parse().ok()).unwrap();
        }
        let binary = env!("CARGO_BIN_EXE_towpath");
        let version = account.command(binary, folder).arg("version").output();
        if !version.is_ok_and(|version| version.status.success()) {
            eprintln!("skipped: nobody but root can start {binary} here, and root reads everything");
            return None;
        }
        Some(account)
    }

    fn command(&self, program: &str, folder: &Path) -> Command {
        let mut command = if self.is_root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--", program]);
            command
        } else {
            Command::new(program)
        };
        command
            .current_dir(folder)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    /// What a process of this user reads of a file in `/proc`; empty if it may not.
    fn reads(&self, folder: &Path, pid: u32, file: &str) -> String {
        let read = self
            .command("cat", folder)
            .arg(format!("/proc/{pid}/{file}"))
            .output()
            .unwrap();
        out(&read)
    }
}

#[test]
fn the_environment_of_the_platform_is_closed_to_its_account() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(account) = Account::find(folder) else { return };

    // The same read of a process that does not protect itself, to show that the reader works.
    let mut open = account
        .command("sh", folder)
        .args(["-c", "echo started; exec sleep 600"])
        .env("CANARY", CANARY)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The kernel protects it while it changes its user.
    let mut started = String::new();
    let mut said = BufReader::new(open.stdout.take().unwrap());
    let mut open = ServerProcess(open);
    said.read_line(&mut started).unwrap();
    assert_eq!(started, "started\n");
    if !account.reads(folder, open.0.id(), "environ").contains(CANARY) {
        eprintln!("skipped: this machine lets no process read another one's environment");
        return;
    }
    open.0.kill().unwrap();

    let mut server = account
        .command(env!("CARGO_BIN_EXE_towpath"), folder)
        .args([
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--agent-listen",
            "127.0.0.1:0",
            "--data-dir",
            "data",
        ])
        .env("TOWPATH_API_KEY", CANARY)
        .env("TOWPATH_TENANT_ID", "6f0c1d5e-54c3-4f7a-9d0b-0a4f6f6b5a10")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    let server = ServerProcess(server);
    let mut line = String::new();
    while !line.contains("reference") {
        line.clear();
        let read = output.read_line(&mut line).unwrap();
        assert_ne!(read, 0, "the server ended before it said where it is");
    }
    for file in ["environ", "maps"] {
        let read = account.reads(folder, server.0.id(), file);
        assert_eq!(read, "", "{file} of the platform was read");
    }
}

/// Attempts of code in a cell, by their target. `$1` is the platform's folder, `$2` a process of the platform.
const TRIES: [(&str, &str); 8] = [
    ("the key file", "cat $1/encryption.key"),
    ("the database", "cat $1/towpath.db"),
    ("the folder of another deployment", "ls $1/deployments/agents/other"),
    ("what is covered, by another way", "cat /proc/1/root$1/towpath.db"),
    ("the environment of the platform", "cat /proc/$2/environ"),
    ("the memory map of the platform", "cat /proc/$2/maps"),
    ("the platform's process", "kill -0 $2"),
    ("other rights", "grep -q 'NoNewPrivs:.*0' /proc/self/status"),
];

#[test]
fn code_in_a_cell_reaches_its_own_and_nothing_of_the_platform() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if folder.metadata().unwrap().uid() != 0 {
        eprintln!("skipped: only root makes cells");
        return;
    }
    let data = folder.join("data");
    let (own, source) = (data.join("deployments/agents/own"), data.join("source"));
    let (temporary, over) = (folder.join("temporary"), folder.join("over"));
    for path in [
        &own,
        &source,
        &data.join("deployments/agents/other"),
        &temporary,
        &over.join("changes"),
        &over.join("work"),
    ] {
        std::fs::create_dir_all(path).unwrap();
    }
    for path in [&own, &source, &temporary, &over.join("changes")] {
        std::os::unix::fs::chown(path, NOBODY.parse().ok(), NOBODY.parse().ok()).unwrap();
    }
    // Readable by mode, so that only the cell protects them.
    for name in ["encryption.key", "towpath.db"] {
        std::fs::write(data.join(name), CANARY).unwrap();
    }
    let platform = Command::new("sleep").arg("600").env("CANARY", CANARY).spawn().unwrap();
    let platform = ServerProcess(platform);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let program = env!("CARGO_BIN_EXE_towpath");
    let enter = |script: &str| {
        let mut command = Command::new(program);
        command
            .args(["enter", "--user", NOBODY, "--temporary", &path(&temporary)])
            .args(["--cover", &path(&data), "--writable", &path(&own)])
            .args(["--layer", &path(&source), "--over", &path(&over)])
            .args([
                "--",
                "sh",
                "-c",
                script,
                "sh",
                &path(&data),
                &platform.0.id().to_string(),
            ])
            .current_dir(&source)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null());
        command.output().unwrap()
    };

    let can = enter("true");
    if !can.status.success() {
        eprintln!("skipped: this machine lets nobody make cells: {}", err(&can));
        return;
    }
    let works = enter(&format!(
        "set -e; id -u; echo kept > {}/kept; echo changed > changed; echo passing > /tmp/passing; cat /proc/self/environ > /dev/null",
        own.display()
    ));
    assert!(works.status.success(), "{}", err(&works));
    assert_eq!(out(&works).trim(), NOBODY);
    assert_eq!(std::fs::read_to_string(own.join("kept")).unwrap(), "kept\n");
    assert!(!source.join("changed").exists(), "a source was changed for others");
    assert!(!Path::new("/tmp/passing").exists(), "a cell has the /tmp of others");

    for (what, script) in TRIES {
        let tried = enter(script);
        assert!(!tried.status.success(), "{what} was reached: {}", out(&tried));
    }
}

/// The launcher becomes the program, or reports why not.
#[test]
fn the_launcher_becomes_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let launched = towpath(
        folder,
        &["enter", "--", "sh", "-c", "echo $$ \"$0\" \"$1\"", "--group", "x"],
    )
    .env("PATH", "/usr/bin:/bin")
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let pid = launched.id();
    let said = out(&launched.wait_with_output().unwrap());
    assert_eq!(said, format!("{pid} --group x\n"));

    let missing = run(folder, &["enter", "--", "./no-such-program"]);
    assert_eq!(missing.status.code(), Some(1), "{}", err(&missing));
    assert!(err(&missing).contains("no-such-program"), "{}", err(&missing));
    // It does not start if it cannot enter a required group.
    let group = folder.join("no/cgroup.procs");
    let refused = run(
        folder,
        &["enter", "--group", group.to_str().unwrap(), "--", "touch", "started"],
    );
    assert_eq!(refused.status.code(), Some(1), "{}", err(&refused));
    assert!(!folder.join("started").exists());
}
