//! The kill drill: processes die at every named point of the walk and at random moments, and are stopped past their
//! lease. Afterwards every acknowledged trace run is in its export once, with every value.
//!
//! Named points are `failpoint::hit("…")` in the source; the list is read from there, so a new point is drilled from
//! the day it is written. (Those of deployments, `deploy.…`, are drilled by `deployments`, those of compaction, the
//! index, sweeps and schedules by `upkeep`, those of an agent server's runs, `run.…`, by
//! `tests/python/agent/test_kills.py`, those of `migrate-store`, `move.…`, by `store_move`, those of boxes, `box.…`,
//! by `sandboxes`.) The printed table has a row per point; a point that was never hit fails the drill.
//!
//! `TOWPATH_TEST_KILLS` is the number of kills that each layout has to survive at least (default 25; the suite
//! `kill` of `scripts/test` asks for 110, so 220 in all). Several worlds of a layout share them: a round mostly waits.

mod acknowledged;
mod freeze;
mod graphs;
mod rounds;
mod sandbox_commands;
mod sandboxes;
mod upgrade;
mod upkeep;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures::future::join_all;
use nix::sys::signal::Signal;
use sqlx::PgConnection;
use tokio::time::timeout;
use towpath_tests::{Api, Exit, GeneratedProject, Layout, Process, Random, World, environment, generate};

use crate::tables::Tables;
use crate::{final_state, load, tree};
use rounds::{Round, Rounds};

/// Short, so that a rescue is not the longest part of the drill.
const LEASE_SECONDS: u64 = 2;
const DAYS: i64 = 3;
const TREES: usize = 40;
/// Rounds after which a process that is stopped has to have lost a job.
const STOPS: usize = 20;
/// Points of other drills begin so.
const ELSEWHERE: [&str; 8] = [
    "deploy.", "compact.", "index.", "sweep.", "spawn.", "run.", "move.", "box.",
];
/// What a SIGABRT of a failpoint looks like from outside.
const ABORTED: Exit = Exit::Signal(Signal::SIGABRT as i32);

#[tokio::test]
async fn embedded_survives_every_kill() {
    println!("{}", drill(Layout::Embedded, 2).await.unwrap_or_default());
}

#[tokio::test]
async fn a_cluster_survives_every_kill() {
    // A caller that dies leaves jobs that wait for the end of a lease, so more worlds keep the processors no busier.
    let cluster = Layout::Cluster { workers: 2 };
    println!("{}", drill(cluster, 4).await.unwrap_or_default());
}

/// The table of kills, printed at once because the other layout's drill prints its own; `None` without servers.
async fn drill(layout: Layout, worlds: u64) -> Option<String> {
    let wanted: u32 = environment("TOWPATH_TEST_KILLS").map_or(25, |text| text.parse().expect("a number of kills"));
    let performers: &[&str] = match layout {
        Layout::Embedded => &["dev"],
        Layout::Cluster { .. } => &["worker-0", "worker-1"],
    };
    let points = named_points(|name| !ELSEWHERE.iter().any(|area| name.starts_with(area)));
    let rounds = RefCell::new(Rounds::new(performers, &points, wanted));
    let seed = match layout {
        Layout::Embedded => 100,
        Layout::Cluster { .. } => 200,
    };
    let mut drills = Vec::new();
    for number in 0..worlds {
        drills.push(Drill::start(layout, Random::new(seed + number), &rounds).await?);
    }
    join_all(drills.into_iter().map(Drill::run)).await;
    let rounds = rounds.into_inner();
    let table = format!("kill drill, {layout:?}: {}", rounds.table(worlds));
    assert!(
        rounds.missed().is_empty(),
        "{table}\npoints that nobody died at: {:?}",
        rounds.missed()
    );
    assert!(rounds.total() >= wanted, "{table}\nfewer than {wanted} kills");
    Some(table)
}

/// The named points of the product's source that a drill is for.
fn named_points(is_drilled: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in tree::files()
        .iter()
        .filter(|file| file.ends_with(".rs") && !file.starts_with("tests/"))
    {
        let source = tree::read(file);
        for (at, mark) in source.match_indices("failpoint::hit(\"") {
            let rest = &source[at + mark.len()..];
            let name = &rest[..rest.find('"').expect("a literal ends")];
            if is_drilled(name) {
                found.insert(name.to_owned());
            }
        }
    }
    assert!(!found.is_empty(), "no named point was found");
    found
}

/// One world of a layout.
struct Drill<'r> {
    world: World,
    dice: Random,
    destination: String,
    /// Shared with the other worlds of the layout.
    rounds: &'r RefCell<Rounds>,
}

impl<'r> Drill<'r> {
    async fn start(layout: Layout, dice: Random, rounds: &'r RefCell<Rounds>) -> Option<Self> {
        let plan = World::plan(layout).env("TOWPATH_ENGINE_LEASE_SECONDS", LEASE_SECONDS.to_string());
        let world = plan.start().await?;
        let destination = world.api.file_destination("drill").await;
        Some(Self {
            world,
            dice,
            destination,
            rounds,
        })
    }

    /// Takes round after round until there is none left, then looks at what they left behind.
    async fn run(mut self) {
        loop {
            let next = self.rounds.borrow_mut().next();
            match next {
                Some(Round::Point { name, nth }) => self.at_point(&name, nth).await,
                Some(Round::Random) => self.at_random(4).await,
                Some(Round::PastTheLease { performer }) => self.past_the_lease(&performer).await,
                None => break,
            }
        }
        final_state::settles(&self.world).await;
        self.world.stop().await;
    }

    /// Every process is armed; the caller that comes to the point for the n-th time dies and is started again unarmed.
    async fn at_point(&mut self, point: &str, nth: u32) {
        restart(&mut self.world, Some(format!("{point}:{nth}"))).await;
        let mut work = pin!(self.work());
        let mut deaths = 0;
        let done = loop {
            deaths += bury(&mut self.world, true);
            if let Some(done) = self.tick(work.as_mut()).await {
                break done;
            }
        };
        self.finish(&done);
        self.rounds.borrow_mut().died(point, deaths);
    }

    /// Kills at random moments of one round of work.
    async fn at_random(&mut self, kills: u32) {
        restart(&mut self.world, None).await;
        let mut work = pin!(self.work());
        let mut killed = 0;
        let done = loop {
            bury(&mut self.world, false);
            if let Some(done) = self.tick(work.as_mut()).await {
                break done;
            }
            if killed < kills && self.dice.below(8) == 0 {
                let at = usize::try_from(self.dice.below(self.world.processes.len() as u64)).expect("an index fits");
                let process = &mut self.world.processes[at];
                if process.ended().is_none() {
                    process.kill().await;
                    killed += 1;
                }
            }
        };
        self.finish(&done);
        self.rounds.borrow_mut().died(Rounds::RANDOM, killed);
    }

    /// A process that performs jobs is stopped in the middle of its work until its leases are long over, and continues
    /// as if nothing had been. In a cluster another process has taken over by then, which is checked.
    async fn past_the_lease(&mut self, performer: &str) {
        restart(&mut self.world, None).await;
        let mut taken_over = false;
        for _ in 0..STOPS {
            taken_over = self.stop_once(performer).await;
            if taken_over {
                break;
            }
        }
        assert!(
            taken_over,
            "{performer} lost no job in {STOPS} rounds in which it was stopped"
        );
    }

    /// One round in which the process is stopped while it holds a job, twice as long as a lease. Whether it lost one.
    async fn stop_once(&mut self, name: &str) -> bool {
        let mut held = Tables::of(&self.world).await;
        let mut tables = match &self.world.database {
            Some(database) => Some(database.connect().await),
            None => None,
        };
        let lost_before = lost_leases(tables.as_mut()).await;
        let mut work = pin!(self.work());
        let process = self.world.process(name);
        let pid = process.pid().expect("all processes run");
        let early = tokio::select! {
            done = work.as_mut() => Some(done),
            () = holds_a_job(&mut held, pid) => None,
        };
        let process = self.world.process(name);
        process.signal(Signal::SIGSTOP);
        let done = match early {
            Some(done) => Some(done),
            None => timeout(Duration::from_secs(LEASE_SECONDS * 2), work.as_mut())
                .await
                .ok(),
        };
        let process = self.world.process(name);
        process.signal(Signal::SIGCONT);
        let in_time = done.is_none() || tables.is_some();
        let done = match done {
            Some(done) => done,
            None => work.await,
        };
        let gone = self.world.processes.iter_mut().find_map(Process::ended);
        assert_eq!(gone, None, "{name} was stopped and something ended");
        self.finish(&done);
        // On SQLite no other caller is there to take over; that the stop fell into the work is what can be said.
        let taken_over = in_time
            && lost_leases(tables.as_mut())
                .await
                .is_none_or(|lost| Some(lost) > lost_before);
        self.rounds.borrow_mut().stopped(taken_over);
        taken_over
    }

    /// One round of work in a project of its own: send everything, export it, wait for the end.
    fn work(&mut self) -> impl Future<Output = ExportedProject> + use<> {
        let generated = generate(self.dice.next_u64(), TREES, DAYS);
        work(self.world.api.clone(), self.destination.clone(), generated)
    }

    fn finish(&mut self, work: &ExportedProject) {
        let ExportedProject {
            export,
            project,
            generated,
            record,
        } = work;
        assert_eq!(record["status"], "COMPLETED", "{record}");
        let folder = self.world.exports().join("drill");
        let tenant = self.world.tenant.to_string();
        match load::compare(&folder, export, &tenant, project, generated) {
            Ok(rows) => self.rounds.borrow_mut().compared(rows),
            Err(wrong) => panic!("export {export}:\n{wrong}"),
        }
    }

    /// Lets the work continue for a moment of random length.
    async fn tick(&mut self, work: Pin<&mut impl Future<Output = ExportedProject>>) -> Option<ExportedProject> {
        let moment = Duration::from_millis(5 + self.dice.below(30));
        timeout(moment, work).await.ok()
    }
}

/// Starts all processes again, armed or not, and waits until they are ready. One that dies of its point before that is
/// for the round to bury.
///
/// What earlier rounds killed is forgiven: a job that is in the way of each of them, such as a fold or the index of a
/// workspace, would come to its sixth lost lease without a step in between, and be given up.
async fn restart(world: &mut World, armed: Option<String>) {
    for process in &mut world.processes {
        process.kill().await;
    }
    Tables::of(world).await.forgive().await;
    for process in &mut world.processes {
        let mut program = process.program().clone();
        program.env.retain(|(name, _)| name != "TOWPATH_FAILPOINT");
        if let Some(spec) = &armed {
            program.env.push(("TOWPATH_FAILPOINT".into(), spec.clone()));
        }
        *process = Process::spawn(&program);
    }
    if armed.is_none() {
        world.revive().await;
    }
}

/// How many deaths of a failpoint the end of `process` is, where one is armed; `None` while it lives. Any end other
/// than that and a kill is a defect.
fn death(process: &mut Process, armed: bool) -> Option<u32> {
    match process.ended()? {
        ABORTED if armed => Some(1),
        exit if exit == Exit::Signal(Signal::SIGKILL as i32) => Some(0),
        exit => panic!(
            "{} ended with {exit:?}:\n{}",
            process.program().name,
            process.log_text()
        ),
    }
}

/// Starts every dead process again, unarmed; how many died of a failpoint.
fn bury(world: &mut World, armed: bool) -> u32 {
    let mut deaths = 0;
    for process in &mut world.processes {
        let Some(counted) = death(process, armed) else { continue };
        deaths += counted;
        let mut program = process.program().clone();
        program.env.retain(|(name, _)| name != "TOWPATH_FAILPOINT");
        *process = Process::spawn(&program);
    }
    deaths
}

/// Attempts that ended because their lease ran out; `None` on SQLite.
async fn lost_leases(tables: Option<&mut PgConnection>) -> Option<i64> {
    let count = sqlx::query_scalar("SELECT count(*) FROM attempt WHERE outcome = 'lost'")
        .fetch_one(tables?)
        .await;
    Some(count.expect("the tables are there"))
}

/// Returns when the process `pid` holds a job.
async fn holds_a_job(tables: &mut Tables, pid: u32) {
    while tables.held_by(pid).await == 0 {}
}

struct ExportedProject {
    export: String,
    project: String,
    generated: GeneratedProject,
    record: serde_json::Value,
}

async fn work(api: Api, destination: String, generated: GeneratedProject) -> ExportedProject {
    load::send(&api, &generated.bodies).await;
    let project = load::project(&api, &generated.project).await;
    let export = load::export(&api, &destination, &project, &generated).await;
    let record = api.export_ended(&export, load::PATIENCE).await;
    ExportedProject {
        export,
        project,
        generated,
        record,
    }
}
