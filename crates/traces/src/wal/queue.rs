//! What waits to be written: bounded in bytes, taken by whole batches.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::{AppendError, MAX_ITEMS};
use crate::accept::Accepted;

/// A request that waits for its answer.
pub struct Entry {
    pub accepted: Accepted,
    pub answer: oneshot::Sender<Result<(), AppendError>>,
}

impl Entry {
    pub fn bytes(&self) -> usize {
        self.accepted.frame.body.len()
    }
}

pub struct Queue {
    limit: usize,
    state: Mutex<State>,
    /// Something came, or the end.
    arrived: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Entry>,
    bytes: usize,
    /// Bytes per second of the latest flushes; 0 before the first.
    rate: f64,
    closed: bool,
}

impl Queue {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            state: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    pub fn push(&self, accepted: Accepted) -> Result<oneshot::Receiver<Result<(), AppendError>>, AppendError> {
        let (answer, receiver) = oneshot::channel();
        let entry = Entry { accepted, answer };
        let mut state = self.lock();
        if state.closed {
            return Err(AppendError::Closed);
        }
        // One body always fits, or a body larger than the queue could never come in.
        if state.bytes > 0 && state.bytes + entry.bytes() > self.limit {
            return Err(AppendError::Overloaded {
                retry_after: state.retry_after(),
            });
        }
        state.bytes += entry.bytes();
        state.waiting.push_back(entry);
        drop(state);
        self.arrived.notify_one();
        Ok(receiver)
    }

    /// The next batch of about `most` bytes, at the soonest `linger` after its first request came, unless it is full
    /// before. `None` when the queue is closed and empty.
    pub async fn take(&self, most: usize, linger: Duration) -> Option<Vec<Entry>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let state = self.lock();
                if !state.waiting.is_empty() {
                    break;
                }
                if state.closed {
                    return None;
                }
            }
            arrived.await;
        }
        if !linger.is_zero() {
            let full = async {
                loop {
                    let arrived = self.arrived.notified();
                    {
                        let state = self.lock();
                        if state.bytes >= most || state.closed {
                            return;
                        }
                    }
                    arrived.await;
                }
            };
            // Either way there is something to write.
            let _ = tokio::time::timeout(linger, full).await;
        }
        let batch = self.lock().batch(most);
        // This flush may have eaten the notice of what it leaves behind.
        if !self.lock().waiting.is_empty() {
            self.arrived.notify_one();
        }
        Some(batch)
    }

    /// A flush is over: its bytes make room.
    pub fn flushed(&self, bytes: usize, took: Duration) {
        let mut state = self.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        let rate = bytes as f64 / took.as_secs_f64().max(0.001);
        state.rate = if state.rate == 0.0 {
            rate
        } else {
            state.rate * 0.7 + rate * 0.3
        };
    }

    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_waiters();
    }

    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn batch(&mut self, most: usize) -> Vec<Entry> {
        let (mut bytes, mut items, mut count) = (0_usize, 0_u32, 0);
        for entry in &self.waiting {
            bytes = bytes.saturating_add(entry.bytes());
            items = items.saturating_add(entry.accepted.frame.head.items);
            if count > 0 && (bytes > most || items > MAX_ITEMS) {
                break;
            }
            count += 1;
        }
        self.waiting.drain(..count).collect()
    }

    /// How long it takes to write what waits, in whole seconds as the header has them. At least two: a client that
    /// comes back sooner only spends its few tries.
    fn retry_after(&self) -> Duration {
        let seconds = if self.rate > 0.0 {
            self.bytes as f64 / self.rate
        } else {
            2.0
        };
        Duration::from_secs_f64(seconds.ceil().clamp(2.0, 30.0))
    }
}
