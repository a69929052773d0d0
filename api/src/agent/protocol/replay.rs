//! The events of one thread, derived from its log and from what is published.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Deserialize;
use towpath_domain::{RunId, ThreadId};
use towpath_store::runs;

use super::event::Event;
use super::normalizer::Normalizer;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::live::{Item, Reader};

/// Reads a thread from the beginning of what is kept, and goes on with what comes.
pub(super) struct Replay {
    app: AgentApp,
    reader: Reader,
    normalizer: Normalizer,
    /// An item whose run is looked up.
    held: Option<Item>,
    ready: VecDeque<Arc<Event>>,
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
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.held.is_none() {
                self.held = self.reader.next().await?;
            }
            let Some(item) = &self.held else { return Ok(None) };
            if let Some(run) = self.normalizer.new_run(item) {
                let graph = graph_of(&self.app, run).await;
                self.normalizer.begin(run, &graph);
            }
            self.ready.extend(self.normalizer.take(item).into_iter().map(Arc::new));
            self.held = None;
        }
    }
}

/// The graph of a run. Events of one whose row is gone, or cannot be read now, bear the name that clients show then.
pub(super) async fn graph_of(app: &AgentApp, run: RunId) -> String {
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
    let row = app.store.read(async |tx| runs::get(tx, tenant, run).await).await;
    let kwargs = row
        .ok()
        .and_then(|row| serde_json::from_str::<Kwargs>(&row.kwargs).ok());
    let graph = kwargs.and_then(|kwargs| kwargs.config.configurable.graph_id);
    graph.unwrap_or_else(|| "root".to_owned())
}
