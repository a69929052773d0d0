//! The parts, made from settings.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use towpath_api::limits::{Own, Table};
use towpath_api::ops::Probe;
use towpath_api::{App, Health, Limits, Ops, Parts, Reading};
use towpath_domain::export::Credentials;
use towpath_domain::{Clock, Disks, Secret};
use towpath_outbound::{Guard, Policy};
use towpath_query::Reader;
use towpath_queue::{Queue, Windows};
use towpath_store::Store;
use towpath_store::sealing::Sealer;
use towpath_traces::objects::Objects;
use towpath_traces::wal::{self, Wal};
use towpath_workflows::boxes::Boxes;
use towpath_workflows::fold_units;
use towpath_workflows::heavy::Heavy;
use towpath_workflows::hosting::Hosting;
use towpath_workflows::world::{Keeping, Sizes, World};

use crate::config::{Config, DeploymentBackend, Mode, Settings};
use crate::storage;

use super::disks;

/// More would only make programs slow that look through all they may have.
const OPEN_FILES: u64 = 65_536;

/// What several roles use.
pub struct Shared {
    store: Store,
    /// Wakes and cancel signals.
    pub queue: Queue,
    /// Units and segments.
    pub objects: Objects,
    sealer: Sealer,
    destinations: towpath_outbound::Settings,
    disks: Disks,
}

impl Shared {
    /// Opens what lies outside of the database.
    ///
    /// # Errors
    /// When settings do not fit. A Redis that is away is no error: it is found when it comes back.
    pub async fn open(config: &Config, store: Store) -> anyhow::Result<Self> {
        let settings = &config.settings;
        let queue = match &settings.redis_uri {
            None => Queue::local(),
            Some(uri) => Queue::redis(uri.reveal(), towpath_queue::Options::default())
                .await
                .context("redis_uri")?,
        };
        let hints = queue.clone();
        store.on_hints(move |told| {
            for pool in &told.wakes {
                hints.wake(pool);
            }
            if !told.cancels.is_empty() {
                hints.cancel(&told.cancels);
            }
        });
        let aws = config
            .aws
            .iter()
            .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
            .collect();
        let objects = Objects::open(&settings.objects, &aws)
            .context("objects")?
            .with_index_cache(settings.index_cache_bytes);
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

    /// The write-ahead log of ingest.
    pub fn wal(&self, settings: &Settings) -> Wal {
        let options = wal::Options {
            backlog_bytes: settings.ingest_backlog_bytes,
            ..wal::Options::for_store(&self.objects)
        };
        Wal::new(
            self.store.clone(),
            self.objects.clone(),
            options,
            fold_units::on_registered(settings.fold_delay),
        )
    }

    /// The platform surface.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn app(
        &self,
        settings: &Settings,
        address: SocketAddr,
        (agents, boxes): (Option<Store>, Option<Arc<Boxes>>),
        wal: Wal,
        (ops, limits): (Ops, Limits),
    ) -> anyhow::Result<App> {
        let reader = Reader::new(self.store.clone(), self.objects.clone());
        // Queries work on threads made for them; this one only waits.
        let threads = Heavy::with_threads(1).context("threads for queries")?;
        let reading = Reading::new(reader, threads);
        Ok(App::new(Parts {
            store: self.store.clone(),
            agents,
            queue: self.queue.clone(),
            wal,
            reading,
            objects: self.objects.clone(),
            sealer: self.sealer.clone(),
            destinations: self.destinations.clone(),
            disk: self.disks.data.clone(),
            clock: Clock::system(),
            ops,
            boxes,
            limits,
            settings: towpath_api::Settings {
                requests: settings.requests,
                failed_keys_per_minute: settings.failed_keys_per_minute,
                stored_bytes_per_workspace: settings.stored_bytes_per_workspace,
                ingest_body_bytes: settings.ingest_body_bytes,
                ingest_memory_bytes: settings.ingest_memory_bytes,
                exports: settings.exports,
                sandboxes: settings.sandboxes.quota,
                loopback: address.ip().is_loopback(),
                public_url: public_url(settings, address),
                hold: settings.deployments.hold,
                one_workspace: settings.deployments.one_workspace
                    && settings.deployments.backend != DeploymentBackend::Docker,
                gateway_access: settings.deployments.access,
                gateway_own_auth: settings.deployments.own_auth,
            },
        }))
    }

    /// Judges addresses that users gave.
    pub const fn guard(&self) -> &Guard {
        &self.destinations.guard
    }

    /// What workflows need.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn world(
        &self,
        settings: &Settings,
        hosting: Option<Arc<Hosting>>,
        boxes: Option<Arc<Boxes>>,
    ) -> anyhow::Result<World> {
        Ok(World {
            store: self.store.clone(),
            objects: self.objects.clone(),
            sealer: self.sealer.clone(),
            destinations: self.destinations.clone(),
            heavy: Heavy::new().context("threads for heavy work")?,
            hosting,
            boxes,
            disks: self.disks.clone(),
            sizes: Sizes {
                file_bytes: settings.export_file_bytes,
                fold_delay: settings.fold_delay,
                pending: settings.pending,
                ..Sizes::default()
            },
            exports: settings.exports,
            keeping: Keeping {
                days: settings.retention_days,
                quarantine: settings.quarantine,
                ..Keeping::default()
            },
        })
    }

    /// What readiness asks for: the database must answer. Without the others the process still does part of its work.
    pub fn health(&self, health: Health) -> Health {
        let store = self.store.clone();
        let database = probe(move || {
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
        let objects = self.objects.clone();
        let objects = probe(move || {
            let objects = objects.clone();
            async move { objects.check().await }
        });
        let disk = self.disks.data.clone();
        let disk = probe(move || std::future::ready(if disk.is_low() { Err(DISK_LOW) } else { Ok(()) }));
        let health = health.require("database", database).want("objects", objects);
        let health = health.want("disk", disk);
        let queue = self.queue.clone();
        if queue.health().state == towpath_queue::State::Local {
            return health;
        }
        let redis = probe(move || {
            let state = queue.health().state;
            async move {
                match state {
                    towpath_queue::State::Down { error, .. } => {
                        tracing::debug!(%error, "redis is asked in vain");
                        Err(REDIS_AWAY)
                    }
                    _ => Ok(()),
                }
            }
        });
        health.want("redis", redis)
    }
}

/// Told where the disk has less room than it has to have.
const DISK_LOW: &str = "less is free than disk.least_free_mb: new work is refused until there is room";

/// Told where Redis is away: the error itself names addresses.
pub(super) const REDIS_AWAY: &str = "it does not answer as it should; work is found by looking";

pub(super) fn probe<F: Future<Output = Result<(), &'static str>> + Send + 'static>(
    ask: impl Fn() -> F + Send + Sync + 'static,
) -> Probe {
    Box::new(move || Box::pin(ask()))
}

/// Times of the engine.
pub fn engine(settings: &Settings) -> towpath_durable::Settings {
    towpath_durable::Settings {
        lease: settings.lease,
        ..towpath_durable::Settings::default()
    }
}

/// How many connections a listener takes.
pub fn connections(settings: &Settings) -> towpath_api::serve::Limits {
    let usual = towpath_api::serve::Limits::default();
    let files = open_files();
    // Each is an open file. A quarter is for what is opened to answer, and an eighth for other addresses.
    let connections = usual.connections.min(files - files / 4);
    let of_one = connections - connections / 8;
    if connections < usual.connections {
        tracing::info!(
            open_files = files,
            connections,
            "fewer connections than usual fit into the limit of open files"
        );
    }
    towpath_api::serve::Limits {
        connections,
        per_peer: settings.connections_per_address.min(of_one),
        per_neighbour: usual.per_neighbour.min(of_one),
        proxies: settings.trusted_proxies.clone(),
    }
}

/// How many files this process may have open, after asking for as many as it may have: systems give a program a thousand
/// where it does not ask.
fn open_files() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    let wanted = hard.min(OPEN_FILES);
    let raised = soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    usize::try_from(if raised { wanted } else { soft }).unwrap_or(usize::MAX)
}

/// How often one caller of the platform may ask. Shared by all processes where there is a Redis.
///
/// # Errors
/// When there are no rules that can be used.
pub async fn limits(settings: &Settings) -> anyhow::Result<Limits> {
    let table = match settings.limits.rules.as_str() {
        "off" => None,
        rules => Some(Table::load(rules).with_context(|| format!("limits.rules: {rules}"))?),
    };
    let own = settings.limits.own;
    if table.is_none() && own == Own::default() {
        return Ok(Limits::off());
    }
    let clock = Clock::system();
    let windows = match &settings.redis_uri {
        None => Windows::local(clock.clone()),
        Some(uri) => Windows::redis(uri.reveal(), towpath_queue::Options::default())
            .await
            .context("redis_uri")?,
    };
    Ok(Limits::new(table, own, windows, clock))
}

/// Times of the scheduler.
pub fn scheduler(settings: &Settings) -> towpath_scheduler::Settings {
    towpath_scheduler::Settings {
        lease: settings.lease,
        ..towpath_scheduler::Settings::default()
    }
}

/// Which pools this process serves, and with how many slots.
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
        fallback: Duration::from_secs(1),
        ..towpath_workers::Options::new(known.iter().map(|pool| (*pool, settings.slots_of(pool))))
    }
}

/// The machine's name, for operators.
pub fn host() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    host.unwrap_or_else(|| "localhost".to_owned())
}

/// Where others reach the platform: as configured, else where it listens.
pub fn public_url(settings: &Settings, address: SocketAddr) -> String {
    if let Some(url) = &settings.public_url {
        return url.trim_end_matches('/').to_owned();
    }
    // Nobody can call "any address"; from this machine the loopback one is answered.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{}://{}", settings.scheme(), SocketAddr::new(ip, address.port()))
}

/// The credentials of this process's own environment, where it has any.
fn own_credentials(aws: &BTreeMap<String, Secret>) -> Option<Credentials> {
    Some(Credentials {
        access_key_id: aws.get("AWS_ACCESS_KEY_ID")?.clone(),
        secret_access_key: aws.get("AWS_SECRET_ACCESS_KEY")?.clone(),
        session_token: aws.get("AWS_SESSION_TOKEN").cloned(),
    })
}
