//! The integration of apalis.
//!
//! The worker has its own `Backend`, because the storages of apalis keep the only copy of a job outside of SQL and
//! delay renewals behind a busy worker. Rules:
//!
//! 1. `Kind = Ephemeral` and a plain channel: apalis persists and buffers nothing.
//! 2. A slot is taken before a job is claimed, so the jobs in transit never exceed the slots.
//! 3. Claims, renewals and completions run in separate tasks; `poll_ready` is always ready.
//! 4. Each handler runs in its own task, so one that computes does not delay the others. Nothing here waits for it: the
//!    slots limit the number, and the active jobs show when it is done.
//! 5. For apalis, a handler never fails: `durable` writes the result of an attempt, with its fence.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use apalis_core::backend::finalize::Ephemeral;
use apalis_core::backend::{Backend, BackendConfig};
use apalis_core::task::Task;
use apalis_core::task::task_id::RandomId;
use apalis_core::worker::builder::WorkerBuilder;
use apalis_core::worker::context::WorkerContext;
use futures::FutureExt as _;
use tokio::sync::mpsc;
use tower::layer::util::Identity;
use towpath_durable::{AttemptResult, Engine, Registry, attempt};

use crate::{Assignment, UnrecordedCompletion};

/// Runs the handlers of one pool until its claimer has ended.
pub(crate) async fn run<World: Send + Sync + 'static>(
    pool: String,
    engine: Engine,
    registry: Arc<Registry<World>>,
    world: Arc<World>,
    assignments: mpsc::Receiver<Vec<Assignment>>,
    finished: mpsc::Sender<UnrecordedCompletion>,
) {
    let handler = move |claimed: Vec<Assignment>| {
        for Assignment {
            job,
            signal,
            permit: place,
        } in claimed
        {
            let (engine, registry, world) = (engine.clone(), registry.clone(), world.clone());
            let finished = finished.clone();
            // A separate task, because apalis drives all handlers of a worker from one task.
            tokio::spawn(async move {
                let performed = AssertUnwindSafe(attempt(&engine, &registry, &*world, job, signal)).catch_unwind();
                match performed.await {
                    Ok(AttemptResult::Settled) => {}
                    Ok(AttemptResult::CompletionPending(bare)) => {
                        // The slot becomes free, and the job is released, only after its row is written.
                        if let Err(left) = finished
                            .send(UnrecordedCompletion {
                                completion: bare,
                                permit: place,
                            })
                            .await
                        {
                            // The worker is stopping and claims no more.
                            let UnrecordedCompletion {
                                completion: bare,
                                permit: place,
                            } = left.0;
                            Box::pin(bare.complete(&engine)).await;
                            drop(place);
                        }
                    }
                    // A panic of a workflow is a failed attempt that was caught further inside.
                    Err(_) => tracing::error!(
                        pool = place.pool,
                        "a handler ended without writing its row; the job is recovered later"
                    ),
                }
            });
        }
        std::future::ready(())
    };
    let (closed, drained) = tokio::sync::oneshot::channel();
    let worker = WorkerBuilder::new(pool.clone())
        .backend(Assignments {
            receiver: assignments,
            closed: Some(closed),
        })
        .build(handler);
    let until = async move {
        // The claimer dropped its end, and everything it sent was received.
        let _ = drained.await;
        Ok::<(), std::io::Error>(())
    };
    if let Err(error) = worker.run_until(until).await {
        tracing::error!(pool, error = %error, "the worker runtime of this pool ended");
    }
}

/// The claimed jobs of one pool for apalis: one task for each claim, because apalis creates a context for each task,
/// and each single one may wake a thread.
struct Assignments {
    receiver: mpsc::Receiver<Vec<Assignment>>,
    closed: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Backend for Assignments {
    type Task = Task<Vec<Assignment>>;
    type Error = Infallible;

    fn poll_ready(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, _: &WorkerContext) -> Poll<Option<Result<Self::Task, Infallible>>> {
        let received = std::task::ready!(self.receiver.poll_recv(cx));
        if received.is_none()
            && let Some(closed) = self.closed.take()
        {
            let _ = closed.send(());
        }
        Poll::Ready(received.map(|claimed| Ok(Task::new(claimed))))
    }

    fn poll_close(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
}

impl BackendConfig for Assignments {
    type Args = Vec<Assignment>;
    type Id = RandomId;
    type Kind = Ephemeral;
    type Config = ();
    type Layer = Identity;

    fn config(&self) -> &() {
        &()
    }

    fn middleware(&mut self, _: &mut WorkerContext) -> Identity {
        Identity::new()
    }
}
