//! The latest events of a thread, shared by its readers in this process: the log is read and events are derived once.
//!
//! A buffer is bounded. A slow reader, or one that starts further back, reads the log itself until the buffer has its next
//! event: see [`Cursor`](super::cursor::Cursor).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use towpath_domain::ThreadId;

use super::event::Event;
use crate::agent::errors::AgentError;

/// Maximum size of one buffer.
const MAX_BUFFER_BYTES: usize = 4 << 20;
/// Maximum size of all buffers, unless there are so many that [`MIN_EVENTS`] of each exceed it.
const MAX_TOTAL_BYTES: usize = 128 << 20;
/// Trimming frees this much more than needed, so that not every event triggers it.
const TRIM_MARGIN_BYTES: usize = MAX_TOTAL_BYTES / 8;
/// Events that a buffer keeps when it is trimmed.
const MIN_EVENTS: usize = 8;
/// A buffer without events for this long is trimmed first.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Memory of an event besides its text.
const EVENT_OVERHEAD_BYTES: usize = 256;
/// Maximum number of events that a reader takes at once.
const MAX_BATCH: usize = 32;

/// Event buffers of threads with readers in this process.
#[derive(Default)]
pub(crate) struct EventBuffers(Arc<EventBuffersState>);

#[derive(Default)]
struct EventBuffersState {
    buffers: Mutex<HashMap<ThreadId, Weak<EventBuffer>>>,
    /// Bytes in all buffers.
    bytes: AtomicUsize,
    /// Bytes in all buffers when the last trimming had to leave more than the limit.
    untrimmed_bytes: AtomicUsize,
}

impl EventBuffers {
    /// The buffer of a thread. `write` fills it as long as a reader holds it.
    pub(super) fn buffer_of<F: Future<Output = Result<(), AgentError>> + Send + 'static>(
        &self,
        thread: ThreadId,
        write: impl FnOnce(Weak<EventBuffer>) -> F,
    ) -> Arc<EventBuffer> {
        let mut tapes = self.0.buffers.lock();
        if let Some(tape) = tapes.get(&thread).and_then(Weak::upgrade)
            && !tape.is_ended()
        {
            return tape;
        }
        // Remove buffers without readers before the map grows.
        if tapes.len() == tapes.capacity() {
            tapes.retain(|_, tape| tape.strong_count() > 0);
        }
        let tape = EventBuffer::start(&self.0, write);
        tapes.insert(thread, Arc::downgrade(&tape));
        tape
    }
}

impl EventBuffersState {
    /// Trims buffers if all of them exceed the limit: idle ones first, then the largest.
    fn trim(&self) {
        let bound = MAX_TOTAL_BYTES.max(self.untrimmed_bytes.load(Ordering::Relaxed) + TRIM_MARGIN_BYTES);
        if self.bytes.load(Ordering::Relaxed) <= bound {
            return;
        }
        let tapes: Vec<Arc<EventBuffer>> = self.buffers.lock().values().filter_map(Weak::upgrade).collect();
        let now = Instant::now();
        let mut tapes: Vec<_> = tapes
            .iter()
            .map(|tape| {
                let state = tape.state.lock();
                (
                    now.duration_since(state.last_event_at) < IDLE_AFTER,
                    std::cmp::Reverse(state.bytes),
                    tape,
                )
            })
            .collect();
        tapes.sort_by_key(|&(busy, bytes, _)| (busy, bytes));
        for (.., tape) in tapes {
            if self.bytes.load(Ordering::Relaxed) <= MAX_TOTAL_BYTES - TRIM_MARGIN_BYTES {
                break;
            }
            tape.drop_oldest(|state| state.events.len() > MIN_EVENTS);
        }
        let left = self.bytes.load(Ordering::Relaxed);
        // Trim again after the buffers have grown further.
        self.untrimmed_bytes
            .store(if left > MAX_TOTAL_BYTES { left } else { 0 }, Ordering::Relaxed);
    }
}

/// The latest events of one thread.
pub(super) struct EventBuffer {
    state: Mutex<BufferState>,
    /// Notifies of state changes.
    changed: watch::Sender<()>,
    shared: Arc<EventBuffersState>,
    task: JoinHandle<()>,
}

struct BufferState {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Events up to this number were dropped.
    dropped_until: i64,
    /// All events stored at the start are in the buffer or were dropped.
    caught_up: bool,
    /// Number up to which events had been removed from the log when it was read.
    removed_until: i64,
    /// Time of the last event.
    last_event_at: Instant,
    end: Option<BufferEnd>,
}

impl BufferState {
    fn new() -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            dropped_until: 0,
            caught_up: false,
            removed_until: 0,
            last_event_at: Instant::now(),
            end: None,
        }
    }
}

/// Why a buffer ended.
#[derive(Clone, Debug)]
pub(super) enum BufferEnd {
    /// The thread was deleted.
    ThreadDeleted,
    /// The thread cannot be read.
    Failed(AgentError),
}

/// The next events for a reader.
#[derive(Debug)]
pub(super) enum Batch {
    Events(Vec<Arc<Event>>),
    Empty,
    /// The next event was dropped.
    Dropped,
    Ended(BufferEnd),
}

impl EventBuffer {
    fn start<F: Future<Output = Result<(), AgentError>> + Send + 'static>(
        shared: &Arc<EventBuffersState>,
        write: impl FnOnce(Weak<Self>) -> F,
    ) -> Arc<Self> {
        Self::with_task(shared, |tape| {
            let writing = write(tape.clone());
            async move {
                let recording = BufferWriter(tape);
                let over = match writing.await {
                    Ok(()) => BufferEnd::ThreadDeleted,
                    Err(error) => BufferEnd::Failed(error),
                };
                recording.end(over);
            }
        })
    }

    /// A buffer filled by a task, which ends with it.
    fn with_task<F: Future<Output = ()> + Send + 'static>(
        shared: &Arc<EventBuffersState>,
        task: impl FnOnce(Weak<Self>) -> F,
    ) -> Arc<Self> {
        Arc::new_cyclic(|tape| Self {
            state: Mutex::new(BufferState::new()),
            changed: watch::Sender::new(()),
            shared: shared.clone(),
            task: tokio::spawn(task(tape.clone())),
        })
    }

    /// Notifies of new events.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn after(&self, seq: i64) -> Batch {
        let state = self.state.lock();
        if seq < state.dropped_until {
            return Batch::Dropped;
        }
        let from = state.events.partition_point(|event| event.seq <= seq);
        let next: Vec<_> = state.events.iter().skip(from).take(MAX_BATCH).cloned().collect();
        match &state.end {
            _ if !next.is_empty() => Batch::Events(next),
            Some(over) => Batch::Ended(over.clone()),
            None => Batch::Empty,
        }
    }

    /// Whether events after a number are in the buffer or still to come.
    pub fn has_after(&self, seq: i64) -> bool {
        let state = self.state.lock();
        // Until then it may still be behind the reader.
        let reached = state.events.back().is_some_and(|last| last.seq >= seq);
        reached && seq >= state.dropped_until
    }

    pub fn has_caught_up(&self) -> bool {
        self.state.lock().caught_up
    }

    /// Number up to which events were dropped.
    pub fn dropped_until(&self) -> i64 {
        self.state.lock().dropped_until
    }

    /// Number up to which events had been removed from the log when it was read. Known once the buffer has caught up.
    pub fn removed_until(&self) -> i64 {
        self.state.lock().removed_until
    }

    pub fn is_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// All events stored at the start are in the buffer or were dropped; up to `removed` the log had none any more.
    pub fn set_caught_up(&self, removed: i64) {
        self.update(|state| {
            state.caught_up = true;
            state.removed_until = removed;
        });
    }

    pub fn push(&self, event: Arc<Event>) {
        let size = size_of(&event);
        self.shared.bytes.fetch_add(size, Ordering::Relaxed);
        self.update(|state| {
            state.bytes += size;
            state.last_event_at = Instant::now();
            state.events.push_back(event);
        });
        self.drop_oldest(|state| state.bytes > MAX_BUFFER_BYTES && state.events.len() > 1);
        self.shared.trim();
    }

    /// Drops the oldest events while `too_many`.
    fn drop_oldest(&self, too_many: impl Fn(&BufferState) -> bool) {
        let mut state = self.state.lock();
        while too_many(&state) {
            let Some(first) = state.events.pop_front() else { break };
            let size = size_of(&first);
            state.bytes -= size;
            state.dropped_until = first.seq;
            self.shared.bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }

    fn update(&self, how: impl FnOnce(&mut BufferState)) {
        how(&mut self.state.lock());
        self.changed.send_replace(());
    }
}

fn size_of(event: &Event) -> usize {
    event.text.len() + EVENT_OVERHEAD_BYTES
}

impl Drop for EventBuffer {
    fn drop(&mut self) {
        self.task.abort();
        let bytes = self.state.lock().bytes;
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Fills a buffer. When it is dropped, readers are notified.
struct BufferWriter(Weak<EventBuffer>);

impl BufferWriter {
    fn end(&self, over: BufferEnd) {
        if let Some(tape) = self.0.upgrade() {
            tape.update(|state| {
                if state.end.is_none() {
                    state.end = Some(over);
                }
            });
        }
    }
}

impl Drop for BufferWriter {
    fn drop(&mut self) {
        // Only reached after a panic.
        let error = AgentError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
        self.end(BufferEnd::Failed(error));
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Channel, DraftEvent};
    use super::*;

    fn tape(shared: &Arc<EventBuffersState>) -> Arc<EventBuffer> {
        let tape = EventBuffer::with_task(shared, |_| std::future::pending::<()>());
        shared.buffers.lock().insert(ThreadId::new(), Arc::downgrade(&tape));
        tape
    }

    fn event(seq: i64, bytes: usize) -> Arc<Event> {
        let draft = DraftEvent::serialize(Channel::Values, &[], &"x".repeat(bytes)).unwrap();
        Arc::new(draft.into_event(seq, "1-0", 1))
    }

    fn kept(tape: &EventBuffer) -> usize {
        tape.state.lock().events.len()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_tapes_make_room_for_others_and_keep_some_events() {
        let shared = Arc::<EventBuffersState>::default();
        // 32 of them are all that may be kept.
        let many: Vec<_> = (0..31).map(|_| tape(&shared)).collect();
        let events: Vec<_> = (1..=40).map(|seq| event(seq, 100 << 10)).collect();
        for tape in &many {
            events.iter().for_each(|event| tape.push(event.clone()));
        }
        assert!(many.iter().all(|tape| kept(tape) == 40));
        tokio::time::advance(IDLE_AFTER).await;
        let busy = [tape(&shared), tape(&shared)];
        for event in &events {
            busy.iter().for_each(|tape| tape.push(event.clone()));
        }
        assert!(busy.iter().all(|tape| kept(tape) == 40), "who is at work keeps all");
        let cut = many.iter().filter(|tape| kept(tape) == MIN_EVENTS).count();
        assert!((1..31).contains(&cut), "{cut} tapes were cut");
        assert!(many.iter().all(|tape| kept(tape) >= MIN_EVENTS));
        assert!(shared.bytes.load(Ordering::Relaxed) <= MAX_TOTAL_BYTES);
    }

    #[tokio::test]
    async fn a_recording_that_panics_ends_its_readers() {
        let tape = EventBuffer::with_task(&Arc::default(), |tape| async move {
            let _recording = BufferWriter(tape);
            panic!("a defect");
        });
        let mut changes = tape.changes();
        while !tape.is_ended() {
            changes.changed().await.unwrap();
        }
        assert!(matches!(tape.after(0), Batch::Ended(BufferEnd::Failed(_))));
    }
}
