//! The machine of sandboxes, in the one process of an installation that holds it.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use tokio_util::sync::CancellationToken;
use towpath_domain::Clock;
use towpath_store::Store;
use towpath_store::sandboxes::hosts::{self, Claim};
use towpath_workflows::boxes::Boxes;
use towpath_workflows::keep_boxes::{Keeper, LEASE};
use uuid::Uuid;

use super::{Roles, parts};
use crate::config::{SandboxSwitch, Settings};
use crate::exit::Usage;

/// The machine, and who keeps it.
pub struct Machine {
    /// Starts and stops boxes.
    pub boxes: Arc<Boxes>,
    /// Looks after them.
    pub keeper: Keeper,
}

/// Takes the machine, where this process is to have it and no other has.
///
/// # Errors
/// The folder of boxes cannot be used, or the database does not answer.
pub async fn open(
    settings: &Settings,
    roles: Roles,
    store: &Store,
    draining: &CancellationToken,
) -> anyhow::Result<Option<Machine>> {
    let is_wanted = match settings.sandboxes.enabled {
        SandboxSwitch::Auto => roles == Roles::ALL,
        SandboxSwitch::On if roles.api && roles.worker => true,
        SandboxSwitch::On => {
            let text = "sandboxes.enabled is on, and this process has not both of the roles api and worker";
            bail!(Usage(text.to_owned()));
        }
        SandboxSwitch::Off => false,
    };
    if !is_wanted {
        return Ok(None);
    }
    let Some(boxes) = machine(settings, draining)? else {
        return Ok(None);
    };
    let claim = Claim {
        host_id: boxes.host_id(),
        host: parts::host(),
        life: Uuid::now_v7(),
    };
    let taken = store.write(async |tx| hosts::take(tx, &claim, LEASE).await).await;
    if !taken.context("taking the machine of sandboxes")? {
        let holder = store.read(async |tx| hosts::current(tx).await).await?;
        tracing::warn!(
            holder = holder.unwrap_or_default(),
            "another process of this installation holds the machine of sandboxes, and this one does not"
        );
        return Ok(None);
    }
    match boxes.capabilities().await {
        Ok(capabilities) => tracing::info!(
            driver = boxes.driver.name(),
            missing = capabilities.missing.join(" "),
            "sandboxes can be started"
        ),
        // Whoever asks for one is told why.
        Err(error) => tracing::warn!(reason = %error, "no sandbox can be started on this machine"),
    }
    let boxes = Arc::new(boxes);
    Ok(Some(Machine {
        keeper: Keeper::new(store.clone(), Arc::clone(&boxes), claim),
        boxes,
    }))
}

#[cfg(target_os = "linux")]
fn machine(settings: &Settings, draining: &CancellationToken) -> anyhow::Result<Option<Boxes>> {
    let folder = settings.data_dir.join("sandboxes");
    let of_driver = towpath_sandbox::Settings {
        root: folder.clone(),
        program: super::hosting::program()?,
        first_user: settings.sandboxes.first_user_id,
    };
    let driver = towpath_sandbox::Namespace::new(of_driver);
    let driver = driver.with_context(|| format!("sandboxes in {}", folder.display()))?;
    let machine = settings.sandboxes.machine.clone();
    let boxes = Boxes::open(Arc::new(driver), &folder, machine, Clock::system(), draining.clone());
    let boxes = boxes.with_context(|| format!("sandboxes in {}", folder.display()))?;
    Ok(Some(boxes))
}

#[cfg(not(target_os = "linux"))]
fn machine(_settings: &Settings, _draining: &CancellationToken) -> anyhow::Result<Option<Boxes>> {
    Ok(None)
}
