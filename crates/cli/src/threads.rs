//! Number of threads of a command.

use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Builder;

/// The runtime's variable for another number of threads.
pub const THREADS_VARIABLE: &str = "TOKIO_WORKER_THREADS";

/// How a command shares the processors.
#[derive(Clone, Copy, Debug)]
pub enum Threads {
    /// One thread for each processor.
    AllProcessors,
    /// Up to half of the processors are left to this number of graph processes. A thread that wakes another one while
    /// all processors are busy would interrupt a graph and wait for it.
    SharedWithHosts(usize),
}

impl Threads {
    /// The number of threads; `None` leaves it to the runtime.
    fn count(self, processors: usize) -> Option<usize> {
        match self {
            Self::AllProcessors => None,
            Self::SharedWithHosts(others) => Some(processors.saturating_sub(others).max(processors.div_ceil(2))),
        }
    }
}

/// Processors available to this process.
pub fn processors() -> usize {
    available_parallelism().map_or(1, usize::from)
}

pub fn block_on(threads: Threads, command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut builder = Builder::new_multi_thread();
    if let Some(count) = threads.count(processors()) {
        builder.worker_threads(count);
    }
    let runtime = builder.enable_all().build()?;
    let result = runtime.block_on(command);
    // A hanging blocking call, such as a slow name look-up, must not delay the exit after the drain.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_get_their_processors_up_to_half() {
        let beside = |others| [1, 2, 3, 4, 8, 64].map(|all| Threads::SharedWithHosts(others).count(all).unwrap());
        assert_eq!(beside(1), [1, 1, 2, 3, 7, 63]);
        assert_eq!(beside(4), [1, 1, 2, 2, 4, 60]);
        assert_eq!(Threads::AllProcessors.count(8), None);
    }
}
