//! What is read and exported in between.

use super::{Generator, LARGEST_WALK};
use crate::ingest_fuzz::derived::stats;
use crate::ingest_fuzz::operation::{Handle, Run, Tenant};
use crate::ingest_fuzz::oracle::Outcome;
use crate::ingest_fuzz::step::{ExpectedRun, Key, Keys, Mode, Step, Work};
use crate::ingest_fuzz::values;

impl Generator {
    pub(super) fn read(&mut self) -> Option<Step> {
        let tenant = self.tenant();
        let mut ids = Vec::new();
        for _ in 0..1 + self.dice.below(12) {
            ids.push(self.known(tenant)?);
        }
        if self.dice.one_in(4) {
            ids.push(values::id(&mut self.dice));
        }
        ids.sort_unstable();
        ids.dedup();
        let mut keys = Keys::default();
        for id in &ids {
            self.touch(&mut keys, (tenant, *id), Mode::Shared);
        }
        let one_by_one = self.dice.one_in(2);
        ids.truncate(if one_by_one { 4 } else { ids.len() });
        let runs = ids.iter().map(|id| self.shown((tenant, *id), None)).collect();
        let work = if one_by_one {
            Work::Get { tenant, runs }
        } else {
            Work::Query { tenant, runs }
        };
        Some(self.finish(keys, work))
    }

    /// What may be shown of a run; where a project is given, in that.
    pub fn shown(&self, run: Run, project: Option<Handle>) -> ExpectedRun {
        let mut outcomes = self.oracle.outcomes(run);
        if let Some(project) = project {
            for outcome in &mut outcomes {
                *outcome = outcome.take().filter(|row| row.project == project);
            }
        }
        let certain = !self.oracle.lost_a_project(run);
        let given = self.oracle.feedback_on(run);
        let given = given
            .iter()
            .map(|given| (given.feedback.key.as_str(), given.feedback.members.as_slice()));
        let files = self.oracle.files_of(run).into_iter();
        ExpectedRun {
            id: run.1,
            outcomes,
            stats: certain.then(|| stats(given)),
            files: certain.then(|| files.map(|file| (file.name, file.content_type)).collect()),
        }
    }

    /// All runs that may be shown in a project.
    pub fn all_shown(&self, project: Handle) -> Vec<ExpectedRun> {
        let runs = self.oracle.runs_of(project);
        let shown = runs.map(|run| self.shown(run, Some(project)));
        shown.filter(|run| run.outcomes.iter().any(Outcome::is_some)).collect()
    }

    pub(super) fn quiet_project(&mut self) -> Option<(Tenant, Handle, Keys)> {
        let tenant = self.tenant();
        let project = self.common_project(tenant)?;
        if self.oracle.runs_of(project).count() > LARGEST_WALK {
            return None;
        }
        let mut keys = Keys::default();
        keys.add(Key::Project(project), Mode::Exclusive);
        Some((tenant, project, keys))
    }

    pub(super) fn walk(&mut self) -> Option<Step> {
        let (tenant, project, keys) = self.quiet_project()?;
        let work = Work::Walk {
            tenant,
            project,
            newest: self.dice.one_in(2),
            limit: 7 + self.dice.index(94),
            runs: self.all_shown(project),
        };
        Some(self.finish(keys, work))
    }

    pub(super) fn export(&mut self) -> Option<Step> {
        let (tenant, project, keys) = self.quiet_project()?;
        let runs = self.all_shown(project);
        Some(self.finish(keys, Work::Export { tenant, project, runs }))
    }

    pub(super) fn show_file(&mut self) -> Option<Step> {
        let tenant = self.tenant();
        let run = (tenant, self.known(tenant)?);
        self.oracle.whereabouts(run)?;
        let files = self.oracle.files_of(run);
        if files.is_empty() || self.oracle.lost_a_project(run) {
            return None;
        }
        let file = self.dice.pick(&files).clone();
        let mut keys = Keys::default();
        self.touch(&mut keys, run, Mode::Shared);
        Some(self.finish(keys, Work::ShowFile { tenant, file }))
    }

    // ---- beside runs ----
}
