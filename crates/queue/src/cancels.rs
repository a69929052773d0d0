//! Cancel signals.

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use towpath_domain::JobId;

use crate::Queue;

/// A hint that a running job must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// This job; it may run in another process or not at all.
    Job(JobId),
    /// Signals may have been missed (a slow receiver, or an outage of Redis): check the rows of the active jobs.
    Lagged,
}

/// Cancel signals since [`Queue::cancels`] was called.
pub struct Cancels {
    receiver: broadcast::Receiver<Signal>,
    /// Keeps the connections and the sender alive.
    _queue: Queue,
}

impl Cancels {
    pub(crate) fn new(queue: Queue, receiver: broadcast::Receiver<Signal>) -> Self {
        Self {
            receiver,
            _queue: queue,
        }
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Ok(signal) => signal,
            Err(RecvError::Lagged(_)) => Signal::Lagged,
            // The registry of this queue owns the sender.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
