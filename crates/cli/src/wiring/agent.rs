//! An agent server with its own database, workers, scheduler and HTTP, alone in a process or inside `dev`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_api::agent::{ReloadableRouter, agent_router};
use towpath_api::serve::serve_with_tls;
use towpath_api::{Health, Ops};
use towpath_domain::{Secret, TenantId};
use towpath_durable::Engine;
use towpath_outbound::{AllowEntry, Guard, Policy};
use towpath_queue::Queue;
use towpath_runtime::{GraphSet, Graphs};
use towpath_scheduler::Scheduler;
use towpath_store::Store;
use towpath_workers::Workers;
use towpath_workflows::agent::{self, AgentServices, Reloadable};
use towpath_workflows::item_index::ItemIndex;
use towpath_workflows::tracer::Tracer;

use super::assistants::ensure_assistants;
use super::surface::{Surface, mount_prefix};
use super::{Roles, parts};
use crate::config::{Config, Settings};
use crate::data_dir::DataDir;
use crate::graph_file::GraphFile;
use crate::graph_hosting::{self, GraphHostLauncher, Tracing};
use crate::reload::{FileSnapshot, ReloadTask, Reloader};
use crate::signals::Signals;
use crate::tls::Certificate;

/// The exporter's histograms grow until its upkeep runs.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Time for processes of users' graphs to end when nothing runs on them.
const HOST_GRACE: Duration = Duration::from_secs(2);

/// Time for the last traces to be sent.
const TRACE_GRACE: Duration = Duration::from_secs(2);

/// Parts of an agent server, besides the settings.
pub struct AgentParts {
    /// From [`super::listen`].
    pub listener: TcpListener,
    /// Its database, with a current schema.
    pub store: Store,
    /// Its data folder, if it is the only user.
    pub data: Option<DataDir>,
    pub tenant: TenantId,
    /// Its public address, if it differs from the listen address.
    pub public_url: Option<String>,
    /// Storage of API keys, if callers need one.
    pub keys: Option<Store>,
    /// Whether it needs no key because only this machine reaches it. Requests of browsers are then checked.
    pub this_machine_only: bool,
    /// Redis for the processes of one server.
    pub redis: Option<Secret>,
    /// Whether its graphs and webhooks may call this machine.
    pub loopback: bool,
    pub file: GraphFile,
    /// Its graphs, if they are loaded already.
    pub loaded: Option<LoadedGraphs>,
    /// Default destination of traces.
    pub tracing: Option<Tracing>,
    /// Whether to reload the graphs when their code changes, and to serve without them while they cannot be loaded.
    pub watch: bool,
    pub metrics: PrometheusHandle,
}

pub struct LoadedGraphs {
    hosting: Arc<GraphHostLauncher>,
    graphs: Graphs,
}

impl LoadedGraphs {
    /// Loads the graphs, which takes as long as their imports do.
    pub async fn new(config: &Config, file: &GraphFile) -> anyhow::Result<Self> {
        let hosting = Arc::new(GraphHostLauncher::new(config, guard(&config.settings, false), None));
        let graphs = hosting.load(file).await.context("the graphs")?;
        Ok(Self { hosting, graphs })
    }

    pub async fn close(self) {
        graph_hosting::close(&Arc::new(self.graphs), HOST_GRACE).await;
    }
}

/// A running agent server.
pub struct AgentServer {
    address: SocketAddr,
    certificate: Option<Certificate>,
    grace: Duration,
    store: Store,
    /// Cancelled when the server stops accepting work.
    draining: CancellationToken,
    http: JoinHandle<std::io::Result<usize>>,
    workers: Option<Workers>,
    scheduler: Option<Scheduler>,
    upkeep: JoinHandle<()>,
    graphs: GraphSet,
    reload: Option<ReloadTask>,
    tracer: Option<Tracer>,
    /// Owns the folder of sockets.
    _hosting: Arc<GraphHostLauncher>,
    /// The folder's lock, released last.
    _data: Option<DataDir>,
}

impl AgentServer {
    /// Starts the roles. The server serves requests when this returns.
    pub async fn start(config: &Config, roles: Roles, given: AgentParts) -> anyhow::Result<Self> {
        config.test_switches.apply();
        let settings = &config.settings;
        let listener = given.listener;
        let address = listener.local_addr()?;
        let certificate = Certificate::open(config)?;
        let store = given.store;
        let queue = queue(&store, given.redis.as_ref(), settings).await?;
        let guard = guard(settings, given.loopback);
        // Taken before the code is loaded, so that concurrent changes are loaded later.
        let seen = if given.watch && given.file.path.is_some() {
            Some(FileSnapshot::capture(&given.file).await)
        } else {
            None
        };
        let (hosting, graphs) = match given.loaded {
            Some(loaded) => (loaded.hosting, loaded.graphs),
            None => {
                let hosting = Arc::new(GraphHostLauncher::new(config, guard.clone(), given.tracing));
                let graphs = if roles.api || roles.worker {
                    match hosting.load(&given.file).await {
                        Ok(graphs) => graphs,
                        Err(why) if given.watch => {
                            tracing::error!("{why:#}; the graphs are loaded when this is fixed");
                            hosting.declared(&given.file)
                        }
                        Err(why) => return Err(why.context("the graphs")),
                    }
                } else {
                    // The scheduler needs no graphs.
                    hosting.declared(&given.file)
                };
                (hosting, graphs)
            }
        };
        let graphs = GraphSet::new(graphs);
        // Every process that ends jobs needs the end handlers, also one that only serves requests.
        let mut registry = agent::registry();
        registry.attach(&store);
        ensure_assistants(&store, given.tenant, &graphs.current()).await?;
        let items = ItemIndex::new(store.clone(), graphs.clone(), guard.clone());
        items.configure(given.file.index(&config.environment)?);
        if roles.worker {
            // Other roles may be started without the graph file.
            items.ensure(given.tenant).await.context("the index of items")?;
        }

        let draining = CancellationToken::new();
        let ops = Ops::new(health(&store, &queue, draining.clone()), given.metrics.clone())
            .with_key(settings.metrics_key.as_ref());
        let engine = roles
            .worker
            .then(|| Engine::new(store.clone(), parts::engine(settings)));
        let surface = Surface {
            engine: engine.clone(),
            settings: settings.clone(),
            environment: config.environment.clone(),
            store: store.clone(),
            queue: queue.clone(),
            graphs: graphs.clone(),
            items: items.clone(),
            tenant: given.tenant,
            keys: given.keys,
            this_machine_only: given.this_machine_only,
            loopback: given.loopback || settings.outbound_allow.iter().any(AllowEntry::reaches_loopback),
            draining: draining.clone(),
            ops: ops.clone(),
        };
        let authored = Reloadable::new(surface.authored(&given.file)?);
        let served = ReloadableRouter::new(if roles.api {
            agent_router(surface.app(&given.file)?)
        } else {
            towpath_api::health_router(ops)
        });
        let grace = settings.drain_grace;
        let limits = parts::connections(settings);
        let tls = certificate.as_ref().map(Certificate::tls);
        let serve = serve_with_tls(tls, limits, listener, served.router(), draining.clone(), grace);
        let http = tokio::spawn(serve);

        // The scheduler starts first: on SQLite it recovers jobs of an earlier process life before workers claim.
        let scheduler = if roles.scheduler {
            agent::ensure_sweeps(&store, given.tenant).await?;
            Some(Scheduler::start(&store, parts::scheduler(settings)).await?)
        } else {
            None
        };
        // Only processes with the API role know an address, and it may be one of many.
        let listening = roles.api.then(|| {
            let prefix = mount_prefix(settings, &given.file.server);
            format!("{}://{}{prefix}", settings.scheme(), loopback_address(address))
        });
        let tracer = hosting.tracer(&given.file, settings, &guard);
        let workers = if let Some(engine) = engine {
            let options = parts::pools(settings, &registry.pools());
            let world = Arc::new(AgentServices {
                runs: towpath_workflows::run_agent::RunLoader::new(store.clone()),
                store: store.clone(),
                queue: queue.clone(),
                graphs: graphs.clone(),
                items,
                tracer: tracer.clone(),
                guard,
                settings: agent::Settings {
                    max_attempts: settings.agent.run_attempts,
                    timeout: settings.agent.run_timeout,
                    event_retention: settings.agent.event_retention,
                    // Readers in other processes only find events in the log.
                    log_all: given.redis.is_none() && roles != Roles::ALL,
                    webhook_secret: settings.agent.webhook_secret.clone(),
                    author_settings: authored.clone(),
                    api_url: given.public_url.or(listening),
                    keep_checkpoints: settings.agent.keep_checkpoints,
                    checkpoint_retention: settings.agent.checkpoint_retention,
                },
            });
            Some(Workers::start(engine, &queue, &Arc::new(registry), &world, &options)?)
        } else {
            None
        };
        let reload = seen.map(|seen| {
            ReloadTask::start(Reloader {
                hosting: hosting.clone(),
                file: given.file,
                graphs: graphs.clone(),
                surface,
                router: served,
                author_settings: authored,
                snapshot: seen,
            })
        });
        let metrics = given.metrics;
        let upkeep = tokio::spawn(async move {
            let mut upkeep = tokio::time::interval(UPKEEP_EVERY);
            loop {
                upkeep.tick().await;
                metrics.run_upkeep();
            }
        });
        Ok(Self {
            address,
            certificate,
            grace,
            store,
            draining,
            http,
            workers,
            scheduler,
            upkeep,
            graphs,
            reload,
            tracer,
            _hosting: hosting,
            _data: given.data,
        })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Public address for clients.
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Ids of the graphs it serves, sorted.
    pub fn graphs(&self) -> Vec<String> {
        self.graphs.current().ids().map(str::to_owned).collect()
    }

    /// Runs until a signal stops it, then drains. A second signal ends the process at once.
    pub async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let broken = tokio::select! {
            number = signals.next() => {
                tracing::info!(signal = number, grace_seconds = self.grace.as_secs(), "draining");
                None
            }
            ended = &mut self.http => Some(ended),
        };
        signals.end_at_next();
        if let Some(ended) = broken {
            let why = match ended {
                Ok(Ok(_)) => anyhow!("the agent server ended unexpectedly"),
                Ok(Err(error)) => error.into(),
                Err(error) => error.into(),
            };
            // Running jobs are still returned properly.
            self.http = tokio::spawn(async { Ok(0) });
            self.drain().await?;
            return Err(why.context("serving HTTP"));
        }
        self.drain().await
    }

    /// Stops accepting work, lets running work finish within the grace time, and returns the rest.
    pub async fn drain(self) -> anyhow::Result<()> {
        self.draining.cancel();
        self.upkeep.abort();
        drop(self.reload);
        let workers = async {
            if let Some(workers) = self.workers {
                let drained = workers.drain(self.grace).await;
                tracing::info!(
                    jobs.at_work = drained.running,
                    jobs.handed_back = drained.handed_back,
                    "workers of the agent server drained"
                );
            }
        };
        // Concurrently, because both share the grace time.
        let ((), served) = tokio::join!(workers, self.http);
        graph_hosting::close(&self.graphs.current(), HOST_GRACE).await;
        if let Some(tracer) = &self.tracer {
            tracer.flush(TRACE_GRACE).await;
        }
        if let Some(scheduler) = self.scheduler {
            scheduler.stop().await;
        }
        self.store.close().await;
        served.context("serving HTTP")?.context("serving HTTP")?;
        tracing::info!("agent server drained");
        Ok(())
    }
}

fn guard(settings: &Settings, loopback: bool) -> Guard {
    Guard::new(Policy {
        loopback,
        allow: settings.outbound_allow.clone(),
    })
}

async fn queue(store: &Store, redis: Option<&Secret>, settings: &Settings) -> anyhow::Result<Queue> {
    let queue = match redis {
        None => Queue::local(),
        Some(uri) => Queue::redis(uri.reveal(), parts::queue_options(settings))
            .await
            .context("redis_uri")?,
    };
    agent::connect(store, &queue);
    Ok(queue)
}

/// Loopback form of an address that may cover all interfaces.
pub fn loopback_address(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// The database is required. Without Redis the server is slower but ready.
fn health(store: &Store, queue: &Queue, draining: CancellationToken) -> Health {
    let workers = parts::drained_workers(store);
    let store = store.clone();
    let database = parts::probe(move || {
        let store = store.clone();
        async move {
            store.check().await.map_err(|error| {
                tracing::debug!(error = &error as &dyn std::error::Error, "the database is unavailable");
                error.user_message()
            })
        }
    });
    let health = Health::new(draining)
        .require("database", database)
        .optional("workers", workers);
    if queue.health().state == towpath_queue::State::Local {
        return health;
    }
    let queue = queue.clone();
    let redis = parts::probe(move || {
        let state = queue.health().state;
        async move {
            match state {
                towpath_queue::State::Down { error, .. } => {
                    tracing::debug!(%error, "redis is unavailable");
                    Err(parts::REDIS_AWAY)
                }
                _ => Ok(()),
            }
        }
    });
    health.optional("redis", redis)
}
