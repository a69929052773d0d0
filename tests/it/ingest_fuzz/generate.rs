//! Steps from a seed: what is sent, by which route, and what is read in between. The oracle is told of each as it is
//! made, so a step that reads knows what it has to see.

mod edge_cases;
mod fields;
mod mass;
mod projects;
mod reads;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use towpath_tests::Random;
use uuid::Uuid;

use super::operation::{Attachment, Feedback, Handle, Link, Operation, Run, Tenant, Verb};
use super::oracle::Oracle;
use super::spans::{Attribute, Span};
use super::step::{Key, Keys, Mode, Step, Work};
use super::wire::{Encoding, Layout, Request, Route};
use super::{Features, values};

/// 2026-02-26, in days since 1970: a few days later another month has begun.
const FIRST_DAY: i64 = 20_510;
const DAYS: u64 = 6;
/// Trace runs that operations continue with.
const POOL: usize = 2_000;
/// Larger projects are only read when all is over.
const LARGEST_WALK: usize = 3_000;
const KINDS: [&str; 4] = [
    "image/png",
    "text/plain",
    "application/octet-stream",
    "application/json",
];

/// How much there is of what takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Short,
    Long,
}

/// A project that was made.
#[derive(Clone, Debug)]
pub struct Project {
    pub tenant: Tenant,
    pub name: String,
    pub deleted: bool,
    /// Whether operations choose it by themselves.
    pub common: bool,
}

/// What operations continue with in a workspace.
#[derive(Default)]
struct Workspace {
    /// Projects that are there, by name.
    names: BTreeMap<String, Handle>,
    runs: Vec<Uuid>,
    /// Patched, and not posted yet.
    awaited: Vec<Uuid>,
    /// `dotted_order`s that others can continue from.
    trees: Vec<Vec<Link>>,
    spans: Vec<Span>,
    feedback: Vec<Uuid>,
}

/// Makes steps.
pub struct Generator {
    pub oracle: Oracle,
    pub projects: Vec<Project>,
    /// Operations, feedback and files that were sent.
    pub sent: usize,
    dice: Random,
    features: Features,
    form: Form,
    step: usize,
    workspaces: Vec<Workspace>,
    /// What is done once, each with when.
    once: Vec<(usize, SpecialCase)>,
}

/// What takes long and is done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecialCase {
    ManyDays,
    TooManyDays,
    ManyProjects,
    TooManyProjects,
    LargeField,
    LargestField,
    TooLargeField,
    Bomb,
}

/// A request that is being put together.
struct Draft {
    request: Request,
    keys: Keys,
}

impl Generator {
    pub fn new(seed: u64, tenants: usize, features: Features, form: Form, operations: usize) -> Self {
        use SpecialCase::{
            Bomb, LargeField, LargestField, ManyDays, ManyProjects, TooLargeField, TooManyDays, TooManyProjects,
        };
        let part = |n: usize| operations * n / 10;
        let mut once = vec![
            (part(1), ManyDays),
            (part(1), TooManyDays),
            (part(2), LargeField),
            (part(3), TooManyProjects),
            (part(4), ManyProjects),
        ];
        if form == Form::Long {
            once.extend([(part(5), LargestField), (part(6), TooLargeField), (part(7), Bomb)]);
        }
        Self {
            oracle: Oracle::new(features),
            projects: Vec::new(),
            sent: 0,
            dice: Random::new(seed),
            features,
            form,
            step: 0,
            workspaces: (0..tenants).map(|_| Workspace::default()).collect(),
            once,
        }
    }

    pub fn next_step(&mut self) -> Step {
        self.step += 1;
        if let Some(at) = self.once.iter().position(|(when, _)| *when <= self.sent) {
            let (_, once) = self.once.swap_remove(at);
            if let Some(step) = self.once(once) {
                return step;
            }
        }
        let step = match self.dice.below(100) {
            0..8 => Some(self.odd()),
            8..20 => self.read(),
            20..23 => self.walk(),
            23..27 => self.administer(),
            27..33 => self.feedback_step(),
            33..35 => self.show_file(),
            35 if self.dice.one_in(3) => self.export(),
            _ => None,
        };
        step.unwrap_or_else(|| self.ingest())
    }

    fn tenant(&mut self) -> Tenant {
        if self.dice.one_in(4) {
            self.dice.index(self.workspaces.len())
        } else {
            0
        }
    }

    fn finish(&self, keys: Keys, work: Work) -> Step {
        Step {
            number: self.step,
            keys,
            work,
        }
    }

    // ---- sending ----

    fn ingest(&mut self) -> Step {
        let tenant = self.tenant();
        let routes = [
            Route::Run,
            Route::Run,
            Route::Patch,
            Route::Patch,
            Route::Batch,
            Route::Batch,
            Route::Batch,
            Route::Multipart,
            Route::Multipart,
            Route::Multipart,
            Route::Multipart,
            Route::OtlpJson,
            Route::OtlpProtobuf,
            Route::Feedback,
        ];
        let route = *self.dice.pick(&routes);
        let mut draft = self.draft(tenant, route);
        match route {
            Route::Run => {
                let post = self.post(&mut draft);
                self.say(&mut draft, post);
            }
            Route::Patch => {
                let mut patch = self.patch(&mut draft);
                if self.dice.one_in(2) {
                    patch.id_text = None;
                }
                self.say(&mut draft, patch);
            }
            Route::Batch => self.batch(&mut draft),
            Route::Multipart => self.multipart(&mut draft),
            Route::OtlpJson | Route::OtlpProtobuf => self.spans(&mut draft),
            Route::Feedback => self.judge(&mut draft),
        }
        self.send(draft)
    }

    fn draft(&mut self, tenant: Tenant, route: Route) -> Draft {
        let mut request = Request::new(tenant, route);
        request.below_api = self.dice.one_in(3);
        request.encoding = *self
            .dice
            .pick(&[Encoding::Identity, Encoding::Identity, Encoding::Gzip, Encoding::Zstd]);
        request.layout = *self
            .dice
            .pick(&[Layout::Together, Layout::Scattered, Layout::Boundaries]);
        Draft {
            request,
            keys: Keys::default(),
        }
    }

    fn send(&mut self, draft: Draft) -> Step {
        self.sent += draft.request.items();
        self.finish(draft.keys, Work::Send(Box::new(draft.request)))
    }

    /// How many operations a body has: mostly few.
    fn size(&mut self) -> usize {
        let most = *self.dice.pick(&[2, 10, 30, 60]);
        1 + self.dice.index(most)
    }

    fn batch(&mut self, draft: &mut Draft) {
        let size = self.size();
        let mut patches = 0;
        for _ in 0..size {
            if self.dice.one_in(2) {
                let post = self.post(draft);
                self.say(draft, post);
            } else {
                patches += 1;
            }
        }
        // Of a body the posts are accepted first, whatever is first in it.
        for _ in 0..patches {
            let patch = self.patch(draft);
            self.say(draft, patch);
        }
    }

    fn multipart(&mut self, draft: &mut Draft) {
        for _ in 0..self.size() {
            let operation = if self.dice.one_in(2) {
                self.post(draft)
            } else {
                self.patch(draft)
            };
            // Where parts are scattered, one of them must not be able to belong to two operations.
            let same = |other: &Arc<Operation>| (other.verb, other.id) == (operation.verb, operation.id);
            if draft.request.layout == Layout::Scattered && draft.request.operations.iter().any(same) {
                draft.request.layout = Layout::Together;
            }
            self.say(draft, operation);
        }
        for _ in 0..self.dice.below(3) {
            self.judge(draft);
        }
        for _ in 0..self.dice.below(3) {
            self.attach(draft);
        }
    }

    /// Puts an operation into the body, and tells the oracle.
    fn say(&mut self, draft: &mut Draft, operation: Operation) {
        let run = (draft.request.tenant, operation.id);
        self.touch(&mut draft.keys, run, Mode::Exclusive);
        let operation = Arc::new(operation);
        self.oracle.say(run.0, &operation);
        let workspace = &mut self.workspaces[run.0];
        if let Some(order) = operation.order.as_ref().filter(|order| order.links.len() < 6) {
            workspace.trees.push(order.links.clone());
            keep_last(&mut workspace.trees, 200);
        }
        if operation.verb == Verb::Post {
            workspace.awaited.retain(|id| *id != run.1);
        }
        if !workspace.runs.contains(&run.1) {
            workspace.runs.push(run.1);
            keep_last(&mut workspace.runs, POOL);
        }
        draft.request.operations.push(operation);
    }

    /// What is done with a run is done in order, and while its projects stay what they are.
    fn touch(&self, keys: &mut Keys, run: Run, mode: Mode) {
        keys.add(Key::Run(run), mode);
        for project in self.oracle.projects_of(run) {
            keys.add(Key::Project(project), Mode::Shared);
        }
    }

    /// A run that was spoken of, mostly not long ago.
    fn known(&mut self, tenant: Tenant) -> Option<Uuid> {
        let runs = &self.workspaces[tenant].runs;
        if runs.is_empty() {
            return None;
        }
        let recent = if self.dice.one_in(3) {
            runs.len()
        } else {
            runs.len().min(60)
        };
        Some(runs[runs.len() - 1 - self.dice.index(recent)])
    }

    // ---- projects ----

    fn judge(&mut self, draft: &mut Draft) {
        let tenant = draft.request.tenant;
        let known = &self.workspaces[tenant].feedback;
        let again = !known.is_empty() && self.dice.one_in(6);
        let id = if again {
            *self.dice.pick(known)
        } else {
            values::id(&mut self.dice)
        };
        let run = if self.dice.one_in(12) { None } else { self.known(tenant) };
        if draft.request.feedback.iter().any(|other| other.id == id) {
            return;
        }
        let feedback = Feedback {
            id,
            run,
            key: (*self.dice.pick(&["good", "user_score", "ünï ✓", "a.b"])).to_owned(),
            members: fields::judgement(&mut self.dice, self.features),
        };
        // What it was given on before changes as well.
        let before = self.oracle.feedback(tenant, id).and_then(|given| given.feedback.run);
        for run in [run, before].into_iter().flatten() {
            self.touch(&mut draft.keys, (tenant, run), Mode::Exclusive);
        }
        draft.keys.add(Key::Feedback(tenant, id), Mode::Exclusive);
        self.oracle.judge(tenant, &feedback);
        if !again {
            self.workspaces[tenant].feedback.push(id);
        }
        draft.request.feedback.push(feedback);
    }

    fn feedback_step(&mut self) -> Option<Step> {
        let tenant = self.tenant();
        let known = &self.workspaces[tenant].feedback;
        if known.is_empty() {
            return None;
        }
        let at = self.dice.index(known.len());
        let id = known[at];
        let given = self.oracle.feedback(tenant, id)?.clone();
        let run = given.feedback.run.map(|run| (tenant, run));
        // It goes with its run, some time after the project of that was deleted.
        if run.is_some_and(|run| self.oracle.lost_a_project(run)) {
            return None;
        }
        let choice = self.dice.below(10);
        let mode = if choice < 6 { Mode::Shared } else { Mode::Exclusive };
        let mut keys = Keys::default();
        keys.add(Key::Feedback(tenant, id), mode);
        if let Some(run) = run {
            self.touch(&mut keys, run, mode);
        }
        let work = match choice {
            0..6 => Work::ShowFeedback {
                tenant,
                given: Box::new(given),
            },
            6..9 => {
                let change = vec![("comment", values::plain_text(&mut self.dice))];
                self.oracle.change_feedback(tenant, id, |given| {
                    let members = &mut given.feedback.members;
                    members.retain(|(name, _)| *name != "comment");
                    members.extend(change.iter().cloned());
                });
                Work::ChangeFeedback { tenant, id, change }
            }
            _ => {
                self.workspaces[tenant].feedback.swap_remove(at);
                self.oracle.change_feedback(tenant, id, |given| given.deleted = true);
                Work::DeleteFeedback { tenant, id }
            }
        };
        Some(self.finish(keys, work))
    }

    fn attach(&mut self, draft: &mut Draft) {
        let tenant = draft.request.tenant;
        let Some(run) = self.known(tenant) else { return };
        let long = "n".repeat(255);
        let names = ["boat", "a b.c", "ünï ✓", "../../up", "..", "a/b", "%2e%2e", &long];
        let name = (*self.dice.pick(&names)).to_owned();
        if draft
            .request
            .files
            .iter()
            .any(|other| (other.run, &other.name) == (run, &name))
        {
            return;
        }
        let size = self.dice.below(2_000);
        let mut data: Vec<u8> = (0..size).map(|_| self.dice.next_u64().to_le_bytes()[0]).collect();
        if draft.request.layout != Layout::Boundaries {
            data.extend_from_slice(b"\r\n--fuzz-boundary-1f0c--\r\n");
        }
        let file = Attachment {
            run,
            name,
            content_type: (*self.dice.pick(&KINDS)).to_owned(),
            data: Bytes::from(data),
        };
        self.touch(&mut draft.keys, (tenant, run), Mode::Exclusive);
        self.oracle.attach(tenant, &file);
        draft.request.files.push(file);
    }

    // ---- spans ----

    fn spans(&mut self, draft: &mut Draft) {
        let tenant = draft.request.tenant;
        let header = self.dice.one_in(3).then(|| "from the header".to_owned());
        draft.request.project_header.clone_from(&header);
        let trace = values::id(&mut self.dice);
        for _ in 0..self.size().min(20) {
            let earlier = &self.workspaces[tenant].spans;
            let span = if !earlier.is_empty() && self.dice.one_in(5) {
                // Sent again, it changes nothing.
                self.dice.pick(earlier).clone()
            } else {
                self.new_span(draft, trace)
            };
            let name = span.attributes.iter().find_map(|(name, value)| match value {
                Attribute::Text(text) if name == "langsmith.trace.session_name" => Some(text.clone()),
                _ => None,
            });
            let name = name.or_else(|| header.clone()).unwrap_or_else(|| "default".to_owned());
            let project = self.named(draft, name);
            let post = span.operation(self.step, project, &draft.request.acceptance);
            draft.request.spans.push(span.clone());
            self.say(draft, post);
            let spans = &mut self.workspaces[tenant].spans;
            spans.push(span);
            keep_last(spans, 100);
        }
    }

    fn new_span(&mut self, draft: &Draft, trace: Uuid) -> Span {
        let above = draft.request.spans.iter().filter(|span| span.trace == trace.as_bytes());
        let above: Vec<[u8; 8]> = above.filter_map(|span| span.span.clone().try_into().ok()).collect();
        let parent = match self.dice.below(3) {
            0 if !above.is_empty() => Some(*self.dice.pick(&above)),
            // One that has not come, or never will.
            1 => Some(self.dice.next_u64().to_be_bytes()),
            _ => None,
        };
        let start = match self.dice.below(20) {
            0 => 0,
            _ => values::start(&mut self.dice, FIRST_DAY, DAYS),
        };
        let mut span = Span::new(&mut self.dice, trace, parent, start);
        if let Some(project) = self
            .common_project(draft.request.tenant)
            .filter(|_| self.dice.one_in(2))
        {
            let name = self.projects[project].name.clone();
            let attribute = ("langsmith.trace.session_name".to_owned(), Attribute::Text(name));
            span.attributes.push(attribute);
        }
        span
    }

    // ---- rounds ----

    /// Forgets runs, except for the last ones of each workspace, with which later rounds continue.
    pub fn retire(&mut self, keep: usize) {
        for workspace in &mut self.workspaces {
            keep_last(&mut workspace.runs, keep);
            keep_last(&mut workspace.trees, keep);
            keep_last(&mut workspace.spans, 0);
            workspace.awaited.clear();
            workspace.feedback.clear();
        }
        let kept: Vec<std::collections::HashSet<Uuid>> = self
            .workspaces
            .iter()
            .map(|workspace| workspace.runs.iter().copied().collect())
            .collect();
        self.oracle.retire(|(tenant, run)| !kept[tenant].contains(&run));
        // Later rounds make their own.
        for project in &mut self.projects {
            project.common = false;
        }
    }
}

/// Drops the first ones, so that at most `count` are left.
fn keep_last<T>(list: &mut Vec<T>, count: usize) {
    let more = list.len().saturating_sub(count);
    list.drain(..more);
}
