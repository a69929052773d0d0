//! The reference merge: what must be there after operations were accepted in a known order.
//!
//! Written from docs/traces.md ("One id, one run") and nothing else:
//!
//! - The first accepted operation that states a project and a start decides where the run is, for good. A POST always
//!   states both. Everything else is applied to the run where it is.
//! - Of several POSTs the first counts. A PATCH beats the POST field by field, of two PATCHes the later one wins.
//!   `extra` follows that rule for each of its keys, `metadata` and `runtime` for each of theirs.
//! - What was accepted for a project that is deleted before it is flushed is dropped.
//!
//! The last rule leaves to the server when it flushes, so a run of a deleted project has several [`Outcome`]s, one for
//! each number of operations that were flushed by then. All other runs have one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use super::Features;
use super::derived::known_status;
use super::json::Json;
use super::operation::{Acceptance, Attachment, Feedback, Field, Handle, Operation, Order, Run, Tenant, Verb};

/// What may be shown of an id: a row, or nothing.
pub type Outcome = Option<Arc<Row>>;

/// When a run starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// In microseconds since 1970.
    At(i64),
    /// When its request came in.
    Received(Arc<Acceptance>),
}

impl Start {
    pub fn is(&self, micros: i64) -> bool {
        match self {
            Self::At(start) => *start == micros,
            Self::Received(acceptance) => acceptance.is_at(micros),
        }
    }

    /// The first and the last time that it can be.
    pub fn bounds(&self) -> (i64, i64) {
        match self {
            Self::At(start) => (*start, *start),
            Self::Received(acceptance) => acceptance.bounds(),
        }
    }
}

/// A field's value: JSON, and whether it is kept byte for byte.
#[derive(Clone, Debug)]
pub struct FieldValue {
    pub raw: String,
    pub verbatim: bool,
}

/// One trace run as the operations on it leave it.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: Uuid,
    pub project: Handle,
    /// Where it is in the order of its project.
    pub sort_key: Start,
    /// What is shown as its start.
    pub start: Start,
    pub end: Option<i64>,
    /// Whether a POST is among its operations.
    pub posted: bool,
    pub order: Option<Order>,
    pub fields: BTreeMap<Field, FieldValue>,
    /// `extra`, merged.
    pub extra: Option<BTreeMap<String, Json>>,
}

/// What happened to an id.
#[derive(Clone, Debug)]
enum Event {
    Operation(Arc<Operation>),
    Deleted(Handle),
}

/// Feedback as it was left.
#[derive(Clone, Debug)]
pub struct FeedbackRecord {
    pub feedback: Feedback,
    /// In the order of acceptance.
    pub place: usize,
    pub deleted: bool,
}

/// Everything that was accepted, in the order of acceptance of each id.
#[derive(Debug)]
pub struct Oracle {
    features: Features,
    runs: HashMap<Run, Vec<Event>>,
    /// The runs with operations that name a project.
    named: HashMap<Handle, BTreeSet<Run>>,
    feedback: HashMap<(Tenant, Uuid), FeedbackRecord>,
    judged: HashMap<Run, BTreeSet<Uuid>>,
    files: HashMap<Run, BTreeMap<String, Attachment>>,
    accepted: usize,
}

impl Oracle {
    pub fn new(features: Features) -> Self {
        Self {
            features,
            runs: HashMap::new(),
            named: HashMap::new(),
            feedback: HashMap::new(),
            judged: HashMap::new(),
            files: HashMap::new(),
            accepted: 0,
        }
    }

    pub fn say(&mut self, tenant: Tenant, operation: &Arc<Operation>) {
        let run = (tenant, operation.id);
        if let Some(project) = operation.project {
            self.named.entry(project).or_default().insert(run);
        }
        self.runs
            .entry(run)
            .or_default()
            .push(Event::Operation(Arc::clone(operation)));
    }

    pub fn judge(&mut self, tenant: Tenant, feedback: &Feedback) {
        self.accepted += 1;
        let given = FeedbackRecord {
            feedback: feedback.clone(),
            place: self.accepted,
            deleted: false,
        };
        if let Some(run) = feedback.run {
            self.judged.entry((tenant, run)).or_default().insert(feedback.id);
        }
        self.feedback.insert((tenant, feedback.id), given);
    }

    pub fn attach(&mut self, tenant: Tenant, file: &Attachment) {
        let files = self.files.entry((tenant, file.run)).or_default();
        files.insert(file.name.clone(), file.clone());
    }

    pub fn delete_project(&mut self, project: Handle) {
        for run in self.named.get(&project).into_iter().flatten() {
            self.runs.entry(*run).or_default().push(Event::Deleted(project));
        }
    }

    /// The runs that may be in a project.
    pub fn runs_of(&self, project: Handle) -> impl Iterator<Item = Run> {
        self.named.get(&project).into_iter().flatten().copied()
    }

    /// The projects that operations on a run have named.
    pub fn projects_of(&self, run: Run) -> BTreeSet<Handle> {
        let named = self.events(run).iter().filter_map(|event| match event {
            Event::Operation(operation) => operation.project,
            Event::Deleted(_) => None,
        });
        named.collect()
    }

    /// The `dotted_order` and the project of a run as far as they are certain.
    pub fn whereabouts(&self, run: Run) -> Option<Arc<Row>> {
        match self.outcomes(run).as_slice() {
            [Some(row)] => Some(Arc::clone(row)),
            _ => None,
        }
    }

    /// The first post of a run.
    pub fn first_post(&self, run: Run) -> Option<Arc<Operation>> {
        self.events(run).iter().find_map(|event| match event {
            Event::Operation(operation) if operation.verb == Verb::Post => Some(Arc::clone(operation)),
            _ => None,
        })
    }

    /// Whether a project with operations on the run was deleted: then its feedback and files may be gone with it.
    pub fn lost_a_project(&self, run: Run) -> bool {
        self.events(run).iter().any(|event| matches!(event, Event::Deleted(_)))
    }

    pub fn feedback(&self, tenant: Tenant, id: Uuid) -> Option<&FeedbackRecord> {
        self.feedback.get(&(tenant, id))
    }

    pub fn change_feedback(&mut self, tenant: Tenant, id: Uuid, change: impl FnOnce(&mut FeedbackRecord)) {
        change(self.feedback.get_mut(&(tenant, id)).expect("feedback that was given"));
    }

    pub fn all_feedback(&self) -> impl Iterator<Item = (Tenant, &FeedbackRecord)> {
        self.feedback.iter().map(|((tenant, _), given)| (*tenant, given))
    }

    /// Feedback on a run, in the order of acceptance.
    pub fn feedback_on(&self, run: Run) -> Vec<FeedbackRecord> {
        let ids = self.judged.get(&run).into_iter().flatten();
        let given = ids.filter_map(|id| self.feedback.get(&(run.0, *id)));
        // The same id may have been given again, on another run.
        let mut given: Vec<FeedbackRecord> = given
            .filter(|given| given.feedback.run == Some(run.1) && !given.deleted)
            .cloned()
            .collect();
        given.sort_by_key(|given| given.place);
        given
    }

    pub fn files_of(&self, run: Run) -> Vec<Attachment> {
        self.files
            .get(&run)
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs.keys().copied()
    }

    /// Forgets runs that nothing will be said about any more.
    pub fn retire(&mut self, gone: impl Fn(Run) -> bool) {
        self.runs.retain(|run, _| !gone(*run));
        for named in self.named.values_mut() {
            named.retain(|run| !gone(*run));
        }
        self.judged.retain(|run, _| !gone(*run));
        self.files.retain(|run, _| !gone(*run));
        self.feedback
            .retain(|(tenant, _), given| !given.feedback.run.is_some_and(|run| gone((*tenant, run))));
    }

    /// What happened to an id, for people.
    pub fn story(&self, run: Run) -> String {
        let told = self.events(run).iter().map(|event| match event {
            Event::Operation(operation) => operation.story(),
            Event::Deleted(project) => format!("project {project} was deleted"),
        });
        told.collect::<Vec<_>>().join("\n    ")
    }

    /// How many operations on a run wait for one that places it, at least and at most.
    pub fn waiting(&self, run: Run) -> (usize, usize) {
        let states = self.states(run);
        let counts = states.iter().map(|state| state.waiting.len());
        (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0))
    }

    /// What may be shown of an id.
    pub fn outcomes(&self, run: Run) -> Vec<Outcome> {
        let states = self.states(run);
        states
            .iter()
            .map(|state| state.row(run.1, self.features).map(Arc::new))
            .collect()
    }

    fn events(&self, run: Run) -> &[Event] {
        self.runs.get(&run).map_or(&[], Vec::as_slice)
    }

    fn states(&self, run: Run) -> Vec<State> {
        let events = self.events(run);
        let uncertain = events.iter().any(|event| match event {
            Event::Operation(operation) => !operation.certain && operation.acceptance.taken().is_none(),
            Event::Deleted(_) => false,
        });
        let mut states = Vec::new();
        for taken in [true, false] {
            if taken || uncertain {
                states.extend(fold(&known(events, taken)));
            }
        }
        states
    }
}

/// The events that count, where requests of which no one knows whether they were taken were taken or not.
fn known(events: &[Event], taken: bool) -> Vec<Event> {
    let counts = |event: &&Event| match event {
        Event::Operation(operation) => operation.certain || operation.acceptance.taken().unwrap_or(taken),
        Event::Deleted(_) => true,
    };
    events.iter().filter(counts).cloned().collect()
}

/// A run while operations are flushed.
#[derive(Clone, Debug, Default)]
struct State {
    assignment: Option<(Handle, Start)>,
    applied: Vec<Arc<Operation>>,
    waiting: Vec<Arc<Operation>>,
    deleted: BTreeSet<Handle>,
}

/// Flushes what was said, with each number of operations that may have been flushed before each deletion.
fn fold(events: &[Event]) -> Vec<State> {
    let mut said: Vec<Arc<Operation>> = Vec::new();
    // Each with how many operations were accepted before it.
    let mut deletions: Vec<(usize, Handle)> = Vec::new();
    for event in events {
        match event {
            Event::Operation(operation) => said.push(Arc::clone(operation)),
            Event::Deleted(project) => deletions.push((said.len(), *project)),
        }
    }
    let mut states = Vec::new();
    fold_on(State::default(), 0, &said, &deletions, &mut states);
    states
}

fn fold_on(
    state: State,
    folded: usize,
    said: &[Arc<Operation>],
    deletions: &[(usize, Handle)],
    states: &mut Vec<State>,
) {
    let Some((&(accepted, project), rest)) = deletions.split_first() else {
        let mut state = state;
        for operation in &said[folded..] {
            state.fold(operation);
        }
        states.push(state);
        return;
    };
    let mut before = state;
    for more in folded..=accepted {
        if more > folded {
            before.fold(&said[more - 1]);
        }
        let mut after = before.clone();
        after.delete(project);
        fold_on(after, more, said, rest, states);
    }
}

impl State {
    fn fold(&mut self, operation: &Arc<Operation>) {
        if self.assignment.is_none() {
            match (operation.project, sort(operation)) {
                (Some(project), Some(_)) if self.deleted.contains(&project) => return,
                (Some(project), Some(start)) => {
                    self.assignment = Some((project, start));
                    self.applied = std::mem::take(&mut self.waiting);
                }
                _ => {
                    self.waiting.push(Arc::clone(operation));
                    return;
                }
            }
        }
        self.applied.push(Arc::clone(operation));
    }

    fn delete(&mut self, project: Handle) {
        self.deleted.insert(project);
        if self.assignment.as_ref().is_some_and(|(place, _)| *place == project) {
            self.assignment = None;
            self.applied.clear();
        }
    }

    fn row(&self, id: Uuid, features: Features) -> Option<Row> {
        let (project, place) = self.assignment.clone()?;
        let post = self.applied.iter().find(|operation| operation.verb == Verb::Post);
        let patches = || self.applied.iter().filter(|operation| operation.verb == Verb::Patch);
        // Later ones count more, and the post least.
        let ranked: Vec<&Arc<Operation>> = post.into_iter().chain(patches()).collect();
        let mut fields = BTreeMap::new();
        let (mut order, mut start, mut end) = (None, None, None);
        let mut extra: Option<BTreeMap<String, Json>> = None;
        for operation in ranked {
            for (field, raw) in &operation.fields {
                if *field == Field::Extra {
                    merge_extra(&mut extra, raw, features);
                } else if says_something(*field, raw) {
                    let sent = FieldValue {
                        raw: raw.trim().to_owned(),
                        verbatim: operation.verbatim,
                    };
                    fields.insert(*field, sent);
                }
            }
            order = operation.order.clone().or(order);
            start = shown_start(operation).or(start);
            end = operation.end.as_ref().map(|end| end.micros).or(end);
        }
        let start = start
            .filter(|_| !features.start_is_place)
            .unwrap_or_else(|| place.clone());
        Some(Row {
            id,
            project,
            sort_key: place,
            start,
            end,
            posted: post.is_some(),
            order,
            fields,
            extra,
        })
    }
}

/// Whether a value counts: null does not, nor does a status that no one knows.
fn says_something(field: Field, raw: &str) -> bool {
    if field != Field::Status {
        return raw.trim() != "null";
    }
    let status = Json::parse(raw).expect("what is sent is JSON");
    status.as_text().is_some_and(|text| known_status(text).is_some())
}

/// Where an operation would place its run.
fn sort(operation: &Operation) -> Option<Start> {
    let own = operation.order.as_ref().and_then(|order| order.links.last());
    if let Some(own) = own {
        return Some(Start::At(own.start));
    }
    match (operation.verb, &operation.start) {
        (Verb::Patch, _) => None,
        (Verb::Post, Some(start)) => Some(Start::At(start.micros)),
        (Verb::Post, None) => Some(Start::Received(Arc::clone(&operation.acceptance))),
    }
}

/// The `start_time` that an operation sets.
fn shown_start(operation: &Operation) -> Option<Start> {
    match (&operation.start, operation.verb, &operation.order) {
        (Some(start), ..) => Some(Start::At(start.micros)),
        // A post that says no time at all starts when it comes in.
        (None, Verb::Post, None) => Some(Start::Received(Arc::clone(&operation.acceptance))),
        _ => None,
    }
}

/// Keys whose values merge key by key.
const MERGED: [&str; 2] = ["metadata", "runtime"];

fn merge_extra(into: &mut Option<BTreeMap<String, Json>>, raw: &str, features: Features) {
    let Json::Object(more) = Json::parse(raw).expect("what is sent is JSON") else {
        return; // null
    };
    let merged = into.get_or_insert_default();
    for (key, value) in more {
        let nested = features.nested_metadata && MERGED.contains(&key.as_str());
        match (nested, merged.get_mut(&key), value) {
            (true, Some(Json::Object(before)), Json::Object(after)) => before.extend(after),
            (true, _, Json::Null) => {}
            (_, _, value) => {
                merged.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
