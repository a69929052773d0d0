//! The drill of a rolling upgrade: processes work while a newer build brings the schema further, lose their sessions,
//! continue, and leave by SIGTERM while others take their place.
//!
//! Nothing is lost, no job is dead, no request is refused, and PostgreSQL refuses no cached statement for a column that
//! it returns since. Every request of a walk through the API is made before and after each of these steps, so that its
//! statements are cached when the schema changes.
//!
//! The older build is not here, so this one is the older build, and the newer schema is made up. Its version is not
//! recorded: a process that begins would refuse it.

mod agents;
mod client;
mod platform;
mod schema;

use std::cell::Cell;
use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use sqlx::PgConnection;
use towpath_tests::{Api, Exit, Layout, Plan, Process, Program, World, free_address};

use super::graphs::Graphs;
use crate::{final_state, load};

/// Who walks through the API of each process at a time.
const CLIENTS: usize = 2;
/// What PostgreSQL says of a cached statement that returns other columns than before.
const REFUSED: &str = "cached plan must not change result type";
/// Bytes shown of a log, from there on.
const SHOWN: usize = 700;
/// How long runs take that are at work while their worker leaves.
const SLOW: Duration = Duration::from_secs(10);
/// What a process may take to leave.
const DRAIN: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_servers_work_while_a_newer_build_takes_over() {
    let graphs = Graphs::write(SLOW);
    let plan = World::plan(Layout::Cluster { workers: 2 })
        .agents()
        .env("TOWPATH_AGENT_GRAPHS", graphs.file().display().to_string());
    let started = Upgrade::start(plan, async |api: &Api, number: u64| agents::walk(api, number).await);
    let Some(mut upgrade) = started.await else { return };
    upgrade.widen().await;
    let walking = agents::begin(&upgrade.world.api).await;
    upgrade.reconnect().await;
    upgrade.replace().await;
    agents::end(&upgrade.world.api, &walking).await;
    println!("{}", upgrade.end("agent servers").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platform_works_while_a_newer_build_takes_over() {
    let plan = World::plan(Layout::Cluster { workers: 2 });
    let started = Upgrade::start(plan, async |api: &Api, number: u64| platform::walk(api, number).await);
    let Some(mut upgrade) = started.await else { return };
    let before = platform::begin(&upgrade.world, 41).await;
    upgrade.widen().await;
    let after = platform::begin(&upgrade.world, 42).await;
    upgrade.reconnect().await;
    upgrade.replace().await;
    for begun in [&before, &after] {
        platform::end(&upgrade.world, begun).await;
    }
    println!("{}", upgrade.end("the platform").await);
}

/// A world with clients that walk through its API.
struct Upgrade<W> {
    world: World,
    clients: Clients<W>,
    tables: PgConnection,
}

impl<W: AsyncFn(&Api, u64)> Upgrade<W> {
    /// `None` without servers.
    async fn start(plan: Plan, walk: W) -> Option<Self> {
        let plan = plan
            .api_processes(2)
            .own_postgres()
            // What is not over then is handed back.
            .env("TOWPATH_ENGINE_DRAIN_GRACE_SECONDS", "3");
        let world = plan.start().await?;
        let database = world.database.as_ref().expect("a cluster has a database");
        let tables = database.connect().await;
        let clients = Clients {
            walk,
            walks: Cell::new(0),
        };
        clients.walk(&world.apis).await;
        Some(Self { world, clients, tables })
    }

    /// Brings the schema further under load.
    async fn widen(&mut self) {
        let widening = schema::widen(&mut self.tables);
        self.clients.walk_during(&self.world.apis, widening).await;
        self.clients.walk(&self.world.apis).await;
    }

    /// Ends every session of the processes. Each opens others, and prepares its statements again.
    async fn reconnect(&mut self) {
        let ended: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .fetch_one(&mut self.tables)
        .await
        .expect("the session of the test goes on");
        assert!(ended > 0, "the processes had no session that could be ended");
        for api in &self.world.apis {
            // Repeated while a connection that has ended is found out.
            load::ask(api, Method::GET, "/internal/workers", None).await;
        }
        self.clients.walk(&self.world.apis).await;
    }

    /// Starts as many processes again, sends clients there, and lets the others leave.
    async fn replace(&mut self) {
        let programs = self.world.processes.iter().map(|process| successor(process.program()));
        let mut newer: Vec<Process> = programs.map(|program| Process::spawn(&program)).collect();
        let beginning = async {
            for process in &mut newer {
                process.ready().await;
            }
        };
        self.clients.walk_during(&self.world.apis, beginning).await;

        let serving = self.world.apis.len();
        let addresses = newer[..serving].iter().map(|process| process.program().address);
        let addresses = addresses.map(|address| address.expect("a program that serves the API listens"));
        self.world.apis = addresses.map(|address| self.world.api.at(address)).collect();
        self.world.api = self.world.apis[0].clone();
        let mut older = std::mem::replace(&mut self.world.processes, newer);
        let leaving = join_all(older.iter_mut().map(async |process| {
            let exit = process.terminate(DRAIN).await;
            assert_eq!(exit, Exit::Code(0), "{} did not leave well", process.program().name);
        }));
        self.clients.walk_during(&self.world.apis, leaving).await;
        self.clients.walk(&self.world.apis).await;
    }

    /// Nothing is left behind, and no statement was refused. Gives what there is to print.
    async fn end(self, what: &str) -> String {
        final_state::settles(&self.world).await;
        let server = self.world.postgres.as_ref().expect("asked for");
        refused_nothing("PostgreSQL", &server.log_text());
        let logs = std::fs::read_dir(self.world.folder()).expect("the world has a folder");
        for log in logs {
            let path = log.expect("a readable folder").path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read(&path).expect("a readable log");
                refused_nothing(&path.display().to_string(), &String::from_utf8_lossy(&text));
            }
        }
        let walks = self.clients.walks.get();
        self.world.stop().await;
        format!("kill drill, upgrade of {what}: {walks} walks through the API, no request refused")
    }
}

fn refused_nothing(of: &str, log: &str) {
    if let Some(at) = log.find(REFUSED) {
        let count = log.matches(REFUSED).count();
        let first: String = log[at..].chars().take(SHOWN).collect();
        panic!("the log of {of} has {count} refusals of cached statements, the first one:\n{first}");
    }
}

/// The same role again, at another address.
fn successor(program: &Program) -> Program {
    let address = free_address();
    let mut newer = program.clone();
    newer.name = format!("newer-{}", program.name);
    *newer.args.last_mut().expect("it has an address") = address.to_string();
    newer.address = Some(address);
    newer
}

/// Clients that walk through the API.
struct Clients<W> {
    /// Takes the number of the walk, which no other one has.
    walk: W,
    walks: Cell<u64>,
}

impl<W: AsyncFn(&Api, u64)> Clients<W> {
    /// Each client walks once.
    async fn walk(&self, apis: &[Api]) {
        join_all(each(apis).map(async |api| self.once(api).await)).await;
    }

    /// Each client walks once, and again until `work` is done.
    async fn walk_during<T>(&self, apis: &[Api], work: impl Future<Output = T>) {
        let done = Cell::new(false);
        let walking = each(apis).map(async |api| {
            self.once(api).await;
            while !done.get() {
                self.once(api).await;
            }
        });
        let working = async {
            work.await;
            done.set(true);
        };
        tokio::join!(join_all(walking), working);
    }

    async fn once(&self, api: &Api) {
        self.walks.set(self.walks.get() + 1);
        (self.walk)(api, self.walks.get()).await;
    }
}

/// The processes, once for each client.
fn each(apis: &[Api]) -> impl Iterator<Item = &Api> {
    apis.iter().flat_map(|api| std::iter::repeat_n(api, CLIENTS))
}
