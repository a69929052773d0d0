//! An agent server: its own database, workers and scheduler beside its HTTP, alone in a process or inside of `dev`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_api::agent::{Swap, agent_router};
use towpath_api::serve::serve_over;
use towpath_api::{Health, Ops};
use towpath_domain::{Secret, TenantId};
use towpath_durable::Engine;
use towpath_outbound::{Guard, Policy};
use towpath_queue::Queue;
use towpath_runtime::{GraphSet, Graphs};
use towpath_scheduler::Scheduler;
use towpath_store::Store;
use towpath_store::assistants::{self, Content};
use towpath_workers::Workers;
use towpath_workflows::agent::{self, AgentWorld, Live};
use towpath_workflows::tracer::Tracer;

use super::surface::{Surface, mount_prefix};
use super::{Roles, parts};
use crate::config::{Config, Settings};
use crate::data_dir::DataDir;
use crate::graph_file::GraphFile;
use crate::hosting::{self, Hosting, Tracing};
use crate::reload::{Reload, Reloaded, Seen};
use crate::signals::Signals;
use crate::tls::Certificate;

/// The exporter's histograms grow until this is done.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// How long processes of users' graphs may take to end, once nothing runs on them.
const HOST_GRACE: Duration = Duration::from_secs(2);

/// How long the last traces may take to be sent.
const TRACE_GRACE: Duration = Duration::from_secs(2);

/// What an agent server is made of, beside the settings.
pub struct AgentParts {
    /// Where it listens ([`super::listen`]).
    pub listener: TcpListener,
    /// Its database, the schema up to date.
    pub store: Store,
    /// Its data folder, where it alone uses one.
    pub data: Option<DataDir>,
    /// Whose it is.
    pub tenant: TenantId,
    /// Where others reach it, where that is not where it listens.
    pub public_url: Option<String>,
    /// Where API keys are kept, where callers need one.
    pub keys: Option<Store>,
    /// Whether it asks for no key because only this machine reaches it, so that browsers have to be watched.
    pub this_machine_only: bool,
    /// Redis between the processes of one server.
    pub redis: Option<Secret>,
    /// Whether its graphs and webhooks may call this machine.
    pub loopback: bool,
    /// Its graphs.
    pub file: GraphFile,
    /// Its graphs' code, where that was loaded before.
    pub loaded: Option<Loaded>,
    /// Where runs are traced whose authors do not say.
    pub tracing: Option<Tracing>,
    /// Load the graphs anew when their code changes, and serve without them while they cannot be loaded.
    pub watch: bool,
    /// Renders the process's metrics.
    pub metrics: PrometheusHandle,
}

/// Graphs whose code is loaded.
pub struct Loaded {
    hosting: Arc<Hosting>,
    graphs: Graphs,
}

impl Loaded {
    /// Loads them, which may take as long as their imports do.
    ///
    /// # Errors
    /// Their environment cannot be made, or their code cannot be loaded.
    pub async fn new(config: &Config, file: &GraphFile) -> anyhow::Result<Self> {
        let hosting = Arc::new(Hosting::new(config, guard(&config.settings, false), None));
        let graphs = hosting.load(file).await.context("the graphs")?;
        Ok(Self { hosting, graphs })
    }

    /// Ends their processes.
    pub async fn close(self) {
        hosting::close(&Arc::new(self.graphs), HOST_GRACE).await;
    }
}

/// An agent server at work.
pub struct AgentServer {
    address: SocketAddr,
    certificate: Option<Certificate>,
    grace: Duration,
    store: Store,
    /// Cancelled: take nothing more.
    draining: CancellationToken,
    http: JoinHandle<std::io::Result<usize>>,
    workers: Option<Workers>,
    scheduler: Option<Scheduler>,
    upkeep: JoinHandle<()>,
    graphs: GraphSet,
    reload: Option<Reload>,
    tracer: Option<Tracer>,
    /// Its folder of sockets.
    _hosting: Arc<Hosting>,
    /// The folder's lock, given back last.
    _data: Option<DataDir>,
}

impl AgentServer {
    /// Starts the roles. When this returns, the server answers.
    ///
    /// # Errors
    /// When a part cannot be made.
    pub async fn start(config: &Config, roles: Roles, given: AgentParts) -> anyhow::Result<Self> {
        config.switches.apply();
        let settings = &config.settings;
        let listener = given.listener;
        let address = listener.local_addr()?;
        let certificate = Certificate::open(config)?;
        let store = given.store;
        let queue = queue(&store, given.redis.as_ref()).await?;
        let guard = guard(settings, given.loopback);
        // Before the code is loaded: what changes meanwhile is loaded again.
        let seen = if given.watch && given.file.path.is_some() {
            Some(Seen::look(&given.file).await)
        } else {
            None
        };
        let (hosting, graphs) = match given.loaded {
            Some(loaded) => (loaded.hosting, loaded.graphs),
            None => {
                let hosting = Arc::new(Hosting::new(config, guard.clone(), given.tracing));
                let graphs = if roles.api || roles.worker {
                    match hosting.load(&given.file).await {
                        Ok(graphs) => graphs,
                        Err(why) if given.watch => {
                            tracing::error!("{why:#}; the graphs are loaded once this is mended");
                            hosting.declared(&given.file)
                        }
                        Err(why) => return Err(why.context("the graphs")),
                    }
                } else {
                    // The clock needs no graph.
                    hosting.declared(&given.file)
                };
                (hosting, graphs)
            }
        };
        let graphs = GraphSet::new(graphs);
        // Every process that ends jobs must know how they end: also one that only takes requests.
        let mut registry = agent::registry();
        registry.attach(&store);
        offer(&store, given.tenant, &graphs.current()).await?;

        let draining = CancellationToken::new();
        let ops = Ops::new(health(&store, &queue, draining.clone()), given.metrics.clone())
            .behind(settings.metrics_key.as_ref());
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
            tenant: given.tenant,
            keys: given.keys,
            this_machine_only: given.this_machine_only,
            draining: draining.clone(),
            ops: ops.clone(),
        };
        let authored = Live::new(surface.authored(&given.file)?);
        let served = Swap::new(if roles.api {
            agent_router(surface.app(&given.file)?)
        } else {
            towpath_api::health_router(ops)
        });
        let grace = settings.drain_grace;
        let limits = parts::connections(settings);
        let tls = certificate.as_ref().map(Certificate::tls);
        let serve = serve_over(tls, limits, listener, served.router(), draining.clone(), grace);
        let http = tokio::spawn(serve);

        // The scheduler first: on SQLite it readies what an earlier life held, before workers claim.
        let scheduler = if roles.scheduler {
            agent::ensure_sweeps(&store, given.tenant).await?;
            Some(Scheduler::start(&store, parts::scheduler(settings)).await?)
        } else {
            None
        };
        // Of several processes, only those that serve know an address, and theirs may be one of many.
        let listening = roles.api.then(|| {
            let prefix = mount_prefix(settings, &given.file.server);
            format!("{}://{}{prefix}", settings.scheme(), reachable(address))
        });
        let tracer = hosting.tracer(&given.file, settings, &guard);
        let workers = if let Some(engine) = engine {
            let options = parts::pools(settings, &registry.pools());
            let world = Arc::new(AgentWorld {
                runs: towpath_workflows::run_agent::Runs::new(store.clone()),
                store: store.clone(),
                queue: queue.clone(),
                graphs: graphs.clone(),
                tracer: tracer.clone(),
                guard,
                settings: agent::Settings {
                    max_attempts: settings.agent.run_attempts,
                    timeout: settings.agent.run_timeout,
                    events_kept: settings.agent.event_retention,
                    // Readers in other processes find events only in the log.
                    log_all: given.redis.is_none() && roles != Roles::ALL,
                    webhook_secret: settings.agent.webhook_secret.clone(),
                    authored: authored.clone(),
                    api_url: given.public_url.or(listening),
                    keep_checkpoints: settings.agent.keep_checkpoints,
                    checkpoints_kept: settings.agent.checkpoints_kept,
                },
            });
            Some(Workers::start(engine, &queue, &Arc::new(registry), &world, &options)?)
        } else {
            None
        };
        let reload = seen.map(|seen| {
            Reload::start(Reloaded {
                hosting: hosting.clone(),
                file: given.file,
                graphs: graphs.clone(),
                surface,
                served,
                authored,
                seen,
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

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients reach it.
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Keys of the graphs it offers now, sorted.
    pub fn graphs(&self) -> Vec<String> {
        self.graphs.current().ids().map(str::to_owned).collect()
    }

    /// Works until a signal asks it to stop, then drains. A second signal ends the process at once.
    ///
    /// # Errors
    /// When serving breaks, or draining fails.
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
                Ok(Ok(_)) => anyhow!("it ended by itself"),
                Ok(Err(error)) => error.into(),
                Err(error) => error.into(),
            };
            // Work in hand is still given back well.
            self.http = tokio::spawn(async { Ok(0) });
            self.drain().await?;
            return Err(why.context("serving HTTP"));
        }
        self.drain().await
    }

    /// Takes nothing more, lets what is under way finish for the grace time, hands back the rest.
    ///
    /// # Errors
    /// When a part of the process had panicked.
    pub async fn drain(self) -> anyhow::Result<()> {
        self.draining.cancel();
        self.upkeep.abort();
        drop(self.reload);
        let workers = async {
            if let Some(workers) = self.workers {
                let drained = workers.drain(self.grace).await;
                tracing::info!(
                    jobs.at_work = drained.at_work,
                    jobs.handed_back = drained.handed_back,
                    "workers of the agent server drained"
                );
            }
        };
        // Together: both have the same grace.
        let ((), served) = tokio::join!(workers, self.http);
        hosting::close(&self.graphs.current(), HOST_GRACE).await;
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

async fn queue(store: &Store, redis: Option<&Secret>) -> anyhow::Result<Queue> {
    let queue = match redis {
        None => Queue::local(),
        Some(uri) => Queue::redis(uri.reveal(), towpath_queue::Options::default())
            .await
            .context("redis_uri")?,
    };
    agent::connect(store, &queue);
    Ok(queue)
}

/// Each graph has an assistant of its name from the start.
///
/// # Errors
/// Those of the database.
pub async fn offer(store: &Store, tenant: TenantId, graphs: &Graphs) -> anyhow::Result<()> {
    let contents: Vec<Content> = graphs
        .iter()
        .map(|graph| Content {
            graph_id: graph.id().to_owned(),
            name: graph.name().unwrap_or(graph.id()).to_owned(),
            description: graph.description().map(str::to_owned),
            config: "{}".to_owned(),
            context: "{}".to_owned(),
            metadata: r#"{"created_by":"system"}"#.to_owned(),
        })
        .collect();
    store
        .write(async |tx| {
            for content in &contents {
                assistants::ensure_system(tx, tenant, content).await?;
            }
            Ok(())
        })
        .await
        .context("the graphs' assistants")
}

/// Where this machine finds an address that may mean all of its own.
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// The database must answer; without Redis the server is slower, and still ready.
fn health(store: &Store, queue: &Queue, draining: CancellationToken) -> Health {
    let store = store.clone();
    let database = parts::probe(move || {
        let store = store.clone();
        async move {
            store.check().await.map_err(|error| {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "the database is asked in vain"
                );
                error.told()
            })
        }
    });
    let health = Health::new(draining).require("database", database);
    if queue.health().state == towpath_queue::State::Local {
        return health;
    }
    let queue = queue.clone();
    let redis = parts::probe(move || {
        let state = queue.health().state;
        async move {
            match state {
                towpath_queue::State::Down { error, .. } => {
                    tracing::debug!(%error, "redis is asked in vain");
                    Err(parts::REDIS_AWAY)
                }
                _ => Ok(()),
            }
        }
    });
    health.want("redis", redis)
}
