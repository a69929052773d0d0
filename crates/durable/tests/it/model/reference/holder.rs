//! Operations of current and former holders of a claim.

use std::collections::BTreeSet;

use towpath_domain::job::JobState;

use super::{Claim, LEASE, Model};
use crate::model::puppet::{Action, RETRIES};

impl Model {
    pub(super) fn holds(&self, nth: usize) -> bool {
        let Claim { job, fence, .. } = self.claims[nth];
        self.jobs[job].state == JobState::Running && self.jobs[job].fence == fence
    }

    pub(super) fn act(&mut self, nth: usize, act: &Action) {
        self.acts += 1;
        let Claim { job, fence, .. } = self.claims[nth];
        let ours = self.holds(nth);
        let marked = self.jobs[job].marked;
        match act {
            Action::Vanish => self.claims[nth].there = false,
            Action::Renew => {
                // The worker does it, whatever the state of the job.
                if let Some(until) = &mut self.leases[self.claims[nth].worker] {
                    *until = self.now + LEASE;
                }
            }
            Action::Step(step) => self.step(nth, *step, ours),
            Action::Checkpoint(_) | Action::Effect(_) if ours && !marked => {
                if let Action::Checkpoint(to) = act {
                    self.jobs[job].cursor = Some(*to);
                    self.jobs[job].lost = 0;
                    self.effect(Some(job), format!("checkpoint {to}"), fence);
                } else if let Action::Effect(effect) = act {
                    self.effect(Some(job), format!("effect {effect}"), fence);
                }
            }
            _ => {
                self.claims[nth].there = false;
                if ours && marked {
                    self.note(job, "cancelled");
                    self.finish(job, JobState::Cancelled, false);
                } else if ours {
                    self.end(nth, act);
                }
            }
        }
    }

    /// A step in the journal is skipped for any claim; a new one is recorded for the holder only.
    fn step(&mut self, nth: usize, step: u32, ours: bool) {
        let Claim { job, fence, .. } = self.claims[nth];
        self.claims[nth].used += 1;
        let known: BTreeSet<u32> = self.jobs[job].steps.keys().copied().collect();
        let journal = self.claims[nth].journal.get_or_insert(known);
        if journal.contains(&step) {
            return;
        }
        *self.jobs[job].bodies.entry(step).or_default() += 1;
        if ours {
            self.jobs[job].steps.entry(step).or_insert(fence);
            self.jobs[job].lost = 0;
        } else {
            self.claims[nth].there = false;
        }
    }

    /// An attempt of the holder ends.
    fn end(&mut self, nth: usize, act: &Action) {
        let Claim {
            job, fence, bare, bad, ..
        } = self.claims[nth];
        let keeps = self.jobs[job].kept;
        match act {
            Action::Settle => {
                self.effect(Some(job), "settled".to_owned(), fence);
                self.finish(job, JobState::Succeeded, false);
            }
            Action::Done => {
                // Written together with others, without changing the fence, if only a lane changes with it.
                self.finish(job, JobState::Succeeded, false);
                self.jobs[job].fence -= i64::from(bare);
            }
            Action::Fail | Action::Fatal => {
                self.note(job, "failed");
                self.jobs[job].failures += 1;
                if *act == Action::Fatal || self.jobs[job].failures > i64::from(RETRIES) {
                    self.finish(job, JobState::Failed, true);
                } else {
                    self.jobs[job].run_at = self.now + 1;
                    self.leave(job, JobState::Scheduled, keeps);
                }
            }
            Action::Snooze => {
                self.jobs[job].attempt -= 1;
                self.jobs[job].run_at = self.now + 1;
                self.leave(job, JobState::Scheduled, keeps);
            }
            Action::HandBack => {
                self.jobs[job].attempt -= 1;
                self.jobs[job].fence += 1;
                self.leave(job, self.ready(job), true);
            }
            Action::Wait(children, lane) => {
                if let Some((lane, places)) = lane {
                    // Locking creates it, even if no job enters it.
                    self.lane(*lane, *places);
                }
                let tenant = self.jobs[job].tenant;
                for _ in 0..*children {
                    self.start(tenant, 0, false, *lane, 0, None, Some(job));
                }
                let open = self
                    .jobs
                    .iter()
                    .filter(|child| child.parent == Some(job) && !child.state.is_final())
                    .count();
                let row = &mut self.jobs[job];
                row.open = i64::try_from(open).unwrap();
                row.attempt -= 1;
                row.lost = 0;
                let goes_on = open == 0 || row.bad > bad;
                self.leave(job, if goes_on { JobState::Ready } else { JobState::Waiting }, true);
            }
            _ => unreachable!("{act:?}"),
        }
    }
}
