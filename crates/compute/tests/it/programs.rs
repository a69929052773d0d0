use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use towpath_compute::program::Program;
use towpath_compute::{Error, Log, Root, orphans};

use crate::place::{lines, path};

fn shell(script: &str) -> Program {
    Program::new("test", "sh", Duration::from_secs(20))
        .args(["-c", script])
        .envs([("PATH", path())])
}

/// Waits until a process wrote its id, and gives it.
async fn pid(file: &Path) -> i32 {
    loop {
        if let Some(pid) = std::fs::read_to_string(file)
            .ok()
            .and_then(|text| text.trim().parse().ok())
        {
            return pid;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a process is gone, or only waits for its parent to notice.
async fn gone(pid: i32) {
    loop {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = state.rsplit(") ").next().unwrap_or_default().chars().next();
        if matches!(state, None | Some('Z' | 'X')) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
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
    let (own, other) = (folder.path().join("own"), folder.path().join("other"));
    // One of its children leaves the process group, as daemons do.
    let script = format!(
        "sleep 600 & echo $! > {}; setsid sh -c 'echo $$ > {}; exec sleep 600' & wait",
        own.display(),
        other.display()
    );
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let run = tokio::spawn(async move { shell(&script).run(&Log::none(), &stop).await });
    let pids = [pid(&own).await, pid(&other).await];
    cancel.cancel();
    assert!(matches!(run.await.unwrap(), Err(Error::Cancelled)));
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test]
async fn who_is_dropped_is_ended_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}; wait", file.display());
    let run = tokio::spawn(async move { shell(&script).run(&Log::none(), &CancellationToken::new()).await });
    let pid = pid(&file).await;
    run.abort();
    gone(pid).await;
}

#[tokio::test]
async fn time_and_size_are_bounded() {
    let program = Program::new("slow", "sleep", Duration::from_millis(50))
        .args(["60"])
        .envs([("PATH", path())]);
    let late = program.run(&Log::none(), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(late, Error::TimedOut(_)), "{late:?}");

    let folder = tempfile::tempdir().unwrap();
    let program = shell("head -c 4000000 /dev/zero > large; sleep 600").within(folder.path());
    let large = program
        .watching(folder.path(), 1 << 20)
        .run(&Log::none(), &CancellationToken::new())
        .await;
    assert_eq!(large.unwrap_err().to_string(), "it is larger than 1 MB");

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
        second.to_string().contains("another process keeps deployments"),
        "{second}"
    );
    let mark = root.mark();
    std::fs::write(place.join("scratch/left"), "behind").unwrap();
    drop(root);

    // As after a kill: nobody waits for it, and nobody ended it.
    let file = folder.path().join("pid");
    let mut orphan = std::process::Command::new("setsid")
        .args(["sh", "-c", &format!("echo $$ > {}; exec sleep 600", file.display())])
        .env(orphans::ROOT_MARK, mark)
        .spawn()
        .unwrap();
    let pid = pid(&file).await;
    let _root = Root::open(&place).unwrap();
    gone(pid).await;
    orphan.wait().unwrap();
    assert!(!place.join("scratch/left").exists());
}
