//! Frames that are published: whether others come before them, and how long those are waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use towpath_domain::RunId;
use towpath_domain::agent::Frame;

use super::heard::{Fit, Source};
use super::looks::Standing;
use super::rows::moment_ago;
use super::{GAP, GAP_LOOK, Held, Item, Reader, TAIL};
use crate::agent::errors::AgentError;

impl Reader {
    /// A frame that was published, once the log was read.
    pub(super) async fn deal_with(&mut self, held: Held) -> Result<(), AgentError> {
        let Some(frame) = Frame::decode(&held.text) else {
            self.held = None;
            return Ok(());
        };
        let fit = self.heard.fit(&frame, Source::Live);
        if fit == Fit::Old {
            self.held = None;
            return Ok(());
        }
        let Some(asked) = held.asked else {
            if fit == Fit::Gap || self.may_follow_logged(&frame) {
                self.held = Some(Held {
                    asked: Some(Instant::now()),
                    ..held
                });
                self.log.look();
            } else {
                self.hand_out(&held.text, Source::Live);
                self.held = None;
            }
            return Ok(());
        };
        if fit == Fit::Next {
            self.hand_out(&held.text, Source::Live);
            self.held = None;
        } else if self.waits_for_log(&frame, asked, held.last_time).await? {
            let pause = if asked.elapsed() < GAP { GAP_LOOK } else { TAIL };
            tokio::time::sleep(pause).await;
            self.log.look();
        } else {
            self.give_up_waiting(&held.text, &frame);
            self.held = None;
        }
        Ok(())
    }

    /// Whether the log may hold what came before a frame, although nothing shows it: what another run or an earlier attempt
    /// logged last, or what a worker did whose run was ended by others.
    fn may_follow_logged(&self, frame: &Frame<'_>) -> bool {
        let Some(run) = frame.run else { return false };
        let new = !self.heard.knows(run) && self.looks > 0;
        let of_others = frame.attempt == 0 && (self.run.is_none() || self.logged);
        new || of_others || self.heard.begins_again(frame)
    }

    /// Whether the log may still bring what comes before a frame that was published.
    async fn waits_for_log(&mut self, frame: &Frame<'_>, asked: Instant, last_time: bool) -> Result<bool, AgentError> {
        let Some(run) = frame.run else { return Ok(false) };
        if frame.is_end() || last_time {
            // An end is in the log before it is published.
            return Ok(false);
        }
        if !self.logged_run(run) {
            // Whether it is logged all the same only the log can tell.
            let patience = if self.run.is_none() || self.tails() {
                GAP
            } else {
                Duration::ZERO
            };
            return Ok(asked.elapsed() < patience);
        }
        let row = self.row.clone().unwrap_or_else(|| self.app.looks.of(run));
        if let Standing::Over(_) = row.since(&self.app, run, moment_ago()).await?
            && let Some(held) = &mut self.held
        {
            held.last_time = true;
        }
        Ok(true)
    }

    /// The log does not have what comes before a frame.
    fn give_up_waiting(&mut self, text: &Arc<str>, frame: &Frame<'_>) {
        let Some(run) = frame.run else { return };
        if !frame.is_end() && self.logged_run(run) {
            // Of an attempt that died before this was logged: the log says what happened.
            return;
        }
        if self.heard.is_placed(run) {
            self.ready.push_back(Item::Cut);
        }
        self.hand_out(text, Source::Live);
    }

    pub(super) fn logged_run(&self, run: RunId) -> bool {
        self.heard.is_logged(run) || (self.logged && self.run.is_some())
    }
}
