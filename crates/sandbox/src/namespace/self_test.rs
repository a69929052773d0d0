//! Whether this machine can have boxes: one is started.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::cgroups::Cgroups;
use super::{NamespaceDriver, NamespaceSettings, missing_limits, self_test_spec};
use crate::driver::{Capabilities, Driver as _, Isolation};
use crate::error::{Error, Result};
use crate::image::ImageSettings;
use crate::program;
use crate::spec::Generation;

/// The only life of the box of a self-test.
const GENERATION: Generation = 1;

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
    let tried = try_sample(driver, id).await;
    tried.map_err(|error| format!("this machine cannot start sandboxes: {}", error_text(&error)))?;
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

/// Starts a box and removes it.
async fn try_sample(driver: &NamespaceDriver, id: Uuid) -> Result<()> {
    // Boxes outlive the platform, and this one must not.
    let guard = Guard::start(driver, id)?;
    let tried = start_sample(driver, id).await;
    let removed = driver.destroy(id, GENERATION).await;
    let removed = removed.and(driver.forget(id).await);
    if removed.is_ok() {
        guard.release().await;
    }
    tried.and(removed)
}

async fn start_sample(driver: &NamespaceDriver, id: Uuid) -> Result<()> {
    driver.start(&self_test_spec(id), GENERATION).await.map(drop)
}

/// A process that removes the box of a self-test when the platform ends in its midst, by whatever signal. Its standard
/// input ends with the platform.
struct Guard(Child);

impl Guard {
    fn start(driver: &NamespaceDriver, id: Uuid) -> Result<Self> {
        let started = Command::new(&driver.settings.program)
            .arg(program::GUARD)
            .arg(&driver.settings.root)
            .arg(driver.settings.first_user.to_string())
            .arg(id.to_string())
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        started
            .map(Self)
            .map_err(Error::io("starting the guard of the self-test"))
    }

    /// Ends it: the box is gone.
    async fn release(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(b"!").await;
        }
        let _ = self.0.wait().await;
    }
}

/// `box-guard`: the folder of sandboxes, the first user and the id of the box.
pub(crate) fn run_guard(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let missing = || io::Error::other("an argument is missing; only the platform starts this command");
    let root = arguments.next().map(PathBuf::from).ok_or_else(missing)?;
    let mut text = || arguments.next()?.into_string().ok();
    let first_user = text().and_then(|text| text.parse().ok()).ok_or_else(missing)?;
    let id: Uuid = text().and_then(|text| text.parse().ok()).ok_or_else(missing)?;
    // A signal to the platform's terminal is none to the guard.
    let _ = nix::unistd::setsid();
    if io::stdin().read(&mut [0])? > 0 {
        return Ok(());
    }
    let driver = NamespaceDriver::with_folders(NamespaceSettings {
        root,
        program: "/proc/self/exe".into(),
        first_user,
        images: ImageSettings::default(),
    });
    // Not begun, or removed with the whole installation.
    if !driver.box_folder(id).is_dir() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Waits for a start in progress, which has the lock of the box.
    let removed = runtime.block_on(async {
        driver.destroy(id, GENERATION).await?;
        driver.forget(id).await
    });
    removed.map_err(io::Error::other)
}

fn error_text(error: &Error) -> String {
    match error {
        Error::Io { what, source } => format!("{what}: {source}"),
        other => other.to_string(),
    }
}
