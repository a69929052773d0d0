//! Cancel signals.

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use towpath_domain::JobId;

use crate::Queue;

/// A hint that a running job is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// This job. It may run elsewhere, or nowhere.
    Job(JobId),
    /// Signals may have been missed (a slow receiver, or Redis was away): look at the rows of the jobs at hand.
    Lagged,
}

/// The cancel signals since [`Queue::cancels`] was called.
pub struct Cancels {
    receiver: broadcast::Receiver<Signal>,
    /// Keeps the connections and the sending side.
    _queue: Queue,
}

impl Cancels {
    pub(crate) fn new(queue: Queue, receiver: broadcast::Receiver<Signal>) -> Self {
        Self {
            receiver,
            _queue: queue,
        }
    }

    /// Waits for the next signal. It may be dropped while waiting without losing one.
    pub async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Ok(signal) => signal,
            Err(RecvError::Lagged(_)) => Signal::Lagged,
            // The sender stands on the board that our own queue holds.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
