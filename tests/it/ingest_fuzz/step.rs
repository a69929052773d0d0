//! What the fuzz does, one step after another, and which steps must not overtake each other.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::json::Json;
use super::operation::{Attachment, Handle, Run, Tenant};
use super::oracle::{FeedbackRecord, Outcome};
use super::wire::{Expect, RawRequest, Request};

/// Something that steps touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Run(Run),
    Project(Handle),
    Name(Tenant, String),
    Feedback(Tenant, Uuid),
}

/// How a step touches something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Beside others that do the same.
    Shared,
    /// Alone.
    Exclusive,
}

/// The keys of a step.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub BTreeMap<Key, Mode>);

impl Keys {
    pub fn add(&mut self, key: Key, mode: Mode) {
        let known = self.0.entry(key).or_insert(mode);
        *known = (*known).max(mode);
    }
}

/// One thing to do. Steps that share a key are done in the order of their numbers.
#[derive(Debug)]
pub struct Step {
    pub number: usize,
    pub keys: Keys,
    pub work: Work,
}

/// A run, and what may be shown of it.
#[derive(Clone, Debug)]
pub struct ExpectedRun {
    pub id: Uuid,
    pub outcomes: Vec<Outcome>,
    /// Its `feedback_stats`, where they are certain.
    pub stats: Option<Json>,
    /// Names and content types of its files, where they are certain.
    pub files: Option<Vec<(String, String)>>,
}

#[derive(Debug)]
pub enum Work {
    /// Send something in.
    Send(Box<Request>),
    /// Send what no client sends, and see that it is refused or taken.
    Raw {
        tenant: Tenant,
        request: RawRequest,
        expect: Expect,
    },
    /// Make a project.
    Make {
        tenant: Tenant,
        project: Handle,
        name: String,
        id: Uuid,
    },
    /// Give a project another name, which may be taken.
    Rename {
        tenant: Tenant,
        project: Handle,
        name: String,
        taken: bool,
    },
    Delete {
        tenant: Tenant,
        project: Handle,
    },
    /// Read runs one by one.
    Get {
        tenant: Tenant,
        runs: Vec<ExpectedRun>,
    },
    /// Read runs by a list of ids.
    Query {
        tenant: Tenant,
        runs: Vec<ExpectedRun>,
    },
    /// Read all of a project, page by page.
    Walk {
        tenant: Tenant,
        project: Handle,
        newest: bool,
        limit: usize,
        runs: Vec<ExpectedRun>,
    },
    /// Export a project.
    Export {
        tenant: Tenant,
        project: Handle,
        runs: Vec<ExpectedRun>,
    },
    /// Read feedback.
    ShowFeedback {
        tenant: Tenant,
        given: Box<FeedbackRecord>,
    },
    /// Change feedback: names of members, and values as JSON.
    ChangeFeedback {
        tenant: Tenant,
        id: Uuid,
        change: Vec<(&'static str, String)>,
    },
    /// Take feedback back.
    DeleteFeedback {
        tenant: Tenant,
        id: Uuid,
    },
    /// Read a file of a run.
    ShowFile {
        tenant: Tenant,
        file: Attachment,
    },
}
