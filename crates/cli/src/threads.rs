//! How many threads a command works with.

use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Builder;

/// Read by the runtime: how many threads, where its operator wants another number.
pub const TOLD: &str = "TOKIO_WORKER_THREADS";

/// How a command shares the processors.
#[derive(Clone, Copy, Debug)]
pub enum Threads {
    /// It has them for itself: a thread for each.
    Own,
    /// So many processes of graphs need them more: theirs are left to them, up to half of all. A thread that wakes another
    /// where every processor is taken interrupts a graph, and has to wait for it. With two processors this saves a sixth
    /// of what the server spends on a run.
    Beside(usize),
}

impl Threads {
    /// How many, of so many processors, where that is not for the runtime to say.
    fn count(self, processors: usize) -> Option<usize> {
        match self {
            Self::Own => None,
            Self::Beside(others) => Some(processors.saturating_sub(others).max(processors.div_ceil(2))),
        }
    }
}

/// Processors that this process may use.
pub fn processors() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Runs a command to its end.
///
/// # Errors
/// Its own; no threads can be started.
pub fn block_on(threads: Threads, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut builder = Builder::new_multi_thread();
    if let Some(count) = threads.count(processors()) {
        builder.worker_threads(count);
    }
    let runtime = builder.enable_all().build()?;
    let result = runtime.block_on(command);
    // A blocking call that hangs, such as a slow name look-up, must not hold up an exit that has drained already.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_get_their_processors_up_to_half() {
        let beside = |others| [1, 2, 3, 4, 8, 64].map(|all| Threads::Beside(others).count(all).unwrap());
        assert_eq!(beside(1), [1, 1, 2, 3, 7, 63]);
        assert_eq!(beside(4), [1, 1, 2, 2, 4, 60]);
        assert_eq!(Threads::Own.count(8), None);
    }
}
