//! Artifacts: fetched and built sources, named by a hash of their plan.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use towpath_domain::git::CommitSha;

use crate::error::{Error, Result};
use crate::root::{self, Root};
use crate::tree;

/// Incremented when artifacts of older builds cannot be started any more.
const VERSION: u32 = 1;

/// Everything that decides what an artifact is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Where the tree comes from.
    pub origin: Origin,
    /// The graph configuration file, from the top of the tree.
    pub config: String,
    /// Runs at the root of the tree, instead of the command that its lock files imply.
    pub install: Option<String>,
    /// Run in the configuration file's folder.
    pub build: Option<String>,
}

/// Where a tree comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A commit of a repository.
    Git {
        /// Its address.
        url: String,
        /// The branch or tag that it was resolved from. Not part of the identity.
        name: String,
        sha: CommitSha,
    },
    /// An uploaded archive, by its unique key in the object store.
    Archive {
        /// The key.
        path: String,
    },
    /// An image of a registry.
    Image {
        /// What it was asked for as.
        uri: String,
        /// What that was then: the engine's name for its contents.
        id: String,
    },
}

/// What of an artifact is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing that counts.
    Absent,
    /// The tree.
    Fetched,
    /// All of it.
    Built,
}

/// The record of an artifact that can be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltArtifact {
    /// What it was made from.
    pub plan: Plan,
    /// Variables that what was built needs to be started.
    #[serde(default)]
    pub variables: Vec<(String, String)>,
    /// The image, for containers: the engine's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl Plan {
    /// The name of the artifact; equal plans have the same.
    #[must_use]
    pub fn key(&self) -> String {
        let origin = match &self.origin {
            Origin::Git { url, sha, .. } => ["git", url, sha.as_str()],
            Origin::Archive { path } => ["archive", path, ""],
            Origin::Image { uri, id } => ["image", uri, id],
        };
        let mut hash = Sha256::new();
        let rest = [
            Some(self.config.as_str()),
            self.install.as_deref(),
            self.build.as_deref(),
        ];
        hash.update(VERSION.to_be_bytes());
        for part in origin.into_iter().map(Some).chain(rest) {
            // Lengths come first, so that no two lists of parts are ambiguous. Absent differs from empty.
            hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        hex::encode(&hash.finalize()[..20])
    }
}

/// An artifact's place.
#[derive(Clone, Debug)]
pub struct Artifact {
    folder: PathBuf,
    scratch: PathBuf,
}

/// An invalidated artifact whose files are still to be removed.
#[derive(Debug)]
pub struct Removal(TempDir);

impl Removal {
    /// Removes the files.
    pub fn finish(self) -> Result<()> {
        tree::remove(self.0.path()).map_err(Error::io("removing an artifact"))
    }
}

impl Artifact {
    /// The place of `key`, which is one of [`Plan::key`].
    pub fn of(root: &Root, key: &str) -> Result<Self> {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Error::Refused("not an artifact name".to_owned()));
        }
        Ok(Self {
            folder: root.artifacts().join(key),
            scratch: root.scratch(),
        })
    }

    /// Everything of it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The tree.
    #[must_use]
    pub fn source(&self) -> PathBuf {
        self.folder.join("source")
    }

    /// Where it is which environments its code runs in.
    #[must_use]
    pub fn environments(&self) -> PathBuf {
        self.folder.join("environments")
    }

    /// How far it is.
    #[must_use]
    pub fn stage(&self) -> Stage {
        if self.built().is_some() {
            Stage::Built
        } else if self.is_fetched() {
            Stage::Fetched
        } else {
            Stage::Absent
        }
    }

    /// Whether its tree is unchanged since the fetch: no build program has run in it.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.folder.join("fetched.json").is_file() && self.source().is_dir()
    }

    /// Its record, where it is whole.
    #[must_use]
    pub fn built(&self) -> Option<BuiltArtifact> {
        let text = fs::read(self.folder.join("built.json")).ok()?;
        serde_json::from_slice(&text).ok().filter(|_| self.source().is_dir())
    }

    /// Makes its place empty for fetching.
    pub fn begin(&self) -> Result<()> {
        self.remove()?;
        root::make(&self.folder)
    }

    /// Its tree is whole.
    pub fn fetched(&self) -> Result<()> {
        root::write(&self.folder.join("fetched.json"), b"{}").map_err(Error::io("recording the source"))
    }

    /// Marks that build programs run in its tree: after a failure the tree must be fetched again.
    pub(crate) fn changes(&self) -> Result<()> {
        match fs::remove_file(self.folder.join("fetched.json")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("beginning the build")(error)),
            _ => Ok(()),
        }
    }

    /// It can be started.
    pub fn record(&self, built: &BuiltArtifact) -> Result<()> {
        let text = serde_json::to_vec(built).map_err(|error| Error::Refused(error.to_string()))?;
        root::write(&self.folder.join("built.json"), &text).map_err(Error::io("recording the artifact"))
    }

    /// Records an image, which has no tree. An existing record is replaced atomically, since an agent server may be
    /// started from it.
    pub fn record_image(&self, built: &BuiltArtifact) -> Result<()> {
        root::make(&self.source())?;
        self.record(built)
    }

    pub fn remove(&self) -> Result<()> {
        self.begin_removal()?.map_or(Ok(()), Removal::finish)
    }

    /// Moves it away in one step, so that a half removed artifact never counts as built. `None` if it does not exist.
    pub fn begin_removal(&self) -> Result<Option<Removal>> {
        let failed = || Error::io("removing an artifact");
        let away = tempfile::tempdir_in(&self.scratch).map_err(failed())?;
        match fs::rename(&self.folder, away.path().join("artifact")) {
            Ok(()) => Ok(Some(Removal(away))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed()(error)),
        }
    }

    /// Whether it is there and was not used for so many hours.
    #[must_use]
    pub fn is_idle(&self, hours: u64) -> bool {
        let used = fs::metadata(&self.folder).and_then(|about| about.modified());
        used.is_ok_and(|used| SystemTime::now().duration_since(used).unwrap_or_default().as_secs() >= hours * 3600)
    }

    /// Marks it as used now, so that it is kept longer than others.
    pub fn touch(&self) {
        if let Ok(folder) = fs::File::open(&self.folder) {
            let _ = folder.set_modified(SystemTime::now());
        }
    }
}

/// Keys of artifacts that are not in `keep` and were not used for `hours`: a build may be about to use others.
pub fn idle(root: &Root, keep: &[String], hours: u64) -> Result<Vec<String>> {
    let failed = || Error::io("reading the artifacts");
    let mut idle = Vec::new();
    for entry in fs::read_dir(root.artifacts()).map_err(failed())? {
        let name = entry.map_err(failed())?.file_name().to_string_lossy().into_owned();
        // What has another name was not made here.
        let Ok(artifact) = Artifact::of(root, &name) else {
            continue;
        };
        if !keep.contains(&name) && artifact.is_idle(hours) {
            idle.push(name);
        }
    }
    Ok(idle)
}
