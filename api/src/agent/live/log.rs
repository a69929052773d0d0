//! The log of a thread, read a page at a time, and only when what was read before is handed out: however long the log is and
//! however slow its reader, no more than a page of it is in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use towpath_domain::agent::{EventId, Frame, frame};
use towpath_domain::{RunId, ThreadId};
use towpath_store::run_events::{Batch, FramePosition};
use towpath_store::{self as store, run_events};

use crate::agent::app::AgentApp;

/// Bytes of frames that are read at once; one batch at least.
const PAGE_BYTES: i64 = 1 << 20;

/// Reads a log in the order in which it was committed.
pub(super) struct LogReader {
    /// Everything up to here was read.
    position: i64,
    /// What was read and not taken yet.
    page: VecDeque<Batch>,
    /// Bytes of its first batch that were taken.
    consumed: usize,
    /// Whether there may be more behind it.
    more: bool,
}

impl LogReader {
    /// Begins behind a position.
    pub(super) fn after(position: i64) -> Self {
        Self {
            position,
            page: VecDeque::new(),
            consumed: 0,
            more: false,
        }
    }

    /// Has it read on to its end.
    pub(super) fn mark_unread(&mut self) {
        self.more = true;
    }

    /// Whether there may be more to read, once everything is taken.
    pub(super) const fn has_more(&self) -> bool {
        self.more
    }

    /// The next frame of what was read, with the position of its batch.
    pub(super) fn next(&mut self) -> Option<(i64, Arc<str>)> {
        loop {
            let batch = self.page.front()?;
            if let Some((frame, rest)) = frame::first_frame(&batch.frames[self.consumed..]) {
                let next = (batch.log_position, Arc::from(frame));
                self.consumed = batch.frames.len() - rest.len();
                return Some(next);
            }
            self.page.pop_front();
            self.consumed = 0;
        }
    }

    /// Reads the next page. May be dropped while waiting.
    pub(super) async fn read(&mut self, app: &AgentApp, thread: ThreadId, run: Option<RunId>) -> store::Result<()> {
        let (tenant, after) = (app.tenant, self.position);
        let page = app
            .store
            .read(async |tx| run_events::read(tx, tenant, thread, run, after, PAGE_BYTES).await)
            .await?;
        self.more = page.more;
        if let Some(last) = page.batches.last() {
            self.position = last.log_position;
        }
        self.page.extend(page.batches);
        Ok(())
    }
}

/// What a reader that came back has seen before.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResumePoint {
    /// The last event it had.
    id: EventId,
    /// Where that is in the log, once that is known.
    found: Option<FramePosition>,
    /// How far the log went when the reader came back.
    end: i64,
    /// It reads one run, and not a thread.
    of_run: bool,
}

impl ResumePoint {
    /// Everything up to this event.
    pub(super) const fn new(id: EventId, found: Option<FramePosition>, end: i64, of_run: bool) -> Self {
        Self { id, found, end, of_run }
    }

    /// Whether the reader had a frame of the log before. What the order within a run says is not asked here.
    pub(super) fn covers(&mut self, position: i64, frame: &Frame<'_>) -> bool {
        match self.found {
            // Others than the run of the last event: what was logged before it and is older.
            Some(found) => position < found.log_position && frame.run != found.run && frame.id <= self.id,
            None if frame.id == self.id => {
                self.found = Some(FramePosition {
                    log_position: position,
                    run: frame.run,
                    attempt: frame.attempt,
                    number: frame.number,
                });
                true
            }
            // The last event is not logged yet, or never will be.
            None if frame.number > 0 => frame.id < self.id,
            None => !self.of_run && position <= self.end && frame.id < self.id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(log_position: i64, texts: &[&str]) -> Batch {
        let mut frames = String::new();
        for text in texts {
            frame::append(&mut frames, text);
        }
        Batch {
            log_position,
            run_id: None,
            frames,
        }
    }

    #[test]
    fn frames_come_one_by_one_over_the_ends_of_batches() {
        let mut log = LogReader::after(0);
        assert!(log.next().is_none());
        log.page
            .extend([batch(3, &["a", "bc"]), batch(4, &[]), batch(9, &["d"])]);
        let mut seen = Vec::new();
        while let Some((position, frame)) = log.next() {
            seen.push((position, frame.to_string()));
        }
        let expected = [(3, "a"), (3, "bc"), (9, "d")].map(|(position, text)| (position, text.to_owned()));
        assert_eq!(seen, expected);
        // A page that is read later is taken from its beginning.
        log.page.push_back(batch(10, &["e"]));
        assert_eq!(log.next(), Some((10, Arc::from("e"))));
    }

    fn frame(run: RunId, number: i64, ms: i64) -> Frame<'static> {
        Frame {
            run: Some(run),
            attempt: 1,
            number,
            id: EventId { ms, seq: 0 },
            event: "values",
            data: "{}",
        }
    }

    #[test]
    fn what_is_logged_behind_the_last_event_is_new_whatever_its_id() {
        let (one, two) = (RunId::new(), RunId::new());
        let found = FramePosition {
            log_position: 5,
            run: Some(two),
            attempt: 0,
            number: 0,
        };
        let mut seen = ResumePoint::new(EventId { ms: 1045, seq: 0 }, Some(found), 5, false);
        assert!(seen.covers(4, &frame(one, 3, 1030)));
        assert!(
            !seen.covers(6, &frame(one, 4, 1031)),
            "logged later, by a clock that is behind"
        );
        assert!(
            !seen.covers(4, &frame(one, 0, 1046)),
            "an end that was logged before and is younger"
        );
    }

    #[test]
    fn an_event_that_is_not_logged_yet_is_found_when_it_is() {
        let run = RunId::new();
        let mut seen = ResumePoint::new(EventId { ms: 20, seq: 0 }, None, 7, true);
        assert!(seen.covers(8, &frame(run, 1, 10)) && seen.covers(8, &frame(run, 2, 20)));
        assert!(!seen.covers(8, &frame(run, 3, 21)) && !seen.covers(8, &frame(run, 0, 5)));
    }
}
