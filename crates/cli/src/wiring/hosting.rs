//! What runs deployments, in the one process of an installation that does.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use towpath_compute::process::Processes;
use towpath_compute::tree::Limits;
use towpath_compute::{Backend, Root, build, git, process};
use towpath_domain::Secret;
use towpath_outbound::Guard;
use towpath_workflows::hosting::{self, Hosting};

use super::Roles;
use crate::config::{Config, DeploymentBackend};

/// What one question to a repository may take.
const GIT_LIMIT: Duration = Duration::from_secs(300);
/// Variables of this machine that builds and agent servers find too: without them neither reaches anything from
/// behind a proxy, or where packages come from a mirror.
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

/// Takes the folder of deployments, where this process is to run them.
///
/// # Errors
/// When another process does, or the folder cannot be written.
pub fn open(config: &Config, roles: Roles, guard: &Guard, address: SocketAddr) -> anyhow::Result<Option<Arc<Hosting>>> {
    let settings = &config.settings;
    let of_deployments = &settings.deployments;
    let wanted = match of_deployments.backend {
        DeploymentBackend::Auto => roles == Roles::ALL,
        DeploymentBackend::Process => roles.worker,
        DeploymentBackend::None => false,
    };
    if !wanted {
        return Ok(None);
    }
    let folder = settings.data_dir.join("deployments");
    let root = Root::open(&folder).with_context(|| format!("deployments in {}", folder.display()))?;
    let tree = Limits {
        bytes: of_deployments.source_bytes,
        ..Limits::default()
    };
    let path = config
        .environment
        .get("PATH")
        .map_or("/usr/local/bin:/usr/bin:/bin", Secret::reveal)
        .to_owned();
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
    let build = build::Settings {
        path: path.clone(),
        limit: of_deployments.build_timeout,
        tree,
        variables: variables.clone(),
    };
    let allowed: Vec<String> = settings.outbound_allow.iter().map(ToString::to_string).collect();
    let backend = Backend::Process(Processes::new(
        process::Settings {
            program: program()?,
            path,
            variables,
            // Of a deployment's own variables none opens what the operator has not opened.
            fixed: vec![
                ("TOWPATH_OUTBOUND_ALLOW".to_owned(), allowed.join(",")),
                ("TOWPATH_AGENT_AUTH".to_owned(), "none".to_owned()),
                // Shared by the check and what serves, and by deployments that want the same packages.
                (
                    "TOWPATH_AGENT_HOSTS_DIR".to_owned(),
                    settings.agent.hosts.folder.display().to_string(),
                ),
                ("TOWPATH_LOG_FORMAT".to_owned(), "text".to_owned()),
                ("TOWPATH_DATABASE_URI".to_owned(), String::new()),
                ("TOWPATH_REDIS_URI".to_owned(), String::new()),
            ],
            health: of_deployments.health_timeout,
            grace: of_deployments.drain_grace,
        },
        root.clone(),
    ));
    let settings = hosting::Settings {
        keep_artifacts: of_deployments.keep_artifacts.into(),
        platform_url: platform_url(config, roles, address),
    };
    Ok(Some(Arc::new(Hosting::new(root, backend, git, build, settings))))
}

/// This program, for agent servers. The file it was started from may have been replaced by a newer one meanwhile.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let live = PathBuf::from("/proc/self/exe");
    // The kernel names a replaced file so.
    Ok(if own.to_string_lossy().ends_with(" (deleted)") {
        live
    } else {
        own
    })
}

/// Where agent servers of this machine reach the platform: here, where this process answers for it, else where
/// everybody does.
fn platform_url(config: &Config, roles: Roles, address: SocketAddr) -> Option<String> {
    if roles.api {
        // Not the public one: that may not be reached from inside.
        let own = if address.ip().is_unspecified() {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port())
        } else {
            address
        };
        return Some(format!("http://{own}"));
    }
    let public = config.settings.public_url.clone();
    if public.is_none() {
        tracing::warn!("deployments send no traces: say as public_url where this platform is reached");
    }
    public.map(|url| url.trim_end_matches('/').to_owned())
}
