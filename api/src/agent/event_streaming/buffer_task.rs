//! Fills the buffers of threads.

use std::sync::{Arc, Weak};

use towpath_domain::ThreadId;

use super::event_buffer::EventBuffer;
use super::replay::{self, NextEvent, Replay};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// The buffer of a thread. It is filled as long as a reader holds it.
pub(super) fn buffer_of(app: &AgentApp, thread: ThreadId) -> Arc<EventBuffer> {
    app.event_buffers.buffer_of(thread, |tape| {
        let app = app.clone();
        async move { write_events(&app, thread, &tape).await }
    })
}

/// Writes the events of a thread into its buffer until the thread is deleted or no reader holds the buffer.
async fn write_events(app: &AgentApp, thread: ThreadId, tape: &Weak<EventBuffer>) -> Result<(), AgentError> {
    let mut replay = Replay::start(app, thread).await?;
    loop {
        let event = match replay.next_logged().await? {
            NextEvent::Event(event) => Some(event),
            NextEvent::ThreadDeleted => return Ok(()),
            NextEvent::CaughtUp => {
                let caught_up = tape.upgrade().map(|tape| tape.has_caught_up());
                match caught_up {
                    None => return Ok(()),
                    Some(true) => {}
                    Some(false) => {
                        let removed = replay::removed_until(app, thread).await?;
                        let Some(tape) = tape.upgrade() else { return Ok(()) };
                        tape.set_caught_up(removed);
                    }
                }
                replay.next().await?
            }
        };
        let (Some(event), Some(tape)) = (event, tape.upgrade()) else {
            return Ok(());
        };
        tape.push(event);
    }
}
