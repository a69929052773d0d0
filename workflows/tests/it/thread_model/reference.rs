//! What threads have to be: a model of them in memory.

use std::collections::BTreeSet;

use towpath_domain::agent::{CancelAction, RunStatus, ThreadStatus};
use towpath_domain::{JobId, RunId, ThreadId};

/// What the channel `log` holds.
pub type Log = Vec<String>;

/// A graph, by what becomes of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two nodes that each append to the log.
    Steps,
    /// Appends once, and is at work until it is stopped.
    Slow,
    /// Stops at a question.
    Asks,
    /// Raises.
    Broken,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Steps, Self::Slow, Self::Asks, Self::Broken];

    /// As the file of graphs names it.
    pub const fn graph(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Slow => "slow",
            Self::Asks => "asks",
            Self::Broken => "broken",
        }
    }

    /// What a run of it appends before it ends, or before it waits to be stopped.
    pub const fn appends(self) -> &'static [&'static str] {
        match self {
            Self::Steps => &["one", "two"],
            Self::Slow => &["one"],
            Self::Asks | Self::Broken => &[],
        }
    }
}

/// A run whose row is there.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: RunId,
    pub job: JobId,
    pub kind: Kind,
    /// How it ended.
    pub over: Option<RunStatus>,
    /// How it was asked to stop.
    pub cancel: Option<CancelAction>,
    /// Workers that began it.
    pub claims: u32,
    /// Workers that vanished with it.
    pub crashes: u32,
}

/// Checkpoints that came together: of a run, of an update, or with the thread that was copied.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The run that goes with them.
    pub owner: Option<RunId>,
    pub ids: BTreeSet<String>,
    /// The log at the latest of them.
    pub log: Log,
}

/// A thread.
#[derive(Clone, Debug)]
pub struct Thread {
    pub id: ThreadId,
    /// It goes with its run.
    pub temporary: bool,
    /// Where it may stand when no run is open. More than one where that depends on how far a worker came.
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

    /// Runs that are not over, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.over.is_none())
    }

    pub fn is_open(&self) -> bool {
        self.open().next().is_some()
    }

    /// The open run that a worker began. It may be at work, or wait for another worker.
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

    /// The ids of its checkpoints, but for those of the run that was begun.
    pub fn ids(&self) -> BTreeSet<String> {
        self.layers.iter().flat_map(|layer| &layer.ids).cloned().collect()
    }

    /// The log that its next run begins with.
    pub fn log(&self) -> Log {
        self.layers.last().map(|layer| layer.log.clone()).unwrap_or_default()
    }

    /// That log, and what a run of this kind appends.
    pub fn log_after(&self, kind: Kind) -> Log {
        let mut log = self.log();
        log.extend(kind.appends().iter().map(|&text| text.to_owned()));
        log
    }

    /// The log at the latest checkpoint that is there.
    pub fn latest_log(&self) -> Log {
        self.begun().map_or_else(|| self.log(), |run| self.log_after(run.kind))
    }
}
