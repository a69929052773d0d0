//! The kill drill: processes die at every named point of the walk and at random moments, and are stopped past their
//! lease. Afterwards every acknowledged trace run is in its export once, with every value.
//!
//! Named points are `failpoint::hit("…")` in the source; the list is read from there, so a new point is drilled from
//! the day it is written. (Those of deployments, `deploy.…`, are drilled by `deployments`, those of compaction, sweeps
//! and schedules by `upkeep`, those of an agent server's runs, `run.…`, by `tests/python/agent/test_kills.py`.) The printed
//! table has a row per point; a point that was never hit fails the drill.
//!
//! `TOWPATH_TEST_KILLS` is the number of kills that each layout has to survive at least (default 25; the suite
//! `kill` of `scripts/test` asks for 110, so 220 in all).

mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::time::Duration;

use nix::sys::signal::Signal;
use sqlx::PgConnection;
use tokio::time::timeout;
use towpath_tests::{Api, Dice, Exit, Generated, Layout, Process, World, environment, generate};

use crate::{aftermath, load, tree};

/// Short, so that a rescue is not the longest part of the drill.
const LEASE_SECONDS: u64 = 2;
const DAYS: i64 = 3;
const TREES: usize = 40;
/// Points of other drills begin so.
const ELSEWHERE: [&str; 5] = ["deploy.", "compact.", "sweep.", "spawn.", "run."];
/// What a SIGABRT of a failpoint looks like from outside.
const ABORTED: Exit = Exit::Signal(Signal::SIGABRT as i32);

#[tokio::test]
async fn embedded_survives_every_kill() {
    println!("{}", drill(Layout::Embedded).await.unwrap_or_default());
}

#[tokio::test]
async fn a_cluster_survives_every_kill() {
    println!("{}", drill(Layout::Cluster { workers: 2 }).await.unwrap_or_default());
}

/// The table of kills, printed at once because the other layout's drill prints its own; `None` without servers.
async fn drill(layout: Layout) -> Option<String> {
    let plan = World::plan(layout).env("TOWPATH_ENGINE_LEASE_SECONDS", LEASE_SECONDS.to_string());
    let world = plan.start().await?;
    let wanted: u32 = environment("TOWPATH_TEST_KILLS").map_or(25, |text| text.parse().expect("a number of kills"));
    let destination = world.api.file_destination("drill").await;
    let dice = Dice::new(match layout {
        Layout::Embedded => 1,
        Layout::Cluster { .. } => 2,
    });
    let mut drill = Drill {
        world,
        dice,
        destination,
        kills: BTreeMap::new(),
        stops: 0,
        rows: 0,
        round: 0,
    };
    let points = points();
    for point in &points {
        drill.at_point(point, 1).await;
    }
    // Later passes of a point are other moments: the second checkpoint, the third upload.
    for (pass, point) in (2..=3).flat_map(|pass| points.iter().map(move |point| (pass, point))) {
        if drill.total() < wanted {
            drill.at_point(point, pass).await;
        }
    }
    while drill.total() < wanted {
        drill.at_random(4).await;
    }
    drill.past_the_lease().await;
    aftermath::settles(&drill.world).await;
    let table = drill.table(layout, &points);
    let missed: Vec<&String> = points
        .iter()
        .filter(|point| !drill.kills.contains_key(*point))
        .collect();
    assert!(missed.is_empty(), "{table}\npoints that nobody died at: {missed:?}");
    drill.world.stop().await;
    Some(table)
}

/// Every named point of the product's source that is on the way of a trace run into an export.
fn points() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in tree::files()
        .iter()
        .filter(|file| file.ends_with(".rs") && !file.starts_with("tests/"))
    {
        let source = tree::read(file);
        for (at, mark) in source.match_indices("failpoint::hit(\"") {
            let rest = &source[at + mark.len()..];
            let name = &rest[..rest.find('"').expect("a literal ends")];
            if !ELSEWHERE.iter().any(|area| name.starts_with(area)) {
                found.insert(name.to_owned());
            }
        }
    }
    assert!(!found.is_empty(), "no named point was found");
    found
}

struct Drill {
    world: World,
    dice: Dice,
    destination: String,
    /// Point, or `random`, to deaths.
    kills: BTreeMap<String, u32>,
    stops: u32,
    rows: usize,
    round: u64,
}

impl Drill {
    fn total(&self) -> u32 {
        self.kills.values().sum()
    }

    /// Every process is armed; whoever comes to the point for the n-th time dies and is started again unarmed.
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
        if deaths > 0 {
            *self.kills.entry(point.to_owned()).or_default() += deaths;
        }
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
        *self.kills.entry("random".to_owned()).or_default() += killed;
    }

    /// Every process that performs jobs is stopped in the middle of its work until its leases are long over, and goes
    /// on as if nothing had been. In a cluster somebody else has taken over by then, which is checked.
    async fn past_the_lease(&mut self) {
        restart(&mut self.world, None).await;
        let names = self
            .world
            .processes
            .iter()
            .map(|process| process.program().name.clone());
        let performers: Vec<String> = names
            .filter(|name| name == "dev" || name.starts_with("worker"))
            .collect();
        for name in performers {
            let mut taken_over = false;
            for _ in 0..20 {
                taken_over = self.stop_once(&name).await;
                if taken_over {
                    break;
                }
            }
            assert!(taken_over, "{name} never lost a job while it was stopped");
        }
    }

    /// One round in which the process is stopped while it holds a job, twice as long as a lease. Whether it lost one.
    async fn stop_once(&mut self, name: &str) -> bool {
        let mut tables = match &self.world.database {
            Some(database) => Some(database.connect().await),
            None => None,
        };
        let lost_before = lost_leases(tables.as_mut()).await;
        let mut work = pin!(self.work());
        let process = self.world.process(name);
        let pid = process.pid().expect("all processes run");
        let moment = Duration::from_millis(100 + self.dice.below(200));
        let early = tokio::select! {
            done = work.as_mut() => Some(done),
            () = holds_a_job(tables.as_mut(), pid, moment) => None,
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
        // On SQLite nobody else is there to take over; that the stop fell into the work is what can be said.
        let taken_over = in_time
            && lost_leases(tables.as_mut())
                .await
                .is_none_or(|lost| Some(lost) > lost_before);
        self.stops += u32::from(taken_over);
        taken_over
    }

    /// One round of work in a project of its own: send everything, export it, wait for the end.
    fn work(&mut self) -> impl Future<Output = Work> + use<> {
        self.round += 1;
        let generated = generate(self.dice.roll(), TREES, DAYS);
        work(self.world.api.clone(), self.destination.clone(), generated)
    }

    fn finish(&mut self, work: &Work) {
        let Work {
            export,
            project,
            generated,
            record,
        } = work;
        assert_eq!(record["status"], "COMPLETED", "round {}: {record}", self.round);
        let folder = self.world.exports().join("drill");
        let tenant = self.world.tenant.to_string();
        match load::compare(&folder, export, &tenant, project, generated) {
            Ok(rows) => self.rows += rows,
            Err(wrong) => panic!("round {}, export {export}:\n{wrong}", self.round),
        }
    }

    /// Lets the work go on for a moment of random length.
    async fn tick(&mut self, work: Pin<&mut impl Future<Output = Work>>) -> Option<Work> {
        let moment = Duration::from_millis(5 + self.dice.below(30));
        timeout(moment, work).await.ok()
    }

    fn table(&self, layout: Layout, points: &BTreeSet<String>) -> String {
        let mut table = format!(
            "kill drill, {layout:?}: {} rounds, {} rows compared in 29 columns\n| point | kills |\n|---|---|\n",
            self.round, self.rows
        );
        for point in points.iter().map(String::as_str).chain(["random"]) {
            let kills = self.kills.get(point).unwrap_or(&0);
            table += &format!("| {point} | {kills} |\n");
        }
        table
            + &format!(
                "| all | {} |\n| stopped past the lease | {} |",
                self.total(),
                self.stops
            )
    }
}

/// Starts all processes anew, armed or not, and waits until they are ready. One that dies of its point before that is
/// for the round to bury.
async fn restart(world: &mut World, armed: Option<String>) {
    for process in &mut world.processes {
        process.kill().await;
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

/// Counts who died of a failpoint, where one is armed, and starts every dead process again, unarmed. Any other end is a
/// defect.
fn bury(world: &mut World, armed: bool) -> u32 {
    let mut deaths = 0;
    for process in &mut world.processes {
        match process.ended() {
            None => continue,
            Some(ABORTED) if armed => deaths += 1,
            Some(exit) if exit == Exit::Signal(Signal::SIGKILL as i32) => {}
            Some(exit) => panic!(
                "{} ended with {exit:?}:\n{}",
                process.program().name,
                process.log_text()
            ),
        }
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

/// Returns when the worker process `pid` holds a job; without tables to ask, after a moment.
async fn holds_a_job(tables: Option<&mut PgConnection>, pid: u32, moment: Duration) {
    let Some(tables) = tables else {
        return tokio::time::sleep(moment).await;
    };
    let question =
        "SELECT count(*) FROM job j JOIN worker w ON w.id = j.worker_id WHERE j.state = 'running' AND w.pid = $1";
    loop {
        let held = sqlx::query_scalar::<_, i64>(question)
            .bind(i64::from(pid))
            .fetch_one(&mut *tables)
            .await;
        if held.expect("the tables are there") > 0 {
            return;
        }
    }
}

struct Work {
    export: String,
    project: String,
    generated: Generated,
    record: serde_json::Value,
}

async fn work(api: Api, destination: String, generated: Generated) -> Work {
    load::send(&api, &generated.bodies).await;
    let project = load::project(&api, &generated.project).await;
    let export = load::export(&api, &destination, &project, &generated).await;
    let record = api.export_ended(&export, load::PATIENCE).await;
    Work {
        export,
        project,
        generated,
        record,
    }
}
