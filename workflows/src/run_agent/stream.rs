//! The stream of a run: frames are numbered, published at once, and logged if there is a log.

use std::collections::VecDeque;

use parking_lot::Mutex;
use towpath_domain::agent::frame::{self, END, RunEnd};
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
    /// Fence of the attempt.
    attempt: i64,
    logged: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number: i64,
    last: EventId,
    log: UnloggedFrames,
}

/// A log batch ends with the frame that reaches this size, because readers hold whole batches.
const BATCH_BYTES: usize = 256 << 10;

/// Frames that are not in the log yet.
#[derive(Clone, Debug, Default)]
pub struct UnloggedFrames {
    batches: VecDeque<Batch>,
    bytes: usize,
}

/// Frames of one log row.
#[derive(Clone, Debug, Default)]
struct Batch {
    frames: String,
    first: i64,
    last: i64,
    last_id: EventId,
}

impl UnloggedFrames {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// In the format of the log.
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

    /// Removes the frames of an earlier copy. Newer frames stay.
    fn remove(&mut self, written: &Self) {
        for (nth, copy) in written.batches.iter().enumerate() {
            // Only the last batch may have grown.
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

    pub const fn logged(&self) -> bool {
        self.logged
    }

    /// Whether frames are waiting to be logged.
    pub fn has_unlogged(&self) -> bool {
        !self.state.lock().log.is_empty()
    }

    /// Publishes an event. Returns the number of unlogged bytes.
    pub fn send(&self, event: &str, data: &str) -> usize {
        let mut state = self.state.lock();
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

    /// The unlogged frames. They stay until [`Stream::confirm_logged`], because the writer may be interrupted. Readers
    /// drop a frame that was written twice by its id.
    pub fn unlogged(&self) -> UnloggedFrames {
        self.state.lock().log.clone()
    }

    /// Removes frames that are in the log.
    pub fn confirm_logged(&self, log: &UnloggedFrames) {
        self.state.lock().log.remove(log);
    }

    /// The last frame of the run, and the rest of the log. It may be requested again if its transaction was refused.
    pub fn end(&self, end: &RunEnd) -> (String, UnloggedFrames) {
        let state = self.state.lock();
        let end = RunEnd {
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
}

/// The frame that reports the end of a run.
pub fn end_frame(run: RunId, attempt: i64, id: EventId, end: &RunEnd) -> String {
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

    /// First and last number, and the size, of each batch.
    fn shape(log: &UnloggedFrames) -> Vec<(i64, i64, usize)> {
        let batches = log.batches(RunId::new(), 1);
        batches
            .iter()
            .map(|batch| (batch.first, batch.last, batch.frames.len()))
            .collect()
    }

    #[test]
    fn a_log_is_cut_into_batches_of_bounded_size() {
        let mut log = UnloggedFrames::default();
        let frame = "x".repeat(100 << 10);
        for number in 1..=7 {
            log.add(&frame, number, id(number));
        }
        let one = frame.len() + "102400\n".len();
        assert_eq!(shape(&log), [(1, 3, 3 * one), (4, 6, 3 * one), (7, 7, one)]);
        assert_eq!(log.bytes, 7 * one);
        // A long frame ends its batch.
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
                let mut log = UnloggedFrames::default();
                (1..=before).for_each(|number| log.add(&frame, number, id(number)));
                let written = log.clone();
                (before + 1..=before + since).for_each(|number| log.add(&frame, number, id(number)));
                log.remove(&written);
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
