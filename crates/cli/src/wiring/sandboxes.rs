//! The sandbox host, in the one process of an installation that runs sandboxes.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use tokio_util::sync::CancellationToken;
use towpath_domain::Clock;
use towpath_outbound::Guard;
use towpath_store::Store;
use towpath_store::sandboxes::hosts::{self, HostLease};
use towpath_store::sealing::Sealer;
use towpath_workflows::reconcile_boxes::{BoxReconciler, LEASE_DURATION};
#[cfg(target_os = "linux")]
use towpath_workflows::sandbox_host::GuardedTransport;
use towpath_workflows::sandbox_host::SandboxHost;
use uuid::Uuid;

use super::{Roles, parts};
use crate::config::{SandboxMode, Settings};
use crate::exit::Usage;

/// The sandbox host and its reconciler.
pub struct SandboxWiring {
    pub host: Arc<SandboxHost>,
    pub reconciler: BoxReconciler,
}

/// Opens the sandbox host, if this process should run it and no other does.
pub async fn open(
    settings: &Settings,
    roles: Roles,
    (store, sealer): (&Store, &Sealer),
    guard: &Guard,
    draining: &CancellationToken,
) -> anyhow::Result<Option<SandboxWiring>> {
    let is_wanted = match settings.sandboxes.enabled {
        SandboxMode::Auto => roles == Roles::ALL,
        SandboxMode::On if roles.api && roles.worker => true,
        SandboxMode::On => {
            let text = "sandboxes.enabled is on, which requires the roles api and worker in this process";
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
    let claim = HostLease {
        host_id: boxes.host_id(),
        host: parts::host(),
        process_id: Uuid::now_v7(),
    };
    let taken = store
        .write(async |tx| hosts::acquire(tx, &claim, LEASE_DURATION).await)
        .await;
    if !taken.context("acquiring the lock of sandboxes")? {
        let holder = store.read(async |tx| hosts::holder(tx).await).await?;
        tracing::warn!(
            holder = holder.unwrap_or_default(),
            "another process of this installation runs sandboxes, and this one does not"
        );
        return Ok(None);
    }
    let boxes = Arc::new(boxes);
    // A trial sandbox shows the capabilities of the machine. The start does not wait for it.
    tokio::spawn(log_capabilities(Arc::clone(&boxes)));
    Ok(Some(SandboxWiring {
        reconciler: BoxReconciler::new(store.clone(), sealer.clone(), Arc::clone(&boxes), claim),
        host: boxes,
    }))
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
