//! How children are started, and why one does not serve.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use towpath_domain::Secret;

use super::message::LoadError;

/// Time between SIGTERM and SIGKILL.
pub const TERM_TO_KILL: Duration = Duration::from_secs(2);

/// How children of one set of graphs are started.
#[derive(Clone)]
pub struct Launch {
    /// The interpreter.
    pub program: PathBuf,
    /// Its arguments. It finds its connection as standard input.
    pub arguments: Vec<OsString>,
    /// An additional argument for a fork server that loads the graphs; `None` if unsupported.
    pub fork_argument: Option<OsString>,
    /// Added to the environment of this process, or replacing it if `clean`.
    pub environment: BTreeMap<String, Secret>,
    /// Take nothing from the environment of this process.
    pub clean: bool,
    /// The folder of the config file.
    pub folder: PathBuf,
    /// The config file.
    pub config: String,
    /// Graphs to load; all when `None`.
    pub graphs: Option<Vec<String>>,
    /// Whether the config file names routes of the user's own.
    pub http: bool,
    /// Where sockets for the user's own routes are made.
    pub sockets: PathBuf,
    /// How long a child may take until it serves.
    pub start_timeout: Duration,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// Why a child does not serve.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The user's code could not be loaded.
    #[error("{}", load_error_text(.0))]
    Load(Box<LoadError>),
    /// The process could not be started, exited, or sent something unexpected.
    #[error("{0}")]
    Process(String),
}

fn load_error_text(error: &LoadError) -> String {
    let graph = error
        .graph
        .as_ref()
        .map_or_else(String::new, |id| format!("graph {id:?}: "));
    let place = match (&error.file, error.line) {
        (Some(file), Some(line)) => format!(" ({file}, line {line})"),
        (Some(file), None) => format!(" ({file})"),
        _ => String::new(),
    };
    let hint = if error.error == "ModuleNotFoundError" {
        "; name its package in `dependencies` of the config file"
    } else {
        ""
    };
    format!("{graph}{}: {}{place}{hint}", error.error, error.message)
}
