//! Rounds: each has projects and runs of its own and continues with a few of the rounds before, so that memory is
//! bounded however many operations there are. After each one everything of it is read and exported; at the end
//! everything.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use towpath_tests::{World, until};
use uuid::Uuid;

use super::Settings;
use super::executor::StepExecutor;
use super::generate::{Form, Generator};
use super::operation::{Handle, Run, Tenant};
use super::server::Server;
use super::step::{ExpectedRun, Keys, Step, Work};
use crate::final_state;
use crate::tables::Tables;

/// Operations of a round.
const ROUND: usize = 20_000;
/// Runs of each workspace that later rounds continue with.
const KEPT: usize = 150;
/// Requests at a time.
const SENDERS: usize = 12;
/// How long flushing what was accepted may take.
const FOLD_LIMIT: Duration = Duration::from_secs(1_800);
/// How long no day may end while days are compacted.
const DAY_LIMIT: Duration = Duration::from_secs(300);
/// What is read one by one after each round, of each kind.
const SAMPLE: usize = 150;
/// Runs that are asked for by their ids at once.
const AT_ONCE: usize = 60;

/// A row of an earlier round, as it was exported.
#[derive(Clone, Copy, Debug)]
pub struct ExportedRow {
    pub digest: u64,
    /// In days since 1970.
    pub day: i64,
}

/// All rounds on one server.
pub struct Rounds<'a> {
    server: &'a Server,
    world: &'a World,
    settings: Settings,
    generator: Generator,
    retired: HashMap<Handle, HashMap<Uuid, ExportedRow>>,
}

impl<'a> Rounds<'a> {
    pub fn new(server: &'a Server, world: &'a World, settings: Settings) -> Self {
        let Settings {
            operations,
            seed,
            features,
        } = settings;
        let form = if operations > 5 * ROUND {
            Form::Long
        } else {
            Form::Short
        };
        let generator = Generator::new(seed, server.tenants.len(), features, form, operations);
        Self {
            server,
            world,
            settings,
            generator,
            retired: HashMap::new(),
        }
    }

    /// Does all of it, and says what was done, or what is wrong.
    #[expect(clippy::print_stdout, reason = "a long one shows how far it is")]
    pub async fn run(&mut self) -> Result<String, String> {
        let began = Instant::now();
        while self.generator.sent < self.settings.operations {
            let until = (self.generator.sent + ROUND).min(self.settings.operations);
            self.load(until).await?;
            self.compare().await?;
            if self.generator.sent < self.settings.operations {
                self.generator.retire(KEPT);
                println!(
                    "ingest: {} operations, {:.0} s",
                    self.generator.sent,
                    began.elapsed().as_secs_f64()
                );
            }
        }
        self.at_rest().await?;
        self.everything().await?;
        let counts = &self.server.counts;
        let read = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
        Ok(format!(
            "{} operations in {} requests, {} refused, {} told to come back, {} rows read, {} rows exported, {:.0} s",
            read(&counts.items),
            read(&counts.requests),
            read(&counts.refused),
            read(&counts.later),
            read(&counts.rows_read),
            read(&counts.rows_exported),
            began.elapsed().as_secs_f64()
        ))
    }

    /// Sends and reads until so many operations were sent.
    async fn load(&mut self, until: usize) -> Result<(), String> {
        let senders = Semaphore::new(SENDERS);
        let mut drive = StepExecutor::new(self.server, &senders);
        while self.generator.sent < until && !self.server.is_wrong() {
            drive.begin(self.generator.next_step()).await;
        }
        drive.finish().await;
        drop(drive);
        self.verdict()
    }

    /// What is wrong, with what happened to the runs it is about.
    fn verdict(&self) -> Result<(), String> {
        let findings = self.server.findings();
        if findings.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for finding in findings {
            let _ = writeln!(text, "step {}: {}", finding.step, finding.what);
            if let Some(run) = finding.run {
                let _ = writeln!(text, "    {}", self.generator.oracle.story(run));
            }
        }
        Err(text)
    }

    /// Reads and exports all of the round.
    async fn compare(&mut self) -> Result<(), String> {
        let mut steps: Vec<Work> = Vec::new();
        let projects = self.touched();
        // Projects with one run are many.
        let mut alone: BTreeMap<Tenant, Vec<ExpectedRun>> = BTreeMap::new();
        for (project, runs) in &projects {
            let tenant = self.generator.projects[*project].tenant;
            if let [run] = runs.as_slice() {
                alone.entry(tenant).or_default().push(run.clone());
            } else if !self.retired.contains_key(project) {
                // Where earlier rounds left runs, pages show those, too.
                steps.push(Work::Walk {
                    tenant,
                    project: *project,
                    newest: project % 2 == 0,
                    limit: 100,
                    runs: runs.clone(),
                });
            }
        }
        for (tenant, runs) in alone {
            let lists = runs.chunks(AT_ONCE).map(<[ExpectedRun]>::to_vec);
            steps.extend(lists.map(|runs| Work::Query { tenant, runs }));
        }
        let oracle = &self.generator.oracle;
        let certain = |run: &Option<Uuid>, tenant: Tenant| !run.is_some_and(|run| oracle.lost_a_project((tenant, run)));
        let given = oracle
            .all_feedback()
            .filter(|(tenant, given)| certain(&given.feedback.run, *tenant));
        steps.extend(given.take(SAMPLE).map(|(tenant, given)| Work::ShowFeedback {
            tenant,
            given: Box::new(given.clone()),
        }));
        let hidden = oracle.runs().filter(|run| {
            let outcomes = oracle.outcomes(*run);
            outcomes.iter().all(Option::is_none)
        });
        let hidden: Vec<Run> = hidden.take(SAMPLE).collect();
        for run in hidden {
            steps.push(Work::Get {
                tenant: run.0,
                runs: vec![self.generator.shown(run, None)],
            });
        }
        self.perform(steps).await?;
        self.export(&projects).await?;
        self.verdict()
    }

    /// The projects with runs of which something was said in this round, and those runs.
    fn touched(&self) -> BTreeMap<Handle, Vec<ExpectedRun>> {
        let mut touched = BTreeMap::new();
        for (handle, project) in self.generator.projects.iter().enumerate() {
            if !project.deleted {
                let runs = self.generator.all_shown(handle);
                if !runs.is_empty() {
                    touched.insert(handle, runs);
                }
            }
        }
        touched
    }

    async fn perform(&self, works: Vec<Work>) -> Result<(), String> {
        let senders = Semaphore::new(SENDERS);
        let mut drive = StepExecutor::new(self.server, &senders);
        for (number, work) in works.into_iter().enumerate() {
            let step = Step {
                number,
                keys: Keys::default(),
                work,
            };
            drive.begin(step).await;
        }
        drive.finish().await;
        drop(drive);
        self.verdict()
    }

    /// Exports projects, and keeps what is there of runs that nothing will be said of any more.
    async fn export(&mut self, projects: &BTreeMap<Handle, Vec<ExpectedRun>>) -> Result<(), String> {
        let mut kept: HashMap<Handle, HashMap<Uuid, ExportedRow>> = HashMap::new();
        let small: Vec<_> = projects.iter().filter(|(_, runs)| runs.len() > 1).collect();
        // A few at a time: each is a job for every day.
        for projects in small.chunks(4) {
            let exports = projects.iter().map(async |(project, runs)| {
                let tenant = self.generator.projects[**project].tenant;
                let mut rows = HashMap::new();
                let earlier = self.retired.get(*project);
                let each = |id: Uuid, retired: ExportedRow| {
                    rows.insert(id, retired);
                };
                self.server.export_all(0, tenant, **project, runs, earlier, each).await;
                (**project, rows)
            });
            kept.extend(futures::future::join_all(exports).await);
        }
        for (project, rows) in kept {
            self.retired.entry(project).or_default().extend(rows);
        }
        self.verdict()
    }

    /// Waits until all is flushed, and asks the tables whether everything is as it must be.
    async fn at_rest(&self) -> Result<(), String> {
        let mut tables = Tables::of(self.world).await;
        until("every unit to be folded", FOLD_LIMIT, async || {
            let open = tables.count("SELECT count(*) FROM wal_unit WHERE state = 'open'").await;
            (open == 0).then_some(())
        })
        .await;
        days_are_compacted(&mut tables).await;
        final_state::settles(self.world).await;
        let units = tables
            .count("SELECT count(*) FROM wal_unit WHERE state = 'quarantined'")
            .await;
        if units > 0 {
            return Err(format!("{units} units were neither folded nor put into quarantine"));
        }
        let quarantined = tables.count("SELECT count(*) FROM quarantine").await;
        if quarantined > 0 {
            let reasons = tables
                .texts("SELECT kind || ': ' || reason FROM quarantine LIMIT 5")
                .await;
            return Err(format!("{quarantined} entries in quarantine: {}", reasons.join("; ")));
        }
        // After several rounds it is not known any more what waits.
        if self.settings.operations <= ROUND {
            let oracle = &self.generator.oracle;
            let (mut least, mut most) = (0, 0);
            for run in oracle.runs() {
                let (few, many) = oracle.waiting(run);
                (least, most) = (least + few, most + many);
            }
            let waiting = tables.count("SELECT count(*) FROM pending_patch").await;
            let waiting = usize::try_from(waiting).expect("a count");
            if !(least..=most).contains(&waiting) {
                return Err(format!(
                    "{waiting} patches wait for their runs in place of {least} to {most}"
                ));
            }
        }
        Ok(())
    }

    /// Exports every project that is there, and compares each row with what it was when something was last said of it.
    async fn everything(&mut self) -> Result<(), String> {
        let mut projects = self.touched();
        for project in self.retired.keys() {
            if !self.generator.projects[*project].deleted {
                projects.entry(*project).or_default();
            }
        }
        self.export(&projects).await
    }
}

/// Waits until no day is left to compact. A round that outlasts the pause between two sweeps has thousands, which take
/// their time on a busy machine: they have to continue, and need not be over soon.
async fn days_are_compacted(tables: &mut Tables) {
    let (mut left, mut over) = (i64::MAX, -1);
    while left > 0 {
        (left, over) = until("a day to be compacted", DAY_LIMIT, async || {
            let left = "SELECT count(*) FROM job WHERE kind IN ('compact_day', 'compact_days') AND finished_at IS NULL";
            let left = tables.count(left).await;
            let now =
                "SELECT count(*) FROM job WHERE kind IN ('compact_day', 'compact_days') AND finished_at IS NOT NULL";
            let now = tables.count(now).await;
            (left == 0 || now != over).then_some((left, now))
        })
        .await;
    }
}
