//! Puts the rooms together for the roles of this process, and takes them apart again.

mod agent;
mod disks;
mod hosting;
mod housekeeping;
mod keeper;
mod parts;
mod roles;
mod sandboxes;
mod surface;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_api::serve::serve_over;
use towpath_api::{App, Health, Limits, Ops};
use towpath_domain::Secret;
use towpath_durable::Engine;
use towpath_scheduler::Scheduler;
use towpath_store::Store;
use towpath_traces::wal::Wal;
use towpath_workers::Workers;
use towpath_workflows::{fold_units, sweep_traces};

use crate::config::Config;
use crate::signals::Signals;
use crate::storage::Storage;
use crate::telemetry;
use crate::tls::Certificate;
use keeper::{Builders, Part};
use parts::Shared;

pub use agent::{AgentParts, AgentServer, Loaded, offer, reachable};
pub use hosting::{isolation, program};
pub use roles::Roles;
pub use surface::Surface;

/// A process at work.
pub struct Server {
    address: SocketAddr,
    /// Where it answers this machine without TLS, where it speaks TLS.
    plain: Option<SocketAddr>,
    certificate: Option<Certificate>,
    grace: Duration,
    store: Store,
    /// Cancelled: take nothing more.
    draining: CancellationToken,
    http: JoinHandle<std::io::Result<usize>>,
    wal: Option<Wal>,
    app: Option<App>,
    workers: Option<Workers>,
    scheduler: Option<Scheduler>,
    upkeep: JoinHandle<()>,
    /// Records the use of keys, where there is an API.
    key_uses: Option<JoinHandle<()>>,
    /// Keeps deployments, until it is told to stop them.
    deployments: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
    /// Keeps sandboxes, which run on after that.
    sandboxes: Option<(CancellationToken, JoinHandle<()>)>,
    /// The folder's lock, given back last.
    _data: Option<crate::data_dir::DataDir>,
}

impl Server {
    /// Starts the roles. When this returns, the process answers.
    ///
    /// # Errors
    /// When a part cannot be made, or the address is taken.
    pub async fn start(
        config: &Config,
        roles: Roles,
        storage: Storage,
        metrics: PrometheusHandle,
    ) -> anyhow::Result<Self> {
        config.switches.apply();
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

        let shared = Shared::open(config, store.clone()).await?;
        // Every process that ends jobs must know how they end: also one that only takes requests.
        let mut registry = towpath_workflows::registry();
        registry.attach(&store);

        let hosting = hosting::open(config, roles, shared.guard(), address, plain)?;
        let part = Part::of(settings, &store, hosting).await?;
        let draining = CancellationToken::new();
        let machine = sandboxes::open(settings, roles, &store, &draining).await?;
        let boxes = machine.as_ref().map(|machine| Arc::clone(&machine.boxes));
        let health = part.told(shared.health(Health::new(draining.clone())));
        let ops = Ops::new(health, metrics.clone())
            .behind(settings.metrics_key.as_ref())
            .looking(telemetry::watch(store.clone(), roles.to_string()));
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
                    (agents, boxes.clone()),
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
            .map(|plain| serve_over(None, limits.clone(), plain, router.clone(), draining.clone(), grace));
        let everybody = serve_over(tls, limits, listener, router, draining.clone(), grace);
        let http = tokio::spawn(async move {
            match here {
                None => everybody.await,
                Some(here) => {
                    let (everybody, here) = tokio::try_join!(everybody, here)?;
                    Ok(everybody + here)
                }
            }
        });

        // The scheduler first: on SQLite it readies what an earlier life held, before workers claim.
        let scheduler = if roles.scheduler {
            sweep_traces::ensure(&store).await?;
            let mut scheduler = Scheduler::start(&store, parts::scheduler(settings)).await?;
            let delay = settings.fold_delay;
            scheduler.add("open units", fold_units::LOOK, move |store| {
                Box::pin(async move { fold_units::ensure_left(&store, delay).await.map(drop) })
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
            // Performed where deployments are run, and nowhere else.
            pools.retain(|pool| *pool != towpath_workflows::hosting::POOL || hosting.is_some());
            pools.retain(|pool| *pool != towpath_workflows::boxes::POOL || boxes.is_some());
            let mut options = parts::pools(settings, &pools);
            let mut builds = options.clone();
            builds
                .pools
                .retain(|(pool, _)| pool == towpath_workflows::hosting::POOL);
            if matches!(part, Part::Standby { .. }) {
                options
                    .pools
                    .retain(|(pool, _)| pool != towpath_workflows::hosting::POOL);
            }
            let world = Arc::new(shared.world(settings, hosting, boxes)?);
            let builders = Builders {
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
            (stop.clone(), tokio::spawn(machine.keeper.run(stop)))
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

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients reach it, in a browser or with an SDK.
    pub fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Where programs of this machine reach it, whatever its certificate is for and whoever signed that.
    pub fn local_url(&self) -> String {
        format!("http://{}", reachable(self.plain.unwrap_or(self.address)))
    }

    /// A link that signs its first reader in to the dashboard as the holder of `key`, for the terminal of whoever
    /// started this. `None` without an API, and for a key that opens nothing.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn sign_in_link(&self, key: &Secret) -> anyhow::Result<Option<String>> {
        let Some(app) = &self.app else { return Ok(None) };
        let path = app.sign_in_link(key).await?;
        Ok(path.map(|path| format!("{}{path}", self.url())))
    }

    /// Works until a signal asks it to stop, then drains. A second signal ends the process at once.
    ///
    /// # Errors
    /// When serving breaks, or draining fails.
    pub async fn run(self, signals: Signals) -> anyhow::Result<()> {
        self.work(signals, None).await
    }

    /// As [`Server::run`], with an agent server in the same process.
    ///
    /// # Errors
    /// When either breaks, or draining fails.
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
                    Ok(Ok(_)) => anyhow!("it ended by itself"),
                    Ok(Err(error)) => error.into(),
                    Err(error) => error.into(),
                };
                // Work in hand is still given back well.
                self.http = tokio::spawn(async { Ok(0) });
                Some(why.context("serving HTTP"))
            }
            why = keeping_ended(&mut self.deployments) => Some(why),
        };
        signals.end_at_next();
        if let Some(why) = broken {
            self.drain_with(agent).await?;
            return Err(why);
        }
        self.drain_with(agent).await
    }

    /// Both at once: they have the same grace.
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

    /// Takes nothing more, lets what is under way finish for the grace time, hands back the rest.
    ///
    /// # Errors
    /// When a part of the process had panicked.
    pub async fn drain(self) -> anyhow::Result<()> {
        self.draining.cancel();
        self.upkeep.abort();
        let workers = async {
            if let Some(workers) = self.workers {
                let drained = workers.drain(self.grace).await;
                tracing::info!(
                    jobs.at_work = drained.at_work,
                    jobs.handed_back = drained.handed_back,
                    "workers drained"
                );
            }
        };
        // Together: both have the same grace.
        let ((), served) = tokio::join!(workers, self.http);
        // After the requests that go to them, and the builds that replace them.
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
                tracing::debug!(%error, "the last uses of keys are not written");
            }
        }
        // After the last request: what was promised is written.
        if let Some(wal) = self.wal {
            wal.close().await;
        }
        self.store.close().await;
        served.context("serving HTTP")?.context("serving HTTP")?;
        tracing::info!("drained");
        Ok(())
    }
}

/// Waits until nobody keeps deployments any more, though nobody asked for that: a process without it would look well.
async fn keeping_ended(deployments: &mut Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>) -> anyhow::Error {
    let Some((_, keeping)) = deployments else {
        return std::future::pending().await;
    };
    let why = match keeping.await {
        Ok(Ok(())) => anyhow!("it ended by itself"),
        Ok(Err(error)) => error,
        Err(error) => error.into(),
    };
    *deployments = None;
    why.context("keeping deployments")
}

/// Binds an address. Done before any worker starts: a taken port is the commonest mistake, and must not cost a claimed
/// job.
///
/// # Errors
/// When it is taken, or not one of this machine.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}"))
}
