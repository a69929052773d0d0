//! Starts the parts for the roles of this process, and stops them.

mod agent;
pub mod assistants;
mod deployment_host;
mod deployment_role;
mod disks;
mod housekeeping;
mod parts;
mod roles;
mod sandboxes;
pub mod surface;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_api::serve::serve_with_tls;
use towpath_api::{App, Health, Limits, Ops};
use towpath_domain::Secret;
use towpath_durable::Engine;
use towpath_scheduler::Scheduler;
use towpath_store::{Dialect, Store};
use towpath_traces::wal::Wal;
use towpath_workers::Workers;
use towpath_workflows::sandbox_nodes::{lost, pool_of_node};
use towpath_workflows::{flush_wal, sweep_traces};

use crate::config::Config;
use crate::signals::Signals;
use crate::storage::Storage;
use crate::telemetry;
use crate::tls::Certificate;
use deployment_role::{BuildWorkers, DeploymentRole};
use parts::SharedParts;

pub use agent::{AgentParts, AgentServer, LoadedGraphs, loopback_address};
pub use deployment_host::{isolation, program};
pub use parts::drained_message;
pub use roles::Roles;

/// A running process.
pub struct Server {
    address: SocketAddr,
    /// Address without TLS for this machine, if the server uses TLS.
    plain: Option<SocketAddr>,
    certificate: Option<Certificate>,
    grace: Duration,
    store: Store,
    /// Cancelled when the process stops accepting work.
    draining: CancellationToken,
    http: JoinHandle<std::io::Result<usize>>,
    wal: Option<Wal>,
    app: Option<App>,
    workers: Option<Workers>,
    scheduler: Option<Scheduler>,
    upkeep: JoinHandle<()>,
    /// Records when keys are used; only with the API role.
    key_uses: Option<JoinHandle<()>>,
    /// Runs deployments until the token is cancelled.
    deployments: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
    /// Runs the sandbox reconciler; sandboxes keep running after it.
    sandboxes: Option<(CancellationToken, JoinHandle<()>)>,
    /// The folder's lock, released last.
    _data: Option<crate::data_dir::DataDir>,
}

impl Server {
    /// Starts the roles. The process serves requests when this returns.
    pub async fn start(
        config: &Config,
        roles: Roles,
        storage: Storage,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        config.test_switches.apply();
        let settings = &config.settings;
        let Storage { store, data, agents } = storage;
        let certificate = Certificate::open(config)?;
        let listener = listen(settings.listen).await?;
        let address = listener.local_addr()?;
        let plain_listener = match certificate {
            Some(_) if roles.api => Some(listen(settings.tls_plain_listen).await.context("tls.plain_listen")?),
            _ => None,
        };
        let plain = plain_listener.as_ref().map(TcpListener::local_addr).transpose()?;

        let shared = SharedParts::open(config, store.clone()).await?;
        // Every process that ends jobs needs the end handlers, also one that only serves requests.
        let mut registry = towpath_workflows::registry();
        registry.attach(&store);

        let hosting = deployment_host::open(config, roles, shared.guard(), address, plain)?;
        let part = DeploymentRole::of(settings, &store, hosting).await?;
        let draining = CancellationToken::new();
        let machine = sandboxes::open(settings, roles, (&store, shared.sealer()), shared.guard(), &draining).await?;
        let boxes = machine.as_ref().map(|machine| Arc::clone(&machine.host));
        let health = part.add_probe(shared.health(Health::new(draining.clone())));
        let ops = Ops::new(health, metrics.clone())
            .with_key(settings.metrics_key.as_ref())
            .with_gauges(telemetry::watch(store.clone(), roles.to_string()));
        let wal = roles.api.then(|| shared.wal(settings));
        let limits = if roles.api {
            parts::limits(settings).await?
        } else {
            Limits::off()
        };
        let app = wal
            .as_ref()
            .map(|wal| {
                shared.app(
                    settings,
                    address,
                    (agents, boxes.clone(), draining.clone()),
                    wal.clone(),
                    (ops.clone(), limits),
                )
            })
            .transpose()?;
        let router = match &app {
            Some(app) => towpath_api::platform_router(app.clone()),
            None => towpath_api::health_router(ops),
        };
        let grace = settings.drain_grace;
        let limits = parts::connections(settings);
        let tls = certificate.as_ref().map(Certificate::tls);
        let here = plain_listener
            .map(|plain| serve_with_tls(None, limits.clone(), plain, router.clone(), draining.clone(), grace));
        let everybody = serve_with_tls(tls, limits, listener, router, draining.clone(), grace);
        let http = tokio::spawn(async move {
            match here {
                None => everybody.await,
                Some(here) => {
                    let (everybody, here) = tokio::try_join!(everybody, here)?;
                    Ok(everybody + here)
                }
            }
        });

        // The scheduler starts first: on SQLite it recovers jobs of an earlier process life before workers claim.
        let scheduler = if roles.scheduler {
            sweep_traces::ensure(&store).await?;
            let mut scheduler = Scheduler::start(&store, parts::scheduler(settings)).await?;
            let delay = settings.fold_delay;
            scheduler.add("open units", flush_wal::ORPHAN_SCAN_INTERVAL, move |store| {
                Box::pin(async move { flush_wal::ensure_orphans(&store, delay).await.map(drop) })
            });
            scheduler.add("lost nodes of sandboxes", lost::SCAN_INTERVAL, |store| {
                Box::pin(async move { lost::stop_lost(&store).await.map(drop) })
            });
            Some(scheduler)
        } else {
            None
        };
        let mut deployments = None;
        let workers = if roles.worker {
            let engine = Engine::new(store.clone(), parts::engine(settings));
            let registry = Arc::new(registry);
            let mut pools = registry.pools();
            let hosting = part.hosting();
            // These jobs only run where deployments run.
            pools.retain(|pool| *pool != towpath_workflows::deployment_host::POOL || hosting.is_some());
            pools.retain(|pool| *pool != towpath_workflows::sandbox_host::POOL || boxes.is_some());
            let mut options = parts::pools(settings, &pools);
            if let Some(boxes) = &boxes
                && store.dialect() == Dialect::Postgres
            {
                let slots = settings.slots_of(towpath_workflows::sandbox_host::POOL);
                options.pools.push((pool_of_node(boxes.host_id()), slots));
            }
            let mut builds = options.clone();
            builds
                .pools
                .retain(|(pool, _)| pool == towpath_workflows::deployment_host::POOL);
            if matches!(part, DeploymentRole::Standby { .. }) {
                options
                    .pools
                    .retain(|(pool, _)| pool != towpath_workflows::deployment_host::POOL);
            }
            let world = Arc::new(shared.world(settings, hosting, boxes)?);
            let builders = BuildWorkers {
                engine: engine.clone(),
                queue: shared.queue.clone(),
                registry: Arc::clone(&registry),
                options: builds,
                grace,
                draining: draining.clone(),
            };
            deployments = part.start(Arc::clone(&world), builders);
            Some(Workers::start(engine, &shared.queue, &registry, &world, &options)?)
        } else {
            None
        };
        let sandboxes = machine.map(|machine| {
            let stop = CancellationToken::new();
            (stop.clone(), machine.start(stop, draining.clone()))
        });
        let key_uses = app.clone().map(|app| tokio::spawn(housekeeping::record_key_uses(app)));
        let upkeep = tokio::spawn(housekeeping::run(
            store.clone(),
            shared.objects.clone(),
            metrics,
            roles.worker,
        ));
        Ok(Self {
            address,
            plain,
            certificate,
            grace,
            store,
            draining,
            http,
            wal,
            app,
            workers,
            scheduler,
            upkeep,
            key_uses,
            deployments,
            sandboxes,
            _data: data,
        })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Public address for browsers and SDKs.
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Address for programs of this machine, independent of the certificate.
    pub fn local_url(&self) -> String {
        format!("http://{}", loopback_address(self.plain.unwrap_or(self.address)))
    }

    /// A dashboard link that signs in its first reader as the holder of `key`. `None` without an API, and for an
    /// invalid key.
    pub async fn sign_in_link(&self, key: &Secret) -> anyhow::Result<Option<String>> {
        let Some(app) = &self.app else { return Ok(None) };
        let path = app.sign_in_link(key).await?;
        Ok(path.map(|path| format!("{}{path}", self.url())))
    }

    /// Runs until a signal stops it, then drains. A second signal ends the process at once.
    pub async fn run(self, signals: Signals) -> anyhow::Result<()> {
        self.work(signals, None).await
    }

    /// Like [`Server::run`], with an agent server in the same process.
    pub async fn run_with(self, signals: Signals, agent: AgentServer) -> anyhow::Result<()> {
        self.work(signals, Some(agent)).await
    }

    async fn work(mut self, mut signals: Signals, agent: Option<AgentServer>) -> anyhow::Result<()> {
        let broken = tokio::select! {
            number = signals.next() => {
                tracing::info!(signal = number, grace_seconds = self.grace.as_secs(), "draining");
                None
            }
            ended = &mut self.http => {
                let why = match ended {
                    Ok(Ok(_)) => anyhow!("the server ended unexpectedly"),
                    Ok(Err(error)) => error.into(),
                    Err(error) => error.into(),
                };
                // Running jobs are still returned properly.
                self.http = tokio::spawn(async { Ok(0) });
                Some(why.context("serving HTTP"))
            }
            why = deployments_stopped(&mut self.deployments) => Some(why),
        };
        signals.end_at_next();
        if let Some(why) = broken {
            self.drain_with(agent).await?;
            return Err(why);
        }
        self.drain_with(agent).await
    }

    /// Drains both at once, because they share the grace time.
    async fn drain_with(self, agent: Option<AgentServer>) -> anyhow::Result<()> {
        let agent = async {
            match agent {
                Some(agent) => agent.drain().await,
                None => Ok(()),
            }
        };
        let (agent, platform) = tokio::join!(agent, self.drain());
        platform.and(agent)
    }

    /// Stops accepting work, lets running work finish within the grace time, and returns the rest.
    pub async fn drain(self) -> anyhow::Result<()> {
        self.draining.cancel();
        self.upkeep.abort();
        let workers = async {
            if let Some(workers) = self.workers {
                let drained = workers.drain(self.grace).await;
                tracing::info!(
                    jobs.at_work = drained.running,
                    jobs.handed_back = drained.handed_back,
                    "workers drained"
                );
            }
        };
        // Concurrently, because both share the grace time.
        let ((), served) = tokio::join!(workers, self.http);
        // After the requests to deployments and the builds that replace them.
        if let Some((stop, kept)) = self.deployments {
            stop.cancel();
            let _ = kept.await;
        }
        if let Some((stop, kept)) = self.sandboxes {
            stop.cancel();
            let _ = kept.await;
        }
        if let Some(scheduler) = self.scheduler {
            scheduler.stop().await;
        }
        if let (Some(app), Some(key_uses)) = (self.app, self.key_uses) {
            key_uses.abort();
            if let Err(error) = app.record_key_uses().await {
                tracing::debug!(%error, "the last uses of keys could not be recorded");
            }
        }
        // After the last request, so that all acknowledged data is written.
        if let Some(wal) = self.wal {
            wal.close().await;
        }
        self.store.close().await;
        served.context("serving HTTP")?.context("serving HTTP")?;
        tracing::info!("drained");
        Ok(())
    }
}

/// Waits until deployments stop unexpectedly: without this, the process would still report healthy.
async fn deployments_stopped(
    deployments: &mut Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
) -> anyhow::Error {
    let Some((_, keeping)) = deployments else {
        return std::future::pending().await;
    };
    let why = match keeping.await {
        Ok(Ok(())) => anyhow!("the deployment host ended unexpectedly"),
        Ok(Err(error)) => error,
        Err(error) => error.into(),
    };
    *deployments = None;
    why.context("running deployments")
}

/// Binds an address before any worker starts: a port in use is a common mistake and must not cost a claimed job.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}"))
}
