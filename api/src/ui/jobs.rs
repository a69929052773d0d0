//! Jobs: the list with its filters, and one job with all that happened to it.

use askama::Template;
use axum::extract::{FromRef as _, Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use towpath_domain::job::JobState;
use towpath_domain::{JobId, Timestamp};
use towpath_durable::{Explanation, Why};
use towpath_store::attempts::Attempt;
use towpath_store::jobs::{self, Filter, Job, Listed};
use towpath_store::{attempts, pools, steps, workers};

use super::{Asked, Shown, Trouble, back, show};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal::{self, Operated};

const HERE: &str = "/ui/jobs";
/// How the jobs of the agent server in this process are asked for.
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

/// What the filter form sends. Empty is anything.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    /// `agents`: the jobs of the agent server in this process.
    of: String,
    pool: String,
    kind: String,
    state: String,
    lane: String,
    before: String,
}

impl Wanted {
    fn filter(&self) -> Filter {
        // No name of ours has a NUL in it, and PostgreSQL takes none.
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
        format!("{HERE}?{}", pairs.join("&"))
    }
}

/// A value as it stands in a query.
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
    /// There is a second database to look into.
    has_agents: bool,
    of_agents: bool,
    filter: Shape,
    pools: Vec<String>,
    states: Vec<&'static str>,
    jobs: Vec<Row>,
    first: String,
    next: Option<String>,
}

/// The filter as the form shows it.
struct Shape {
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
    /// Its parent, which has gone on without it.
    pub(super) part_of: Option<String>,
    /// Since it was recorded, or, once over and asked for so, since it ended.
    pub(super) age: String,
}

impl Row {
    pub(super) fn new(job: Listed, since: Timestamp, now: Timestamp) -> Self {
        let state = job.state.as_str();
        Self {
            id: job.id.to_string(),
            short: show::short(&job.id),
            kind: job.kind,
            pool: job.pool,
            state,
            tone: show::tone(state),
            attempt: job.attempt,
            failures: job.failures,
            error: job.error,
            created: show::moment(job.created_at),
            ended: job.finished_at.map(show::moment).unwrap_or_default(),
            part_of: job.parent_id.map(|parent| parent.to_string()),
            age: show::relative(since, now),
        }
    }
}

/// The list.
pub(super) async fn list(State(app): State<App>, asked: Asked, Query(wanted): Query<Wanted>) -> Shown {
    let filter = wanted.filter();
    let before: Option<JobId> = wanted.before.parse().ok();
    let agents = app.agents.as_ref().filter(|_| wanted.of == AGENTS);
    let found = agents.unwrap_or(&app.store).read(async |tx| {
        Ok((
            jobs::list(tx, &filter, before, LIMIT + 1).await?,
            pools::list(tx, workers::SEEN).await?,
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
        filter: Shape {
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
    Ok(asked.page("Jobs", HERE, &page))
}

#[derive(Template)]
#[template(path = "ui/job.html")]
struct Detail {
    /// What the address of a list of its kind begins with.
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

/// One job.
pub(super) async fn detail(State(app): State<App>, asked: Asked, Path(id): Path<String>) -> Shown {
    let missing = || Trouble::from(ApiError::not_found("job"));
    let id: JobId = id.parse().map_err(|_| missing())?;
    let (store, id) = Operated::from_ref(&app).holding(id).await?;
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
            steps::done(tx, id, STEPS).await?,
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
        // A part of another job is not tried alone: that one has gone on without it.
        can_retry: (is_final && job.state != JobState::Succeeded && job.parent_id.is_none())
            || (job.state == JobState::Scheduled && job.failures > 0),
        can_cancel: !is_final && job.cancel_at.is_none(),
        why_is: if is_final {
            "How it ended"
        } else if matches!(why.why, Why::Running { .. }) {
            "What it is doing"
        } else {
            "Why it is not running"
        },
        why: sentence(&why, &job),
        attempt: job.attempt,
        failures: job.failures,
        created: show::moment(job.created_at),
        due: due(&job, now),
        took: match (job.started_at, job.finished_at) {
            (Some(started), Some(finished)) => show::span(finished.since(started)),
            (Some(started), None) => format!("{} so far", show::span(now.since(started))),
            _ => "not started".to_owned(),
        },
        deadline: job.deadline_at.map(|time| show::relative(time, now)),
        worker: job.worker_id.map(|worker| worker.to_string()),
        lease: match why.why {
            Why::Running {
                lease_until: Some(until),
                ..
            } => Some(format!("ends {}, unless renewed", show::relative(until, now))),
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
                when: show::relative(step.at, now),
                moment: show::moment(step.at),
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
    Ok(asked.page(&detail.kind, HERE, &detail))
}

fn sentence(why: &Explanation, job: &Job) -> String {
    let mut text = why.text.clone();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    if let (Why::Over, Some(error), true) = (&why.why, &job.error, job.state != JobState::Succeeded) {
        text.push_str(": ");
        text.push_str(error);
    } else {
        text.push('.');
    }
    text
}

fn tone(job: &Job, why: &Explanation) -> &'static str {
    match why.why {
        Why::NoWorker | Why::LeaseEnded { .. } => "bad",
        _ => show::tone(job.state.as_str()),
    }
}

fn due(job: &Job, now: Timestamp) -> String {
    if job.run_at <= now {
        show::moment(job.run_at)
    } else {
        format!("{} ({})", show::moment(job.run_at), show::relative(job.run_at, now))
    }
}

/// What happened, in the order it did.
fn events(job: &Job, attempts: Vec<Attempt>, now: Timestamp) -> Vec<Event> {
    let event = |at: Timestamp, tone, what: String, text| Event {
        at,
        tone,
        what,
        when: show::relative(at, now),
        moment: show::moment(at),
        text,
    };
    let mut events = vec![event(job.created_at, "", "Recorded".to_owned(), None)];
    if let Some(started) = job.started_at {
        events.push(event(started, "busy", "First claimed by a worker".to_owned(), None));
    }
    for attempt in attempts {
        let what = match (attempt.outcome.as_str(), attempt.failure) {
            ("failed", Some(n)) => format!("Attempt failed (retry_{n})"),
            ("failed", None) => "What it ran failed".to_owned(),
            ("timed_out", Some(n)) => format!("Attempt took too long (retry_{n})"),
            ("timed_out", None) => "The deadline passed".to_owned(),
            ("lost", _) => "Its worker went away".to_owned(),
            ("cancelled", _) => "Stopped".to_owned(),
            (other, _) => other.to_owned(),
        };
        let tone = if attempt.outcome == "cancelled" { "" } else { "bad" };
        events.push(event(attempt.at, tone, what, Some(attempt.error)));
    }
    if let Some(asked) = job.cancel_at {
        events.push(event(asked, "wait", "Asked to stop".to_owned(), None));
    }
    if let Some(finished) = job.finished_at {
        let state = job.state.as_str();
        let what = match job.state {
            JobState::Succeeded => "Succeeded".to_owned(),
            JobState::TimedOut => "Timed out".to_owned(),
            JobState::Cancelled => "Cancelled".to_owned(),
            _ => "Failed for good".to_owned(),
        };
        events.push(event(finished, show::tone(state), what, None));
    }
    events.sort_by_key(|event| event.at);
    events
}

/// Retries or cancels a job.
pub(super) async fn act(
    State(app): State<App>,
    Path((job, action)): Path<(String, String)>,
) -> Result<Response, Trouble> {
    let missing = || Trouble::from(ApiError::not_found("job"));
    let id: JobId = job.parse().map_err(|_| missing())?;
    let (store, id) = Operated::from_ref(&app).holding(id).await?;
    match action.as_str() {
        "retry" => internal::retry_job(&store, id).await?,
        "cancel" => internal::cancel_job(&store, id).await?,
        _ => return Err(missing()),
    }
    Ok(back(&format!("{HERE}/{id}")))
}
