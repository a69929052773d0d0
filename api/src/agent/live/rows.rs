//! What the rows say that nobody told: that a run is over, that a thread is gone.

use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::frame::RunEnd;
use towpath_queue::State;
use towpath_store::{self as store, threads};

use super::run_status::RunState;
use super::{GAP_TIMEOUT, LOG_POLL_INTERVAL, ROW_POLL_INTERVAL, Reader, StreamItem};
use crate::agent::errors::AgentError;

/// Between two looks whether a thread is still there, for when nobody says that it is gone.
pub(super) const THREAD_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// A run whose row says that it is over, while nobody has told its end.
#[derive(Clone, Copy)]
pub(super) struct PendingEnd {
    pub(super) status: Option<RunStatus>,
    /// The reader was there when it ended.
    pub(super) live: bool,
    /// So long its end may be on its way.
    pub(super) until: Instant,
}

impl Reader {
    /// Looks into the log where that has to be, and whether the run is over, for when nobody says so.
    pub(super) async fn poll(&mut self) -> Result<(), AgentError> {
        if self.polls_log() || self.catch_up_polls > 0 {
            self.catch_up_polls = self.catch_up_polls.saturating_sub(1);
            self.log.mark_unread();
        }
        if self.run.is_some() {
            return self.poll_run(shared_poll_cutoff(), GAP_TIMEOUT).await;
        }
        self.poll_delivered_runs().await?;
        self.poll_thread().await
    }

    /// Whether runs of the thread are over that were heard, and whose end was not: what was published may be lost, and what
    /// is in no log is lost for good. A thread on which nothing goes on costs no look.
    async fn poll_delivered_runs(&mut self) -> Result<(), AgentError> {
        for run in self.delivered.open_runs() {
            let row = self.app.run_status.status_of(run);
            let RunState::Finished(status) = row
                .read_since(&self.app.store, (self.app.tenant, run), shared_poll_cutoff())
                .await?
            else {
                continue;
            };
            let doubtful = self.delivered.may_have_gap(run) || (status.is_some() && !self.delivered.is_logged(run));
            if !self.delivered.confirm_ended(run) {
                // It may be on its way, or in the log.
                self.log.mark_unread();
                continue;
            }
            if doubtful {
                // Where its end was lost, so may be what came before it.
                self.ready.push_back(StreamItem::Cut);
            }
            self.ready.push_back(StreamItem::End(run, end_of(status), None));
        }
        Ok(())
    }

    /// Whether the thread is still there.
    async fn poll_thread(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        if now < self.next_thread_poll {
            return Ok(());
        }
        self.next_thread_poll = now + THREAD_POLL_INTERVAL;
        match self.thread_exists().await {
            Ok(exists) => {
                self.may_be_created &= !exists;
                self.finished = !exists && !self.may_be_created;
            }
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) async fn thread_exists(&mut self) -> store::Result<bool> {
        let (tenant, thread) = (self.app.tenant, self.thread);
        let exists = self
            .app
            .store
            .read(async |tx| threads::exists(tx, tenant, thread).await);
        exists.await
    }

    /// Whether the run is over, by a look at its row that began then or later. Its end is waited for a while.
    pub(super) async fn poll_run(&mut self, then: std::time::Instant, patience: Duration) -> Result<(), AgentError> {
        let Some((run, row)) = self.run.zip(self.run_status.clone()).filter(|_| self.closing.is_none()) else {
            return Ok(());
        };
        // Of nothing that was not known the next look may know.
        let RunState::Finished(status) = row.read_since(&self.app.store, (self.app.tenant, run), then).await? else {
            return Ok(());
        };
        // From other processes nothing comes then.
        let down = matches!(self.app.queue.health().state, State::Down { .. });
        let patience = if down {
            patience.min(LOG_POLL_INTERVAL)
        } else {
            patience
        };
        self.closing = Some(PendingEnd {
            status,
            live: true,
            until: Instant::now() + patience,
        });
        // Written in the transaction that ended the run, so this look finds it.
        self.log.mark_unread();
        Ok(())
    }

    /// Nobody told the end of the run: its row does.
    pub(super) fn end_by_row(&mut self) {
        let Some((run, closing)) = self.run.zip(self.closing) else {
            return;
        };
        let lost = if self.logged {
            // It was in the log, and was deleted before this reader came so far.
            closing.status.is_some() && self.delivered.expects_end(run)
        } else {
            // Where its end was lost, so may be what came before it.
            closing.live
        };
        if lost {
            self.ready.push_back(StreamItem::Cut);
        }
        self.finished = true;
        self.ready.push_back(StreamItem::End(run, end_of(closing.status), None));
    }
}

/// Looks that began since then count as those of now: others look at the same rows.
pub(super) fn shared_poll_cutoff() -> std::time::Instant {
    let now = std::time::Instant::now();
    now.checked_sub(ROW_POLL_INTERVAL / 2).unwrap_or(now)
}

/// An end of which only the status is known.
pub(super) const fn end_of(status: Option<RunStatus>) -> RunEnd {
    RunEnd {
        status,
        attempt: 0,
        last: 0,
        values: None,
        error: None,
    }
}
