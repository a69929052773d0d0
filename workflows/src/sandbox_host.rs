//! The sandbox host: the machine of a process that runs sandboxes.

pub mod fake_driver;
mod memory;
mod network;
mod registry;
mod usage;
mod volumes;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::BoxConfig;
use towpath_domain::{BoxId, Clock};
use towpath_outbound::AllowEntry;
use towpath_sandbox::{BoxAgent, BoxHandle, Capabilities, Driver, Error, Isolation, Limits};
use towpath_store::sandboxes::boxes::SandboxBox;
use towpath_store::sandboxes::nodes::NodeReport;
use uuid::Uuid;

pub use network::compile as compile_network;
pub use registry::GuardedTransport;
pub(crate) use registry::image_request;
pub use usage::UseGuard;

pub const POOL: &str = "sandboxes";
/// Maximum number of connections of a sandbox.
pub const MAX_CONNECTIONS: usize = 256;
/// The file with the id of the folder.
const HOST_ID: &str = "host.id";

#[derive(Clone, Debug)]
pub struct SandboxHostSettings {
    /// Weaker isolation is refused.
    pub min_isolation: Isolation,
    /// Whether a sandbox starts whose limits this machine cannot enforce.
    pub allow_unenforced: bool,
    /// Memory of a sandbox that requests none, if the machine can limit it.
    pub memory_bytes: u64,
    /// Maximum processes of a sandbox, if the machine can limit them.
    pub processes: u64,
    /// Time for commands to end when their sandbox stops.
    pub grace: Duration,
    /// Private addresses that sandboxes may call if their configuration allows it.
    pub network_allow: Vec<AllowEntry>,
}

impl Default for SandboxHostSettings {
    fn default() -> Self {
        Self {
            min_isolation: Isolation::Namespace,
            allow_unenforced: false,
            memory_bytes: 4 << 30,
            processes: 4096,
            grace: Duration::from_secs(5),
            network_allow: Vec::new(),
        }
    }
}

/// A driver and the state of its sandboxes in this process.
#[derive(Debug)]
pub struct SandboxHost {
    pub driver: Arc<dyn Driver>,
    pub settings: SandboxHostSettings,
    /// Cancelled when the process begins to drain.
    pub draining: CancellationToken,
    host_id: Uuid,
    clock: Clock,
    handles: Mutex<HashMap<BoxId, BoxHandle>>,
    usage: Mutex<usage::BoxUsage>,
    networks: network::BoxNetworks,
    changes: watch::Sender<u64>,
    capabilities: OnceCell<Capabilities>,
    /// Why the last probe of the capabilities failed.
    probe_error: Mutex<Option<String>>,
    is_lost: AtomicBool,
    /// The system releases the lock with the file, also when the process is killed.
    _lock: File,
}

impl SandboxHost {
    /// Opens the folder, creates it if necessary, and takes its lock.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(
        driver: Arc<dyn Driver>,
        folder: &Path,
        settings: SandboxHostSettings,
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
                let text = "another process runs sandboxes there: each process needs a data folder of its own";
                return Err(io::Error::other(text));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self {
            networks: network::BoxNetworks::new(settings.network_allow.clone()),
            driver,
            settings,
            draining,
            host_id: load_host_id(folder)?,
            clock,
            handles: Mutex::default(),
            usage: Mutex::default(),
            changes: watch::Sender::new(0),
            capabilities: OnceCell::new(),
            probe_error: Mutex::default(),
            is_lost: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// Id of the folder, which identifies the machine and the path.
    #[must_use]
    pub const fn host_id(&self) -> Uuid {
        self.host_id
    }

    /// Whether another process runs the sandboxes of this node.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }

    /// Capabilities of the driver, which satisfy `sandboxes.min_isolation`. The error names what the machine lacks.
    pub async fn capabilities(&self) -> Result<&Capabilities, Error> {
        let probed = self.capabilities.get_or_try_init(|| self.driver.capabilities()).await;
        *self.probe_error.lock() = probed.as_ref().err().map(ToString::to_string);
        self.check_isolation(probed?)
    }

    fn check_isolation<'a>(&self, found: &'a Capabilities) -> Result<&'a Capabilities, Error> {
        if found.isolation < self.settings.min_isolation {
            return Err(Error::Unsupported(format!(
                "sandboxes of the driver {} are isolated by {}, and sandboxes.min_isolation requires {}",
                self.driver.name(),
                isolation_name(found.isolation),
                isolation_name(self.settings.min_isolation),
            )));
        }
        Ok(found)
    }

    /// What the node reports of itself. The isolation is reported once it was probed.
    pub(crate) fn node_report(&self) -> NodeReport {
        let memory = memory::read();
        let mut report = NodeReport {
            memory_bytes: memory.total_bytes,
            free_memory_bytes: memory.free_bytes,
            ..NodeReport::default()
        };
        match self.capabilities.get().map(|found| self.check_isolation(found)) {
            Some(Ok(found)) => report.isolation = Some(isolation_name(found.isolation).to_owned()),
            Some(Err(error)) => report.trouble = Some(error.to_string()),
            None => report.trouble = self.probe_error.lock().clone(),
        }
        report
    }

    /// The enforced limits of a sandbox, and the names of those that the machine does not enforce. Fails if a requested
    /// limit is not enforced, unless the settings allow it.
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
                machine.can_limit_memory,
            ),
            cpu_millis: limit("cpu", config.cpu_millis(), None, machine.can_limit_cpu),
            processes: limit("processes", None, Some(settings.processes), machine.can_limit_processes),
            disk_bytes: limit("disk", config.fs_capacity_bytes, None, machine.can_limit_disk),
        };
        if !unenforced.is_empty() && !settings.allow_unenforced {
            return Err(Error::Unsupported(format!(
                "this machine cannot limit {} of a sandbox: {} Ask for no such limit, or set \
                 sandboxes.unenforced_limits to allow",
                unenforced.join(", "),
                machine.missing.join(" "),
            )));
        }
        Ok((limits, unenforced))
    }

    /// The agent of a running sandbox; `None` if this life of it is not running.
    pub async fn agent(&self, row: &SandboxBox) -> Result<Option<BoxAgent>, Error> {
        let Some(handle) = self.handle(row).await? else {
            return Ok(None);
        };
        let agent = self.driver.agent(&handle);
        let config = row.config().ok().and_then(|config| config.run_config);
        Ok(Some(match config.and_then(|config| config.user) {
            Some(user) => agent.with_user(&user),
            None => agent,
        }))
    }

    /// The running sandbox; `None` if this life of it is not running.
    async fn handle(&self, row: &SandboxBox) -> Result<Option<BoxHandle>, Error> {
        let generation = driver_generation(row.generation);
        let known = self
            .handles
            .lock()
            .get(&row.id)
            .filter(|handle| handle.generation == generation)
            .cloned();
        if known.is_some() {
            return Ok(known);
        }
        let adopted = self.driver.adopt(row.id.0, generation).await?;
        if let Some(handle) = &adopted {
            self.insert_handle(row.id, handle.clone());
        }
        Ok(adopted)
    }

    pub(crate) fn insert_handle(&self, id: BoxId, handle: BoxHandle) {
        self.handles.lock().insert(id, handle);
    }

    /// Drops the connection data of a sandbox that does not answer.
    pub fn remove_handle(&self, id: BoxId) {
        self.handles.lock().remove(&id);
    }

    /// Tells waiting requests that a sandbox has changed.
    pub fn notify_change(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Subscribes to changes that this process makes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// The generation in the format of the driver.
pub(crate) fn driver_generation(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or_default()
}

/// The isolation in the format of rows and settings.
#[must_use]
pub const fn isolation_name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Namespace => "namespace",
        Isolation::Gvisor => "gvisor",
        Isolation::Vm => "vm",
    }
}

/// The error for the owner of a sandbox. Its source may contain paths of the host and is only logged.
pub(crate) fn error_text(error: &Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        tracing::warn!(%error, source, "the sandbox driver failed");
    }
    error.to_string()
}

fn load_host_id(folder: &Path) -> io::Result<Uuid> {
    let path = folder.join(HOST_ID);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let malformed = |_| {
                io::Error::other(format!(
                    "{HOST_ID} contains no id; remove the file if no sandbox must be kept"
                ))
            };
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
