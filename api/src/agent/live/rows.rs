//! What the rows say that nobody told: that a run is over, that a thread is gone.

use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::agent::RunStatus;
use towpath_domain::agent::frame::End;
use towpath_queue::State;
use towpath_store::{self as store, threads};

use super::looks::Standing;
use super::{GAP, Item, LOOK, Reader, TAIL};
use crate::agent::errors::AgentError;

/// Between two looks whether a thread is still there, for when nobody says that it is gone.
pub(super) const THREAD_LOOK: Duration = Duration::from_secs(10);

/// A run whose row says that it is over, while nobody has told its end.
#[derive(Clone, Copy)]
pub(super) struct Closing {
    pub(super) status: Option<RunStatus>,
    /// The reader was there when it ended.
    pub(super) live: bool,
    /// So long its end may be on its way.
    pub(super) until: Instant,
}

impl Reader {
    /// Looks into the log where that has to be, and whether the run is over, for when nobody says so.
    pub(super) async fn look(&mut self) -> Result<(), AgentError> {
        if self.tails() || self.looks > 0 {
            self.looks = self.looks.saturating_sub(1);
            self.log.look();
        }
        if self.run.is_some() {
            return self.look_at_row(moment_ago(), GAP).await;
        }
        self.look_at_heard().await?;
        self.look_at_thread().await
    }

    /// Whether runs of the thread are over that were heard, and whose end was not: what was published may be lost, and what
    /// is in no log is lost for good. A thread on which nothing goes on costs no look.
    async fn look_at_heard(&mut self) -> Result<(), AgentError> {
        for run in self.heard.open() {
            let row = self.app.looks.of(run);
            let Standing::Over(status) = row.since(&self.app, run, moment_ago()).await? else {
                continue;
            };
            let doubtful = self.heard.is_doubtful(run) || (status.is_some() && !self.heard.is_logged(run));
            if !self.heard.is_over(run) {
                // It may be on its way, or in the log.
                self.log.look();
                continue;
            }
            if doubtful {
                // Where its end was lost, so may be what came before it.
                self.ready.push_back(Item::Cut);
            }
            self.ready.push_back(Item::End(run, end_of(status), None));
        }
        Ok(())
    }

    /// Whether the thread is still there.
    async fn look_at_thread(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        if now < self.next_thread_look {
            return Ok(());
        }
        self.next_thread_look = now + THREAD_LOOK;
        match self.thread_exists().await {
            Ok(exists) => {
                self.to_come &= !exists;
                self.over = !exists && !self.to_come;
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
    pub(super) async fn look_at_row(&mut self, then: std::time::Instant, patience: Duration) -> Result<(), AgentError> {
        let Some((run, row)) = self.run.zip(self.row.clone()).filter(|_| self.closing.is_none()) else {
            return Ok(());
        };
        // Of nothing that was not known the next look may know.
        let Standing::Over(status) = row.since(&self.app, run, then).await? else {
            return Ok(());
        };
        // From other processes nothing comes then.
        let down = matches!(self.app.queue.health().state, State::Down { .. });
        let patience = if down { patience.min(TAIL) } else { patience };
        self.closing = Some(Closing {
            status,
            live: true,
            until: Instant::now() + patience,
        });
        // Written in the transaction that ended the run, so this look finds it.
        self.log.look();
        Ok(())
    }

    /// Nobody told the end of the run: its row does.
    pub(super) fn end_by_row(&mut self) {
        let Some((run, closing)) = self.run.zip(self.closing) else {
            return;
        };
        let lost = if self.logged {
            // It was in the log, and was deleted before this reader came so far.
            closing.status.is_some() && self.heard.expects_end(run)
        } else {
            // Where its end was lost, so may be what came before it.
            closing.live
        };
        if lost {
            self.ready.push_back(Item::Cut);
        }
        self.over = true;
        self.ready.push_back(Item::End(run, end_of(closing.status), None));
    }
}

/// Looks that began since then count as those of now: others look at the same rows.
pub(super) fn moment_ago() -> std::time::Instant {
    let now = std::time::Instant::now();
    now.checked_sub(LOOK / 2).unwrap_or(now)
}

/// An end of which only the status is known.
pub(super) const fn end_of(status: Option<RunStatus>) -> End {
    End {
        status,
        attempt: 0,
        last: 0,
        values: None,
        error: None,
    }
}
