//! A process life of a box: preparation, start and end.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::base_image::BaseImage;
use super::box_lock::BoxLock;
use super::cgroups::Cgroups;
use super::libraries::{self, Library};
use super::process_record::ProcessRecord;
use super::{HOST_BASE, NamespaceDriver, blocking, create_private_folder, life_name, proxy_files, remove, volume};
use crate::agent::AgentSetup;
use crate::client::BoxAgent;
use crate::driver::{BoxHandle, Driver as _};
use crate::error::{Error, Result};
use crate::launch::{LAUNCH_FILE, LaunchPlan, ROOT_FOLDER};
use crate::program;
use crate::spec::{BoxSpec, Generation, Layer, VolumeSource};
use crate::tree;

const START_TIMEOUT: Duration = Duration::from_secs(20);
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// How often commands that were asked to end are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Shared memory of a box without a limit of memory.
const SHM_BYTES: u64 = 64 << 20;

/// The lowest layer of a root.
#[derive(Debug, Default)]
struct Base {
    root: PathBuf,
    /// Folders of the host that belong to it.
    readable: Vec<String>,
    /// What the agent needs of the host.
    libraries: Vec<Library>,
    /// How commands run unless the box says otherwise.
    user: Option<String>,
    work_dir: Option<String>,
    env: BTreeMap<String, String>,
}

impl NamespaceDriver {
    /// Every life of a box that left something.
    pub(super) fn lives(&self, id: Uuid) -> Result<Vec<(Generation, PathBuf)>> {
        let prefix = format!("{id}.");
        let mut lives = Vec::new();
        let entries = fs::read_dir(self.settings.root.join("runs")).map_err(Error::io("the folder of sandboxes"))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let generation = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
            if let Some(generation) = generation {
                lives.push((generation, entry.path()));
            }
        }
        Ok(lives)
    }

    /// Ends a life with all it left but its files.
    pub(super) async fn end(&self, id: Uuid, generation: Generation, folder: &Path) -> Result<()> {
        let name = life_name(id, generation);
        let groups = Cgroups::of_machine();
        let what = || format!("ending sandbox {name}");
        // A frozen process ends only when it is thawed.
        groups.thaw(&name).await.map_err(Error::io(what()))?;
        if let Some(record) = ProcessRecord::running(folder).map_err(Error::io(what()))? {
            record.kill(KILL_TIMEOUT).await.map_err(Error::io(what()))?;
        }
        groups.remove(&name).await.map_err(Error::io(what()))?;
        Self::wait_unmounted(folder).await?;
        remove(folder.to_owned()).await
    }

    /// Waits until no volume of a process life is mounted: the kernel writes the last data after the processes have
    /// ended.
    async fn wait_unmounted(folder: &Path) -> Result<()> {
        let what = "the volumes of the sandbox";
        // A start that failed early has none.
        let Ok(launch) = LaunchPlan::read(folder) else {
            return Ok(());
        };
        let begun = Instant::now();
        for mount in &launch.mounts {
            // Others may read it, too.
            let VolumeSource::Image(image) = &mount.source else {
                continue;
            };
            while !mount.read_only && volume::image_use(image).map_err(Error::io(what))? == volume::ImageUse::Write {
                if begun.elapsed() >= KILL_TIMEOUT {
                    return Err(Error::TimedOut("unmounting the volumes of the sandbox"));
                }
                sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Lets the launcher make the box.
    pub(super) async fn launch(&self, spec: &BoxSpec, generation: Generation, lock: &BoxLock) -> Result<BoxHandle> {
        let folder = self.run_folder(spec.id, generation);
        create_private_folder(&folder.join(ROOT_FOLDER))?;
        let launch = self.prepare_launch(spec, generation).await?;
        if spec.has_proxy {
            let (folder, what) = (folder.clone(), "the proxy of the sandbox");
            blocking(what, move || proxy_files::write(&folder).map_err(Error::io(what))).await?;
        }
        let text = serde_json::to_vec(&launch).map_err(|error| Error::Invalid(error.to_string()))?;
        fs::write(folder.join(LAUNCH_FILE), text).map_err(Error::io("the folder of the sandbox"))?;
        let launcher = Command::new(&self.settings.program)
            .arg(program::LAUNCH)
            .arg(&folder)
            .env_clear()
            .stdin(Stdio::from(lock.share()?))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::io("starting the launcher of sandboxes"))?;
        let ended = timeout(START_TIMEOUT, launcher.wait_with_output()).await;
        let ended = ended.map_err(|_| Error::TimedOut("starting the sandbox"))?;
        let ended = ended.map_err(Error::io("starting the sandbox"))?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            let said: Vec<&str> = said.lines().take(3).collect();
            return Err(Error::Io {
                what: "starting the sandbox".to_owned(),
                source: io::Error::other(said.join("; ")),
            });
        }
        let record = ProcessRecord::running(&folder).map_err(Error::io("the record of the sandbox"))?;
        let record = record.ok_or_else(|| Error::Agent("it exited immediately".to_owned()))?;
        let handle = self.handle(spec.id, generation, &record);
        self.agent(&handle).check_ready().await?;
        Ok(handle)
    }

    pub(super) async fn prepare_launch(&self, spec: &BoxSpec, generation: Generation) -> Result<LaunchPlan> {
        let first_user = self.first_user()?;
        for mount in &spec.mounts {
            volume::check_mount(mount)?;
        }
        let folder = self.box_folder(spec.id);
        let (upper, work) = (folder.join("upper"), folder.join("work"));
        if spec.fresh {
            remove(upper.clone()).await?;
        }
        // The kernel's own; what a kill left in it is of no use.
        remove(work.clone()).await?;
        fs::create_dir(&work).map_err(Error::io("the files of the sandbox"))?;
        match fs::create_dir(&upper) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The root of the box, independent of the platform's umask.
            made => made
                .and_then(|()| fs::set_permissions(&upper, fs::Permissions::from_mode(0o755)))
                .map_err(Error::io("the files of the sandbox"))?,
        }
        volume::own(&upper, first_user, 0).map_err(Error::io("the files of the sandbox"))?;
        let base = self.open_base(&spec.root.base, first_user).await?;
        let mut lower = Vec::new();
        for layer in &spec.root.layers {
            let path = self.layer_folder(*layer);
            if !path.is_dir() {
                return Err(Error::NotFound(format!("layer {layer} is not on this machine")));
            }
            lower.push(path);
        }
        lower.push(base.root);
        let name = life_name(spec.id, generation);
        let groups = Cgroups::of_machine().make(&name, &spec.limits);
        Ok(LaunchPlan {
            groups: groups.map_err(Error::io("the control groups of the sandbox"))?,
            first_user,
            hostname: spec.hostname.clone(),
            program: self.settings.program.clone(),
            lower,
            upper,
            work,
            readable: base.readable,
            libraries: base.libraries,
            shm_bytes: spec
                .limits
                .memory_bytes
                .map_or(SHM_BYTES, |bytes| SHM_BYTES.min(bytes / 2)),
            mounts: spec.mounts.clone(),
            agent: AgentSetup {
                user: spec.user.clone().or(base.user),
                work_dir: spec.work_dir.clone().or(base.work_dir),
                env: base.env.into_iter().chain(spec.env.clone()).collect(),
                is_single_user: first_user.is_none(),
                has_proxy: spec.has_proxy,
            },
        })
    }

    async fn open_base(&self, name: &str, first_user: Option<u32>) -> Result<Base> {
        let what = "the root of sandboxes";
        if name == HOST_BASE {
            let (bases, runs) = (self.settings.root.join("base"), self.settings.root.join("runs"));
            return blocking(what, move || {
                let image = BaseImage::from_host(first_user).map_err(Error::io(what))?;
                let root = image.ensure(&bases, &runs).map_err(Error::io(what))?;
                Ok(Base {
                    root,
                    readable: image.readable,
                    ..Base::default()
                })
            })
            .await;
        }
        let image = self.images.open(name, first_user)?;
        Ok(Base {
            root: image.root,
            readable: Vec::new(),
            libraries: libraries::find(&self.settings.program).await.map_err(Error::io(what))?,
            user: Some(image.config.user),
            work_dir: image.config.work_dir,
            env: image.config.env,
        })
    }

    /// Asks commands to end, and waits for them.
    pub(super) async fn terminate_commands(agent: &BoxAgent, grace: Duration) {
        if grace.is_zero() || timeout(grace, agent.terminate()).await.is_err() {
            return;
        }
        let begun = Instant::now();
        while begun.elapsed() < grace {
            match timeout(grace, agent.commands()).await {
                Ok(Ok(commands)) if commands.iter().any(|command| command.exit_code.is_none()) => {
                    sleep(POLL_INTERVAL).await;
                }
                _ => return,
            }
        }
    }

    pub(super) async fn captured_layer(&self, id: Uuid, layer: Uuid) -> Result<Layer> {
        let (from, to) = (self.box_folder(id).join("upper"), self.layer_folder(layer));
        let copy = move || {
            let draft = to.with_extension("partial");
            tree::remove(&draft)?;
            tree::copy(&from, &draft)?;
            let used_bytes = tree::used_bytes(&draft)?;
            rustix::fs::syncfs(fs::File::open(&draft)?)?;
            fs::rename(&draft, &to)?;
            Ok::<_, io::Error>(Layer { id: layer, used_bytes })
        };
        let what = "capturing the sandbox";
        blocking(what, move || copy().map_err(Error::io(what))).await
    }
}
