//! The freeze drill: a worker and an API process are stopped (SIGSTOP) in the middle of a transaction, then the
//! scheduler is, one after another, and each continues after a while. At last the line to PostgreSQL is slow for longer
//! than a lease.
//!
//! The others lose no lease. What the stopped worker held is taken over while it stands still; it commits nothing
//! afterwards and continues under another id. All that was accepted is done once.
//!
//! Agent servers with runs are one world, the platform with trace runs is another.
//!
//! `TOWPATH_TEST_FREEZE_SECONDS` is how long a process stands still; leases are then those of the default settings.
//! Both are short without it.

mod agents;
mod barrier;
mod leases;
mod traces;

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, sleep_until};
use towpath_tests::fault_proxy::Mode;
use towpath_tests::{Layout, Plan, Process, World, environment, until};
use uuid::Uuid;

use self::barrier::Barrier;
use self::leases::Leases;
use super::graphs::Graphs;
use crate::load::PATIENCE;

/// What bytes take on a slow line, each way.
const DELAY: Duration = Duration::from_millis(30);
/// Turns of a scheduler that show that it continues.
const TURNS: f64 = 20.0;
const GIVEN_UP: &str = "towpath_leases_given_up_total";
/// What a worker counts that finds out that its jobs are others'.
const SEEN: [&str; 3] = [
    GIVEN_UP,
    "towpath_leases_lost_total",
    "towpath_stale_writes_refused_total",
];

/// Worker processes by their names: the worker that has the lease, and how many jobs it has given up.
type Workers = BTreeMap<String, (Option<Uuid>, f64)>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_servers_lose_no_run_to_a_process_that_stands_still() {
    let times = Times::asked();
    // One that begins before a freeze is not over after it.
    let graphs = Graphs::write(times.freeze * 3 / 2);
    let plan = times
        .plan()
        .agents()
        .env("TOWPATH_AGENT_GRAPHS", graphs.file().display().to_string());
    let Some(world) = plan.start().await else { return };
    let mut freezes = Freezes::new(&world, times).await;
    agents::drill(&world, &mut freezes).await;
    println!("{}", freezes.end("agent servers").await);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_loses_no_trace_run_to_a_process_that_stands_still() {
    let times = Times::asked();
    let plan = times.plan();
    let Some(world) = plan.start().await else { return };
    let mut freezes = Freezes::new(&world, times).await;
    traces::drill(&world, &mut freezes).await;
    println!("{}", freezes.end("the platform").await);
    world.stop().await;
}

#[derive(Clone, Copy, Debug)]
struct Times {
    lease: Duration,
    /// Longer than a lease.
    freeze: Duration,
}

impl Times {
    fn asked() -> Self {
        let asked = environment("TOWPATH_TEST_FREEZE_SECONDS");
        let (lease_seconds, freeze_seconds) = asked.map_or((5, 7), |text| {
            let seconds = text.parse::<u64>();
            (15, seconds.expect("TOWPATH_TEST_FREEZE_SECONDS is a number of seconds"))
        });
        let times = Self {
            lease: Duration::from_secs(lease_seconds),
            freeze: Duration::from_secs(freeze_seconds),
        };
        assert!(times.freeze > times.lease, "a freeze is longer than a lease: {times:?}");
        times
    }

    /// Two processes for the API, two workers, a scheduler.
    fn plan(self) -> Plan {
        World::plan(Layout::Cluster { workers: 2 })
            .api_processes(2)
            .own_postgres()
            .env("TOWPATH_ENGINE_LEASE_SECONDS", self.lease.as_secs().to_string())
    }
}

/// Stops processes of a world that is at work.
pub struct Freezes<'w> {
    world: &'w World,
    times: Times,
    leases: Leases,
    /// Workers that were stopped, by the ids that they lost.
    stopped: Vec<Uuid>,
    /// Rows to be printed.
    table: Vec<String>,
}

impl<'w> Freezes<'w> {
    async fn new(world: &'w World, times: Times) -> Self {
        Self {
            world,
            times,
            leases: Leases::of(world).await,
            stopped: Vec::new(),
            table: Vec::new(),
        }
    }

    /// Stops the worker of a job while it commits for it. `running` is a question for [`Barrier::close_at_job`].
    async fn worker(&mut self, running: &'static str) {
        let before = self.workers(None).await;
        let mut barrier = Barrier::new(self.world).await;
        let pid = until("a job to run whose worker can be stopped", PATIENCE, async || {
            barrier.close_at_job(running).await
        })
        .await;
        let pid = u32::try_from(pid).expect("pids are small");
        let victim = self.process(|process| process.pid() == Some(pid));
        let old = self.leases.worker(pid).await.expect("a worker of a job has a lease");
        let seen = seen_by(victim).await;
        let session = self.waiting_at(&barrier).await;
        let since = self.stop(victim, barrier, session).await;

        let held = self.leases.held(old).await;
        self.session_ends(session).await;
        until(
            "others to take over the jobs of a stopped worker",
            PATIENCE,
            async || (self.leases.left(&held, old).await == 0).then_some(()),
        )
        .await;
        let taken_over = since.elapsed();
        let jobs = self.leases.taken_back(old).await;
        assert!(jobs > 0, "no job was taken back from {}", victim.program().name);
        sleep_until(since + self.times.freeze).await;
        self.nobody_lost(&before, Some(victim)).await;
        let frozen = since.elapsed();
        victim.signal(Signal::SIGCONT);

        until(
            "a worker that was stopped to go on under another id",
            PATIENCE,
            async || self.leases.worker(pid).await.filter(|new| *new != old),
        )
        .await;
        until("a worker that was stopped to see what it lost", PATIENCE, async || {
            (seen_by(victim).await > seen).then_some(())
        })
        .await;
        self.nobody_lost(&before, Some(victim)).await;
        self.stopped.push(old);
        let what = format!("{jobs} jobs taken over after {:.1} s", taken_over.as_secs_f64());
        self.note("worker in a transaction", frozen, &what);
    }

    /// Stops the second API process in the middle of the transaction of `request`, which waits at the barrier.
    /// `meanwhile` is what others do. Gives what both come to.
    async fn api<T, M>(
        &mut self,
        barrier: Barrier,
        request: impl Future<Output = T>,
        meanwhile: impl Future<Output = M>,
    ) -> (T, M) {
        let before = self.workers(None).await;
        let victim = self.process(|process| process.program().name == "api-1");
        let freezing = async {
            let session = self.waiting_at(&barrier).await;
            let since = self.stop(victim, barrier, session).await;
            let thaw = sleep_until(since + self.times.freeze);
            let ends = async {
                self.session_ends(session).await;
                since.elapsed()
            };
            let (ended, meanwhile, ()) = tokio::join!(ends, meanwhile, thaw);
            self.nobody_lost(&before, None).await;
            let frozen = since.elapsed();
            victim.signal(Signal::SIGCONT);
            let what = format!("its transaction ended after {:.1} s", ended.as_secs_f64());
            self.note("api in a transaction", frozen, &what);
            meanwhile
        };
        let (answer, meanwhile) = tokio::join!(request, freezing);
        self.nobody_lost(&before, None).await;
        (answer, meanwhile)
    }

    /// Stops the scheduler: the caller that was unavailable must not take the others for dead.
    async fn scheduler(&mut self) {
        let before = self.workers(None).await;
        let victim = self.process(|process| process.program().name == "scheduler");
        let since = Instant::now();
        victim.signal(Signal::SIGSTOP);
        sleep(self.times.freeze).await;
        let frozen = since.elapsed();
        victim.signal(Signal::SIGCONT);
        let turns = victim.metric("towpath_sweep_seconds_count").await;
        until("the scheduler to go on", PATIENCE, async || {
            (victim.metric("towpath_sweep_seconds_count").await >= turns + TURNS).then_some(())
        })
        .await;
        self.nobody_lost(&before, None).await;
        self.note("scheduler", frozen, "");
    }

    /// Delays every byte between the processes and PostgreSQL.
    async fn slow_line(&mut self) {
        let before = self.workers(None).await;
        let proxy = self.world.postgres_proxy.as_ref().expect("asked for");
        let harmed = proxy.harmed();
        let since = Instant::now();
        proxy.set(Mode::Delay(DELAY));
        sleep(self.times.freeze).await;
        proxy.set(Mode::Pass);
        let delayed = proxy.harmed() - harmed;
        assert!(delayed > 0, "nothing came over the slow line");
        self.nobody_lost(&before, None).await;
        let what = format!("{delayed} pieces delayed by {} ms", DELAY.as_millis());
        self.note("line to PostgreSQL", since.elapsed(), &what);
    }

    /// The last look, and what there is to print.
    async fn end(mut self, what: &str) -> String {
        let others = self.leases.taken_back_from_others(&self.stopped).await;
        assert_eq!(others, 0, "jobs were taken back from workers that were never stopped");
        let steps = self.leases.steps_of_lost_attempts().await;
        assert_eq!(steps, 0, "attempts recorded steps after their jobs were taken back");
        let table = self.table.join("\n");
        format!("kill drill, freezes of {what}\n| stopped | seconds | what came of it |\n|---|---|---|\n{table}")
    }

    /// The session that has come to the barrier.
    async fn waiting_at(&mut self, barrier: &Barrier) -> i32 {
        until("a session to come to the barrier", PATIENCE, async || {
            self.leases.waiting_for(barrier.session()).await
        })
        .await
    }

    /// Stops a process whose session waits at the barrier, and opens that: the statement gets its answer, the
    /// transaction stays open. When it was stopped.
    async fn stop(&mut self, process: &Process, barrier: Barrier, session: i32) -> Instant {
        process.signal(Signal::SIGSTOP);
        let since = Instant::now();
        barrier.open().await;
        until(
            "the transaction of a stopped process to stand still",
            PATIENCE,
            async || {
                let state = self.leases.state_of(session).await;
                (state.as_deref() == Some("idle in transaction")).then_some(())
            },
        )
        .await;
        since
    }

    /// The locks of a process that stands still are free before its lease is over.
    async fn session_ends(&mut self, session: i32) {
        let what = "the database to end the transaction of a stopped process";
        until(what, self.times.lease, async || {
            self.leases.state_of(session).await.is_none().then_some(())
        })
        .await;
    }

    /// Every worker but `stopped`.
    async fn workers(&mut self, stopped: Option<&Process>) -> Workers {
        let mut workers = Workers::new();
        for process in &self.world.processes {
            let name = &process.program().name;
            if name.starts_with("worker") && stopped.is_none_or(|stopped| stopped.program().name != *name) {
                let pid = process.pid().expect("all processes run");
                let lease = self.leases.worker(pid).await;
                workers.insert(name.clone(), (lease, process.metric(GIVEN_UP).await));
            }
        }
        workers
    }

    /// Every worker but `stopped` has the lease that it had, and has stopped no handler for want of one.
    async fn nobody_lost(&mut self, before: &Workers, stopped: Option<&Process>) {
        for (name, now) in self.workers(stopped).await {
            assert_eq!(now, before[&name], "{name} lost its lease though it was not stopped");
        }
    }

    fn process(&self, fits: impl Fn(&Process) -> bool) -> &'w Process {
        let found = self.world.processes.iter().find(|process| fits(process));
        found.expect("a process of this world")
    }

    fn note(&mut self, stopped: &str, frozen: Duration, what: &str) {
        self.table
            .push(format!("| {stopped} | {:.1} | {what} |", frozen.as_secs_f64()));
    }
}

async fn seen_by(worker: &Process) -> f64 {
    let mut seen = 0.0;
    for name in SEEN {
        seen += worker.metric(name).await;
    }
    seen
}
