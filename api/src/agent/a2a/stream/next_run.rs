//! Waits for what follows a question: the run that answers it, or the end of the task.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use towpath_domain::ThreadId;
use towpath_queue::Events;

use crate::agent::app::AgentApp;
use crate::agent::sse;

/// Between two looks at the task, which show what no hint told.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The wait of one stream.
pub(super) struct NextRun {
    events: Events,
    poll: Interval,
    heartbeat: Interval,
    draining: CancellationToken,
}

/// What is due.
pub(super) enum NextRunEvent {
    /// The task may have changed.
    Check,
    /// A comment that keeps the connection open.
    Heartbeat(Bytes),
    /// The process drains: the client comes back to another one.
    Drain,
}

impl NextRun {
    pub(super) async fn new(app: &AgentApp, thread: ThreadId) -> Self {
        let events = app.queue.subscribe(thread).await;
        // The first tick is due at once: the task may have changed before the subscription.
        let mut poll = interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            events,
            poll,
            heartbeat: sse::heartbeat_ticker(app),
            draining: app.draining.clone(),
        }
    }

    pub(super) async fn next(&mut self) -> NextRunEvent {
        tokio::select! {
            biased;
            () = self.draining.cancelled() => NextRunEvent::Drain,
            _ = self.heartbeat.tick() => NextRunEvent::Heartbeat(Bytes::from_static(b": heartbeat\r\n\r\n")),
            _ = self.poll.tick() => NextRunEvent::Check,
            _ = self.events.next() => NextRunEvent::Check,
        }
    }
}
