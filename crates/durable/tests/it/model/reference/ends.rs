//! Ends and cancels, and their effect on lanes, parents and children.

use towpath_domain::job::JobState;

use super::Model;

impl Model {
    /// Moves a job off its worker into another state; releases the lane slot unless it is kept.
    pub(super) fn leave(&mut self, job: usize, state: JobState, keeps: bool) {
        let row = &mut self.jobs[job];
        row.state = state;
        row.worker = None;
        if row.held && !keeps {
            row.held = false;
            let lane = row.lane.unwrap();
            self.lanes.get_mut(&lane).unwrap().held -= 1;
            self.promote(lane);
        }
    }

    pub(super) fn finish(&mut self, job: usize, state: JobState, dead: bool) {
        if state != JobState::Succeeded {
            self.effect(None, state.as_str().to_owned(), 0);
        }
        let row = &mut self.jobs[job];
        row.fence += i64::from(row.state == JobState::Running);
        row.dead = dead;
        row.marked = false;
        self.leave(job, state, false);
        self.cancel_children(job);
        let Some(parent) = self.jobs[job].parent else { return };
        let row = &mut self.jobs[parent];
        if !row.state.is_final() {
            let badly = state != JobState::Succeeded;
            row.open -= 1;
            row.bad += i64::from(badly);
            if row.state == JobState::Waiting && (row.open == 0 || badly) {
                row.state = JobState::Ready;
            }
        }
    }

    pub(super) fn cancel_children(&mut self, job: usize) {
        let open =
            |model: &Self, child: usize| model.jobs[child].parent == Some(job) && !model.jobs[child].state.is_final();
        let mut children: Vec<usize> = (0..self.jobs.len()).filter(|child| open(self, *child)).collect();
        children.sort_by_key(|child| (self.jobs[*child].held, *child));
        for child in children {
            self.cancel(child);
        }
    }

    pub(super) fn cancel(&mut self, job: usize) {
        match self.jobs[job].state {
            state if state.is_final() => {}
            JobState::Running => {
                self.jobs[job].marked = true;
                self.cancel_children(job);
            }
            _ => self.finish(job, JobState::Cancelled, false),
        }
    }
}
