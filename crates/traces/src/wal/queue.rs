//! The write queue: bounded in bytes, consumed in batches.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use towpath_domain::TenantId;

use super::{AppendError, MAX_DECODED, MAX_ITEMS, MAX_NAMED};
use crate::accept::AcceptedRequest;

/// A request that waits for its answer.
pub struct QueuedRequest {
    pub accepted: AcceptedRequest,
    pub answer: oneshot::Sender<Result<(), AppendError>>,
}

impl QueuedRequest {
    pub fn bytes(&self) -> usize {
        self.accepted.frame.body.len()
    }

    pub const fn tenant(&self) -> TenantId {
        self.accepted.frame.head.tenant
    }
}

pub struct Queue {
    bounds: Bounds,
    state: Mutex<State>,
    /// Something came, or the end.
    arrived: Notify,
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes that wait or are being written.
    pub bytes: usize,
    /// About how many bytes are written at once.
    pub segment_bytes: usize,
    /// How many WAL segments are written at the same time.
    pub concurrent_writes: usize,
    /// The longest acceptable wait. A sender that times out sends the same body again, so accepting more would be
    /// wasted work.
    pub wait: Duration,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<QueuedRequest>,
    bytes: usize,
    /// Seconds that the latest writes took; 0 before the first.
    write_seconds: f64,
    closed: bool,
}

impl Queue {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    pub fn push(&self, accepted: AcceptedRequest) -> Result<oneshot::Receiver<Result<(), AppendError>>, AppendError> {
        let (answer, receiver) = oneshot::channel();
        let entry = QueuedRequest { accepted, answer };
        let mut state = self.state.lock();
        if state.closed {
            return Err(AppendError::Closed);
        }
        // One body always fits, or a body larger than the queue could never be accepted.
        let wait = state.time_to_write(&self.bounds);
        let full = state.bytes + entry.bytes() > self.bounds.bytes || wait > self.bounds.wait;
        if state.bytes > 0 && full {
            // Whole seconds, as in the header. At least two: a client that returns sooner only uses up its few retries.
            let seconds = wait.as_secs_f64().ceil().clamp(2.0, 30.0);
            return Err(AppendError::Overloaded {
                retry_after: Duration::from_secs_f64(seconds),
            });
        }
        state.bytes += entry.bytes();
        state.waiting.push_back(entry);
        drop(state);
        self.arrived.notify_one();
        Ok(receiver)
    }

    /// The next batch of about `most` bytes, at the earliest `linger` after its first request, unless it is full
    /// before. `None` when the queue is closed and empty.
    pub async fn take(&self, most: usize, linger: Duration) -> Option<Vec<QueuedRequest>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let state = self.state.lock();
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
                        let state = self.state.lock();
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
        let batch = self.state.lock().batch(most);
        // This write may have consumed the notification for the requests it leaves.
        if !self.state.lock().waiting.is_empty() {
            self.arrived.notify_one();
        }
        Some(batch)
    }

    /// A write is over: its bytes make room.
    pub fn record_write_time(&self, bytes: usize, took: Duration) {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        let took = took.as_secs_f64();
        state.write_seconds = if state.write_seconds == 0.0 {
            took
        } else {
            state.write_seconds * 0.7 + took * 0.3
        };
    }

    pub fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_waiters();
    }

    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl State {
    fn batch(&mut self, most: usize) -> Vec<QueuedRequest> {
        let (mut bytes, mut decoded, mut items, mut named, mut count) = (0_usize, 0_u64, 0_u32, 0_usize, 0);
        for entry in &self.waiting {
            let head = &entry.accepted.frame.head;
            bytes = bytes.saturating_add(entry.bytes());
            decoded = decoded.saturating_add(head.decoded_bytes);
            items = items.saturating_add(head.items);
            named = named.saturating_add(entry.accepted.projects.len());
            let full = bytes > most || decoded > MAX_DECODED || items > MAX_ITEMS || named > MAX_NAMED;
            if count > 0 && full {
                break;
            }
            count += 1;
        }
        self.waiting.drain(..count).collect()
    }

    /// Estimated time to write everything queued or in progress. Counted in writes: a small one takes hardly less time
    /// than a full one.
    fn time_to_write(&self, bounds: &Bounds) -> Duration {
        let units = self.bytes.div_ceil(bounds.segment_bytes.max(1));
        let rounds = units.div_ceil(bounds.concurrent_writes.max(1));
        Duration::from_secs_f64(rounds as f64 * self.write_seconds)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use towpath_domain::Timestamp;
    use towpath_domain::trace::ProjectRef;

    use super::*;
    use crate::accept::Route;
    use crate::body::Encoding;
    use crate::wal::{Frame, FrameHead};

    fn body(bytes: usize) -> AcceptedRequest {
        let head = FrameHead {
            tenant: TenantId::nil(),
            route: Route::Batch,
            content_type: String::new(),
            encoding: Encoding::Identity,
            received_at: Timestamp::from_micros(0),
            items: 1,
            decoded_bytes: bytes as u64,
        };
        let body = Bytes::from(vec![b' '; bytes]);
        AcceptedRequest {
            frame: Frame { head, body },
            projects: Vec::new(),
            operations: 1,
            feedback: 0,
            attachments: 0,
            decoded_bytes: bytes,
        }
    }

    fn queue() -> Queue {
        Queue::new(Bounds {
            bytes: 1000,
            segment_bytes: 100,
            concurrent_writes: 1,
            wait: Duration::from_secs(4),
        })
    }

    fn refused(queue: &Queue, bytes: usize) -> Option<u64> {
        match queue.push(body(bytes)).map(drop) {
            Ok(()) => None,
            Err(AppendError::Overloaded { retry_after }) => Some(retry_after.as_secs()),
            Err(other) => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn no_more_waits_than_can_be_written_in_time() {
        let queue = queue();
        for _ in 0..10 {
            assert_eq!(refused(&queue, 100), None);
        }
        assert_eq!(
            refused(&queue, 100),
            Some(2),
            "full, and nothing is known about its pace"
        );

        // A disk that takes a second for each WAL segment.
        for _ in 0..20 {
            let batch = queue.take(100, Duration::ZERO).await.unwrap();
            assert_eq!(batch.len(), 1);
            queue.record_write_time(100, Duration::from_secs(1));
            if queue.bytes() == 0 {
                break;
            }
        }
        for _ in 0..5 {
            assert_eq!(refused(&queue, 100), None);
        }
        assert_eq!(refused(&queue, 100), Some(5), "five units wait, a second each");
    }

    #[tokio::test]
    async fn a_batch_is_bounded_by_what_its_bodies_unpack_to() {
        let queue = queue();
        for _ in 0..3 {
            let mut bomb = body(10);
            bomb.frame.head.decoded_bytes = MAX_DECODED / 2;
            queue.push(bomb).map(drop).unwrap();
        }
        assert_eq!(queue.take(100, Duration::ZERO).await.unwrap().len(), 2);
        assert_eq!(queue.take(100, Duration::ZERO).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_batch_is_bounded_by_the_projects_it_names() {
        let queue = queue();
        for _ in 0..3 {
            let mut naming = body(10);
            naming.projects = vec![ProjectRef::Name("canal".to_owned()); MAX_NAMED / 2];
            queue.push(naming).map(drop).unwrap();
        }
        assert_eq!(queue.take(100, Duration::ZERO).await.unwrap().len(), 2);
        assert_eq!(queue.take(100, Duration::ZERO).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn one_body_always_fits() {
        let queue = queue();
        queue.record_write_time(0, Duration::from_secs(3600));
        assert_eq!(refused(&queue, 5000), None);
        assert_eq!(refused(&queue, 1), Some(30));
    }
}
