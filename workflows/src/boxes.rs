//! The machine of boxes, in the one process of an installation that holds it.

mod activity;
pub mod fake;
mod volumes;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::BoxConfig;
use towpath_domain::{BoxId, Clock};
use towpath_sandbox::{BoxAgent, Capabilities, Driver, Error, Handle, Isolation, Limits};
use towpath_store::sandboxes::boxes::SandboxBox;
use uuid::Uuid;

pub use activity::InUse;

/// The pool of the jobs of boxes.
pub const POOL: &str = "sandboxes";
/// The file with the id of the folder.
const HOST_ID: &str = "host.id";

/// How boxes are kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Weaker isolation is refused.
    pub min_isolation: Isolation,
    /// Whether a box is started whose limits this machine cannot enforce.
    pub allow_unenforced: bool,
    /// Memory of a box that asks for none, where the machine can limit it.
    pub memory_bytes: u64,
    /// Processes of a box, where the machine can limit them.
    pub processes: u64,
    /// What commands get to end when their box stops.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            min_isolation: Isolation::Namespace,
            allow_unenforced: false,
            memory_bytes: 4 << 30,
            processes: 4096,
            grace: Duration::from_secs(5),
        }
    }
}

/// A driver of boxes and what this process knows of its boxes.
#[derive(Debug)]
pub struct Boxes {
    /// Starts and stops boxes.
    pub driver: Arc<dyn Driver>,
    /// How boxes are kept.
    pub settings: Settings,
    /// Cancelled when the process begins to drain.
    pub draining: CancellationToken,
    host_id: Uuid,
    clock: Clock,
    handles: Mutex<HashMap<BoxId, Handle>>,
    used: Mutex<activity::Used>,
    changes: watch::Sender<u64>,
    capabilities: OnceCell<Capabilities>,
    is_lost: AtomicBool,
    /// The lock goes with the file: also when the process is killed.
    _lock: File,
}

impl Boxes {
    /// Takes the folder, which is made where it is missing.
    ///
    /// # Errors
    /// Another process uses it, or it cannot be written.
    pub fn open(
        driver: Arc<dyn Driver>,
        folder: &Path,
        settings: Settings,
        clock: Clock,
        draining: CancellationToken,
    ) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = "another process keeps boxes there: one process of an installation does";
                return Err(io::Error::other(text));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self {
            driver,
            settings,
            draining,
            host_id: host_id(folder)?,
            clock,
            handles: Mutex::default(),
            used: Mutex::default(),
            changes: watch::Sender::new(0),
            capabilities: OnceCell::new(),
            is_lost: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// The id of the folder: of a machine and a place on it.
    #[must_use]
    pub const fn host_id(&self) -> Uuid {
        self.host_id
    }

    /// Whether another process holds the machine of boxes by now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }

    /// What the driver can do here, which is enough for `sandboxes.min_isolation`.
    ///
    /// # Errors
    /// No box can be started here; the text says what the machine lacks.
    pub async fn capabilities(&self) -> Result<&Capabilities, Error> {
        let found = self.capabilities.get_or_try_init(|| self.driver.capabilities()).await?;
        if found.isolation < self.settings.min_isolation {
            return Err(Error::Unsupported(format!(
                "boxes of the driver {} are isolated by {}, and sandboxes.min_isolation asks for {}",
                self.driver.name(),
                isolation_name(found.isolation),
                isolation_name(self.settings.min_isolation),
            )));
        }
        Ok(found)
    }

    /// The limits of a box, as far as the machine enforces them, and the names of those that it does not.
    ///
    /// # Errors
    /// It does not enforce one that was asked for, and the settings do not allow that.
    pub fn limits(&self, config: &BoxConfig, machine: &Capabilities) -> Result<(Limits, Vec<&'static str>), Error> {
        let mut unenforced = Vec::new();
        let mut limit = |name: &'static str, asked: Option<i64>, usual: Option<u64>, is_enforced: bool| {
            let asked = asked.and_then(|amount| u64::try_from(amount).ok());
            if is_enforced {
                return asked.or(usual);
            }
            if asked.is_some() {
                unenforced.push(name);
            }
            None
        };
        let settings = &self.settings;
        let limits = Limits {
            memory_bytes: limit(
                "memory",
                config.mem_bytes,
                Some(settings.memory_bytes),
                machine.limits_memory,
            ),
            cpu_millis: limit("cpu", config.cpu_millis(), None, machine.limits_cpu),
            processes: limit("processes", None, Some(settings.processes), machine.limits_processes),
            disk_bytes: limit("disk", config.fs_capacity_bytes, None, machine.limits_disk),
        };
        if !unenforced.is_empty() && !settings.allow_unenforced {
            return Err(Error::Unsupported(format!(
                "this machine cannot limit {} of a box: {} Ask for no such limit, or set sandboxes.unenforced_limits to allow",
                unenforced.join(", "),
                machine.missing.join(" "),
            )));
        }
        Ok((limits, unenforced))
    }

    /// The agent of a box that runs; `None` where this life of it does not.
    ///
    /// # Errors
    /// Those of the driver.
    pub async fn agent(&self, row: &SandboxBox) -> Result<Option<BoxAgent>, Error> {
        let generation = generation(row.generation);
        let known = lock(&self.handles)
            .get(&row.id)
            .filter(|handle| handle.generation == generation)
            .cloned();
        let handle = match known {
            Some(handle) => handle,
            None => match self.driver.adopt(row.id.0, generation).await? {
                Some(handle) => {
                    self.remember(row.id, handle.clone());
                    handle
                }
                None => return Ok(None),
            },
        };
        let agent = self.driver.dial(&handle);
        let config = row.config().ok().and_then(|config| config.run_config);
        Ok(Some(match config.and_then(|config| config.user) {
            Some(user) => agent.as_user(&user),
            None => agent,
        }))
    }

    pub(crate) fn remember(&self, id: BoxId, handle: Handle) {
        lock(&self.handles).insert(id, handle);
    }

    /// Forgets where a box is reached: it does not answer there.
    pub fn forget(&self, id: BoxId) {
        lock(&self.handles).remove(&id);
    }

    /// Tells waiting requests that a box has changed.
    pub fn announce(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes of boxes from now on, as far as this process makes them.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// As the machine counts lives.
pub(crate) fn generation(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or_default()
}

/// As it stands on boxes and in settings.
#[must_use]
pub const fn isolation_name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Namespace => "namespace",
        Isolation::Gvisor => "gvisor",
        Isolation::Vm => "vm",
    }
}

/// What a driver's error tells the owner of a box. Its source may name paths of the host, so it goes to the log alone.
pub(crate) fn shown(error: &Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        tracing::warn!(%error, source, "a box's machine failed");
    }
    error.to_string()
}

fn host_id(folder: &Path) -> io::Result<Uuid> {
    let path = folder.join(HOST_ID);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let malformed =
                |_| io::Error::other(format!("{HOST_ID} holds no id; remove it where no box is to be kept"));
            text.trim().parse().map_err(malformed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = Uuid::now_v7();
            let partial = folder.join("host.id.partial");
            fs::write(&partial, format!("{id}\n"))?;
            File::open(&partial)?.sync_all()?;
            fs::rename(partial, path)?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

/// Nothing panics half way through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
