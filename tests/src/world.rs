//! The product running, in one of its two shapes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use uuid::Uuid;

use crate::fault_proxy::FaultProxy;
use crate::{Api, Database, Exit, Moto, PostgresServer, Process, Program, RedisServer, free_address};

/// The first key of every world; any text of at least 32 characters will do.
const KEY: &str = "e2e-key-0123456789abcdef0123456789abcdef";

/// Which shape the product runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `towpath dev`: one process on SQLite.
    Embedded,
    /// PostgreSQL and Redis, one process per role and this many workers.
    Cluster {
        /// Worker processes.
        workers: usize,
    },
}

/// The product and everything it is on, made for one test. Dropping it kills every process, drops the database and
/// removes every file.
#[derive(Debug)]
pub struct World {
    /// Access as the first key of the first workspace.
    pub api: Api,
    /// The same access to each process that serves the API; `api` is the first of them.
    pub apis: Vec<Api>,
    /// The running processes, by role: `dev`, or `api`, `api-1`…, `worker-0`…, `scheduler`.
    pub processes: Vec<Process>,
    /// The cluster's Redis.
    pub redis: Option<RedisServer>,
    /// What the processes take for Redis, where the plan wanted a proxy.
    pub redis_proxy: Option<FaultProxy>,
    /// The cluster's PostgreSQL database, past any proxy.
    pub database: Option<Database>,
    /// The world's own PostgreSQL, where the plan wanted one.
    pub postgres: Option<PostgresServer>,
    /// What the processes take for PostgreSQL, where the plan wanted a proxy.
    pub postgres_proxy: Option<FaultProxy>,
    /// The bucket that holds objects, where the plan wanted one.
    pub bucket: Option<Moto>,
    /// What the processes take for the bucket.
    pub bucket_proxy: Option<FaultProxy>,
    pub tenant: Uuid,
    data: std::path::PathBuf,
    // Last: its files go after the processes that write them.
    folder: TempDir,
}

/// What a world is made of before it runs; changed by a test that needs something special.
#[derive(Debug)]
pub struct Plan {
    layout: Layout,
    /// The command whose roles the processes of a cluster are: the platform, or agent servers.
    command: &'static str,
    api_processes: usize,
    env: Vec<(String, String)>,
    proxied: bool,
    postgres: Option<OwnPostgres>,
    bucket: bool,
    data: Option<std::path::PathBuf>,
    backup: Option<(std::path::PathBuf, Uuid)>,
}

/// A PostgreSQL of a world's own.
#[derive(Clone, Copy, Debug)]
enum OwnPostgres {
    Plain,
    /// It counts what each statement reads.
    CountingStatements,
}

impl World {
    /// `towpath dev` on SQLite, ready.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn embedded() -> Self {
        Self::plan(Layout::Embedded)
            .start()
            .await
            .expect("the embedded world needs no server")
    }

    /// A cluster with `workers` worker processes, ready; `None`, said in one line, where the test servers are not
    /// given.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn cluster(workers: usize) -> Option<Self> {
        Self::plan(Layout::Cluster { workers }).start().await
    }

    /// A world to be started with changes.
    #[must_use]
    pub fn plan(layout: Layout) -> Plan {
        Plan {
            layout,
            command: "serve",
            api_processes: 1,
            env: Vec::new(),
            proxied: false,
            postgres: None,
            bucket: false,
            data: None,
            backup: None,
        }
    }

    /// Where exports to a `file` destination go.
    #[must_use]
    pub fn exports(&self) -> std::path::PathBuf {
        self.data.join("exports")
    }

    /// A folder for a test's own files, gone with the world.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The data folder shared by all processes of this world.
    #[must_use]
    pub fn data(&self) -> std::path::PathBuf {
        self.data.clone()
    }

    /// The process of that name.
    ///
    /// # Panics
    /// If there is none.
    pub fn process(&mut self, name: &str) -> &mut Process {
        self.processes
            .iter_mut()
            .find(|process| process.program().name == name)
            .expect("a process of this world")
    }

    /// Starts every process again that is over, and waits until they are ready.
    ///
    /// # Panics
    /// If one does not start.
    pub async fn revive(&mut self) {
        for process in &mut self.processes {
            if process.ended().is_some() {
                *process = Process::spawn(&process.program().clone());
            }
        }
        for process in &mut self.processes {
            process.ready().await;
        }
    }

    /// SIGTERM to every process: each has to drain and exit with 0.
    ///
    /// # Panics
    /// If one does not.
    pub async fn stop(mut self) {
        for process in &mut self.processes {
            let exit = process.terminate(Duration::from_secs(90)).await;
            assert_eq!(
                exit,
                Exit::Code(0),
                "{} did not drain:\n{}",
                process.program().name,
                process.log_text()
            );
        }
    }
}

impl Plan {
    /// Sets a variable for every process.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Turns a cluster into one of agent servers instead of the platform. `TOWPATH_AGENT_GRAPHS` names their graphs.
    #[must_use]
    pub fn agents(mut self) -> Self {
        self.command = "agent";
        self
    }

    /// Serves the API by this many processes of a cluster.
    #[must_use]
    pub fn api_processes(mut self, count: usize) -> Self {
        self.api_processes = count;
        self
    }

    /// Puts a [`FaultProxy`] between every process and Redis.
    #[must_use]
    pub fn redis_behind_proxy(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Gives the world a PostgreSQL of its own, which may be stopped, with a [`FaultProxy`] in front of it.
    #[must_use]
    pub fn own_postgres(mut self) -> Self {
        self.postgres = Some(OwnPostgres::Plain);
        self
    }

    /// As [`Plan::own_postgres`], with `pg_stat_statements` where that is installed.
    #[must_use]
    pub fn own_postgres_counting_statements(mut self) -> Self {
        self.postgres = Some(OwnPostgres::CountingStatements);
        self
    }

    /// Keeps objects in a bucket, with a [`FaultProxy`] in front of it.
    #[must_use]
    pub fn objects_in_bucket(mut self) -> Self {
        self.bucket = true;
        self
    }

    /// Puts the data folder elsewhere: the test has made the folder and removes it.
    #[must_use]
    pub fn data_in(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }

    /// Restores everything from what `towpath backup` made of a world with this workspace.
    #[must_use]
    pub fn restored_from(mut self, backup: &Path, tenant: Uuid) -> Self {
        self.backup = Some((backup.to_owned(), tenant));
        self
    }

    /// Starts everything and waits until it is ready. `None`, said in one line, where a server that the layout needs
    /// is not given.
    ///
    /// # Panics
    /// If a process does not start.
    pub async fn start(self) -> Option<World> {
        let folder = tempfile::Builder::new()
            .prefix("towpath-e2e.")
            .tempdir()
            .expect("a temporary folder");
        let tenant = self.backup.as_ref().map_or_else(Uuid::now_v7, |(_, tenant)| *tenant);
        let mut postgres = None;
        let (database, redis) = match self.layout {
            Layout::Embedded => (None, None),
            Layout::Cluster { .. } => {
                let database = if let Some(own) = self.postgres {
                    let started = match own {
                        OwnPostgres::Plain => PostgresServer::start().await,
                        OwnPostgres::CountingStatements => PostgresServer::counting_statements().await,
                    };
                    let Some(server) = started else {
                        eprintln!("skipped: PostgreSQL is not installed");
                        return None;
                    };
                    let database = Database::of_own_server(&server.admin_uri()).await;
                    migrate(&database.uri, folder.path()).await;
                    postgres = Some(server);
                    database
                } else if self.backup.is_some() {
                    Database::empty_postgres().await?
                } else {
                    Database::postgres(async |uri| migrate(uri, folder.path()).await).await?
                };
                let Some(redis) = RedisServer::start(folder.path()).await else {
                    eprintln!("skipped: redis-server is not installed");
                    return None;
                };
                (Some(database), Some(redis))
            }
        };
        let data = self.data.unwrap_or_else(|| folder.path().join("data"));
        let mut env = common_env(&data, tenant);
        let (mut redis_proxy, mut postgres_proxy) = (None, None);
        if let (Some(database), Some(redis)) = (&database, &redis) {
            let mut address = redis.address();
            if self.proxied {
                let proxy = FaultProxy::start(address).await;
                address = proxy.addr();
                redis_proxy = Some(proxy);
            }
            let mut uri = database.uri.clone();
            if let Some(server) = &postgres {
                let proxy = FaultProxy::start(server.address()).await;
                uri = uri.replace(&server.address().to_string(), &proxy.addr().to_string());
                postgres_proxy = Some(proxy);
            }
            env.push(("DATABASE_URI".into(), uri));
            env.push(("REDIS_URI".into(), format!("redis://{address}")));
            env.push(("TOWPATH_OBJECTS".into(), format!("file://{}/objects", data.display())));
        }
        let (mut bucket, mut bucket_proxy) = (None, None);
        if self.bucket {
            let Some(moto) = Moto::start(folder.path()).await else {
                eprintln!("skipped: TOWPATH_TEST_PYTHON is not set");
                return None;
            };
            let proxy = FaultProxy::start(moto.address()).await;
            env.extend(bucket_env(proxy.addr()));
            bucket = Some(moto);
            bucket_proxy = Some(proxy);
        }
        env.extend(self.env);
        let serving = match self.layout {
            Layout::Embedded => 1,
            Layout::Cluster { .. } => self.api_processes,
        };
        let programs = programs(self.layout, self.command, serving, folder.path(), &data, &env);
        if let Some((backup, _)) = &self.backup {
            let command = Program {
                name: "restore".to_owned(),
                args: vec!["restore".to_owned(), backup.display().to_string()],
                address: None,
                ..programs[0].clone()
            };
            succeeds(&command).await;
        }
        let mut processes: Vec<Process> = programs.iter().map(Process::spawn).collect();
        for process in &mut processes {
            process.ready().await;
        }
        let address = |program: &Program| program.address.expect("a program that serves the API listens");
        let api = Api::new(address(&programs[0]), KEY, &tenant.to_string());
        let apis = programs[..serving]
            .iter()
            .map(|program| api.at(address(program)))
            .collect();
        Some(World {
            api,
            apis,
            processes,
            redis,
            redis_proxy,
            database,
            postgres,
            postgres_proxy,
            bucket,
            bucket_proxy,
            tenant,
            data,
            folder,
        })
    }
}

/// Makes the schema as an operator does, with no key or workspace: other worlds get a copy of the database.
async fn migrate(uri: &str, folder: &Path) {
    let data = folder.join("data").display().to_string();
    succeeds(&Program {
        name: "migrate".to_owned(),
        args: vec!["migrate".to_owned()],
        env: vec![
            ("DATABASE_URI".into(), uri.to_owned()),
            ("TOWPATH_DATA_DIR".into(), data),
        ],
        address: None,
        folder: folder.to_owned(),
    })
    .await;
}

async fn succeeds(command: &Program) {
    let mut process = Process::spawn(command);
    let exit = process.wait(Duration::from_secs(180)).await;
    assert_eq!(exit, Exit::Code(0), "{} failed:\n{}", command.name, process.log_text());
}

/// Objects in the bucket at `address`.
fn bucket_env(address: SocketAddr) -> [(String, String); 7] {
    [
        ("TOWPATH_OBJECTS", format!("s3://{}/objects", Moto::BUCKET)),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "anybody".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "anything".to_owned()),
        ("TOWPATH_OUTBOUND_ALLOW", "127.0.0.1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

fn common_env(data: &Path, tenant: Uuid) -> Vec<(String, String)> {
    std::fs::create_dir_all(data.join("exports")).expect("the world's folder is ours");
    vec![
        ("TOWPATH_API_KEY".into(), KEY.into()),
        ("TOWPATH_TENANT_ID".into(), tenant.to_string()),
        ("TOWPATH_DATA_DIR".into(), data.display().to_string()),
        // Half a minute would be most of the time of a test in which an export run fails.
        ("TOWPATH_EXPORTS_RETRY_SECONDS".into(), "2".into()),
    ]
}

/// The first ones serve the API, `serving` of them.
fn programs(
    layout: Layout,
    command: &str,
    serving: usize,
    folder: &Path,
    data: &Path,
    env: &[(String, String)],
) -> Vec<Program> {
    let program = |name: &str, args: &[&str]| {
        let address = free_address();
        let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
        args.extend(["--listen".to_owned(), address.to_string()]);
        Program {
            name: name.into(),
            args,
            env: env.to_vec(),
            address: Some(address),
            folder: folder.to_owned(),
        }
    };
    match layout {
        Layout::Embedded => {
            let data = data.display().to_string();
            vec![program(
                "dev",
                &[
                    "dev",
                    "--data-dir",
                    &data,
                    "--agent-listen",
                    &free_address().to_string(),
                ],
            )]
        }
        Layout::Cluster { workers } => {
            let of_role = |name: &str, role: &str| program(name, &[command, "--role", role]);
            let mut programs = vec![of_role("api", "api")];
            programs.extend((1..serving).map(|n| of_role(&format!("api-{n}"), "api")));
            programs.extend((0..workers).map(|n| of_role(&format!("worker-{n}"), "worker")));
            programs.push(of_role("scheduler", "scheduler"));
            programs
        }
    }
}
