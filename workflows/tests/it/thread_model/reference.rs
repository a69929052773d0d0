//! A model of threads in memory.

use std::collections::BTreeSet;

use towpath_domain::agent::{CancelAction, RunStatus, ThreadStatus};
use towpath_domain::{JobId, RunId, ThreadId};

/// The content of the channel `log`.
pub type Log = Vec<String>;

/// A graph, by the fate of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two nodes that each append to the log.
    Steps,
    /// Appends once, and runs until it is stopped.
    Slow,
    /// Stops at a question.
    Asks,
    /// Raises an exception.
    Broken,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Steps, Self::Slow, Self::Asks, Self::Broken];

    /// Its id in the graph file.
    pub const fn graph(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Slow => "slow",
            Self::Asks => "asks",
            Self::Broken => "broken",
        }
    }

    /// What one of its runs appends before it ends or waits to be stopped.
    pub const fn appends(self) -> &'static [&'static str] {
        match self {
            Self::Steps => &["one", "two"],
            Self::Slow => &["one"],
            Self::Asks | Self::Broken => &[],
        }
    }
}

/// A run with a row.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: RunId,
    pub job: JobId,
    pub kind: Kind,
    pub over: Option<RunStatus>,
    /// How it was asked to stop.
    pub cancel: Option<CancelAction>,
    /// Workers that started it.
    pub claims: u32,
    /// Workers that were lost with it.
    pub crashes: u32,
}

/// Checkpoints that were created together: by a run, an update, or a copy of the thread.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The run that they are deleted with.
    pub owner: Option<RunId>,
    pub ids: BTreeSet<String>,
    /// The log at the latest of them.
    pub log: Log,
}

#[derive(Clone, Debug)]
pub struct Thread {
    pub id: ThreadId,
    /// Whether it is deleted with its run.
    pub temporary: bool,
    /// Possible states without an open run; several if it depends on the progress of a worker.
    pub rest: Vec<ThreadStatus>,
    /// The log that its row may show.
    pub shown: Vec<Log>,
    /// Oldest first.
    pub layers: Vec<Layer>,
    /// Oldest first.
    pub runs: Vec<Run>,
}

impl Thread {
    pub fn new(id: ThreadId, temporary: bool) -> Self {
        Self {
            id,
            temporary,
            rest: vec![ThreadStatus::Idle],
            shown: vec![Log::new()],
            layers: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Open runs, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.over.is_none())
    }

    pub fn is_open(&self) -> bool {
        self.open().next().is_some()
    }

    /// The open run that a worker started. It may be running, or wait for another worker.
    pub fn begun(&self) -> Option<&Run> {
        self.open().find(|run| run.claims > 0)
    }

    pub fn run(&mut self, id: RunId) -> &mut Run {
        let found = self.runs.iter_mut().find(|run| run.id == id);
        found.expect("a run of this thread")
    }

    pub fn forget(&mut self, id: RunId) {
        self.runs.retain(|run| run.id != id);
    }

    /// Ids of its checkpoints, except those of the started run.
    pub fn ids(&self) -> BTreeSet<String> {
        self.layers.iter().flat_map(|layer| &layer.ids).cloned().collect()
    }

    /// The log that its next run starts with.
    pub fn log(&self) -> Log {
        self.layers.last().map(|layer| layer.log.clone()).unwrap_or_default()
    }

    /// That log, and what a run of this graph appends.
    pub fn log_after(&self, kind: Kind) -> Log {
        let mut log = self.log();
        log.extend(kind.appends().iter().map(|&text| text.to_owned()));
        log
    }

    /// The log at the latest existing checkpoint.
    pub fn latest_log(&self) -> Log {
        self.begun().map_or_else(|| self.log(), |run| self.log_after(run.kind))
    }
}
