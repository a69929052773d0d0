//! Threads for work that holds on to a core.
//!
//! Decoding and encoding rows would starve whatever shares a runtime with it: renewals, HTTP. So it has a runtime of
//! its own, whose threads may use every core and stand back wherever another thread wants one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use towpath_durable::Failure;

/// How far heavy work stands back: where everybody wants to run, one such thread gets a third of what another gets.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

/// A runtime for heavy work. Dropping it lets go of whatever still runs there.
#[derive(Debug)]
pub struct Heavy {
    handle: Handle,
    runtime: Option<Runtime>,
    places: Arc<Semaphore>,
}

impl Heavy {
    /// Starts as many threads as there are cores.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn new() -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores)
    }

    /// Starts this many threads.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn with_threads(threads: usize) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("heavy")
            .on_thread_start(stand_back)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            places: Arc::new(Semaphore::new(threads.max(2))),
        })
    }

    /// A place for work that holds much memory, as writing a file of an export does: one for each thread and at least
    /// two, so that one sends while another encodes. Without it, memory would grow with the number of jobs at work.
    ///
    /// # Errors
    /// [`Failure::Cancelled`] when the job is to stop while it waits.
    pub async fn place(&self, cancelled: &CancellationToken) -> Result<OwnedSemaphorePermit, Failure> {
        tokio::select! {
            biased;
            () = cancelled.cancelled() => Err(Failure::Cancelled),
            place = Arc::clone(&self.places).acquire_owned() => place.map_err(|_| Failure::Cancelled),
        }
    }

    /// Performs `work` there. Dropping the task aborts the work at its next await.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(self.handle.spawn(work))
    }
}

impl Heavy {
    /// Performs work whose future must stay on one thread, which it gets for itself beside the others. Dropping the
    /// task ends the work at its next await.
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
                // The runtime is going down, and this task with it.
                Ok(None) | Err(Err(_)) => std::future::pending().await,
            }
        })
    }
}

/// Makes this thread wait where others want its core, as `nice` does to programs.
fn stand_back() {
    // Elsewhere the call would mean the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "heavy work runs at the same priority as everything else");
    }
}

impl Drop for Heavy {
    fn drop(&mut self) {
        // Waiting for the threads would block, which is not allowed inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Work under way on a [`Heavy`] runtime.
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
    Failure::retry(format!("heavy work ended before its time: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dropped_work_is_let_go_and_a_panic_is_an_answer() {
        let heavy = Heavy::with_threads(1).unwrap();
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
