//! Jobs: the list with its filters, and one job with its history.

use askama::Template;
use axum::extract::{FromRef as _, Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Timestamp};
use towpath_durable::{Explanation, StateReason};
use towpath_store::attempts::Attempt;
use towpath_store::jobs::{self, Filter, Job, JobSummary};
use towpath_store::{attempts, pools, steps, workers};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal::{self, JobStores};

const PATH: &str = "/ui/jobs";
/// Filter value for the jobs of the agent server in this process.
const AGENTS: &str = "agents";
const LIMIT: i64 = 50;
const CHILDREN: i64 = 100;
const STEPS: i64 = 200;

const STATES: [JobState; 9] = [
    JobState::Ready,
    JobState::Running,
    JobState::Scheduled,
    JobState::Blocked,
    JobState::Waiting,
    JobState::Succeeded,
    JobState::Failed,
    JobState::Cancelled,
    JobState::TimedOut,
];

/// Fields of the filter form. An empty field matches everything.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListJobs {
    /// `agents`: the jobs of the agent server in this process.
    of: String,
    pool: String,
    kind: String,
    state: String,
    lane: String,
    before: String,
}

impl ListJobs {
    fn filter(&self) -> Filter {
        // No stored name contains NUL, and PostgreSQL rejects it.
        let text = |text: &str| Some(text.replace('\0', "").trim().to_owned()).filter(|text| !text.is_empty());
        Filter {
            pool: text(&self.pool),
            kind: text(&self.kind),
            lane: text(&self.lane),
            state: STATES.into_iter().find(|state| state.as_str() == self.state),
            ..Filter::default()
        }
    }

    fn address(&self, before: Option<JobId>) -> String {
        let before = before.map(|id| id.to_string()).unwrap_or_default();
        let pairs = [
            ("of", self.of.as_str()),
            ("pool", &self.pool),
            ("kind", &self.kind),
            ("state", &self.state),
            ("lane", &self.lane),
            ("before", &before),
        ];
        let pairs: Vec<String> = pairs
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect();
        format!("{PATH}?{}", pairs.join("&"))
    }
}

/// A URL-encoded value.
fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}

#[derive(Template)]
#[template(path = "ui/jobs.html")]
struct List {
    /// Whether there is a second database.
    has_agents: bool,
    of_agents: bool,
    filter: FilterForm,
    pools: Vec<String>,
    states: Vec<&'static str>,
    jobs: Vec<Row>,
    first: String,
    next: Option<String>,
}
struct FilterForm {
    pool: String,
    kind: String,
    state: String,
    lane: String,
    any: bool,
    paged: bool,
}

/// A job in a list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) short: String,
    pub(super) kind: String,
    pub(super) pool: String,
    pub(super) state: &'static str,
    pub(super) tone: &'static str,
    pub(super) attempt: i64,
    pub(super) failures: i64,
    pub(super) error: Option<String>,
    pub(super) created: String,
    pub(super) ended: String,
    /// Parent that continues without this job.
    pub(super) part_of: Option<String>,
    /// Time since the job was recorded, or since it ended.
    pub(super) age: String,
}

impl Row {
    pub(super) fn new(job: JobSummary, since: Timestamp, now: Timestamp) -> Self {
        let state = job.state.as_str();
        Self {
            id: job.id.to_string(),
            short: formatting::short(&job.id),
            kind: job.kind,
            pool: job.pool,
            state,
            tone: formatting::tone(state),
            attempt: job.attempt,
            failures: job.failures,
            error: job.error,
            created: formatting::moment(job.created_at),
            ended: job.finished_at.map(formatting::moment).unwrap_or_default(),
            part_of: job.parent_id.map(|parent| parent.to_string()),
            age: formatting::relative(since, now),
        }
    }
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(wanted): Query<ListJobs>) -> PageResult {
    let filter = wanted.filter();
    let before: Option<JobId> = wanted.before.parse().ok();
    let agents = app.agents.as_ref().filter(|_| wanted.of == AGENTS);
    let found = agents.unwrap_or(&app.store).read(async |tx| {
        Ok((
            jobs::list(tx, &filter, before, LIMIT + 1).await?,
            pools::list(tx, workers::HEARTBEAT_WINDOW).await?,
        ))
    });
    let (mut found, known) = found.await?;
    let now = app.clock.now();
    let more = found.len() as i64 > LIMIT;
    found.truncate(LIMIT as usize);
    let next = found.last().filter(|_| more).map(|last| wanted.address(Some(last.id)));
    let first = wanted.address(None);
    let page = List {
        has_agents: app.agents.is_some(),
        of_agents: agents.is_some(),
        pools: known.into_iter().map(|pool| pool.pool).collect(),
        states: STATES.into_iter().map(JobState::as_str).collect(),
        jobs: found
            .into_iter()
            .map(|job| {
                let since = job.created_at;
                Row::new(job, since, now)
            })
            .collect(),
        filter: FilterForm {
            any: filter != Filter::default(),
            paged: before.is_some(),
            pool: wanted.pool,
            kind: wanted.kind,
            state: wanted.state,
            lane: wanted.lane,
        },
        first,
        next,
    };
    Ok(asked.page("Jobs", PATH, &page))
}

#[derive(Template)]
#[template(path = "ui/job.html")]
struct Detail {
    /// Beginning of the address of a list of the same database.
    list: &'static str,
    id: String,
    kind: String,
    pool: String,
    state: &'static str,
    tone: &'static str,
    dead: bool,
    can_retry: bool,
    can_cancel: bool,
    why_is: &'static str,
    why: String,
    attempt: i64,
    failures: i64,
    created: String,
    due: String,
    took: String,
    deadline: Option<String>,
    lane: Option<String>,
    worker: Option<String>,
    lease: Option<String>,
    parent: Option<String>,
    trace: Option<String>,
    tenant: String,
    events: Vec<Event>,
    steps: Vec<Step>,
    children: Vec<Row>,
    more_children: bool,
}

struct Event {
    at: Timestamp,
    tone: &'static str,
    what: String,
    when: String,
    moment: String,
    text: Option<String>,
}

struct Step {
    name: String,
    fence: i64,
    when: String,
    moment: String,
}

pub(super) async fn detail(State(app): State<App>, asked: PageRequest, Path(id): Path<String>) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("job"));
    let id: JobId = id.parse().map_err(|_| missing())?;
    let (store, id) = JobStores::from_ref(&app).find_job(id).await?;
    let platforms = app.store.read(async |tx| Ok(jobs::get(tx, id).await?.is_some()));
    let of_agents = app.agents.is_some() && !platforms.await?;
    let found = store.read(async |tx| {
        let (Some(job), Some(why)) = (jobs::get(tx, id).await?, towpath_durable::explain(tx, id).await?) else {
            return Ok(None);
        };
        let children = Filter {
            parent: Some(id),
            ..Filter::default()
        };
        Ok(Some((
            job,
            why,
            attempts::list(tx, id).await?,
            steps::list_finished(tx, id, STEPS).await?,
            jobs::list(tx, &children, None, CHILDREN + 1).await?,
        )))
    });
    let (job, why, attempts, steps, mut children) = found.await?.ok_or_else(missing)?;
    let now = app.clock.now();
    let more_children = children.len() as i64 > CHILDREN;
    children.truncate(CHILDREN as usize);
    let state = job.state.as_str();
    let is_final = job.state.is_final();
    let detail = Detail {
        list: if of_agents { "of=agents&" } else { "" },
        id: id.to_string(),
        state,
        tone: tone(&job, &why),
        dead: job.dead,
        // A part of another job cannot be retried alone: its parent has continued without it.
        can_retry: (is_final && job.state != JobState::Succeeded && job.parent_id.is_none())
            || (job.state == JobState::Scheduled && job.failures > 0),
        can_cancel: !is_final && job.cancel_at.is_none(),
        why_is: if is_final {
            "Result"
        } else if matches!(why.why, StateReason::Running { .. }) {
            "Current activity"
        } else {
            "Reason for waiting"
        },
        why: sentence(&why, &job),
        attempt: job.attempt,
        failures: job.failures,
        created: formatting::moment(job.created_at),
        due: due(&job, now),
        took: match (job.started_at, job.finished_at) {
            (Some(started), Some(finished)) => formatting::span(finished.since(started)),
            (Some(started), None) => format!("{} so far", formatting::span(now.since(started))),
            _ => "not started".to_owned(),
        },
        deadline: job.deadline_at.map(|time| formatting::relative(time, now)),
        worker: job.worker_id.map(|worker| worker.to_string()),
        lease: match why.why {
            StateReason::Running {
                lease_until: Some(until),
                ..
            } => Some(format!("ends {}, unless renewed", formatting::relative(until, now))),
            _ => None,
        },
        parent: job.parent_id.map(|parent| parent.to_string()),
        trace: job
            .traceparent
            .as_deref()
            .and_then(|text| text.parse::<towpath_domain::Traceparent>().ok())
            .map(towpath_domain::Traceparent::trace_id),
        tenant: job.tenant_id.to_string(),
        events: events(&job, attempts, now),
        steps: steps
            .into_iter()
            .map(|step| Step {
                name: step.name,
                fence: step.fence,
                when: formatting::relative(step.at, now),
                moment: formatting::moment(step.at),
            })
            .collect(),
        children: children
            .into_iter()
            .map(|child| {
                let since = child.created_at;
                Row::new(child, since, now)
            })
            .collect(),
        more_children,
        kind: job.kind,
        pool: job.pool,
        lane: job.lane,
    };
    Ok(asked.page(&detail.kind, PATH, &detail))
}

fn sentence(why: &Explanation, job: &Job) -> String {
    let mut text = why.text.clone();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    if let (StateReason::Over, Some(error), true) = (&why.why, &job.error, job.state != JobState::Succeeded) {
        text.push_str(": ");
        text.push_str(error);
    } else {
        text.push('.');
    }
    text
}

fn tone(job: &Job, why: &Explanation) -> &'static str {
    match why.why {
        StateReason::NoWorker | StateReason::LeaseEnded { .. } => "bad",
        _ => formatting::tone(job.state.as_str()),
    }
}

fn due(job: &Job, now: Timestamp) -> String {
    if job.run_at <= now {
        formatting::moment(job.run_at)
    } else {
        format!(
            "{} ({})",
            formatting::moment(job.run_at),
            formatting::relative(job.run_at, now)
        )
    }
}

/// Events of a job in chronological order.
fn events(job: &Job, attempts: Vec<Attempt>, now: Timestamp) -> Vec<Event> {
    let event = |at: Timestamp, tone, what: String, text| Event {
        at,
        tone,
        what,
        when: formatting::relative(at, now),
        moment: formatting::moment(at),
        text,
    };
    let mut events = vec![event(job.created_at, "", "Recorded".to_owned(), None)];
    if let Some(started) = job.started_at {
        events.push(event(started, "busy", "First claimed by a worker".to_owned(), None));
    }
    for attempt in attempts {
        let what = match (attempt.outcome.as_str(), attempt.failure) {
            ("failed", Some(n)) => format!("Attempt failed (retry_{n})"),
            ("failed", None) => "Attempt failed".to_owned(),
            ("timed_out", Some(n)) => format!("Attempt took too long (retry_{n})"),
            ("timed_out", None) => "The deadline passed".to_owned(),
            ("lost", _) => "Its worker was lost".to_owned(),
            ("cancelled", _) => "Stopped".to_owned(),
            (other, _) => other.to_owned(),
        };
        let tone = if attempt.outcome == "cancelled" { "" } else { "bad" };
        events.push(event(attempt.at, tone, what, Some(attempt.error)));
    }
    if let Some(asked) = job.cancel_at {
        events.push(event(asked, "wait", "Cancellation requested".to_owned(), None));
    }
    if let Some(finished) = job.finished_at {
        let state = job.state.as_str();
        let what = match job.state {
            JobState::Succeeded => "Succeeded".to_owned(),
            JobState::TimedOut => "Timed out".to_owned(),
            JobState::Cancelled => "Cancelled".to_owned(),
            _ => "Failed permanently".to_owned(),
        };
        events.push(event(finished, formatting::tone(state), what, None));
    }
    events.sort_by_key(|event| event.at);
    events
}

pub(super) async fn act(
    State(app): State<App>,
    Path((job, action)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let missing = || PageError::from(ApiError::not_found("job"));
    let id: JobId = job.parse().map_err(|_| missing())?;
    let (store, id) = JobStores::from_ref(&app).find_job(id).await?;
    match action.as_str() {
        "retry" => internal::retry_job(&store, id).await?,
        "cancel" => internal::cancel_job(&store, id).await?,
        _ => return Err(missing()),
    }
    Ok(back(&format!("{PATH}/{id}")))
}
