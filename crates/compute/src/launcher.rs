//! The launcher between the platform and a program: it enters control groups and a cell, and executes the program.
//!
//! The kernel counts a process's usage from the moment it is in a group, and its children from their start. So the
//! process enters before it executes the program. The same holds for a cell, which cannot be left.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sub-command of `towpath` that does this.
pub const COMMAND: &str = "enter";

/// Folders that every program may write to, and of which each cell has its own.
pub(crate) const SHARED: [&str; 2] = ["/tmp", "/var/tmp"];

/// Enters the groups with these `cgroup.procs`, and the cell, and executes the program. Only returns on failure.
#[must_use]
pub fn enter(groups: &[PathBuf], cell: Option<&Cell>, program: &OsStr, arguments: &[OsString]) -> io::Error {
    for group in groups {
        // Zero is the caller that writes.
        if let Err(error) = std::fs::write(group, "0") {
            return io::Error::new(error.kind(), format!("entering {}: {error}", group.display()));
        }
    }
    if let Some(cell) = cell
        && let Err(error) = cell.enter()
    {
        return error;
    }
    Command::new(program).args(arguments).exec()
}

/// The view of the machine for a program: its own mount and IPC namespaces, its own user id, and no way to gain
/// privileges. Only root can create one.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Its user and group.
    pub user: u32,
    /// Folders and files that are empty in it.
    pub covers: Vec<PathBuf>,
    /// A folder outside that is its `/tmp`.
    pub temporary: PathBuf,
    /// What is seen in it wherever it is, and cannot be written.
    pub readable: Vec<PathBuf>,
    /// What is seen in it wherever it is.
    pub writable: Vec<PathBuf>,
    /// A folder with changes that are not visible outside.
    pub layer: Option<Layer>,
}

/// A folder whose changes go elsewhere.
#[derive(Clone, Debug)]
pub struct Layer {
    /// What can be changed from inside only.
    pub folder: PathBuf,
    /// The folder of changes: `changes` contains them, `work` is for the kernel.
    pub changes_root: PathBuf,
}

impl Layer {
    pub(crate) fn changes(&self) -> PathBuf {
        self.changes_root.join("changes")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.changes_root.join("work")
    }
}

impl Cell {
    /// The arguments that ask for it, behind [`COMMAND`].
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--user".into(), self.user.to_string().into()];
        let mut add = |name: &str, path: &Path| arguments.extend([OsString::from(name), OsString::from(path)]);
        add("--temporary", &self.temporary);
        for (name, paths) in [
            ("--cover", &self.covers),
            ("--readable", &self.readable),
            ("--writable", &self.writable),
        ] {
            for path in paths {
                add(name, path);
            }
        }
        if let Some(layer) = &self.layer {
            add("--layer", &layer.folder);
            add("--over", &layer.changes_root);
        }
        arguments
    }

    /// Whether everything below this is hidden unless requested.
    fn covers(&self, path: &Path) -> bool {
        let mut covers = SHARED
            .map(Path::new)
            .into_iter()
            .chain(self.covers.iter().map(PathBuf::as_path));
        covers.any(|cover| path.starts_with(cover))
    }

    #[cfg(not(target_os = "linux"))]
    fn enter(&self) -> io::Result<()> {
        let _ = self.covers(&self.temporary);
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    #[cfg(target_os = "linux")]
    fn enter(&self) -> io::Result<()> {
        linux::enter(self)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::io;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::path::{Path, PathBuf};

    use nix::errno::Errno;
    use nix::fcntl::{OFlag, open};
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::prctl;
    use nix::sys::stat::{Mode, umask};
    use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

    use super::{Cell, SHARED};

    const NONE: Option<&str> = None;

    /// A place as it was before anything covered it.
    struct Handle {
        path: PathBuf,
        file: OwnedFd,
    }

    impl Handle {
        fn open(path: &Path) -> io::Result<Self> {
            let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("opening", path))?;
            Ok(Self {
                path: path.to_owned(),
                file,
            })
        }

        fn all<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> io::Result<Vec<Self>> {
            paths.map(|path| Self::open(path)).collect()
        }

        fn name(&self) -> String {
            format!("/proc/self/fd/{}", self.file.as_raw_fd())
        }

        /// Lets it be seen at `path`.
        fn bind(&self, path: &Path) -> io::Result<()> {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(self.name().as_str()), path, NONE, flags, NONE).map_err(at("binding", path))
        }

        /// Makes what it is bound to where it is covered.
        fn make_place(&self) -> io::Result<()> {
            // It may be in a folder that is seen already.
            if self.path.exists() {
                return Ok(());
            }
            let failed = |error: io::Error| named("making", &self.path, &error);
            if fs::metadata(self.name()).map_err(failed)?.is_dir() {
                return fs::create_dir_all(&self.path).map_err(failed);
            }
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            let made = fs::OpenOptions::new().create(true).append(true).open(&self.path);
            made.map(drop).map_err(failed)
        }
    }

    fn at(what: &'static str, path: &Path) -> impl Fn(Errno) -> io::Error {
        move |errno| named(what, path, &io::Error::from(errno))
    }

    fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
    }

    pub(super) fn enter(cell: &Cell) -> io::Result<()> {
        let own = |errno: Errno| io::Error::other(format!("namespaces of its own: {errno}"));
        let within = std::env::current_dir()?;
        umask(Mode::from_bits_truncate(0o022));
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC).map_err(own)?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).map_err(own)?;

        let temporary = Handle::open(&cell.temporary)?;
        // Programs of the machine come and go.
        let readable = Handle::all(cell.readable.iter().filter(|path| path.exists()))?;
        let writable = Handle::all(cell.writable.iter())?;
        let layer = match &cell.layer {
            Some(layer) => Some([
                Handle::open(&layer.folder)?,
                Handle::open(&layer.changes())?,
                Handle::open(&layer.work())?,
            ]),
            None => None,
        };
        cover(cell, &temporary)?;
        for handle in readable.iter().filter(|handle| cell.covers(&handle.path)) {
            handle.make_place()?;
            handle.bind(&handle.path)?;
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID;
            mount(NONE, &handle.path, NONE, flags, NONE).map_err(at("closing", &handle.path))?;
        }
        for handle in writable.iter().filter(|handle| cell.covers(&handle.path)) {
            handle.make_place()?;
            handle.bind(&handle.path)?;
        }
        if let Some([folder, changes, work]) = &layer {
            // Paths may hold what separates options.
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                folder.name(),
                changes.name(),
                work.name()
            );
            if cell.covers(&folder.path) {
                folder.make_place()?;
            }
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(
                Some("overlay"),
                &folder.path,
                Some("overlay"),
                flags,
                Some(options.as_str()),
            )
            .map_err(at("a layer over", &folder.path))?;
        }
        // Older kernels do not know this flag, and would take the number for every mount of the machine.
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("proc"), "/proc", Some("proc"), flags, Some("hidepid=invisible"))
            .map_err(at("mounting", Path::new("/proc")))?;
        // The folder it was started in may be covered.
        std::env::set_current_dir(&within).map_err(|error| named("entering", &within, &error))?;
        become_user(cell.user).map_err(|errno| io::Error::other(format!("becoming user {}: {errno}", cell.user)))
    }

    fn cover(cell: &Cell, temporary: &Handle) -> io::Result<()> {
        for shared in SHARED.map(Path::new) {
            if shared.is_dir() {
                temporary.bind(shared)?;
            }
        }
        for path in &cell.covers {
            // One that is below another is not there any more.
            let Ok(about) = fs::metadata(path) else { continue };
            if !about.is_dir() {
                mount(Some("/dev/null"), path, NONE, MsFlags::MS_BIND, NONE).map_err(at("covering", path))?;
                continue;
            }
            // What processes share by name is made by all of them.
            let mode = if path == Path::new("/dev/shm") {
                "mode=1777"
            } else {
                "mode=0755"
            };
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(mode)).map_err(at("covering", path))?;
        }
        Ok(())
    }

    fn become_user(user: u32) -> Result<(), Errno> {
        let (group, user) = (Gid::from_raw(user), Uid::from_raw(user));
        setgroups(&[])?;
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
        prctl::set_no_new_privs()
    }
}
