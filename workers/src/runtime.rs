//! Everything that touches apalis.
//!
//! The worker is fed by our own `Backend`, because the storages of the family keep the only copy of a job outside
//! SQL and starve renewals behind a busy worker. What makes that safe:
//!
//! 1. `Kind = Ephemeral` and a plain channel: nothing is persisted or buffered by apalis.
//! 2. A slot is taken before a job is claimed, so what is on its way never exceeds the slots.
//! 3. Claiming, renewing and completing are tasks of ours; `poll_ready` is always ready.
//! 4. Handlers are spawned as tasks of their own, so one that computes does not hold up the others. Nobody waits for
//!    them here: the slots say how many there are, and the held jobs when they are done.
//! 5. A handler never fails in apalis' eyes: how an attempt ended is written by `durable`, with its fence.

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
use towpath_durable::{Engine, Performed, Registry, attempt};

use crate::{Assignment, Finished};

/// Starts the handlers of one pool until its claimer has left.
pub(crate) async fn run<World: Send + Sync + 'static>(
    pool: String,
    engine: Engine,
    registry: Arc<Registry<World>>,
    world: Arc<World>,
    assignments: mpsc::Receiver<Vec<Assignment>>,
    finished: mpsc::Sender<Finished>,
) {
    let handler = move |claimed: Vec<Assignment>| {
        for Assignment { job, signal, place } in claimed {
            let (engine, registry, world) = (engine.clone(), registry.clone(), world.clone());
            let finished = finished.clone();
            // A task of its own: apalis drives all handlers of a worker from one task.
            tokio::spawn(async move {
                let performed = AssertUnwindSafe(attempt(&engine, &registry, &*world, job, signal)).catch_unwind();
                match performed.await {
                    Ok(Performed::Written) => {}
                    Ok(Performed::Bare(bare)) => {
                        // The slot is free, and the job no longer ours, only once its row is written.
                        if let Err(left) = finished.send(Finished { bare, place }).await {
                            // The worker leaves, and claims no more.
                            let Finished { bare, place } = left.0;
                            Box::pin(bare.complete(&engine)).await;
                            drop(place);
                        }
                    }
                    // A panic of a workflow is an attempt that failed and was caught further in.
                    Err(_) => tracing::error!(
                        pool = place.pool,
                        "a handler ended without writing its row; its lease will end"
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
        // The claimer dropped its end and everything it sent was taken over.
        let _ = drained.await;
        Ok::<(), std::io::Error>(())
    };
    if let Err(error) = worker.run_until(until).await {
        tracing::error!(pool, error = %error, "the worker runtime of this pool ended");
    }
}

/// The claimed jobs of one pool, as apalis wants them: what one claim brought is one task to it. It makes a context and a
/// table for each, and each that comes alone may wake a thread.
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
