//! What a run streams: numbered, published at once, and kept for the log where there is one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use towpath_domain::agent::frame::{self, END, End};
use towpath_domain::agent::{EventId, Frame};
use towpath_domain::{Clock, RunId, ThreadId};
use towpath_queue::Queue;
use towpath_store::run_events::NewBatch;

/// The events of one attempt.
pub struct Stream {
    queue: Queue,
    clock: Clock,
    thread: ThreadId,
    run: RunId,
    /// The fence of the attempt.
    attempt: i64,
    logged: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number: i64,
    last: EventId,
    log: Log,
}

/// Frames that are not in the log yet.
#[derive(Clone, Debug, Default)]
pub struct Log {
    frames: String,
    first: i64,
    last: i64,
    last_id: EventId,
}

impl Log {
    /// Whether there is nothing to log.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// As the log takes it.
    #[must_use]
    pub fn batch(&self, run: RunId, attempt: i64) -> NewBatch<'_> {
        NewBatch {
            run: Some(run),
            attempt,
            first: self.first,
            last: self.last,
            last_id: self.last_id,
            frames: &self.frames,
            expires_at: None,
        }
    }

    fn add(&mut self, frame: &str, number: i64, id: EventId) {
        if self.frames.is_empty() {
            self.first = number;
        }
        self.last = number;
        self.last_id = id;
        frame::append(&mut self.frames, frame);
    }
}

impl Stream {
    /// The stream of the attempt with this fence; ids follow `after`.
    pub fn new(
        queue: Queue,
        clock: Clock,
        (thread, run): (ThreadId, RunId),
        attempt: i64,
        logged: bool,
        after: EventId,
    ) -> Self {
        let state = State {
            last: after,
            ..State::default()
        };
        Self {
            queue,
            clock,
            thread,
            run,
            attempt,
            logged,
            state: Mutex::new(state),
        }
    }

    /// Whether events are logged.
    pub const fn logged(&self) -> bool {
        self.logged
    }

    /// Whether something is to be logged.
    pub fn is_waiting(&self) -> bool {
        !self.state().log.is_empty()
    }

    /// Publishes an event. Answers how many bytes wait for the log.
    pub fn send(&self, event: &str, data: &str) -> usize {
        let mut state = self.state();
        state.number += 1;
        state.last = state.last.next(self.clock.now().micros() / 1000);
        let (number, id) = (state.number, state.last);
        let text = Frame {
            run: Some(self.run),
            attempt: self.attempt,
            number,
            id,
            event,
            data,
        }
        .encode();
        if self.logged {
            state.log.add(&text, number, id);
        }
        // Under the lock, so that frames are published in the order of their numbers.
        self.queue.publish(self.thread, text);
        state.log.frames.len()
    }

    /// What waits for the log. It stays until [`Stream::written`] says that it is there: whoever writes it may be
    /// called away in the middle. A frame that is written twice is read once, by its id.
    pub fn log(&self) -> Log {
        self.state().log.clone()
    }

    /// This part of what waited is in the log.
    pub fn written(&self, log: &Log) {
        let mut state = self.state();
        state.log.frames.drain(..log.frames.len());
        state.log.first = log.last + 1;
    }

    /// The frame that ends the run, and the rest of the log with it. It may be asked for again, when what was to be
    /// written with it was refused.
    pub fn end(&self, end: &End) -> (String, Log) {
        let state = self.state();
        let end = End {
            attempt: self.attempt,
            last: state.number,
            ..end.clone()
        };
        let id = state.last.next(self.clock.now().micros() / 1000);
        let text = end_frame(self.run, self.attempt, id, &end);
        let mut log = state.log.clone();
        if self.logged {
            log.add(&text, state.number, id);
        }
        (text, log)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between two fields can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The frame that says a run is over.
pub fn end_frame(run: RunId, attempt: i64, id: EventId, end: &End) -> String {
    Frame {
        run: Some(run),
        attempt,
        number: 0,
        id,
        event: END,
        data: &serde_json::to_string(end).unwrap_or_else(|_| "{}".to_owned()),
    }
    .encode()
}
