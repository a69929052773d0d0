//! One life of a box: what is prepared for it, how it begins and ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::base::Base;
use super::fence::Lock;
use super::groups::Groups;
use super::record::Record;
use super::{Namespace, blocking, name, private, remove, tree, volume};
use crate::agent::Setup;
use crate::client::BoxAgent;
use crate::driver::{Driver as _, Handle};
use crate::error::{Error, Result};
use crate::launch::{FILE, Launch, ROOT};
use crate::program;
use crate::spec::{BoxSpec, Generation, Layer, Source};

const START: Duration = Duration::from_secs(20);
const KILL: Duration = Duration::from_secs(20);
/// How often commands that were asked to end are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Shared memory of a box without a limit of memory.
const SHM_BYTES: u64 = 64 << 20;

impl Namespace {
    /// Every life of a box that left something.
    pub(super) fn lives(&self, id: Uuid) -> Result<Vec<(Generation, PathBuf)>> {
        let prefix = format!("{id}.");
        let mut lives = Vec::new();
        let entries = fs::read_dir(self.settings.root.join("runs")).map_err(Error::io("the folder of boxes"))?;
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
        let name = name(id, generation);
        let groups = Groups::of_machine();
        let what = || format!("ending box {name}");
        // A frozen process ends only when it is thawed.
        groups.freeze(&name, false).await.map_err(Error::io(what()))?;
        if let Some(record) = Record::running(folder).map_err(Error::io(what()))? {
            record.kill(KILL).await.map_err(Error::io(what()))?;
        }
        groups.remove(&name).await.map_err(Error::io(what()))?;
        Self::released(folder).await?;
        remove(folder.to_owned()).await
    }

    /// Waits until no volume of a life is mounted any more: the kernel writes the last of it after the processes have ended.
    async fn released(folder: &Path) -> Result<()> {
        let what = "the volumes of the box";
        // A start that failed early has none.
        let Ok(launch) = Launch::read(folder) else {
            return Ok(());
        };
        let begun = Instant::now();
        for mount in &launch.mounts {
            // Others may read it, too.
            let Source::Image(image) = &mount.source else { continue };
            while !mount.read_only && volume::used(image).map_err(Error::io(what))? == volume::Use::Write {
                if begun.elapsed() >= KILL {
                    return Err(Error::TimedOut("unmounting the volumes of the box"));
                }
                sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Lets the launcher make the box.
    pub(super) async fn launch(&self, spec: &BoxSpec, generation: Generation, lock: &Lock) -> Result<Handle> {
        let folder = self.run(spec.id, generation);
        private(&folder.join(ROOT))?;
        let launch = self.prepared(spec, generation).await?;
        let text = serde_json::to_vec(&launch).map_err(|error| Error::Invalid(error.to_string()))?;
        fs::write(folder.join(FILE), text).map_err(Error::io("the box's folder"))?;
        let launcher = Command::new(&self.settings.program)
            .arg(program::LAUNCH)
            .arg(&folder)
            .env_clear()
            .stdin(Stdio::from(lock.share()?))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::io("starting the launcher of boxes"))?;
        let ended = timeout(START, launcher.wait_with_output()).await;
        let ended = ended.map_err(|_| Error::TimedOut("starting the box"))?;
        let ended = ended.map_err(Error::io("starting the box"))?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            let said: Vec<&str> = said.lines().take(3).collect();
            return Err(Error::Io {
                what: "starting the box".to_owned(),
                source: io::Error::other(said.join("; ")),
            });
        }
        let record = Record::running(&folder).map_err(Error::io("the box's record"))?;
        let record = record.ok_or_else(|| Error::Agent("it ended at once".to_owned()))?;
        let handle = self.handle(spec.id, generation, &record);
        self.dial(&handle).hello().await?;
        Ok(handle)
    }

    pub(super) async fn prepared(&self, spec: &BoxSpec, generation: Generation) -> Result<Launch> {
        let first_user = self.first_user()?;
        for mount in &spec.mounts {
            volume::check(mount)?;
        }
        let folder = self.folder(spec.id);
        let (upper, work) = (folder.join("upper"), folder.join("work"));
        if spec.fresh {
            remove(upper.clone()).await?;
        }
        // The kernel's own; what a kill left in it is of no use.
        remove(work.clone()).await?;
        for folder in [&upper, &work] {
            fs::create_dir_all(folder).map_err(Error::io("the files of the box"))?;
        }
        volume::own(&upper, first_user, 0).map_err(Error::io("the files of the box"))?;
        let (bases, runs) = (self.settings.root.join("base"), self.settings.root.join("runs"));
        let what = "the root of boxes";
        let (base, made) = blocking(what, move || {
            let base = Base::of_host(first_user).map_err(Error::io(what))?;
            let made = base.make(&bases, &runs).map_err(Error::io(what))?;
            Ok((base, made))
        })
        .await?;
        let mut lower = Vec::new();
        for layer in &spec.root.layers {
            let path = self.layer(*layer);
            if !path.is_dir() {
                return Err(Error::NotFound(format!("layer {layer} is not on this machine")));
            }
            lower.push(path);
        }
        lower.push(made);
        let name = name(spec.id, generation);
        let groups = Groups::of_machine().make(&name, &spec.limits);
        Ok(Launch {
            groups: groups.map_err(Error::io("the control groups of the box"))?,
            first_user,
            hostname: spec.hostname.clone(),
            program: self.settings.program.clone(),
            lower,
            upper,
            work,
            readable: base.readable,
            shm_bytes: spec
                .limits
                .memory_bytes
                .map_or(SHM_BYTES, |bytes| SHM_BYTES.min(bytes / 2)),
            mounts: spec.mounts.clone(),
            agent: Setup {
                user: spec.user.clone(),
                work_dir: spec.work_dir.clone(),
                env: spec.env.clone(),
                is_single_user: first_user.is_none(),
            },
        })
    }

    /// Asks commands to end, and waits for them.
    pub(super) async fn wind_down(agent: &BoxAgent, grace: Duration) {
        if grace.is_zero() || timeout(grace, agent.terminate()).await.is_err() {
            return;
        }
        let begun = Instant::now();
        while begun.elapsed() < grace {
            match timeout(grace, agent.commands()).await {
                Ok(Ok(commands)) if commands.iter().any(|command| command.exit_code.is_none()) => sleep(LOOK).await,
                _ => return,
            }
        }
    }

    pub(super) async fn sealed(&self, id: Uuid, layer: Uuid) -> Result<Layer> {
        let (from, to) = (self.folder(id).join("upper"), self.layer(layer));
        let copy = move || {
            let draft = to.with_extension("partial");
            tree::remove(&draft)?;
            tree::copy(&from, &draft)?;
            let used_bytes = tree::used_bytes(&draft)?;
            rustix::fs::syncfs(fs::File::open(&draft)?)?;
            fs::rename(&draft, &to)?;
            Ok::<_, io::Error>(Layer { id: layer, used_bytes })
        };
        let what = "capturing the box";
        blocking(what, move || copy().map_err(Error::io(what))).await
    }
}
