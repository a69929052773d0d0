//! Whether this machine can have boxes: one is started.

use uuid::Uuid;

use super::cgroups::Cgroups;
use super::{NamespaceDriver, missing_limits, self_test_spec};
use crate::driver::{Capabilities, Driver as _, Isolation};
use crate::error::{Error, Result};

/// Boxes of clients have ids of version 7, those of self-tests of version 4.
pub(super) fn is_self_test(id: Uuid) -> bool {
    id.get_version_num() == 4
}

pub(super) async fn probe_capabilities(driver: &NamespaceDriver) -> std::result::Result<Capabilities, String> {
    remove_leftovers(driver).await;
    #[expect(
        clippy::disallowed_methods,
        reason = "the version tells a self-test from a box of a client"
    )]
    let id = Uuid::new_v4();
    let tried = start_sample(driver, id).await;
    let removed = driver.destroy(id, 1).await;
    let forgotten = driver.forget(id).await;
    tried
        .and(removed)
        .and(forgotten)
        .map_err(|error| format!("this machine cannot start sandboxes: {}", error_text(&error)))?;
    let groups = Cgroups::of_machine();
    let is_root = driver.first_user().is_ok_and(|first| first.is_some());
    let mut missing = missing_limits(groups);
    if groups.freezer.is_none() {
        missing.push("running sandboxes cannot be captured: this process may not freeze them".to_owned());
    }
    if !is_root {
        missing.push(
            "the platform does not run as root: sandboxes have one user, and volumes have no size limit".to_owned(),
        );
    }
    missing.push("the disk usage of sandboxes is not limited".to_owned());
    Ok(Capabilities {
        isolation: Isolation::Namespace,
        can_limit_memory: groups.memory.is_some(),
        can_limit_cpu: groups.cpu.is_some(),
        can_limit_processes: groups.processes.is_some(),
        can_limit_disk: false,
        can_freeze: groups.freezer.is_some(),
        can_suspend: false,
        can_mount_images: is_root && super::volume::can_make_images(),
        missing,
    })
}

/// Removes the boxes of self-tests whose process was killed.
async fn remove_leftovers(driver: &NamespaceDriver) {
    let Ok(boxes) = driver.all_boxes() else {
        return;
    };
    for left in boxes.into_iter().filter(|found| is_self_test(found.id)) {
        let removed = driver.destroy(left.id, left.generation).await;
        if let Err(error) = removed.and(driver.forget(left.id).await) {
            let reason = error_text(&error);
            tracing::warn!(sandbox.id = %left.id, reason, "the box of an earlier self-test cannot be removed");
        }
    }
}

async fn start_sample(driver: &NamespaceDriver, id: Uuid) -> Result<()> {
    driver.start(&self_test_spec(id), 1).await.map(drop)
}

fn error_text(error: &Error) -> String {
    match error {
        Error::Io { what, source } => format!("{what}: {source}"),
        other => other.to_string(),
    }
}
