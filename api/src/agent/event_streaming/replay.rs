//! Events of one thread, derived from its log and published frames.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Deserialize;
use towpath_domain::{RunId, ThreadId};
use towpath_store::{self as store, run_events, runs};

use super::event::Event;
use super::normalizer::Normalizer;
use super::sequence::first_number;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::live::{LoggedItem, Reader, StreamItem};

/// Reads a thread from the beginning of its stored log and continues with new frames.
pub(super) struct Replay {
    app: AgentApp,
    reader: Reader,
    normalizer: Normalizer,
    /// An item whose run is being looked up.
    pending_item: Option<StreamItem>,
    ready: VecDeque<Arc<Event>>,
}

/// Result of reading the next event.
pub(super) enum NextEvent {
    Event(Arc<Event>),
    /// All stored events were delivered.
    CaughtUp,
    /// The thread was deleted.
    ThreadDeleted,
}

impl Replay {
    pub async fn start(app: &AgentApp, thread: ThreadId) -> Result<Self, AgentError> {
        Ok(Self {
            app: app.clone(),
            reader: Reader::of_thread_not_created(app, thread).await?,
            normalizer: Normalizer::default(),
            pending_item: None,
            ready: VecDeque::new(),
        })
    }

    /// The next event; `None` when the thread was deleted. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        loop {
            match self.next_logged().await? {
                NextEvent::Event(event) => return Ok(Some(event)),
                NextEvent::ThreadDeleted => return Ok(None),
                NextEvent::CaughtUp => match self.reader.next().await? {
                    Some(item) => self.pending_item = Some(item),
                    None => return Ok(None),
                },
            }
        }
    }

    /// The next stored event. Cancel safe.
    pub async fn next_logged(&mut self) -> Result<NextEvent, AgentError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(NextEvent::Event(event));
            }
            if self.pending_item.is_none() {
                match self.reader.next_logged().await? {
                    LoggedItem::Item(item) => self.pending_item = Some(item),
                    LoggedItem::CaughtUp => return Ok(NextEvent::CaughtUp),
                    LoggedItem::Finished => return Ok(NextEvent::ThreadDeleted),
                }
            }
            let Some(item) = &self.pending_item else { continue };
            if let Some(run) = self.normalizer.new_run(item) {
                let graph = graph_of_run(&self.app, run).await?;
                self.normalizer.begin(run, &graph);
            }
            self.ready
                .extend(self.normalizer.accept(item).into_iter().map(Arc::new));
            self.pending_item = None;
        }
    }
}

/// Number up to which events of a thread were removed from its log; 0 if none were.
pub(super) async fn removed_until(app: &AgentApp, thread: ThreadId) -> Result<i64, AgentError> {
    let tenant = app.tenant;
    let last = app
        .store
        .read(async |tx| run_events::last_removed(tx, tenant, thread).await)
        .await?;
    Ok(last.map_or(0, first_number))
}

/// The graph of a run. If its row was deleted, the name that clients show in that case. Database errors are returned, since
/// another name would give other events than other readers get.
pub(super) async fn graph_of_run(app: &AgentApp, run: RunId) -> Result<String, AgentError> {
    #[derive(Default, Deserialize)]
    struct Kwargs {
        #[serde(default)]
        config: Config,
    }
    #[derive(Default, Deserialize)]
    struct Config {
        #[serde(default)]
        configurable: Configurable,
    }
    #[derive(Default, Deserialize)]
    struct Configurable {
        graph_id: Option<String>,
    }
    let tenant = app.tenant;
    let kwargs = match app.store.read(async |tx| runs::get(tx, tenant, run).await).await {
        Ok(row) => serde_json::from_str::<Kwargs>(&row.kwargs).unwrap_or_default(),
        Err(store::Error::NotFound) => Kwargs::default(),
        Err(error) => return Err(error.into()),
    };
    let graph = kwargs.config.configurable.graph_id;
    Ok(graph.unwrap_or_else(|| "root".to_owned()))
}
