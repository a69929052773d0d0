//! Separates the cores of a server and its load.

use std::future::Future;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// One half of the cores available to this process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    /// The smaller one if their number is odd.
    Lower,
    Upper,
}

/// Restricts the calling thread, and threads and processes that it starts later, to one half. No effect with a single
/// core.
pub(super) fn keep_to(half: Half) -> anyhow::Result<()> {
    // 0 is the calling thread.
    let this = Pid::from_raw(0);
    let mine = sched_getaffinity(this).context("reading the CPU affinity")?;
    let cores: Vec<usize> = (0..CpuSet::count())
        .filter(|&core| mine.is_set(core).unwrap_or(false))
        .collect();
    let (lower, upper) = cores.split_at(cores.len() / 2);
    let kept = match half {
        Half::Lower => lower,
        Half::Upper => upper,
    };
    if lower.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &core in kept {
        set.set(core)?;
    }
    sched_setaffinity(this, &set).context("choosing cores")
}

/// Runs `work` on its own thread, restricted to `half` if given.
pub(super) async fn run_on<T: Send + 'static, F: Future<Output = anyhow::Result<T>>>(
    half: Option<Half>,
    work: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<T> {
    let (send, answer) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("load".to_owned()).spawn(move || {
        let result = half.map_or(Ok(()), keep_to).and_then(|()| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(work())
        });
        let _ = send.send(result);
    })?;
    answer.await.context("the thread that makes the load ended")?
}
