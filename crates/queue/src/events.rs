//! Live events of threads: what runs stream to current readers.
//!
//! Events are hints and may be lost. Frames are numbered, so a reader detects a gap and reads the log. A slow reader
//! gets [`Event::Missed`], and its buffer is cleared.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_domain::ThreadId;

use crate::Queue;

/// Maximum number of frames that a reader may be behind,
const FRAMES_KEPT: usize = 4096;
/// and their size: each step may produce a large state.
const BYTES_KEPT: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame as it was published.
    Frame(Arc<str>),
    /// Frames may be missing here: the reader was too slow, or Redis was unavailable.
    Missed,
}

/// Events of one thread since [`Queue::subscribe`] was called.
pub struct Events {
    thread: ThreadId,
    inbox: Arc<Inbox>,
    queue: Queue,
}

impl Events {
    pub(crate) fn new(queue: Queue, thread: ThreadId) -> Self {
        let inbox = Arc::new(Inbox::default());
        queue.listeners().events.add(thread, inbox.clone());
        Self { thread, inbox, queue }
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.inbox.take() {
                return event;
            }
            self.inbox.ready.notified().await;
        }
    }

    /// The next event if it is already available.
    pub fn try_next(&mut self) -> Option<Event> {
        self.inbox.take()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.queue.listeners().events.remove(self.thread, &self.inbox) {
            self.queue.unfollow(self.thread);
        }
    }
}

/// Readers in this process, by thread.
#[derive(Default)]
pub struct EventSubscribers(Mutex<HashMap<ThreadId, Vec<Arc<Inbox>>>>);

impl EventSubscribers {
    /// Delivers a frame to all readers of the thread.
    pub fn publish(&self, thread: ThreadId, frame: &Arc<str>) {
        let readers = self.0.lock();
        for inbox in readers.get(&thread).into_iter().flatten() {
            inbox.put(frame.clone());
        }
    }

    /// Tells all readers that they may have missed events.
    pub fn notify_missed(&self) {
        for inbox in self.0.lock().values().flatten() {
            inbox.mark_missed();
        }
    }

    /// Threads with readers.
    pub fn threads(&self) -> Vec<ThreadId> {
        self.0.lock().keys().copied().collect()
    }

    fn add(&self, thread: ThreadId, inbox: Arc<Inbox>) {
        self.0.lock().entry(thread).or_default().push(inbox);
    }

    /// Removes a reader; true if it was the last one of the thread.
    fn remove(&self, thread: ThreadId, inbox: &Arc<Inbox>) -> bool {
        let mut readers = self.0.lock();
        let Some(others) = readers.get_mut(&thread) else {
            return false;
        };
        others.retain(|other| !Arc::ptr_eq(other, inbox));
        let last = others.is_empty();
        if last {
            readers.remove(&thread);
        }
        last
    }
}

/// The bounded buffer of one reader.
#[derive(Default)]
pub struct Inbox {
    buffer: Mutex<EventBuffer>,
    ready: Notify,
}

#[derive(Default)]
struct EventBuffer {
    frames: VecDeque<Arc<str>>,
    bytes: usize,
    missed: bool,
}

impl Inbox {
    fn put(&self, frame: Arc<str>) {
        let mut waiting = self.buffer.lock();
        waiting.bytes += frame.len();
        waiting.frames.push_back(frame);
        // One frame always fits, however long it is.
        if waiting.frames.len() > FRAMES_KEPT || (waiting.bytes > BYTES_KEPT && waiting.frames.len() > 1) {
            waiting.frames.clear();
            waiting.bytes = 0;
            waiting.missed = true;
        }
        drop(waiting);
        self.ready.notify_one();
    }

    fn mark_missed(&self) {
        self.buffer.lock().missed = true;
        self.ready.notify_one();
    }

    fn take(&self) -> Option<Event> {
        let mut waiting = self.buffer.lock();
        if std::mem::take(&mut waiting.missed) {
            return Some(Event::Missed);
        }
        let frame = waiting.frames.pop_front()?;
        waiting.bytes -= frame.len();
        Some(Event::Frame(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_is_told_and_holds_no_more_than_its_bound() {
        let queue = Queue::local();
        let thread = ThreadId::new();
        let mut events = queue.subscribe(thread).await;
        let frame: Arc<str> = "x".repeat(1 << 20).into();
        for _ in 0..20 {
            queue.publish(thread, frame.clone());
        }
        assert_eq!(events.next().await, Event::Missed);
        let mut kept = 0;
        while events.try_next().is_some() {
            kept += 1;
        }
        assert!(kept < 16, "{kept} MB were kept");
    }

    #[tokio::test]
    async fn readers_of_a_thread_each_get_its_frames_in_order() {
        let queue = Queue::local();
        let (thread, other) = (ThreadId::new(), ThreadId::new());
        let mut one = queue.subscribe(thread).await;
        let mut two = queue.subscribe(thread).await;
        queue.publish(other, "no");
        queue.publish(thread, "a");
        queue.publish(thread, "b");
        for events in [&mut one, &mut two] {
            assert_eq!(events.next().await, Event::Frame("a".into()));
            assert_eq!(events.next().await, Event::Frame("b".into()));
            assert_eq!(events.try_next(), None);
        }
        drop((one, two));
        assert!(queue.listeners().events.threads().is_empty(), "nobody is left");
    }
}
