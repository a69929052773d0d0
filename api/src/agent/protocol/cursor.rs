//! One reader of a thread's events.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use towpath_domain::ThreadId;

use super::event::Event;
use super::replay::{Position, Replay};
use super::tape::{Batch, Over, Tape};
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
    /// Reads the log. It is kept once it was needed: a reader that falls off the tape again goes on where this is, and does
    /// not read the log from its beginning.
    replay: Option<Box<Replay>>,
    /// Whether events come from the replay, and not from the tape.
    replays: bool,
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
            replays: false,
        }
    }

    /// How far it has come.
    pub const fn position(&self) -> i64 {
        self.after
    }

    /// The next event; `None` when the thread is gone. May be dropped while waiting without losing one.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        loop {
            // Before the look, so that nothing falls between the two.
            self.changes.mark_unchanged();
            match self.look(false).await? {
                Position::At(event) => return Ok(Some(event)),
                Position::Gone => return Ok(None),
                Position::End => self.wait().await?,
            }
        }
    }

    /// The next event of those that are kept. May be dropped while waiting without losing one.
    pub async fn next_kept(&mut self) -> Result<Position, AgentError> {
        loop {
            self.changes.mark_unchanged();
            let caught_up = self.tape.has_caught_up();
            match self.look(true).await? {
                Position::End if !caught_up => self.wait().await?,
                position => return Ok(position),
            }
        }
    }

    /// The next event that is there. `passes_over` says that those that are neither on the tape nor in the log are passed
    /// over: they were published alone, or deleted meanwhile.
    async fn look(&mut self, passes_over: bool) -> Result<Position, AgentError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                return Ok(Position::At(event));
            }
            if self.replays && self.tape.has_after(self.after) {
                self.replays = false;
            }
            if let Some(replay) = self.replay.as_mut().filter(|_| self.replays) {
                match replay.next_kept().await? {
                    Position::At(event) if event.seq > self.after => self.ready.push_back(event),
                    Position::At(_) => {}
                    Position::End if passes_over => {
                        self.after = self.after.max(self.tape.dropped());
                        self.replays = false;
                    }
                    end => return Ok(end),
                }
                continue;
            }
            match self.tape.after(self.after) {
                Batch::Events(events) => self.ready.extend(events),
                Batch::Dropped => {
                    if self.replay.is_none() {
                        self.replay = Some(Box::new(Replay::begin(&self.app, self.thread).await?));
                    }
                    self.replays = true;
                }
                Batch::Over(Over::Gone) => return Ok(Position::Gone),
                Batch::Over(Over::Failed(error)) => return Err(error),
                Batch::Nothing => return Ok(Position::End),
            }
        }
    }

    /// Waits until there may be more.
    async fn wait(&mut self) -> Result<(), AgentError> {
        let Some(replay) = self.replay.as_mut().filter(|_| self.replays) else {
            // The sender lives as long as the tape, which is held here.
            let _ = self.changes.changed().await;
            return Ok(());
        };
        match replay.next().await? {
            Some(event) if event.seq > self.after => self.ready.push_back(event),
            Some(_) => {}
            // The next look says that the thread is gone.
            None => self.replays = false,
        }
        Ok(())
    }
}
