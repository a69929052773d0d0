//! One reader of a thread's events.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use towpath_domain::ThreadId;

use super::event::Event;
use super::replay::Replay;
use super::tape::{Over, Taken, Tape};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Hands out every event behind a number, once and in order: from the tape that all readers of the thread share, and where
/// that has dropped what comes next, from the log.
pub(super) struct Cursor {
    app: AgentApp,
    thread: ThreadId,
    tape: Arc<Tape>,
    changes: watch::Receiver<()>,
    /// The number of the last event that was handed out, or passed over.
    after: i64,
    ready: VecDeque<Arc<Event>>,
    /// Reads the log, when the tape does not go so far back.
    replay: Option<Box<Replay>>,
}

impl Cursor {
    /// Begins behind a number; 0 is the beginning of what is kept.
    pub fn after(app: &AgentApp, thread: ThreadId, seq: i64) -> Self {
        let tape = app.tapes.of(app, thread);
        Self {
            app: app.clone(),
            thread,
            changes: tape.changes(),
            tape,
            after: seq,
            ready: VecDeque::new(),
            replay: None,
        }
    }

    /// How far it has come.
    pub const fn position(&self) -> i64 {
        self.after
    }

    /// The next event; `None` when the thread is gone. May be dropped while waiting without losing one.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                return Ok(Some(event));
            }
            if let Some(replay) = &mut self.replay {
                if self.tape.has_after(self.after) {
                    self.replay = None;
                    continue;
                }
                match replay.next().await? {
                    Some(event) if event.seq > self.after => self.ready.push_back(event),
                    Some(_) => {}
                    None => return Ok(None),
                }
                continue;
            }
            // Before the look, so that nothing falls between the two.
            self.changes.mark_unchanged();
            match self.tape.after(self.after) {
                Taken::Events(events) => self.ready.extend(events),
                Taken::Dropped => self.replay = Some(Box::new(Replay::begin(&self.app, self.thread).await?)),
                Taken::Over(Over::Gone) => return Ok(None),
                Taken::Over(Over::Failed(error)) => return Err(error),
                Taken::Nothing => {
                    // The sender lives as long as the tape, which is held here.
                    let _ = self.changes.changed().await;
                }
            }
        }
    }
}
