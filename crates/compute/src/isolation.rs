//! Isolation of processes that run users' code: from the platform, and from each other.
//!
//! If the platform is root and the kernel allows it, each program is started in a [`Cell`]. Every deployment has its
//! own user id, recorded as the group of its data folder, and every build a temporary one. Artifacts are shared between
//! deployments, and programs may write next to their sources: so each gets a layer over them that is discarded at its
//! end. A trial decides whether this machine supports it; otherwise programs run without isolation.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use nix::unistd::geteuid;
use parking_lot::Mutex;
use tempfile::TempDir;
use towpath_domain::DeploymentId;

use crate::error::{Error, Result};
use crate::launcher::{self, Cell, Layer, SHARED};
use crate::root::{self, Root};

/// Ids at the beginning of the range, used in turn by the trial and by builds; those of deployments follow.
const BUILDS: u32 = 1000;
/// Deployments of one machine.
const DEPLOYMENTS: u32 = 100_000;
/// Programs that are tried in a cell, if they can be started outside of one.
const INTERPRETERS: [(&str, &[&str]); 3] = [
    ("uv", &["--version"]),
    ("python3", &["-c", "import encodings, json"]),
    ("node", &["--version"]),
];
/// What programs of a folder on `PATH` need from neighbouring folders.
const BESIDE: [&str; 11] = [
    "bin",
    "include",
    "lib",
    "lib64",
    "libexec",
    "plugins",
    "pyvenv.cfg",
    "share/uv/python",
    "shims",
    "version",
    "versions",
];

/// What processes are kept apart by, from less to more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing: they run as the platform's account.
    None,
    /// A user id and namespaces for each.
    Namespace,
}

/// What the operator and the machine say about it.
#[derive(Clone, Debug)]
pub struct IsolationSettings {
    /// The program: `towpath`.
    pub program: PathBuf,
    /// `PATH` of builds and agent servers.
    pub path: String,
    /// What no deployment may see.
    pub hidden: Vec<PathBuf>,
    /// The first user id for deployments. Zero: none.
    pub first_user: u32,
}

/// What this machine has, tried when it is first asked for.
#[derive(Clone, Debug)]
pub struct Isolation(Arc<IsolationState>);

#[derive(Debug)]
struct IsolationState {
    /// What to try, and the folder to do so in.
    settings: Option<(IsolationSettings, PathBuf)>,
    found: OnceLock<std::result::Result<CellFactory, String>>,
}

impl Default for Isolation {
    /// None.
    fn default() -> Self {
        Self(Arc::new(IsolationState {
            settings: None,
            found: OnceLock::new(),
        }))
    }
}

impl Isolation {
    /// The best available isolation. `folder` is on the disk of deployments and exists during the trial.
    #[must_use]
    pub fn new(wish: IsolationSettings, folder: &Path) -> Self {
        Self(Arc::new(IsolationState {
            settings: Some((wish, folder.to_owned())),
            found: OnceLock::new(),
        }))
    }

    fn cells(&self) -> std::result::Result<&CellFactory, &String> {
        let find = || {
            let Some((wish, folder)) = &self.0.settings else {
                return Err("nobody asked for it".to_owned());
            };
            let found = CellFactory::find(wish, folder);
            match &found {
                Ok(_) => tracing::info!("each deployment runs with its own user id and namespaces"),
                Err(why) => tracing::warn!(
                    why,
                    "deployments run under this process's account with all its permissions"
                ),
            }
            found
        };
        self.0.found.get_or_init(find).as_ref()
    }

    /// What is in force.
    #[must_use]
    pub fn level(&self) -> Level {
        match self.cells() {
            Ok(_) => Level::Namespace,
            Err(_) => Level::None,
        }
    }

    /// Why it is not more.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.cells().err().map(String::as_str)
    }

    /// In words, for people.
    #[must_use]
    pub fn report(&self) -> String {
        match self.cells() {
            Ok(_) => "isolation: own user id and namespaces".to_owned(),
            Err(why) => format!("isolation: none, runs under the platform's account ({why})"),
        }
    }

    /// Prepares the start of an agent server. `None` without isolation.
    pub(crate) fn agent(
        &self,
        root: &Root,
        deployment: DeploymentId,
        data: &Path,
        source: &Path,
    ) -> Result<Option<PreparedCell>> {
        let Ok(cells) = self.cells() else { return Ok(None) };
        let prepared = cells.agent(root, deployment, data, source);
        prepared.map(Some).map_err(Error::io("a user id for the deployment"))
    }

    /// Prepares a program of a build. None if there is no isolation.
    pub(crate) fn build(&self, root: &Root, source: &Path, home: &Path) -> Result<Option<PreparedCell>> {
        let Ok(cells) = self.cells() else { return Ok(None) };
        let prepared = cells.build(root, source, home);
        prepared.map(Some).map_err(Error::io("a user id for the build"))
    }

    /// The user id that a deployment has, where it has one.
    pub(crate) fn user_of(&self, root: &Root, deployment: DeploymentId) -> Option<u32> {
        let cells = self.cells().ok()?;
        let group = root.agent(deployment).metadata().ok()?.gid();
        cells.range().contains(&group).then_some(group)
    }

    /// Lets every cell read and change a tree, through its layer or as a build. No user program may run in it now. It
    /// is not accessible outside of cells. Does nothing without isolation.
    pub(crate) fn share(&self, tree: &Path) -> Result<()> {
        if self.cells().is_err() {
            return Ok(());
        }
        share(tree).map_err(Error::io("opening the source to its users"))
    }

    /// [`Isolation::share`], unless the tree was shared before.
    pub(crate) fn share_once(&self, tree: &Path) -> Result<()> {
        let done = tree.metadata().is_ok_and(|about| about.mode() & 0o777 == 0o777);
        if done { Ok(()) } else { self.share(tree) }
    }
}

/// What a start in a cell needs. Its temporary files go with it.
#[derive(Debug)]
pub(crate) struct PreparedCell {
    cell: Cell,
    folder: TempDir,
    /// Where its environments are.
    pub(crate) hosts: Option<PathBuf>,
}

impl PreparedCell {
    /// What is between `enter` and the program.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        self.cell.arguments()
    }

    pub(crate) const fn user(&self) -> u32 {
        self.cell.user
    }

    /// Where its temporary files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What has to stay as long as the program.
    pub(crate) fn into_folder(self) -> TempDir {
        self.folder
    }
}

/// Makes cells.
#[derive(Debug)]
struct CellFactory {
    program: PathBuf,
    covers: Vec<PathBuf>,
    readable: Vec<PathBuf>,
    first_user: u32,
    /// Builds that were begun.
    builds: AtomicU32,
    /// Held while a deployment gets its id.
    user_id_lock: Mutex<()>,
}

impl CellFactory {
    fn find(wish: &IsolationSettings, folder: &Path) -> std::result::Result<Self, String> {
        if wish.first_user == 0 {
            return Err("deployments.first_user_id is 0".to_owned());
        }
        if !geteuid().is_root() {
            return Err("the platform does not run as root".to_owned());
        }
        let (covers, readable) = visible_paths(wish);
        let cells = Self {
            program: wish.program.clone(),
            covers,
            readable,
            first_user: wish.first_user,
            builds: AtomicU32::new(0),
            user_id_lock: Mutex::new(()),
        };
        cells.try_out(folder, &wish.path)?;
        Ok(cells)
    }

    /// Starts what deployments need in a cell as theirs.
    fn try_out(&self, folder: &Path, path: &str) -> std::result::Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        let trial = tempfile::tempdir_in(folder).map_err(failed)?;
        let source = trial.path().join("source");
        fs::create_dir(&source).map_err(failed)?;
        let prepared = self
            .prepare(trial.path(), self.first_user, Some(&source), Vec::new())
            .map_err(failed)?;
        let own = self.program.as_os_str().to_owned();
        self.run(&prepared, &source, path, &[own, "version".into()])?;
        for (name, arguments) in INTERPRETERS {
            let words: Vec<OsString> = [name].iter().chain(arguments).map(OsString::from).collect();
            let mut plain = Command::new(name);
            plain.args(arguments).env_clear().env("PATH", path).env("HOME", &source);
            plain.stdin(Stdio::null()).current_dir(&source);
            // One that is not there, or does not work, is missed by no one.
            if plain.output().is_ok_and(|ended| ended.status.success()) {
                self.run(&prepared, &source, path, &words)
                    .map_err(|why| format!("{name} cannot be used: {why}"))?;
            }
        }
        Ok(())
    }

    fn run(
        &self,
        prepared: &PreparedCell,
        within: &Path,
        path: &str,
        words: &[OsString],
    ) -> std::result::Result<(), String> {
        let ended = Command::new(&self.program)
            .arg(launcher::COMMAND)
            .args(prepared.arguments())
            .arg("--")
            .args(words)
            .env_clear()
            .env("PATH", path)
            .env("HOME", within)
            .env("LC_ALL", "C.UTF-8")
            .current_dir(within)
            .stdin(Stdio::null())
            .output();
        let ended = ended.map_err(|error| error.to_string())?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        Err(last.map_or_else(|| ended.status.to_string(), |line| line.trim().to_owned()))
    }

    fn agent(&self, root: &Root, deployment: DeploymentId, data: &Path, source: &Path) -> io::Result<PreparedCell> {
        let folder = root.agent(deployment);
        let user = self.user_of(&folder)?;
        if data != folder {
            chown(data, Some(user), Some(user))?;
        }
        let hosts = root.hosts(deployment);
        fs::create_dir_all(&hosts)?;
        fs::set_permissions(&hosts, fs::Permissions::from_mode(0o700))?;
        chown(&hosts, Some(user), Some(user))?;
        let writable = vec![data.to_owned(), hosts.clone()];
        let prepared = self.prepare(&root.cells(), user, Some(source), writable)?;
        Ok(PreparedCell {
            hosts: Some(hosts),
            ..prepared
        })
    }

    fn build(&self, root: &Root, source: &Path, home: &Path) -> io::Result<PreparedCell> {
        // Another one has it only when a thousand are under way.
        let turn = self.builds.fetch_add(1, Ordering::Relaxed) % (BUILDS - 1);
        let user = self.first_user.saturating_add(1 + turn);
        take_ownership(home, user)?;
        self.prepare(&root.cells(), user, None, vec![source.to_owned(), home.to_owned()])
    }

    fn prepare(
        &self,
        cells: &Path,
        user: u32,
        layered: Option<&Path>,
        writable: Vec<PathBuf>,
    ) -> io::Result<PreparedCell> {
        let folder = tempfile::tempdir_in(cells)?;
        let temporary = folder.path().join("tmp");
        fs::create_dir(&temporary)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o700))?;
        chown(&temporary, Some(user), Some(user))?;
        let layer = match layered {
            Some(layered) => {
                let layer = Layer {
                    folder: layered.to_owned(),
                    changes_root: folder.path().to_owned(),
                };
                fs::create_dir(layer.work())?;
                fs::create_dir(layer.changes())?;
                chown(layer.changes(), Some(user), Some(user))?;
                Some(layer)
            }
            None => None,
        };
        let cell = Cell {
            user,
            covers: self.covers.clone(),
            temporary,
            readable: self.readable.clone(),
            writable,
            layer,
        };
        Ok(PreparedCell {
            cell,
            folder,
            hosts: None,
        })
    }

    /// Ids of deployments.
    const fn range(&self) -> std::ops::Range<u32> {
        let from = self.first_user.saturating_add(BUILDS);
        from..from.saturating_add(DEPLOYMENTS)
    }

    /// The user id of the deployment with this data folder.
    ///
    /// The folder belongs to the platform, and only its group is the deployment's, so that the deployment cannot
    /// replace the platform's files in it.
    fn user_of(&self, folder: &Path) -> io::Result<u32> {
        let _one = self.user_id_lock.lock();
        let mut range = self.range();
        let given = folder.metadata()?.gid();
        if range.contains(&given) {
            return Ok(given);
        }
        let mut taken = BTreeSet::new();
        for entry in fs::read_dir(folder.parent().unwrap_or(folder))? {
            taken.insert(entry?.metadata()?.gid());
        }
        let free = range.find(|id| !taken.contains(id));
        let user = free.ok_or_else(|| io::Error::other("all user ids for deployments are in use"))?;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if [root::PLATFORM_KEY, root::DATABASE_ID]
                .iter()
                .any(|own| entry.file_name() == *own)
            {
                lchown(entry.path(), Some(0), Some(0))?;
            } else {
                take_ownership(&entry.path(), user)?;
            }
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1770))?;
        // Last: it says that all of it was done.
        chown(folder, None, Some(user))?;
        Ok(user)
    }
}

/// Gives a file, or a folder with everything in it, to a user.
fn take_ownership(top: &Path, user: u32) -> io::Result<()> {
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        if path.symlink_metadata()?.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
        lchown(&path, Some(user), Some(user))?;
    }
    Ok(())
}

/// Gives a tree to the platform, and makes it readable and writable for everyone.
fn share(top: &Path) -> io::Result<()> {
    let mut left = vec![top.to_owned()];
    let mut folders = Vec::new();
    while let Some(path) = left.pop() {
        let about = path.symlink_metadata()?;
        lchown(&path, Some(0), Some(0))?;
        if about.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
            folders.push(path);
        } else if about.is_file() {
            let runs = if about.mode() & 0o111 == 0 { 0 } else { 0o111 };
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666 | runs))?;
        }
    }
    // The top comes last: it says that all of it was done.
    for folder in folders.iter().rev() {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
    }
    Ok(())
}

/// What is hidden in every cell, and what remains visible within.
fn visible_paths(wish: &IsolationSettings) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut covers: BTreeSet<PathBuf> = BTreeSet::from([PathBuf::from("/dev/shm")]);
    covers.extend(
        wish.hidden
            .iter()
            .map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())),
    );
    // On the way to what is seen of them.
    covers.extend(wish.hidden.iter().filter_map(|path| closed(path)));
    let mut wanted = BTreeMap::new();
    let mut want = |path: PathBuf| {
        let closed = closed(&path);
        wanted.insert(path, closed);
    };
    want(wish.program.clone());
    for folder in std::env::split_paths(&wish.path) {
        if !folder.is_absolute() || !folder.is_dir() {
            continue;
        }
        let real = folder.canonicalize().ok();
        // Links of an environment lead to the interpreter it was created with.
        let linked = INTERPRETERS.iter().filter_map(|(name, _)| {
            let program = folder.join(name).canonicalize().ok()?;
            program.parent().map(Path::to_owned)
        });
        let folders: BTreeSet<PathBuf> = real.into_iter().chain(linked).chain([folder.clone()]).collect();
        for folder in folders {
            if let Some(above) = folder.parent() {
                let beside = BESIDE.iter().map(|name| above.join(name));
                beside.filter(|path| path.exists()).for_each(&mut want);
            }
            want(folder);
        }
    }
    covers.extend(wanted.values().flatten().cloned());
    let hidden = |path: &Path| {
        let mut covers = SHARED
            .map(Path::new)
            .into_iter()
            .chain(covers.iter().map(PathBuf::as_path));
        covers.any(|cover| path.starts_with(cover))
    };
    let readable = wanted.keys().filter(|path| hidden(path)).cloned().collect();
    (covers.into_iter().collect(), readable)
}

/// The topmost folder on the way to `path` that only its owner can enter.
fn closed(path: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    let closed = above
        .into_iter()
        .find(|folder| folder.metadata().is_ok_and(|about| about.mode() & 0o001 == 0));
    closed.filter(|folder| *folder != Path::new("/")).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_root_or_ids_there_is_none_and_it_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let wish = IsolationSettings {
            program: PathBuf::from("/bin/false"),
            path: "/usr/bin:/bin".to_owned(),
            hidden: Vec::new(),
            first_user: 0,
        };
        let none = Isolation::new(wish.clone(), folder.path());
        assert_eq!(none.level(), Level::None);
        assert!(none.report().contains("deployments.first_user_id"), "{}", none.report());
        // A launcher that does not work is not an isolation either.
        let broken = Isolation::new(
            IsolationSettings {
                first_user: 700_000,
                ..wish
            },
            folder.path(),
        );
        assert_eq!(broken.level(), Level::None);
        assert!(broken.why().is_some());
    }

    #[test]
    fn programs_in_a_closed_folder_are_seen_and_nothing_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let closed = folder.path().canonicalize().unwrap().join("closed");
        for name in ["tools/bin", "tools/lib", "secrets"] {
            fs::create_dir_all(closed.join(name)).unwrap();
        }
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let wish = IsolationSettings {
            program: PathBuf::from("/usr/bin/env"),
            path: closed.join("tools/bin").display().to_string(),
            hidden: Vec::new(),
            first_user: 1,
        };
        let (covers, readable) = visible_paths(&wish);
        assert!(covers.iter().any(|cover| closed.starts_with(cover)), "{covers:?}");
        assert!(readable.contains(&closed.join("tools/bin")), "{readable:?}");
        assert!(readable.contains(&closed.join("tools/lib")), "{readable:?}");
        assert!(!readable.contains(&closed.join("secrets")), "{readable:?}");
    }

    #[test]
    fn a_shared_tree_can_be_changed_by_everybody() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root gives files away");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("one/run");
        fs::create_dir(folder.path().join("one")).unwrap();
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4700)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let before = fs::metadata("/etc/passwd").unwrap().mode();
        take_ownership(folder.path(), 700_000).unwrap();
        share(folder.path()).unwrap();
        let modes = [folder.path(), program.as_path()].map(|path| path.metadata().unwrap().mode() & 0o7777);
        assert_eq!(modes, [0o777, 0o777]);
        assert_eq!(program.metadata().unwrap().uid(), 0);
        assert_eq!(fs::metadata("/etc/passwd").unwrap().mode(), before);
    }
}
