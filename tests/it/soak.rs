//! Months in a round after another: real processes under a mixed load, something that goes wrong in each round, and a
//! night of several days after it. What was acknowledged is there, nothing grows without bound, nothing gets slower by
//! what is kept.
//!
//! A round is a day. Clients of both surfaces send steps of every kind (`day.rs`), while processes die, stand still or
//! lose something (`disturbance.rs`). Once work has come to rest, everything that was acknowledged is looked at. Then
//! the clocks of processes and databases go ahead (`site.rs`), everything that tidies up has its turn, and what is left
//! is counted (`sample.rs`). A row for each round is printed. The drill fails when
//!
//! - something that was acknowledged is not there, or not as it must be,
//! - a job is a dead letter, or a row is left behind by a job that is over,
//! - an answer was 500, or a server has logged one,
//! - a quantity grows (`growth.rs`) or a call of a statement reads ever more blocks (`statements.rs`).
//!
//! Nothing of it measures time. `TOWPATH_TEST_SOAK_ROUNDS` is the number of rounds (default 9, of five days each;
//! `long` is 200, of one day each), `TOWPATH_TEST_SOAK_SEED` the seed, which every failure names.

mod client;
mod clock;
mod crons;
mod day;
mod disturbance;
mod edge_cases;
mod exports;
mod growth;
mod items;
mod lost_objects;
mod runs;
mod sample;
mod site;
mod statements;
mod stores;
mod traces;

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::time::Instant;

use towpath_tests::{Api, Layout, Random, World, environment};

use crate::final_state;
use client::{Client, Findings};
use clock::DAY_MICROS;
use day::Day;
use disturbance::{Disturbance, milliseconds};
use exports::Exports;
use sample::Sample;
use site::Site;
use statements::Statements;

const SEED: u64 = 20_260_401;
const SHORT: usize = 9;
const LONG: usize = 200;
/// Up to so many rounds, a round is [`DAYS`] days: the history of jobs, which goes back two weeks, must be full before
/// the middle third begins.
const FEW: usize = 40;
const DAYS: i64 = 5;
/// What a server logs about an answer of 500.
const BROKEN: [&str; 2] = ["\"request failed\"", "\"a handler panicked\""];

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn embedded_lives_through_months() {
    soak(Layout::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_cluster_lives_through_months() {
    soak(Layout::Cluster { workers: 2 }).await;
}

/// How long it continues, and with which load.
#[derive(Clone, Copy, Debug)]
struct Settings {
    rounds: usize,
    /// Days from one round to the next.
    days: i64,
    seed: u64,
}

impl Settings {
    fn read() -> Self {
        let rounds = match environment("TOWPATH_TEST_SOAK_ROUNDS").as_deref() {
            None => SHORT,
            Some("long") => LONG,
            Some(text) => text
                .parse()
                .expect("TOWPATH_TEST_SOAK_ROUNDS is a number of rounds, or long"),
        };
        assert!(rounds >= 3, "a third of {rounds} rounds is no round");
        let seed = environment("TOWPATH_TEST_SOAK_SEED").map(|text| text.parse());
        Self {
            rounds,
            days: if rounds <= FEW { DAYS } else { 1 },
            seed: seed.map_or(SEED, |seed| seed.expect("TOWPATH_TEST_SOAK_SEED is a number")),
        }
    }
}

#[expect(clippy::print_stdout, reason = "what was seen is read")]
fn say(line: &str) {
    println!("{line}");
}

async fn soak(layout: Layout) {
    let settings = Settings::read();
    let Some(site) = Site::start(layout).await else {
        return;
    };
    let Settings { rounds, days, seed } = settings;
    say(&format!(
        "soak, {layout:?}: {rounds} rounds of {days} days, seed {seed}"
    ));
    let mut soak = Soak::start(site, settings).await;
    say(Sample::HEAD);
    for number in 0..rounds {
        soak.round(number).await;
    }
    soak.finish().await;
}

struct Soak {
    settings: Settings,
    site: Site,
    platform: Client,
    agents: Client,
    findings: Arc<Findings>,
    exports: Exports,
    statements: Vec<Statements>,
    dice: Random,
    samples: Vec<Sample>,
    /// Stateless runs so far whose waiting client was answered without their state.
    without_state: usize,
}

impl Soak {
    async fn start(mut site: Site, settings: Settings) -> Self {
        let findings = Arc::default();
        let agents: Vec<Api> = match &site.agents {
            Some(agents) => agents.apis.clone(),
            None => vec![site.platform.api.at(site.address("--agent-listen"))],
        };
        Self {
            settings,
            platform: Client::new(site.platform.apis.clone(), &findings),
            agents: Client::new(agents, &findings),
            findings,
            exports: Exports::start(&site.platform, site.clock.today(), settings.days).await,
            statements: count_statements(&mut site).await,
            dice: Random::new(settings.seed),
            samples: Vec::new(),
            without_state: 0,
            site,
        }
    }

    /// A day and the night after it.
    async fn round(&mut self, number: usize) {
        let began = Instant::now();
        let Self {
            settings,
            site,
            platform,
            agents,
            findings,
            exports,
            statements,
            dice,
            samples,
            without_state,
        } = self;
        let asked = platform.asked() + agents.asked();
        let disturbance = Disturbance::of(site.layout, number);
        let delay_ms = milliseconds(dice);
        site.delay(delay_ms);
        let mut sample = Sample::new(number, disturbance, delay_ms);
        let (now, today) = (site.clock.now(), site.clock.today());
        let clients = (&*platform, &*agents);
        let day = Day::new(
            (number, disturbance),
            clients,
            findings,
            exports,
            (now, today),
            dice.next_u64(),
        );

        let steps = day.plan(dice);
        let disturbing = async {
            day.under_way().await;
            disturbance.make(site, dice).await;
        };
        tokio::join!(day.load(steps), disturbing);
        site.nobody_ended();
        site.rest().await;
        day.check().await;
        exports.check(&day, &site.platform).await;
        if disturbance == Disturbance::LostObject {
            lost_objects::lose(site, &day, dice).await;
        }
        sample.count_processes(site);

        let night = site.clock.now() + settings.days * DAY_MICROS;
        site.night(settings.days).await;
        let told = day.acknowledged.take();
        traces::check(&day, &told).await;
        crons::check(&day, &told, night).await;
        crons::delete_all(agents).await;
        exports.check_schedule(&day, &site.platform).await;
        site.rest().await;
        for (_, world) in site.looked_at() {
            final_state::leaves_no_orphans(world).await;
        }
        for store in &mut site.stores {
            for dead in store.dead().await {
                findings.note(format!(
                    "round {number}, {disturbance}: dead letter on the {}: {dead}",
                    store.name
                ));
            }
            store.vacuum().await;
        }
        for counted in statements {
            counted.take().await;
        }
        sample.count_stored(site).await;
        sample.seconds = began.elapsed().as_secs_f64();
        sample.requests = platform.asked() + agents.asked() - asked;
        say(&sample.line());
        samples.push(sample);
        *without_state += told.without_state;
        if let Some(told) = findings.told() {
            panic!("{told}\n{}", again(*settings));
        }
    }

    /// Judges all rounds, and stops everything.
    async fn finish(self) {
        say(&growth::table(&self.samples));
        for counted in &self.statements {
            say(&counted.table());
        }
        say(&format!(
            "soak: {} stateless runs were waited for and answered without their state",
            self.without_state
        ));
        let mut wrong = growth::grown(&self.samples);
        wrong.extend(self.statements.iter().flat_map(Statements::grown));
        wrong.extend(self.site.looked_at().flat_map(|(_, world)| broken(world)));
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), again(self.settings));
        self.site.stop().await;
    }
}

/// How a failure is repeated.
fn again(settings: Settings) -> String {
    let Settings { rounds, seed, .. } = settings;
    format!("run it again: TOWPATH_TEST_SOAK_SEED={seed} TOWPATH_TEST_SOAK_ROUNDS={rounds} scripts/test soak")
}

/// Counts what statements read, on each server that can.
async fn count_statements(site: &mut Site) -> Vec<Statements> {
    let Some(agents) = &site.agents else {
        return Vec::new();
    };
    let mut counted = Vec::new();
    for (world, store) in [&site.platform, agents].into_iter().zip(&mut site.stores) {
        match Statements::start(world, store).await {
            Ok(statements) => counted.push(statements),
            Err(why) => say(&format!("soak: blocks of the {} are not compared: {why}", store.name)),
        }
    }
    counted
}

/// What the servers of a world have logged about answers of 500: also of those that no one has read.
fn broken(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for process in &world.processes {
        let log = std::fs::File::open(process.log()).expect("a process has a log");
        let lines = BufReader::new(log).split(b'\n').map_while(Result::ok);
        for line in lines {
            let line = String::from_utf8_lossy(&line);
            if BROKEN.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{} logged {line}", process.program().name));
            }
        }
    }
    found
}
