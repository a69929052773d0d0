//! The events of one thread, derived from its log and from what is published.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Deserialize;
use towpath_domain::{RunId, ThreadId};
use towpath_store::{self as store, runs};

use super::event::Event;
use super::normalizer::Normalizer;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::live::{Item, Next, Reader};

/// Reads a thread from the beginning of what is kept, and goes on with what comes.
pub(super) struct Replay {
    app: AgentApp,
    reader: Reader,
    normalizer: Normalizer,
    /// An item whose run is looked up.
    held: Option<Item>,
    ready: VecDeque<Arc<Event>>,
}

/// Where a reader of events is.
pub(super) enum Position {
    /// At this event, which is handed out.
    At(Arc<Event>),
    /// Behind everything that is kept.
    End,
    /// The thread is gone.
    Gone,
}

impl Replay {
    pub async fn begin(app: &AgentApp, thread: ThreadId) -> Result<Self, AgentError> {
        Ok(Self {
            app: app.clone(),
            reader: Reader::of_thread_to_come(app, thread).await?,
            normalizer: Normalizer::default(),
            held: None,
            ready: VecDeque::new(),
        })
    }

    /// The next event; `None` when the thread is gone. May be dropped while waiting without losing one.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>, AgentError> {
        loop {
            match self.next_kept().await? {
                Position::At(event) => return Ok(Some(event)),
                Position::Gone => return Ok(None),
                Position::End => match self.reader.next().await? {
                    Some(item) => self.held = Some(item),
                    None => return Ok(None),
                },
            }
        }
    }

    /// The next event of those that are kept. May be dropped while waiting without losing one.
    pub async fn next_kept(&mut self) -> Result<Position, AgentError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Position::At(event));
            }
            if self.held.is_none() {
                match self.reader.next_kept().await? {
                    Next::Item(item) => self.held = Some(item),
                    Next::End => return Ok(Position::End),
                    Next::Over => return Ok(Position::Gone),
                }
            }
            let Some(item) = &self.held else { continue };
            if let Some(run) = self.normalizer.new_run(item) {
                let graph = graph_of(&self.app, run).await?;
                self.normalizer.begin(run, &graph);
            }
            self.ready.extend(self.normalizer.take(item).into_iter().map(Arc::new));
            self.held = None;
        }
    }
}

/// The graph of a run. Events of one whose row is gone bear the name that clients show then.
///
/// # Errors
/// Those of the database: under another name the events would not be those that other readers have.
pub(super) async fn graph_of(app: &AgentApp, run: RunId) -> Result<String, AgentError> {
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
