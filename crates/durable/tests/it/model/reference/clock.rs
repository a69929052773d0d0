//! The scheduler in the model.

use towpath_domain::job::{JobState, MAX_LOST_LEASES};

use super::{GRACE, Model};

impl Model {
    pub(super) fn rescue(&mut self) {
        for lease in &mut self.leases {
            *lease = lease.filter(|until| *until >= self.now);
        }
        let held = |model: &Self, job: &usize| {
            let row = &model.jobs[*job];
            row.state == JobState::Running && row.worker.is_some_and(|worker| model.leases[worker].is_none())
        };
        let lost: Vec<usize> = (0..self.jobs.len()).filter(|job| held(self, job)).collect();
        // Most go back together, and pause until the next tick.
        let (ends, rests): (Vec<usize>, Vec<usize>) = lost
            .into_iter()
            .partition(|job| self.jobs[*job].marked || self.jobs[*job].lost >= i64::from(MAX_LOST_LEASES));
        for job in rests {
            self.note(job, "lost");
            self.jobs[job].lost += 1;
            self.jobs[job].fence += 1;
            self.jobs[job].run_at = self.now + 1;
            self.leave(job, JobState::Scheduled, true);
        }
        // The others end one by one, and some of them end others.
        for job in ends {
            if self.jobs[job].state != JobState::Running {
                continue;
            }
            self.note(job, "lost");
            if self.jobs[job].marked {
                self.finish(job, JobState::Cancelled, false);
            } else {
                self.finish(job, JobState::Failed, true);
            }
        }
    }

    pub(super) fn due(&mut self) {
        let mut due: Vec<usize> = (0..self.jobs.len())
            .filter(|job| self.jobs[*job].state == JobState::Scheduled && self.jobs[*job].run_at <= self.now)
            .filter(|job| !self.is_alone(*job))
            .collect();
        due.sort_by_key(|job| (self.jobs[*job].run_at, *job));
        for job in due {
            let ready = self.ready(job);
            let row = &mut self.jobs[job];
            row.state = ready;
            let Some(lane) = row.lane.filter(|_| !row.held) else {
                continue;
            };
            let places = self
                .lanes
                .get_mut(&lane)
                .expect("a lane with an open job is not pruned");
            if row.seq.is_none() {
                row.seq = Some(places.next);
                places.next += 1;
            }
            if places.held < places.places {
                places.held += 1;
                row.held = true;
            } else {
                row.state = JobState::Blocked;
            }
        }
    }

    pub(super) fn overdue(&mut self) {
        let mut overdue: Vec<usize> = (0..self.jobs.len())
            .filter(|job| self.jobs[*job].deadline.is_some_and(|deadline| deadline <= self.now))
            .collect();
        overdue.sort_by_key(|job| (self.jobs[*job].deadline, *job));
        for job in overdue {
            let row = &self.jobs[job];
            let grace = if row.state == JobState::Running { GRACE } else { 0 };
            if !row.state.is_final() && self.now >= row.deadline.unwrap() + grace {
                self.finish(job, JobState::TimedOut, false);
            }
        }
    }

    pub(super) fn prune(&mut self) {
        let jobs = &self.jobs;
        self.lanes.retain(|lane, row| {
            row.held > 0 || jobs.iter().any(|job| job.lane == Some(*lane) && !job.state.is_final())
        });
    }
}
