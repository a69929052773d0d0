//! Builds the parts of a process from its settings.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;
use towpath_api::limits::{PerMinuteLimits, Table};
use towpath_api::ops::Probe;
use towpath_api::{App, Health, Limits, Ops, Parts, QueryExecutor};
use towpath_domain::export::Credentials;
use towpath_domain::{Clock, DiskStatuses, Secret};
use towpath_outbound::{Guard, Policy};
use towpath_query::Reader;
use towpath_queue::{Queue, Windows};
use towpath_store::sealing::Sealer;
use towpath_store::{Store, workers};
use towpath_traces::objects::Objects;
use towpath_traces::prices::PriceBook;
use towpath_traces::wal::{self, Wal};
use towpath_workflows::cpu_pool::CpuPool;
use towpath_workflows::deployment_host::DeploymentHost;
use towpath_workflows::flush_wal;
use towpath_workflows::sandbox_host::SandboxHost;
use towpath_workflows::sandbox_nodes::NodeClient;
use towpath_workflows::services::{Retention, Services, Sizes};

use crate::config::{Config, DeploymentBackend, Mode, Settings};
use crate::storage;

use super::disks;

/// More would slow down programs that iterate over all possible descriptors.
const OPEN_FILES: u64 = 65_536;

/// Parts that several roles use.
pub struct SharedParts {
    store: Store,
    pub queue: Queue,
    /// WAL segments and trace segments.
    pub objects: Objects,
    sealer: Sealer,
    destinations: towpath_outbound::Settings,
    disks: DiskStatuses,
}

impl SharedParts {
    /// Opens everything outside of the database.
    pub async fn open(config: &Config, store: Store) -> anyhow::Result<Self> {
        let settings = &config.settings;
        let queue = match &settings.redis_uri {
            None => Queue::local(),
            Some(uri) => Queue::redis(uri.reveal(), queue_options(settings))
                .await
                .context("redis_uri")?,
        };
        let hints = queue.clone();
        store.on_hints(move |told| towpath_durable::send_hints(&hints, &told));
        let aws = config
            .aws
            .iter()
            .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
            .collect();
        let objects = Objects::open(&settings.objects, &aws)
            .context("objects")?
            .with_index_cache(settings.index_cache_bytes)
            .with_prices(prices(settings.price_file.as_deref()).await?);
        let sealer = storage::sealer(settings, &store).await?;
        let destinations = towpath_outbound::Settings {
            guard: Guard::new(Policy {
                loopback: config.mode == Mode::Dev,
                allow: settings.outbound_allow.clone(),
            }),
            file_root: Some(settings.file_root.clone()),
            environment_credentials: own_credentials(&config.aws).filter(|_| settings.environment_credentials),
        };
        Ok(Self {
            store,
            queue,
            objects,
            sealer,
            destinations,
            disks: disks::watch(settings),
        })
    }

    pub const fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    pub fn wal(&self, settings: &Settings) -> Wal {
        let options = wal::Options {
            backlog_bytes: settings.ingest_backlog_bytes,
            ..wal::Options::for_store(&self.objects)
        };
        Wal::new(
            self.store.clone(),
            self.objects.clone(),
            options,
            flush_wal::on_registered(settings.fold_delay),
        )
    }

    /// The HTTP surface of the platform.
    pub fn app(
        &self,
        settings: &Settings,
        address: SocketAddr,
        (agents, boxes, draining): (Option<Store>, Option<Arc<SandboxHost>>, CancellationToken),
        wal: Wal,
        (ops, limits): (Ops, Limits),
    ) -> anyhow::Result<App> {
        let reader = Reader::new(self.store.clone(), self.objects.clone());
        // Queries run on their own threads; this thread only waits.
        let threads = CpuPool::with_threads(1).context("threads for queries")?;
        let reading = QueryExecutor::new(reader, threads);
        Ok(App::new(Parts {
            store: self.store.clone(),
            agents,
            queue: self.queue.clone(),
            wal,
            queries: reading,
            objects: self.objects.clone(),
            sealer: self.sealer.clone(),
            destinations: self.destinations.clone(),
            disk: self.disks.data.clone(),
            clock: Clock::system(),
            ops,
            sandbox_host: boxes,
            sandbox_nodes: NodeClient::new(self.store.clone(), &self.sealer),
            draining,
            limits,
            settings: towpath_api::Settings {
                max_requests: settings.max_requests,
                failed_keys_per_minute: settings.failed_keys_per_minute,
                stored_bytes_per_workspace: settings.stored_bytes_per_workspace,
                ingest_body_bytes: settings.ingest_body_bytes,
                ingest_memory_bytes: settings.ingest_memory_bytes,
                exports: settings.exports,
                sandbox_quota: settings.sandboxes.quota,
                loopback: address.ip().is_loopback(),
                public_url: public_url(settings, address),
                gateway_wait: settings.deployments.gateway_wait,
                one_workspace: settings.deployments.one_workspace
                    && settings.deployments.backend != DeploymentBackend::Docker,
                gateway_access: settings.deployments.access,
                gateway_own_auth: settings.deployments.own_auth,
            },
        }))
    }

    /// The guard for addresses from users.
    pub const fn guard(&self) -> &Guard {
        &self.destinations.guard
    }

    pub fn world(
        &self,
        settings: &Settings,
        hosting: Option<Arc<DeploymentHost>>,
        boxes: Option<Arc<SandboxHost>>,
    ) -> anyhow::Result<Services> {
        Ok(Services {
            store: self.store.clone(),
            objects: self.objects.clone(),
            sealer: self.sealer.clone(),
            destinations: self.destinations.clone(),
            cpu_pool: CpuPool::new().context("threads for CPU-bound work")?,
            deployment_host: hosting,
            sandbox_host: boxes,
            disks: self.disks.clone(),
            sizes: Sizes {
                file_bytes: settings.export_file_bytes,
                fold_delay: settings.fold_delay,
                pending: settings.pending,
                ..Sizes::default()
            },
            exports: settings.exports,
            retention: Retention {
                days: settings.retention_days,
                quarantine: settings.quarantine,
                ..Retention::default()
            },
        })
    }

    /// The readiness probes: only the database is required, because without the others the process still does part of
    /// its work.
    pub fn health(&self, health: Health) -> Health {
        let store = self.store.clone();
        let database = probe(move || {
            let store = store.clone();
            async move {
                store.check().await.map_err(|error| {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the database is unavailable");
                    error.user_message()
                })
            }
        });
        let objects = self.objects.clone();
        let objects = probe(move || {
            let objects = objects.clone();
            async move { objects.check().await }
        });
        let disk = self.disks.data.clone();
        let disk = probe(move || std::future::ready(if disk.is_low() { Err(DISK_LOW) } else { Ok(()) }));
        let health = health.require("database", database).optional("objects", objects);
        let health = health
            .optional("disk", disk)
            .optional("workers", drained_workers(&self.store));
        let queue = self.queue.clone();
        if queue.health().state == towpath_queue::State::Local {
            return health;
        }
        let redis = probe(move || {
            let state = queue.health().state;
            async move {
                match state {
                    towpath_queue::State::Down { error, .. } => {
                        tracing::debug!(%error, "redis is unavailable");
                        Err(REDIS_AWAY)
                    }
                    _ => Ok(()),
                }
            }
        });
        health.optional("redis", redis)
    }
}

const DISK_LOW: &str = "free space is below disk.min_free_mb: new work is refused";

/// Does not include the error, which contains addresses.
pub(super) const REDIS_AWAY: &str = "unavailable; workers poll instead";

pub(super) fn probe<F, E>(ask: impl Fn() -> F + Send + Sync + 'static) -> Probe
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Cow<'static, str>> + 'static,
{
    Box::new(move || {
        let answer = ask();
        Box::pin(async move { answer.await.map_err(Into::<Cow<'static, str>>::into) })
    })
}

/// Reports pools of which operators drained all workers: their jobs wait, and nothing else would say so.
pub(super) fn drained_workers(store: &Store) -> Probe {
    let store = store.clone();
    probe(move || {
        let store = store.clone();
        async move {
            let drained = store.read(async |tx| workers::drained_pools(tx, workers::HEARTBEAT_WINDOW).await);
            // The probe of the database reports its errors.
            match drained.await.unwrap_or_default() {
                pools if pools.is_empty() => Ok(()),
                pools => Err(drained_message(&pools)),
            }
        }
    })
}

/// What to tell of pools without a worker that claims.
pub fn drained_message(pools: &[String]) -> String {
    format!(
        "all workers of the pools {} are drained; resume one with: towpath workers resume ID",
        pools.join(", ")
    )
}

pub fn engine(settings: &Settings) -> towpath_durable::Settings {
    towpath_durable::Settings {
        lease: settings.lease,
        ..towpath_durable::Settings::default()
    }
}

/// Maximum number of connections of a listener.
pub fn connections(settings: &Settings) -> towpath_api::serve::Limits {
    let usual = towpath_api::serve::Limits::default();
    let files = open_files();
    // Each connection is an open file. A quarter of the files is for serving them, and an eighth for other addresses.
    let connections = usual.connections.min(files - files / 4);
    let of_one = connections - connections / 8;
    if connections < usual.connections {
        tracing::info!(
            open_files = files,
            connections,
            "the limit of open files allows fewer connections than the default"
        );
    }
    towpath_api::serve::Limits {
        connections,
        per_peer: settings.connections_per_address.min(of_one),
        per_local_peer: usual.per_local_peer.min(of_one),
        proxies: settings.trusted_proxies.clone(),
    }
}

/// The limit of open files of this process, after raising it to the hard limit: the default soft limit is often a
/// thousand.
fn open_files() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    let wanted = hard.min(OPEN_FILES);
    let raised = soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    usize::try_from(if raised { wanted } else { soft }).unwrap_or(usize::MAX)
}

/// Rate limits of the platform. With Redis, all processes share the counters.
pub async fn limits(settings: &Settings) -> anyhow::Result<Limits> {
    let table = match settings.limits.rules.as_str() {
        "off" => None,
        rules => Some(Table::load(rules).with_context(|| format!("limits.rules: {rules}"))?),
    };
    let own = settings.limits.per_minute;
    if table.is_none() && own == PerMinuteLimits::default() {
        return Ok(Limits::off());
    }
    let clock = Clock::system();
    let windows = match &settings.redis_uri {
        None => Windows::local(clock.clone()),
        Some(uri) => Windows::redis(uri.reveal(), queue_options(settings))
            .await
            .context("redis_uri")?,
    };
    Ok(Limits::new(table, own, windows, clock))
}

pub fn queue_options(settings: &Settings) -> towpath_queue::Options {
    towpath_queue::Options {
        prefix: settings.redis_prefix.clone(),
        dispatch: settings.dispatch,
        ..towpath_queue::Options::default()
    }
}

pub fn scheduler(settings: &Settings) -> towpath_scheduler::Settings {
    towpath_scheduler::Settings {
        lease: settings.lease,
        ..towpath_scheduler::Settings::default()
    }
}

/// The pools that this process serves, with their slots.
pub fn pools(settings: &Settings, known: &[&'static str]) -> towpath_workers::Options {
    for pool in settings
        .pool_slots
        .keys()
        .filter(|pool| !known.contains(&pool.as_str()))
    {
        tracing::warn!(
            pool,
            known = known.join(" "),
            "workers.pool_slots names a pool that no kind of job uses"
        );
    }
    towpath_workers::Options {
        host: host(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        poll_interval: Duration::from_secs(1),
        ..towpath_workers::Options::new(known.iter().map(|pool| (*pool, settings.slots_of(pool))))
    }
}

/// The name of the machine, for operators.
pub fn host() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    host.unwrap_or_else(|| "localhost".to_owned())
}

/// The configured public address, else the listen address.
pub fn public_url(settings: &Settings, address: SocketAddr) -> String {
    if let Some(url) = &settings.public_url {
        return url.trim_end_matches('/').to_owned();
    }
    // Clients cannot connect to an unspecified address; the loopback one works on this machine.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{}://{}", settings.scheme(), SocketAddr::new(ip, address.port()))
}

/// The credentials in the environment of this process, if any.
fn own_credentials(aws: &BTreeMap<String, Secret>) -> Option<Credentials> {
    Some(Credentials {
        access_key_id: aws.get("AWS_ACCESS_KEY_ID")?.clone(),
        secret_access_key: aws.get("AWS_SECRET_ACCESS_KEY")?.clone(),
        session_token: aws.get("AWS_SESSION_TOKEN").cloned(),
    })
}

/// The prices of models, preceded by those of a file.
async fn prices(file: Option<&Path>) -> anyhow::Result<PriceBook> {
    let Some(file) = file else {
        return Ok(PriceBook::default());
    };
    let read = tokio::fs::read_to_string(file).await;
    let text = read.with_context(|| format!("traces.price_file: cannot read {}", file.display()))?;
    let prices = PriceBook::with_file(&text);
    prices.map_err(|error| anyhow::anyhow!("traces.price_file: {}: {error}", file.display()))
}
