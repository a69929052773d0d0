//! The common root of all boxes of a machine: created from the host, without host-specific data.

use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

/// Top folders that distributions link into `/usr`.
const MERGED_FOLDERS: [&str; 6] = ["bin", "lib", "lib32", "lib64", "libx32", "sbin"];
/// Public files that programs of the host's `/usr` read.
const COPIED_FILES: [&str; 12] = [
    "bash.bashrc",
    "debian_version",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "mime.types",
    "os-release",
    "profile",
    "protocols",
    "services",
    "shells",
    "ssl/certs/ca-certificates.crt",
];
/// More is none of these files.
const MAX_FILE_BYTES: u64 = 8 << 20;
const USER_ID: u32 = 1000;

/// What a base is made of.
#[derive(Debug, Default, Hash)]
pub(super) struct BaseImage {
    /// Path and mode; owned by root unless in the home of the user.
    folders: Vec<(String, u32)>,
    files: Vec<(String, Vec<u8>)>,
    links: Vec<(String, PathBuf)>,
    /// Folders of the host that are seen in it.
    pub(super) readable: Vec<String>,
    /// The user of the host that is root in it.
    first_user: Option<u32>,
}

impl BaseImage {
    /// Reads the host.
    pub(super) fn from_host(first_user: Option<u32>) -> io::Result<Self> {
        let mut base = Self {
            first_user,
            readable: vec!["/usr".to_owned()],
            ..Self::default()
        };
        for (folder, mode) in [
            ("dev", 0o755),
            ("etc", 0o755),
            ("etc/alternatives", 0o755),
            ("etc/ssl", 0o755),
            ("etc/ssl/certs", 0o755),
            ("home", 0o755),
            ("home/user", 0o755),
            ("mnt", 0o755),
            ("opt", 0o755),
            ("proc", 0o755),
            ("root", 0o700),
            ("run", 0o755),
            ("srv", 0o755),
            ("sys", 0o755),
            ("tmp", 0o1777),
            ("usr", 0o755),
            ("var", 0o755),
            ("var/cache", 0o755),
            ("var/lib", 0o755),
            ("var/log", 0o755),
            ("var/tmp", 0o1777),
        ] {
            base.folders.push((folder.to_owned(), mode));
        }
        for name in MERGED_FOLDERS {
            let path = Path::new("/").join(name);
            match fs::read_link(&path) {
                Ok(to) => base.links.push((name.to_owned(), to)),
                Err(_) if path.is_dir() => {
                    base.folders.push((name.to_owned(), 0o755));
                    base.readable.push(format!("/{name}"));
                }
                Err(_) => {}
            }
        }
        base.links.push(("var/run".to_owned(), "/run".into()));
        base.read_etc()?;
        Ok(base)
    }

    fn read_etc(&mut self) -> io::Result<()> {
        for name in COPIED_FILES {
            let path = Path::new("/etc").join(name);
            let Ok(about) = fs::metadata(&path) else { continue };
            if about.is_file() && about.len() <= MAX_FILE_BYTES {
                self.files.push((format!("etc/{name}"), fs::read(path)?));
            }
        }
        if let Ok(zone) = fs::read("/etc/localtime") {
            self.files.push(("etc/localtime".to_owned(), zone));
        }
        if let Ok(entries) = fs::read_dir("/etc/alternatives") {
            let mut links = Vec::new();
            for entry in entries.flatten() {
                if let (Ok(to), Ok(name)) = (fs::read_link(entry.path()), entry.file_name().into_string()) {
                    links.push((format!("etc/alternatives/{name}"), to));
                }
            }
            links.sort();
            self.links.extend(links);
        }
        // A map of one user has no other.
        let (users, groups) = if self.first_user.is_some() {
            (
                "root:x:0:0:root:/root:/bin/bash\n\
                 user:x:1000:1000:user:/home/user:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
                "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
            )
        } else {
            ("root:x:0:0:root:/home/user:/bin/bash\n", "root:x:0:\n")
        };
        for (name, text) in [
            ("passwd", users),
            ("group", groups),
            ("hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
            ("resolv.conf", ""),
            ("fstab", ""),
        ] {
            self.files.push((format!("etc/{name}"), text.as_bytes().to_vec()));
        }
        Ok(())
    }

    /// Differs where the base does.
    pub(super) fn name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Creates it once below a folder, and removes those of an older host that no entry of `runs` uses.
    pub(super) fn ensure(&self, bases: &Path, runs: &Path) -> io::Result<PathBuf> {
        let target = bases.join(self.name());
        if target.is_dir() {
            return Ok(target);
        }
        let draft = bases.join(format!("{}.{}", self.name(), std::process::id()));
        crate::tree::remove(&draft)?;
        fs::create_dir_all(&draft)?;
        self.write_contents(&draft)?;
        match fs::rename(&draft, &target) {
            Err(_) if target.is_dir() => crate::tree::remove(&draft)?,
            other => other?,
        }
        self.remove_unused(bases, runs)?;
        Ok(target)
    }

    fn remove_unused(&self, bases: &Path, runs: &Path) -> io::Result<()> {
        let mut launches = Vec::new();
        for run in fs::read_dir(runs)?.flatten() {
            // One that has none yet is given the base that was just made.
            launches.extend(fs::read_to_string(run.path().join(crate::launch::LAUNCH_FILE)));
        }
        for base in fs::read_dir(bases)?.flatten() {
            let Ok(name) = base.file_name().into_string() else {
                continue;
            };
            // Drafts have a longer name: another start may be working on them.
            let is_old = name.len() == self.name().len() && name != self.name();
            if is_old && !launches.iter().any(|launch| launch.contains(&name)) {
                crate::tree::remove(&base.path())?;
            }
        }
        Ok(())
    }

    fn write_contents(&self, root: &Path) -> io::Result<()> {
        self.set_owner(root, 0)?;
        fs::set_permissions(root, Permissions::from_mode(0o755))?;
        for (path, mode) in &self.folders {
            let folder = root.join(path);
            fs::create_dir(&folder)?;
            fs::set_permissions(&folder, Permissions::from_mode(*mode))?;
            self.set_owner(&folder, if path == "home/user" { USER_ID } else { 0 })?;
        }
        for (path, text) in &self.files {
            let file = root.join(path);
            fs::write(&file, text)?;
            fs::set_permissions(&file, Permissions::from_mode(0o644))?;
            self.set_owner(&file, 0)?;
        }
        for (path, to) in &self.links {
            symlink(to, root.join(path))?;
            self.set_owner(&root.join(path), 0)?;
        }
        Ok(())
    }

    fn set_owner(&self, path: &Path, user: u32) -> io::Result<()> {
        self.first_user
            .map_or(Ok(()), |first| lchown(path, Some(first + user), Some(first + user)))
    }
}
