//! One reader of a thread's events.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use towpath_domain::ThreadId;

use super::buffer_task::buffer_of;
use super::event::{Event, ResumeGap};
use super::event_buffer::{Batch, BufferEnd, EventBuffer};
use super::replay::{self, NextEvent, Replay};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// Delivers every event after a number once and in order: from the shared event buffer, or from the log if the buffer has
/// dropped the next event.
pub(super) struct Cursor {
    app: AgentApp,
    thread: ThreadId,
    tape: Arc<EventBuffer>,
    changes: watch::Receiver<()>,
    /// Number of the last event that was delivered or skipped.
    after: i64,
    ready: VecDeque<Arc<Event>>,
    /// Reads the log. Kept once created: a reader that falls behind the buffer again continues here.
    replay: Option<Box<Replay>>,
    /// Whether events come from the replay instead of the buffer.
    is_replaying: bool,
}

impl Cursor {
    /// Starts after a number; 0 is the beginning of the stored log.
    pub fn after(app: &AgentApp, thread: ThreadId, seq: i64) -> Self {
        let tape = buffer_of(app, thread);
        Self {
            app: app.clone(),
            thread,
            changes: tape.changes(),
            tape,
            after: seq,
            ready: VecDeque::new(),
            replay: None,
            is_replaying: false,
        }
    }

    pub const fn position(&self) -> i64 {
        self.after
    }

    /// Whether events after the start are no longer stored. To be called before events are read. Cancel safe.
    pub async fn resume_gap(&mut self) -> Result<Option<ResumeGap>, AgentError> {
        let since = self.after;
        if since == 0 {
            // The reader asks for what is stored.
            return Ok(None);
        }
        loop {
            self.changes.mark_unchanged();
            if self.tape.has_caught_up() || self.tape.is_ended() {
                break;
            }
            // The sender lives as long as the buffer, which is held here.
            let _ = self.changes.changed().await;
        }
        let removed_until = if since < self.tape.dropped_until() {
            // The reader reads the log by itself.
            replay::removed_until(&self.app, self.thread).await?
        } else {
            self.tape.removed_until()
        };
        Ok((since < removed_until).then_some(ResumeGap { since, removed_until }))
    }

    /// The next event; `None` when the thread was deleted. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        loop {
            // Before reading, so that no change is missed.
            self.changes.mark_unchanged();
            match self.poll(false).await? {
                NextEvent::Event(event) => return Ok(Some(event)),
                NextEvent::ThreadDeleted => return Ok(None),
                NextEvent::CaughtUp => self.wait().await?,
            }
        }
    }

    /// The next stored event. Cancel safe.
    pub async fn next_logged(&mut self) -> Result<NextEvent, AgentError> {
        loop {
            self.changes.mark_unchanged();
            let caught_up = self.tape.has_caught_up();
            match self.poll(true).await? {
                NextEvent::CaughtUp if !caught_up => self.wait().await?,
                position => return Ok(position),
            }
        }
    }

    /// The next available event. With `passes_over`, events that are neither buffered nor logged are skipped: they were only
    /// published, or deleted meanwhile.
    async fn poll(&mut self, passes_over: bool) -> Result<NextEvent, AgentError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                return Ok(NextEvent::Event(event));
            }
            if self.is_replaying && self.tape.has_after(self.after) {
                self.is_replaying = false;
            }
            if let Some(replay) = self.replay.as_mut().filter(|_| self.is_replaying) {
                match replay.next_logged().await? {
                    NextEvent::Event(event) if event.seq > self.after => self.ready.push_back(event),
                    NextEvent::Event(_) => {}
                    NextEvent::CaughtUp if passes_over => {
                        self.after = self.after.max(self.tape.dropped_until());
                        self.is_replaying = false;
                    }
                    end => return Ok(end),
                }
                continue;
            }
            match self.tape.after(self.after) {
                Batch::Events(events) => self.ready.extend(events),
                Batch::Dropped => {
                    if self.replay.is_none() {
                        self.replay = Some(Box::new(Replay::start(&self.app, self.thread).await?));
                    }
                    self.is_replaying = true;
                }
                Batch::Ended(BufferEnd::ThreadDeleted) => return Ok(NextEvent::ThreadDeleted),
                Batch::Ended(BufferEnd::Failed(error)) => return Err(error),
                Batch::Empty => return Ok(NextEvent::CaughtUp),
            }
        }
    }

    /// Waits until there may be more.
    async fn wait(&mut self) -> Result<(), AgentError> {
        let Some(replay) = self.replay.as_mut().filter(|_| self.is_replaying) else {
            // The sender lives as long as the buffer, which is held here.
            let _ = self.changes.changed().await;
            return Ok(());
        };
        match replay.next().await? {
            Some(event) if event.seq > self.after => self.ready.push_back(event),
            Some(_) => {}
            // The next read reports that the thread was deleted.
            None => self.is_replaying = false,
        }
        Ok(())
    }
}
