//! Whether this machine can have boxes: one is started.

use uuid::Uuid;

use super::groups::Groups;
use super::{Namespace, missing, sample};
use crate::driver::{Capabilities, Driver as _, Isolation};
use crate::error::{Error, Result};

pub(super) async fn of(driver: &Namespace) -> std::result::Result<Capabilities, String> {
    let id = Uuid::now_v7();
    let tried = start(driver, id).await;
    let removed = driver.destroy(id, 1).await;
    let forgotten = driver.forget(id).await;
    tried
        .and(removed)
        .and(forgotten)
        .map_err(|error| format!("this machine cannot start boxes: {}", text(&error)))?;
    let groups = Groups::of_machine();
    let is_root = driver.first_user().is_ok_and(|first| first.is_some());
    let mut missing = missing(groups);
    if groups.freezer.is_none() {
        missing.push("boxes cannot be captured while they run: this process may not freeze them".to_owned());
    }
    if !is_root {
        missing.push("the platform is not root: boxes have one user, and volumes no size".to_owned());
    }
    missing.push("files of boxes have no limit of their own on the disk".to_owned());
    Ok(Capabilities {
        isolation: Isolation::Namespace,
        limits_memory: groups.memory.is_some(),
        limits_cpu: groups.cpu.is_some(),
        limits_processes: groups.processes.is_some(),
        limits_disk: false,
        freezes: groups.freezer.is_some(),
        suspends: false,
        mounts_images: is_root && super::volume::can_make_images(),
        missing,
    })
}

async fn start(driver: &Namespace, id: Uuid) -> Result<()> {
    driver.start(&sample(id), 1).await.map(drop)
}

fn text(error: &Error) -> String {
    match error {
        Error::Io { what, source } => format!("{what}: {source}"),
        other => other.to_string(),
    }
}
