//! Waits for what follows a question: the run that answers it, or the end of the task.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Interval, sleep_until};
use tokio_util::sync::CancellationToken;
use towpath_domain::ThreadId;
use towpath_queue::Events;

use crate::agent::app::AgentApp;
use crate::agent::sse;

/// Between the first two looks at the task, which show what no hint told.
const FIRST_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A question may wait for days: the interval doubles up to this.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The wait of one stream.
pub(super) struct NextRun {
    events: Events,
    next_poll: Instant,
    poll_interval: Duration,
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
        Self {
            events,
            // At once: the task may have changed before the subscription.
            next_poll: Instant::now(),
            poll_interval: FIRST_POLL_INTERVAL,
            heartbeat: sse::heartbeat_ticker(app),
            draining: app.draining.clone(),
        }
    }

    pub(super) async fn next(&mut self) -> NextRunEvent {
        tokio::select! {
            biased;
            () = self.draining.cancelled() => return NextRunEvent::Drain,
            _ = self.heartbeat.tick() => {
                return NextRunEvent::Heartbeat(Bytes::from_static(b": heartbeat\r\n\r\n"));
            }
            () = sleep_until(self.next_poll) => self.poll_interval = (self.poll_interval * 2).min(MAX_POLL_INTERVAL),
            _ = self.events.next() => {}
        }
        // One look serves all hints so far.
        while self.events.try_next().is_some() {}
        self.next_poll = Instant::now() + self.poll_interval;
        NextRunEvent::Check
    }
}
