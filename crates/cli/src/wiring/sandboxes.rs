//! The sandbox host of a process that is a node.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_domain::Clock;
use towpath_outbound::Guard;
use towpath_store::Store;
use towpath_store::sandboxes::nodes::{self, NodeRegistration};
use towpath_store::sealing::Sealer;
use towpath_workflows::reconcile_boxes::BoxReconciler;
#[cfg(target_os = "linux")]
use towpath_workflows::sandbox_host::GuardedTransport;
use towpath_workflows::sandbox_host::SandboxHost;
use towpath_workflows::sandbox_nodes::listener::NodeListener;
use uuid::Uuid;

use super::{Roles, parts};
use crate::config::{SandboxMode, Settings};
use crate::exit::Usage;

/// The sandbox host, its reconciler, and its listener for other processes.
pub struct SandboxWiring {
    pub host: Arc<SandboxHost>,
    reconciler: BoxReconciler,
    listener: Option<NodeListener>,
}

impl SandboxWiring {
    /// Runs until `stop` is cancelled. Connections of other processes end when the process begins to drain: they
    /// connect again.
    pub fn start(self, stop: CancellationToken, draining: CancellationToken) -> JoinHandle<()> {
        let Self {
            reconciler, listener, ..
        } = self;
        tokio::spawn(async move {
            let listening = async {
                if let Some(listener) = listener {
                    listener.run(draining).await;
                }
            };
            tokio::join!(reconciler.run(stop), listening);
        })
    }
}

/// Opens the sandbox host and registers it as a node, if this process should run sandboxes.
pub async fn open(
    settings: &Settings,
    roles: Roles,
    (store, sealer): (&Store, &Sealer),
    guard: &Guard,
    draining: &CancellationToken,
) -> anyhow::Result<Option<SandboxWiring>> {
    let node = &settings.sandboxes.node;
    let is_wanted = match settings.sandboxes.enabled {
        SandboxMode::Auto => roles == Roles::ALL,
        SandboxMode::On if roles.worker && (roles.api || node.listen.is_some()) => true,
        SandboxMode::On => {
            let text = "sandboxes.enabled is on, which requires the role worker in this process, and the role api or \
                        sandboxes.node_listen";
            bail!(Usage(text.to_owned()));
        }
        SandboxMode::Off => false,
    };
    if !is_wanted {
        return Ok(None);
    }
    let Some(boxes) = open_host(settings, guard, draining)? else {
        return Ok(None);
    };
    let listener = match node.listen {
        Some(address) => Some(super::listen(address).await.context("sandboxes.node_listen")?),
        None => None,
    };
    let bound = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let registration = NodeRegistration {
        id: boxes.host_id(),
        name: parts::host(),
        address: bound.map(|bound| node.address.clone().unwrap_or_else(|| reachable(bound))),
        process_id: Uuid::now_v7(),
        max_boxes: node.max_boxes,
    };
    let registered = store
        .write(async |tx| nodes::register(tx, &registration, node.lease).await)
        .await;
    if !registered.context("registering the node of sandboxes")? {
        tracing::warn!(
            "a process of an older version runs sandboxes, and this one does not: stop that process, and start this \
             one again"
        );
        return Ok(None);
    }
    let boxes = Arc::new(boxes);
    // A trial sandbox shows the capabilities of the machine. The start does not wait for it.
    tokio::spawn(log_capabilities(Arc::clone(&boxes)));
    let (store, sealer) = (store.clone(), sealer.clone());
    let listener =
        listener.map(|listener| NodeListener::new(listener, store.clone(), sealer.clone(), Arc::clone(&boxes)));
    Ok(Some(SandboxWiring {
        reconciler: BoxReconciler::new(store, sealer, Arc::clone(&boxes), registration, node.lease),
        host: boxes,
        listener,
    }))
}

/// The address of a listener for other machines.
fn reachable(bound: SocketAddr) -> String {
    if bound.ip().is_unspecified() {
        format!("{}:{}", parts::host(), bound.port())
    } else {
        bound.to_string()
    }
}

async fn log_capabilities(boxes: Arc<SandboxHost>) {
    match boxes.capabilities().await {
        Ok(capabilities) => tracing::info!(
            driver = boxes.driver.name(),
            missing = capabilities.missing.join(" "),
            "sandboxes can be started"
        ),
        // A request for a sandbox gets the reason.
        Err(error) => tracing::warn!(reason = %error, "sandboxes cannot be started on this machine"),
    }
}

#[cfg(target_os = "linux")]
fn open_host(settings: &Settings, guard: &Guard, draining: &CancellationToken) -> anyhow::Result<Option<SandboxHost>> {
    let folder = settings.data_dir.join("sandboxes");
    let of_driver = towpath_sandbox::NamespaceSettings {
        root: folder.clone(),
        program: super::deployment_host::program()?,
        first_user: settings.sandboxes.first_user_id,
        images: towpath_sandbox::ImageSettings {
            transport: Some(Arc::new(GuardedTransport::new(guard.clone()))),
            max_image_bytes: settings.sandboxes.image_bytes,
            max_total_bytes: settings.sandboxes.images_bytes,
        },
    };
    let driver = towpath_sandbox::NamespaceDriver::new(of_driver);
    let driver = driver.with_context(|| format!("sandboxes in {}", folder.display()))?;
    let machine = settings.sandboxes.host.clone();
    let boxes = SandboxHost::open(Arc::new(driver), &folder, machine, Clock::system(), draining.clone());
    let boxes = boxes.with_context(|| format!("sandboxes in {}", folder.display()))?;
    Ok(Some(boxes))
}

#[cfg(not(target_os = "linux"))]
fn open_host(
    _settings: &Settings,
    _guard: &Guard,
    _draining: &CancellationToken,
) -> anyhow::Result<Option<SandboxHost>> {
    Ok(None)
}
