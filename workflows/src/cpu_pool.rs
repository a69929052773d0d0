//! Threads for CPU-bound work.
//!
//! Decoding and encoding rows would starve other tasks of a runtime, such as lease renewals and HTTP. So it has its own
//! runtime, whose threads may use every core but have a lower priority.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use towpath_durable::Failure;

/// The nice value: a thread at normal priority gets three times as much CPU time.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// A runtime for CPU-bound work. Dropping it does not wait for running work.
#[derive(Debug)]
pub struct CpuPool {
    handle: Handle,
    runtime: Option<Runtime>,
    memory_permits: Arc<Semaphore>,
}

impl CpuPool {
    /// Starts one thread for each core.
    pub fn new() -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores)
    }

    pub fn with_threads(threads: usize) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("heavy")
            .on_thread_start(lower_priority)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            memory_permits: Arc::new(Semaphore::new(threads.max(2))),
        })
    }

    /// A permit for work that needs much memory, such as writing a file of an export: one for each thread and at least
    /// two, so that one sends while another encodes. It bounds the memory independently of the number of jobs.
    ///
    /// [`Failure::Cancelled`] if the job is cancelled while it waits.
    pub async fn memory_permit(&self, cancelled: &CancellationToken) -> Result<OwnedSemaphorePermit, Failure> {
        tokio::select! {
            biased;
            () = cancelled.cancelled() => Err(Failure::Cancelled),
            place = Arc::clone(&self.memory_permits).acquire_owned() => place.map_err(|_| Failure::Cancelled),
        }
    }

    /// Runs `work` in the pool. Dropping the task aborts the work at its next await.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(self.handle.spawn(work))
    }
}

impl CpuPool {
    /// Runs work whose future must stay on one thread, in a separate thread. Dropping the task ends the work at its
    /// next await.
    pub fn run_local<T: Send + 'static, F: Future<Output = T>>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Task<T> {
        self.run(async move {
            let (keep, dropped) = oneshot::channel::<()>();
            let on_one_thread = move || {
                Handle::current().block_on(async move {
                    tokio::select! {
                        biased;
                        _ = dropped => None,
                        answer = work() => Some(answer),
                    }
                })
            };
            let ended = tokio::task::spawn_blocking(on_one_thread).await;
            drop(keep);
            match ended.map_err(JoinError::try_into_panic) {
                Ok(Some(answer)) => answer,
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // The runtime is shutting down, and this task with it.
                Ok(None) | Err(Err(_)) => std::future::pending().await,
            }
        })
    }
}

/// Lowers the priority of this thread, as `nice` does.
fn lower_priority() {
    // On other systems the call would affect the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "CPU-bound work runs at normal priority");
    }
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        // Waiting for the threads would block, which is not allowed inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A running task of a [`CpuPool`].
#[derive(Debug)]
pub struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(|error| ended(&error))
    }
}

fn ended(error: &JoinError) -> Failure {
    Failure::retry(format!("CPU-bound work was interrupted: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dropped_work_is_let_go_and_a_panic_is_an_answer() {
        let heavy = CpuPool::with_threads(1).unwrap();
        let (alive, gone) = oneshot::channel::<()>();
        let task = heavy.run(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        drop(task);
        assert!(gone.await.is_err());

        let (alive, gone) = oneshot::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let task = heavy.run_local(move || async move {
            let _alive = alive;
            let _ = begin.send(());
            std::future::pending::<()>().await;
        });
        begun.await.unwrap();
        drop(task);
        assert!(gone.await.is_err());
        assert!(matches!(
            heavy.run_local(|| async { panic!("broken") }).await,
            Err(Failure::Retry(_))
        ));
        assert!(matches!(
            heavy.run(async { panic!("broken") }).await,
            Err(Failure::Retry(_))
        ));
        assert_eq!(heavy.run(async { 7 }).await.unwrap(), 7);
    }
}
