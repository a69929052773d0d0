use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use towpath_compute::program::Program;
use towpath_compute::tree::Limits;
use towpath_compute::{Error, Log, Root, orphans};

use crate::fixture::{lines, path};

/// The longest a test waits for a program.
const PATIENCE: Duration = Duration::from_secs(180);

fn shell(script: &str) -> Program {
    Program::new("test", "sh", Duration::from_secs(20))
        .args(["-c", script])
        .envs([("PATH", path())])
}

/// A pipe that programs and all they start hold open, as file 3: lines come from those that are at work, and its end
/// says that none of them is left.
struct AliveProbe {
    path: PathBuf,
    lines: mpsc::UnboundedReceiver<String>,
}

impl AliveProbe {
    fn new(folder: &Path) -> Self {
        let path = folder.join("presence");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let (send, lines) = mpsc::unbounded_channel();
        let reads = path.clone();
        // A thread that no one waits for: opening a pipe waits for its first writer, reading for its last.
        std::thread::spawn(move || {
            for line in BufReader::new(File::open(reads).unwrap()).lines() {
                let _ = send.send(line.unwrap());
            }
        });
        Self { path, lines }
    }

    /// Lets the rest of a script, and all that it starts, hold it open.
    fn held_in(&self, script: &str) -> String {
        format!("exec 3> {}; {script}", self.path.display())
    }

    async fn next(&mut self) -> Option<String> {
        let next = tokio::time::timeout(PATIENCE, self.lines.recv()).await;
        next.expect("nothing came, and somebody is still there")
    }

    /// Waits until each of these was said, in whatever order.
    async fn said<const N: usize>(&mut self, mut expected: [&str; N]) {
        let mut lines = Vec::new();
        for _ in 0..N {
            lines.push(self.next().await.expect("all of them are gone"));
        }
        lines.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lines, expected);
    }

    /// Waits until no one is left.
    async fn gone(&mut self) {
        assert_eq!(self.next().await, None);
    }
}

#[tokio::test]
async fn lines_come_as_they_are_written() {
    let (log, kept) = lines();
    let script = "echo one; echo two >&2; printf 'a\\rb'; env | sort; exit 3";
    let ended = shell(script).run(&log, &CancellationToken::new()).await.unwrap();
    assert_eq!(ended.code, Some(3));
    assert_eq!(ended.error, "two");
    let kept = kept.lock().unwrap();
    for line in ["one", "two", "a", "b"] {
        assert!(kept.iter().any(|found| found.starts_with(line)), "{line}: {kept:?}");
    }
    let inherited = ["HOME=", "CARGO", "USER="];
    assert!(
        !kept
            .iter()
            .any(|line| inherited.iter().any(|name| line.starts_with(name))),
        "the environment of this process came along: {kept:?}"
    );
}

#[tokio::test]
async fn who_is_stopped_is_stopped_with_all_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let mut presence = AliveProbe::new(folder.path());
    // One of its children leaves the process group, as daemons do.
    let script =
        presence.held_in("sh -c 'echo own >&3; exec sleep 600' & setsid sh -c 'echo other >&3; exec sleep 600' & wait");
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let run = tokio::spawn(async move { shell(&script).run(&Log::none(), &stop).await });
    presence.said(["own", "other"]).await;
    cancel.cancel();
    assert!(matches!(run.await.unwrap(), Err(Error::Cancelled)));
    presence.gone().await;
}

#[tokio::test]
async fn who_is_dropped_is_ended_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut presence = AliveProbe::new(folder.path());
    let script = presence.held_in("sh -c 'echo own >&3; exec sleep 600' & wait");
    let run = tokio::spawn(async move { shell(&script).run(&Log::none(), &CancellationToken::new()).await });
    presence.said(["own"]).await;
    run.abort();
    presence.gone().await;
}

#[tokio::test]
async fn time_and_size_are_bounded() {
    let program = Program::new("slow", "sleep", Duration::from_millis(50))
        .args(["60"])
        .envs([("PATH", path())]);
    let late = program.run(&Log::none(), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(late, Error::TimedOut(_)), "{late:?}");

    let folder = tempfile::tempdir().unwrap();
    let small = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    let watched = async |text: &str, limits| {
        let program = shell(text)
            .within(folder.path())
            .with_size_limit([folder.path()], limits);
        program.run(&Log::none(), &CancellationToken::new()).await.unwrap_err()
    };
    let large = watched("head -c 4000000 /dev/zero > large; sleep 600", small).await;
    assert_eq!(large.to_string(), "it is larger than 1 MB");
    let full = Limits {
        free: u64::MAX,
        ..Limits::default()
    };
    let full = watched("sleep 600", full).await;
    assert!(matches!(full, Error::Transient(_)), "{full:?}");
    assert!(
        full.to_string().starts_with("the disk of deployments has less than"),
        "{full}"
    );

    let missing = Program::new("missing", "no-such-program-here", Duration::from_secs(1)).envs([("PATH", path())]);
    let missing = missing.run(&Log::none(), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(missing, Error::Refused(_)), "{missing:?}");
}

#[tokio::test]
async fn what_an_earlier_life_left_is_ended_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("root");
    let root = Root::open(&place).unwrap();
    let second = Root::open(&place).unwrap_err();
    assert!(
        second.to_string().contains("another process already runs deployments"),
        "{second}"
    );
    let mark = root.mark();
    std::fs::write(place.join("scratch/left"), "behind").unwrap();
    drop(root);

    // As after a kill: no one waits for it, and no one ended it.
    let mut presence = AliveProbe::new(folder.path());
    let mut orphan = std::process::Command::new("setsid")
        .args(["sh", "-c", &presence.held_in("echo orphan >&3; exec sleep 600")])
        .env(orphans::ROOT_MARK, mark)
        .spawn()
        .unwrap();
    presence.said(["orphan"]).await;
    let _root = Root::open(&place).unwrap();
    presence.gone().await;
    orphan.wait().unwrap();
    assert!(!place.join("scratch/left").exists());
}
