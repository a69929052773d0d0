//! The processes of a layout with their databases and their clock, and what happens to them between two rounds.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::time::timeout;
use towpath_tests::fault_proxy::Mode;
use towpath_tests::{Exit, Layout, Plan, Process, World, until};

use super::client::PATIENCE;
use super::clock::TestClock;
use super::stores::Store;

/// Short, so that a rescue is not the longest part of a round.
pub const LEASE_SECONDS: u64 = 2;
/// Days that trace runs are kept: a short form of five days a round keeps those of one round and forgets those of two.
const KEPT_DAYS: &str = "7";
/// Processes that serve the API of each cluster.
const API_PROCESSES: usize = 2;
/// One graph echoes, one takes longer than anyone waits for it. What a client makes and does not delete goes after ten
/// hours.
const GRAPHS: &str = r#"{
  "graphs": {
    "agent": {"native": "echo"},
    "slow": {
      "native": {
        "kind": "workflow",
        "channels": {"log": "append"},
        "nodes": {
          "first": {"kind": "script", "steps": [{"append": {"log": "first"}}]},
          "wait": {"kind": "script", "steps": [{"sleep_ms": 30000}, {"append": {"log": "waited"}}]}
        },
        "edges": [["__start__", "first"], ["first", "wait"]]
      }
    }
  },
  "store": {"ttl": {"default_ttl": 600}},
  "checkpointer": {"ttl": {"strategy": "delete", "default_ttl": 600}}
}"#;
/// The sweep that tells what is left over by the time of files.
const LEFTOVERS: &str = r#"towpath_sweep_left{sweep="leftover objects"}"#;
const LEFTOVERS_FREE: &str = "DELETE FROM sweep_cursor WHERE name = 'leftover objects'";
const LEFTOVERS_TURN: &str = "SELECT count(*) FROM sweep_cursor WHERE name = 'leftover objects'";
/// No one has the turn before the year 2255.
const LEFTOVERS_TAKEN: &str =
    "INSERT INTO sweep_cursor (name, position) VALUES ('leftover objects', '9000000000000000')
     ON CONFLICT (name) DO UPDATE SET position = excluded.position";

pub struct Site {
    pub layout: Layout,
    pub clock: TestClock,
    /// In the embedded layout its process is an agent server too.
    pub platform: World,
    /// The agent servers of a cluster, with a PostgreSQL and a Redis of their own.
    pub agents: Option<World>,
    /// The platform's database first.
    pub stores: Vec<Store>,
    _folder: TempDir,
}

impl Site {
    /// Starts everything; `None`, said in one line, where a server is not installed.
    pub async fn start(layout: Layout) -> Option<Self> {
        let folder = tempfile::Builder::new()
            .prefix("towpath-soak.")
            .tempdir()
            .expect("a temporary folder");
        let graphs = folder.path().join("graphs.json");
        std::fs::write(&graphs, GRAPHS).expect("the folder is ours");
        let clock = TestClock::at_noon(folder.path());
        let planned = || plan(layout, &graphs, clock.file());
        let (platform, agents) = match layout {
            Layout::Embedded => (planned().start().await?, None),
            Layout::Cluster { .. } => {
                let (platform, agents) = tokio::join!(planned().start(), planned().agents().start());
                (platform?, Some(agents?))
            }
        };
        let mut stores = Store::all(&platform, agents.as_ref()).await;
        for store in &mut stores {
            store.move_clock(clock.offset_ms()).await;
        }
        let mut site = Self {
            layout,
            clock,
            platform,
            agents,
            stores,
            _folder: folder,
        };
        site.sweep_leftovers().await;
        Some(site)
    }

    /// The worlds, each with its name.
    pub fn worlds(&mut self) -> impl Iterator<Item = (&'static str, &mut World)> {
        let platform = ("platform", &mut self.platform);
        std::iter::once(platform).chain(self.agents.as_mut().map(|agents| ("agents", agents)))
    }

    /// The same, to look at.
    pub fn looked_at(&self) -> impl Iterator<Item = (&'static str, &World)> {
        let platform = ("platform", &self.platform);
        std::iter::once(platform).chain(self.agents.as_ref().map(|agents| ("agents", agents)))
    }

    /// An address that an option of the platform's first process names.
    pub fn address(&self, option: &str) -> std::net::SocketAddr {
        let args = &self.platform.processes[0].program().args;
        let at = args.iter().position(|argument| argument == option);
        let address = &args[at.expect("the option is given") + 1];
        address.parse().expect("the option is an address")
    }

    /// From here on an answer of a PostgreSQL takes so long.
    pub fn delay(&self, milliseconds: u64) {
        // Half of it on the way there, half on the way back.
        let mode = Mode::Delay(Duration::from_micros(milliseconds * 500));
        for (_, world) in self.looked_at() {
            if let Some(proxy) = &world.postgres_proxy {
                proxy.set(mode);
            }
        }
    }

    /// Every Redis loses everything.
    pub async fn flush(&self) {
        for (_, world) in self.looked_at() {
            if let Some(redis) = &world.redis {
                redis.flush().await;
            }
        }
    }

    /// SIGKILL to the process of that name in each world, and another start.
    pub async fn kill(&mut self, name: &str) {
        for (_, world) in self.worlds() {
            world.process(name).kill().await;
        }
        self.start_again(&[name]).await;
    }

    /// SIGTERM to the processes of these names in each world, which have to drain, and another start.
    pub async fn replace(&mut self, names: &[&str]) {
        for name in names {
            self.signal(name, Signal::SIGTERM);
        }
        for (_, world) in self.worlds() {
            for name in names {
                let process = world.process(name);
                let exit = process.wait(Duration::from_secs(90)).await;
                assert_eq!(exit, Exit::Code(0), "{name} did not drain:\n{}", process.log_text());
            }
        }
        self.start_again(names).await;
    }

    async fn start_again(&mut self, names: &[&str]) {
        for (_, world) in self.worlds() {
            for name in names {
                let process = world.process(name);
                *process = Process::spawn(&process.program().clone());
            }
        }
        for (_, world) in self.worlds() {
            for name in names {
                world.process(name).ready().await;
            }
        }
    }

    /// A signal to the process of that name in each world.
    pub fn signal(&mut self, name: &str, signal: Signal) {
        for (_, world) in self.worlds() {
            world.process(name).signal(signal);
        }
    }

    /// Every process runs, as far as the system knows.
    pub fn nobody_ended(&mut self) {
        for (kind, world) in self.worlds() {
            for process in &mut world.processes {
                let ended = process.ended();
                assert_eq!(ended, None, "{} of the {kind} ended", process.program().name);
            }
        }
    }

    /// Waits until no job is at work, due or backing off, and nothing is left for those that there are.
    pub async fn rest(&mut self) {
        self.wait("work to come to rest", false).await;
    }

    /// As [`Site::rest`], and until everything that tidies up has caught up.
    pub async fn caught_up(&mut self) {
        self.wait("everything that tidies up to catch up", true).await;
    }

    async fn wait(&mut self, what: &str, tidied: bool) {
        let mut left = vec!["not one look at the tables was over in time".to_owned()];
        let clock = &self.clock;
        let stores = &mut self.stores;
        let waited = timeout(
            PATIENCE,
            until(what, PATIENCE * 2, async || {
                let mut found = Vec::new();
                for store in stores.iter_mut() {
                    found.extend(store.open(clock.now()).await);
                    if tidied {
                        found.extend(store.overdue(clock.now()).await);
                    }
                }
                left = found;
                left.is_empty().then_some(())
            }),
        )
        .await;
        if waited.is_err() {
            for store in &mut self.stores {
                left.extend(store.jobs().await);
            }
            panic!("waited {PATIENCE:?} in vain for {what}:\n{}", left.join("\n"));
        }
    }

    /// Days go by. The processes' clocks are moved first, so that nothing is due for the database that is in the future
    /// of the caller that performs it. No job is at work, so none meets a deadline. By the database's clock every lease
    /// is over then: the schedulers see the gap and end none, and each worker renews its own within a third of a lease.
    ///
    /// Then what tidies up by a timer of the machine gets its turn: it begins again with its process, as in a rolling
    /// update.
    pub async fn night(&mut self, days: i64) {
        let mut processes: Vec<&Process> = self.platform.processes.iter().collect();
        processes.extend(self.agents.iter().flat_map(|agents| &agents.processes));
        self.clock.forward(days, &processes).await;
        for store in &mut self.stores {
            store.move_clock(self.clock.offset_ms()).await;
        }
        self.stores[0].execute(LEFTOVERS_FREE).await;
        let timers: &[&str] = match self.layout {
            Layout::Embedded => &["dev"],
            Layout::Cluster { .. } => &["scheduler", "worker-0"],
        };
        self.replace(timers).await;
        self.sweep_leftovers().await;
        self.caught_up().await;
    }

    /// Waits until the sweep of leftover objects is over, and has no one begin another one. Files keep the machine's
    /// time, so it takes what is being written for days old, and is right at rest only.
    async fn sweep_leftovers(&mut self) {
        let store = &mut self.stores[0];
        let platform = &self.platform;
        until("the sweep of leftover objects", PATIENCE, async || {
            if store.number(LEFTOVERS_TURN).await == 0 {
                return None;
            }
            for process in &platform.processes {
                let address = process.program().address.expect("every role listens");
                if platform.api.at(address).text("/metrics").await.contains(LEFTOVERS) {
                    return Some(());
                }
            }
            None
        })
        .await;
        store.execute(LEFTOVERS_TAKEN).await;
    }

    /// Every process has to drain.
    pub async fn stop(self) {
        self.platform.stop().await;
        if let Some(agents) = self.agents {
            agents.stop().await;
        }
    }
}

fn plan(layout: Layout, graphs: &Path, clock: &Path) -> Plan {
    let plan = match layout {
        Layout::Embedded => World::plan(layout),
        Layout::Cluster { .. } => World::plan(layout)
            .api_processes(API_PROCESSES)
            .own_postgres_counting_statements(),
    };
    plan.env("TOWPATH_ENGINE_LEASE_SECONDS", LEASE_SECONDS.to_string())
        .env("TOWPATH_CLOCK_OFFSET_FILE", clock.display().to_string())
        .env("TOWPATH_AGENT_GRAPHS", graphs.display().to_string())
        .env("TOWPATH_TRACES_RETENTION_DAYS", KEPT_DAYS)
        .env("TOWPATH_DATABASE_CONNECTIONS", "8")
        .env("TOWPATH_INGEST_FLUSH_DELAY_MS", "200")
}
