//! Recording a run.

use std::time::Duration;

use serde_json::json;
use towpath_domain::agent::merge::{RESERVED_CONFIGURABLE, drop_reserved_configurable};
use towpath_domain::agent::visibility::matches;
use towpath_domain::agent::{AdmittedRun, ConfigLayers, Object, RunConflictAction, RunStatus, ThreadStatus, merge};
use towpath_domain::{CronId, JobId, Rejection, RejectionKind, RunId, TenantId, ThreadId, Timestamp};
use towpath_durable::Start;
use towpath_store::assistants::Assistant;
use towpath_store::runs::{self, Run};
use towpath_store::threads::{self, NewThread, Ttl};
use towpath_store::{self as store, Tx};

use super::job::{RunAgent, lane};
use super::stop;
use crate::a2a;

/// A run to record.
#[derive(Clone, Debug)]
pub struct NewRun<'a> {
    pub id: RunId,
    pub thread: Target,
    pub assistant: &'a Assistant,
    /// The validated request.
    pub admitted: AdmittedRun,
    /// Additions to `configurable` from the request's headers and from the server, such as the caller.
    pub headers: Object,
    /// The caller, if known.
    pub user: Option<String>,
    /// The cron that fired it, and the time of the firing.
    pub cron: Option<(CronId, Timestamp)>,
    /// How long its events are kept after its end.
    pub events_kept: Duration,
    /// Time to live of a thread that is created for it.
    pub ttl: Option<Ttl>,
}

/// The thread of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An existing thread; created if the request allows it.
    Existing(ThreadId),
    /// A new thread for a stateless run. Temporary unless the request keeps it.
    New(ThreadId),
}

impl Target {
    #[must_use]
    pub const fn id(self) -> ThreadId {
        match self {
            Self::Existing(id) | Self::New(id) => id,
        }
    }
}

/// Records a run with its job, and handles conflicting runs by its multitask strategy. It takes locks, so call it
/// before the transaction's other writes.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, new: NewRun<'_>) -> store::Result<Run> {
    start_visible(tx, tenant, new, &Object::new()).await
}

/// Like [`start`], for a caller who only sees threads whose metadata match a filter. A thread that is created for the
/// run need not match.
pub async fn start_visible(tx: &mut Tx<'_>, tenant: TenantId, new: NewRun<'_>, visible: &Object) -> store::Result<Run> {
    let thread = new.thread.id();
    let own = matches!(new.thread, Target::New(_));
    let (mut metadata, mut config) = (Object::new(), Object::new());
    let mut made = own;
    if !own {
        match threads::get(tx, tenant, thread).await {
            Ok(row) if row.temporary => return Err(missing()),
            Ok(_) => {}
            Err(store::Error::NotFound) if new.admitted.create_thread => {
                made = threads::insert_new(tx, tenant, &busy_thread(thread, new.ttl)).await?;
            }
            Err(store::Error::NotFound) => return Err(missing()),
            Err(error) => return Err(error),
        }
    }
    let job = job_of(tenant, &new, thread);
    let mut how = Start::new(tenant).after(new.admitted.after);
    if !job.temporary {
        // Locked from here on: no other run of the thread starts, ends or is cancelled.
        how = how.lane(lane(thread));
    }
    let job_id = towpath_durable::start(tx, &job, how).await?;
    let open = if made {
        Vec::new()
    } else {
        runs::open(tx, tenant, Some(thread), None).await?
    };
    let in_the_way = new.admitted.strategy.decide();
    if in_the_way == RunConflictAction::Reject && !open.is_empty() {
        return Err(Rejection::conflict(
            "",
            "Thread is already running a task. Wait for it to finish or choose a different multitask strategy.",
        )
        .into());
    }
    if !own {
        // Read under the lane's lock, so that changes of earlier runs are visible.
        let row = threads::lock(tx, tenant, thread).await?;
        metadata = object("metadata", thread, &row.metadata)?;
        if !made && !matches(visible, &metadata) {
            return Err(missing());
        }
        config = object("config", thread, &row.config)?;
        if row.status == ThreadStatus::Interrupted {
            a2a::supersede(tx, tenant, thread).await?;
        }
    }
    let (temporary, ttl, cron) = (new.admitted.kwargs.temporary, new.ttl, new.cron);
    let RunDraft { metadata, config, run } = draft_run(new, made, metadata, &config, job_id, tx.now())?;
    if own {
        let thread = NewThread {
            metadata: &metadata,
            config: &config,
            temporary,
            ..busy_thread(thread, ttl)
        };
        threads::insert(tx, tenant, &thread).await?;
    } else {
        threads::busy(tx, tenant, thread, &metadata, &config).await?;
    }
    runs::insert(tx, tenant, &row_of(&run, cron)).await?;
    if let RunConflictAction::Cancel(action) = in_the_way {
        stop::cancel(tx, tenant, &open, action).await?;
    }
    Ok(run)
}

/// Data of a run and its thread.
#[derive(Clone, Debug)]
pub(super) struct RunDraft {
    /// JSON object of the thread.
    pub(super) metadata: String,
    /// JSON object of the thread.
    pub(super) config: String,
    pub(super) run: Run,
}

/// Merges the settings of assistant, thread and request. `made` means that the thread is created for it.
pub(super) fn draft_run(
    new: NewRun<'_>,
    made: bool,
    mut metadata: Object,
    config: &Object,
    job_id: JobId,
    now: Timestamp,
) -> store::Result<RunDraft> {
    let (assistant, thread) = (new.assistant, new.thread.id());
    let mut kwargs = new.admitted.kwargs;
    let mut forced = Object::new();
    for (key, value) in [
        ("run_id", json!(new.id)),
        ("thread_id", json!(thread)),
        ("graph_id", json!(assistant.graph_id)),
        ("assistant_id", json!(assistant.id)),
        ("user_id", json!(new.user.unwrap_or_default())),
    ] {
        forced.insert(key.to_owned(), value);
    }
    let merged = merge(ConfigLayers {
        assistant_config: &object_of_assistant(assistant, &assistant.config)?,
        assistant_metadata: &object_of_assistant(assistant, &assistant.metadata)?,
        thread_config: config,
        thread_metadata: &metadata,
        config: &kwargs.config,
        metadata: &new.admitted.metadata,
        server_values: &forced,
    });
    kwargs.config = merged.config;
    if let Some(configurable) = kwargs
        .config
        .get_mut("configurable")
        .and_then(|part| part.as_object_mut())
    {
        for (key, value) in new.headers {
            if RESERVED_CONFIGURABLE.contains(&key.as_str()) {
                configurable.insert(key, value);
            } else {
                configurable.entry(key).or_insert(value);
            }
        }
    }
    let of_assistant = kwargs.context.is_none();
    let mut context = match kwargs.context.take() {
        Some(context) => context,
        None => object_of_assistant(assistant, &assistant.context)?,
    };
    // An assistant may be older than this rule.
    drop_reserved_configurable(&mut context);
    kwargs.context = (!of_assistant || !context.is_empty()).then_some(context);
    if made {
        metadata.extend(new.admitted.metadata);
    }
    // The server's own entries, which updates and reads of the state depend on.
    metadata.insert("graph_id".to_owned(), json!(assistant.graph_id));
    metadata.insert("assistant_id".to_owned(), json!(assistant.id));
    let run = Run {
        id: new.id,
        thread_id: thread,
        assistant_id: assistant.id,
        job_id,
        status: RunStatus::Pending,
        metadata: text(&merged.metadata),
        kwargs: serde_json::to_string(&kwargs).map_err(|_| store::Error::corrupt("run", "kwargs", new.id))?,
        multitask_strategy: new.admitted.strategy,
        cancel_action: None,
        created_at: now.plus(new.admitted.after),
        updated_at: now,
        finished_at: None,
        started_at: None,
        attempt: 0,
    };
    Ok(RunDraft {
        metadata: text(&metadata),
        config: text(&merged.thread_config),
        run,
    })
}

pub(super) const fn job_of(tenant: TenantId, new: &NewRun<'_>, thread: ThreadId) -> RunAgent {
    RunAgent {
        tenant,
        run: new.id,
        thread,
        temporary: new.admitted.kwargs.temporary,
        events_kept_s: new.events_kept.as_secs(),
    }
}

pub(super) fn row_of(run: &Run, cron: Option<(CronId, Timestamp)>) -> runs::NewRun<'_> {
    runs::NewRun {
        id: run.id,
        thread: run.thread_id,
        assistant: run.assistant_id,
        job: run.job_id,
        cron,
        metadata: &run.metadata,
        kwargs: &run.kwargs,
        strategy: run.multitask_strategy,
        created_at: run.created_at,
    }
}

/// A thread for its first run, without data.
pub(super) const fn busy_thread(id: ThreadId, ttl: Option<Ttl>) -> NewThread<'static> {
    NewThread {
        id,
        metadata: "{}",
        config: "{}",
        status: ThreadStatus::Busy,
        temporary: false,
        ttl,
    }
}

fn missing() -> store::Error {
    Rejection {
        kind: RejectionKind::NotFound,
        field: String::new(),
        message: "Thread or assistant not found.".to_owned(),
    }
    .into()
}

fn object(column: &'static str, id: ThreadId, text: &str) -> store::Result<Object> {
    serde_json::from_str(text).map_err(|_| store::Error::corrupt("thread", column, id))
}

fn object_of_assistant(assistant: &Assistant, text: &str) -> store::Result<Object> {
    serde_json::from_str(text).map_err(|_| store::Error::corrupt("assistant", "config", assistant.id))
}

fn text(object: &Object) -> String {
    serde_json::to_string(object).expect("an object with text keys is JSON")
}
