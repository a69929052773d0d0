//! The deployment host, in the one process of an installation that runs deployments.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use towpath_compute::docker::{self, Containers, Network};
use towpath_compute::isolation::{Isolation, IsolationSettings, Level};
use towpath_compute::process::Processes;
use towpath_compute::tree::Limits;
use towpath_compute::{Backend, Root, build, git, process};
use towpath_domain::Secret;
use towpath_outbound::Guard;
use towpath_workflows::deployment_host::{self, DeploymentHost};

use super::{Roles, parts};
use crate::config::{Config, DeploymentBackend, Settings};
use crate::exit::Usage;

/// Time limit of one request to a repository.
const GIT_LIMIT: Duration = Duration::from_secs(300);
/// Interval between health checks of agent servers.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// Variables of this machine that builds and agent servers inherit. Behind a proxy, or with a package mirror, they
/// would reach nothing without them.
const MACHINE: [&str; 18] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_INDEX_URL",
    "PIP_CONFIG_FILE",
    "PIP_TRUSTED_HOST",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "npm_config_registry",
    "NPM_CONFIG_REGISTRY",
    "TZ",
];

/// Variables that name files of this machine, which a container does not have.
const FILES: [&str; 5] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CONFIG_FILE",
];

/// Opens the folder of deployments if this process runs them. It listens at `address`; with TLS, `plain` is its address
/// without TLS.
pub fn open(
    config: &Config,
    roles: Roles,
    guard: &Guard,
    address: SocketAddr,
    plain: Option<SocketAddr>,
) -> anyhow::Result<Option<Arc<DeploymentHost>>> {
    let settings = &config.settings;
    let of_deployments = &settings.deployments;
    let wanted = match of_deployments.backend {
        DeploymentBackend::Auto => roles == Roles::ALL,
        DeploymentBackend::Process | DeploymentBackend::Docker => roles.worker,
        DeploymentBackend::None => false,
    };
    if !wanted {
        return Ok(None);
    }
    let folder = settings.data_dir.join("deployments");
    let root = Root::open(&folder).with_context(|| format!("deployments in {}", folder.display()))?;
    let tree = Limits {
        bytes: of_deployments.source_bytes,
        // Builds start only with at least half of the minimum.
        free: settings.disk_least_free_bytes / 2,
        ..Limits::default()
    };
    let path = path(config);
    let variables: BTreeMap<String, Secret> = MACHINE
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), config.environment.get(name)?.clone())))
        .collect();
    let git = git::Settings {
        transports: of_deployments.git_transports.clone(),
        guard: guard.clone(),
        path: path.clone(),
        limit: GIT_LIMIT,
        tree,
    };
    let isolation = isolation(config, &root.path().join("scratch"))?;
    let build = build::Settings {
        path: path.clone(),
        limit: of_deployments.build_timeout,
        tree,
        variables: variables.clone(),
        launcher: program()?,
        isolation: isolation.clone(),
    };
    let backend = match of_deployments.backend {
        DeploymentBackend::Docker => {
            let own = registries(settings, address);
            let containers = containers(settings, variables, guard.clone(), own, root.clone())?;
            Backend::Docker(Box::new(containers))
        }
        _ => {
            check_isolation(of_deployments.min_isolation, &isolation)?;
            Backend::Process(processes(settings, path, variables, isolation, root.clone())?)
        }
    };
    let settings = deployment_host::Settings {
        keep_artifacts: of_deployments.keep_artifacts.into(),
        health_interval: ASK_EVERY,
        platform_url: platform_url(config, roles, plain.unwrap_or(address)),
        // A process that does not serve the platform only knows its own address.
        public_url: (roles.api || settings.public_url.is_some()).then(|| parts::public_url(settings, address)),
    };
    Ok(Some(Arc::new(DeploymentHost::new(root, backend, git, build, settings))))
}

/// The isolation of processes of deployments on this machine. The folder must exist.
pub fn isolation(config: &Config, folder: &Path) -> anyhow::Result<Isolation> {
    let settings = &config.settings;
    let mut hidden = vec![settings.data_dir.clone()];
    hidden.extend(settings.objects_folder());
    hidden.extend(config.files());
    hidden.extend(settings.tls.as_ref().map(|files| files.key.clone()));
    if let Some(database) = settings.database_uri.reveal().strip_prefix("sqlite://") {
        let database = database.split('?').next().unwrap_or_default();
        hidden.extend(["", "-wal", "-shm"].map(|end| PathBuf::from(format!("{database}{end}"))));
    }
    // Deployments may need the configured interpreter.
    let python = settings.agent.hosts.python.as_deref().and_then(Path::parent);
    let python = python.filter(|folder| folder.is_absolute()).map(Path::display);
    let wish = IsolationSettings {
        program: program()?,
        path: python.map_or_else(|| path(config), |python| format!("{}:{python}", path(config))),
        hidden,
        first_user: settings.deployments.first_user_id,
    };
    Ok(Isolation::new(wish, folder))
}

fn check_isolation(least: Level, isolation: &Isolation) -> anyhow::Result<()> {
    if least > Level::None && isolation.level() < least {
        bail!(Usage(format!(
            "deployments.min_isolation is namespace, which this machine cannot provide for processes: {}. Set it to \
             none, run containers with deployments.backend = docker, or disable deployments with deployments.backend \
             = none",
            isolation.why().unwrap_or_default()
        )));
    }
    Ok(())
}

fn path(config: &Config) -> String {
    let path = config.environment.get("PATH").map(Secret::reveal);
    path.unwrap_or("/usr/local/bin:/usr/bin:/bin").to_owned()
}

fn processes(
    settings: &Settings,
    path: String,
    variables: BTreeMap<String, Secret>,
    isolation: Isolation,
    root: Root,
) -> anyhow::Result<Processes> {
    let settings = process::Settings {
        program: program()?,
        path,
        variables,
        fixed: fixed(settings),
        health: settings.deployments.health_timeout,
        grace: settings.deployments.drain_grace,
        isolation,
        // Shared by the build check and the agent server, and by deployments of one workspace with equal packages.
        hosts: settings.agent.hosts.folder.clone(),
    };
    Ok(Processes::new(settings, root))
}

/// Addresses of the platform's own registry, as in the names of images that were pushed there.
fn registries(settings: &Settings, address: SocketAddr) -> Vec<String> {
    let url = parts::public_url(settings, address);
    let host = url.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    host.map(str::to_owned).into_iter().collect()
}

fn containers(
    settings: &Settings,
    mut variables: BTreeMap<String, Secret>,
    guard: Guard,
    registries: Vec<String>,
    root: Root,
) -> anyhow::Result<Containers> {
    let deployments = &settings.deployments;
    variables.retain(|name, _| !FILES.contains(&name.as_str()));
    let settings = docker::Settings {
        host: deployments.docker.host.clone(),
        network: Network::parse(&deployments.docker.network),
        base_image: deployments.docker.base_image.clone(),
        program: program()?,
        logins: deployments.docker.config.clone(),
        variables,
        fixed: fixed(settings),
        health: deployments.health_timeout,
        grace: deployments.drain_grace,
        build: deployments.build_timeout,
        build_memory_bytes: deployments.docker.build_memory_bytes,
        build_cpus: deployments.docker.build_cpus,
        runtime: deployments.docker.runtime.clone(),
        user: deployments.docker.user.clone(),
        guard,
        registries,
    };
    Ok(Containers::new(settings, root)?)
}

/// Variables that override those of a deployment, so that it cannot enable what the operator has not enabled.
fn fixed(settings: &Settings) -> Vec<(String, String)> {
    let allowed: Vec<String> = settings.outbound_allow.iter().map(ToString::to_string).collect();
    let fixed = [
        ("TOWPATH_OUTBOUND_ALLOW", allowed.join(",")),
        // The gateway connects to agent servers without TLS.
        ("TOWPATH_TLS_CERT", String::new()),
        ("TOWPATH_TLS_KEY", String::new()),
        ("TOWPATH_AGENT_AUTH", "none".to_owned()),
        ("TOWPATH_LOG_FORMAT", "text".to_owned()),
        ("TOWPATH_DATABASE_URI", String::new()),
        ("TOWPATH_REDIS_URI", String::new()),
    ];
    fixed.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// The path of this program, for agent servers. A newer version may have replaced the file.
pub fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let live = PathBuf::from("/proc/self/exe");
    // The kernel marks a replaced file in this way.
    Ok(if own.to_string_lossy().ends_with(" (deleted)") {
        live
    } else {
        own
    })
}

/// Address of the platform for agent servers of this machine: this process if it serves the API, else the public
/// address.
fn platform_url(config: &Config, roles: Roles, address: SocketAddr) -> Option<String> {
    let docker = &config.settings.deployments;
    let apart = docker.backend == DeploymentBackend::Docker && docker.docker.network != "host";
    // A container with its own network has its own loopback.
    if roles.api && !apart {
        // The public address may not be reachable from inside.
        let own = if address.ip().is_unspecified() {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port())
        } else {
            address
        };
        return Some(format!("http://{own}"));
    }
    let public = config.settings.public_url.clone();
    if public.is_none() {
        tracing::warn!("deployments send no traces: set public_url to the address of this platform");
    }
    public.map(|url| url.trim_end_matches('/').to_owned())
}
