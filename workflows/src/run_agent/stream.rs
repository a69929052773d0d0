//! What a run streams: numbered, published at once, and kept for the log where there is one.

use std::collections::VecDeque;
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

/// A batch of the log ends with the frame that brings it to so many bytes: readers hold whole batches.
const BATCH_BYTES: usize = 256 << 10;

/// Frames that are not in the log yet.
#[derive(Clone, Debug, Default)]
pub struct Log {
    batches: VecDeque<Batch>,
    bytes: usize,
}

/// Frames that become one row.
#[derive(Clone, Debug, Default)]
struct Batch {
    frames: String,
    first: i64,
    last: i64,
    last_id: EventId,
}

impl Log {
    /// Whether there is nothing to log.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// As the log takes it.
    #[must_use]
    pub fn batches(&self, run: RunId, attempt: i64) -> Vec<NewBatch<'_>> {
        self.batches
            .iter()
            .map(|batch| NewBatch {
                run: Some(run),
                attempt,
                first: batch.first,
                last: batch.last,
                last_id: batch.last_id,
                frames: &batch.frames,
                expires_at: None,
            })
            .collect()
    }

    fn add(&mut self, frame: &str, number: i64, id: EventId) {
        if self
            .batches
            .back()
            .is_none_or(|batch| batch.frames.len() >= BATCH_BYTES)
        {
            self.batches.push_back(Batch {
                first: number,
                ..Batch::default()
            });
        }
        let Some(batch) = self.batches.back_mut() else { return };
        let before = batch.frames.len();
        frame::append(&mut batch.frames, frame);
        self.bytes += batch.frames.len() - before;
        batch.last = number;
        batch.last_id = id;
    }

    /// Forgets what a copy holds, which was taken earlier. Frames that came since stay.
    fn forget(&mut self, written: &Self) {
        for (nth, copy) in written.batches.iter().enumerate() {
            // Only the last one may have grown.
            let last = nth + 1 == written.batches.len();
            match self.batches.pop_front() {
                Some(mut batch) if last && batch.frames.len() > copy.frames.len() => {
                    batch.frames.drain(..copy.frames.len());
                    batch.first = copy.last + 1;
                    self.batches.push_front(batch);
                }
                _ => {}
            }
        }
        self.bytes -= written.bytes;
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
        state.log.bytes
    }

    /// What waits for the log. It stays until [`Stream::written`] says that it is there: whoever writes it may be
    /// called away in the middle. A frame that is written twice is read once, by its id.
    pub fn log(&self) -> Log {
        self.state().log.clone()
    }

    /// This part of what waited is in the log.
    pub fn written(&self, log: &Log) {
        self.state().log.forget(log);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: i64) -> EventId {
        EventId { ms, seq: 0 }
    }

    /// First and last number, and the bytes, of each batch.
    fn shape(log: &Log) -> Vec<(i64, i64, usize)> {
        let batches = log.batches(RunId::new(), 1);
        batches
            .iter()
            .map(|batch| (batch.first, batch.last, batch.frames.len()))
            .collect()
    }

    #[test]
    fn a_log_is_cut_into_batches_of_bounded_size() {
        let mut log = Log::default();
        let frame = "x".repeat(100 << 10);
        for number in 1..=7 {
            log.add(&frame, number, id(number));
        }
        let one = frame.len() + "102400\n".len();
        assert_eq!(shape(&log), [(1, 3, 3 * one), (4, 6, 3 * one), (7, 7, one)]);
        assert_eq!(log.bytes, 7 * one);
        // A long frame ends the batch that it comes to.
        log.add(&"y".repeat(2 * BATCH_BYTES), 8, id(8));
        log.add("z", 9, id(9));
        assert_eq!(shape(&log)[2..], [(7, 8, one + 2 * BATCH_BYTES + 7), (9, 9, 3)]);
        assert_eq!(log.batches(RunId::new(), 1)[3].last_id, id(9));
    }

    #[test]
    fn what_was_written_is_forgotten_and_what_came_since_stays() {
        let frame = "x".repeat(200 << 10);
        for before in 1..6 {
            for since in 0..4 {
                let mut log = Log::default();
                (1..=before).for_each(|number| log.add(&frame, number, id(number)));
                let written = log.clone();
                (before + 1..=before + since).for_each(|number| log.add(&frame, number, id(number)));
                log.forget(&written);
                let case = format!("{before} written, {since} since");
                assert_eq!(log.is_empty(), since == 0, "{case}");
                let kept: usize = log.batches.iter().map(|batch| batch.frames.len()).sum();
                assert_eq!(log.bytes, kept, "{case}");
                let mut next = before + 1;
                for batch in log.batches(RunId::new(), 1) {
                    assert_eq!(batch.first, next, "{case}");
                    let frames = i64::try_from(frame::split(batch.frames).count()).unwrap();
                    assert_eq!(batch.last - batch.first + 1, frames, "{case}");
                    next = batch.last + 1;
                }
                assert_eq!(next, before + since + 1, "{case}");
            }
        }
    }
}
