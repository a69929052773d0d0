//! Frames that are published: whether others come before them, and how long those are waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::RunId;
use towpath_domain::agent::Frame;

use super::delivery::{FrameOrder, Source};
use super::rows::shared_poll_cutoff;
use super::run_status::RunState;
use super::{GAP_POLL_INTERVAL, GAP_TIMEOUT, LOG_POLL_INTERVAL, PendingFrame, Reader, StreamItem};
use crate::agent::errors::AgentError;

impl Reader {
    /// A frame that was published, once the log was read.
    pub(super) async fn accept_live(&mut self, held: PendingFrame) -> Result<(), AgentError> {
        let Some(frame) = Frame::decode(&held.text) else {
            self.pending = None;
            return Ok(());
        };
        let fit = self.delivered.classify(&frame, Source::Live);
        if fit == FrameOrder::Duplicate {
            self.pending = None;
            return Ok(());
        }
        let Some(asked) = held.log_requested_at else {
            if fit == FrameOrder::Gap || self.may_have_logged_predecessor(&frame) {
                self.pending = Some(PendingFrame {
                    log_requested_at: Some(Instant::now()),
                    ..held
                });
                self.log.mark_unread();
            } else {
                self.deliver(&held.text, Source::Live);
                self.pending = None;
            }
            return Ok(());
        };
        if fit == FrameOrder::Next {
            self.deliver(&held.text, Source::Live);
            self.pending = None;
        } else if self.awaits_log(&frame, asked, held.final_check).await? {
            let pause = if asked.elapsed() < GAP_TIMEOUT {
                GAP_POLL_INTERVAL
            } else {
                LOG_POLL_INTERVAL
            };
            tokio::time::sleep(pause).await;
            self.log.mark_unread();
        } else {
            self.report_gap(&held.text, &frame);
            self.pending = None;
        }
        Ok(())
    }

    /// Whether the log may hold what came before a frame, although nothing shows it: what another run or an earlier attempt
    /// logged last, or what a worker did whose run was ended by others.
    fn may_have_logged_predecessor(&self, frame: &Frame<'_>) -> bool {
        let Some(run) = frame.run else { return false };
        let new = !self.delivered.has_run(run) && self.catch_up_polls > 0;
        let of_others = frame.attempt == 0 && (self.run.is_none() || self.logged);
        new || of_others || self.delivered.starts_new_attempt(frame)
    }

    /// Whether the log may still bring what comes before a frame that was published.
    async fn awaits_log(&mut self, frame: &Frame<'_>, asked: Instant, last_time: bool) -> Result<bool, AgentError> {
        let Some(run) = frame.run else { return Ok(false) };
        if frame.is_end() || last_time {
            // An end is in the log before it is published.
            return Ok(false);
        }
        if !self.is_run_logged(run) {
            // Whether it is logged all the same only the log can tell.
            let patience = if self.run.is_none() || self.polls_log() {
                GAP_TIMEOUT
            } else {
                Duration::ZERO
            };
            return Ok(asked.elapsed() < patience);
        }
        let row = self
            .run_status
            .clone()
            .unwrap_or_else(|| self.app.run_status.status_of(run));
        if let RunState::Finished(_) = row
            .read_since(&self.app.store, (self.app.tenant, run), shared_poll_cutoff())
            .await?
            && let Some(held) = &mut self.pending
        {
            held.final_check = true;
        }
        Ok(true)
    }

    /// The log does not have what comes before a frame.
    fn report_gap(&mut self, text: &Arc<str>, frame: &Frame<'_>) {
        let Some(run) = frame.run else { return };
        if !frame.is_end() && self.is_run_logged(run) {
            // Of an attempt that died before this was logged: the log says what happened.
            return;
        }
        if self.delivered.has_position(run) {
            self.ready.push_back(StreamItem::Cut);
        }
        self.deliver(text, Source::Live);
    }

    pub(super) fn is_run_logged(&self, run: RunId) -> bool {
        self.delivered.is_logged(run) || (self.logged && self.run.is_some())
    }
}
