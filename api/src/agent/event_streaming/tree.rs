//! The tree of a thread's graphs, derived from the log.

use serde_json::Value;
use towpath_domain::ThreadId;
use towpath_domain::agent::{Frame, frame};
use towpath_store::run_events;

use super::normalizer::Normalizer;
use super::replay::graph_of_run;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;
use crate::agent::live::StreamItem;

/// Bytes of frames read at once.
const PAGE_BYTES: i64 = 1 << 20;

/// Graphs of the thread's latest run; `None` if no events are stored.
pub(super) async fn read(app: &AgentApp, thread: ThreadId) -> Result<Option<Value>, AgentError> {
    let mut normalizer = Normalizer::default();
    let (tenant, mut after) = (app.tenant, 0);
    let run = app
        .store
        .read(async |tx| run_events::last_logged_run(tx, tenant, thread).await)
        .await?;
    if run.is_none() {
        return Ok(None);
    }
    loop {
        let page = app
            .store
            .read(async |tx| run_events::read(tx, tenant, thread, run, after, PAGE_BYTES).await)
            .await?;
        for batch in &page.batches {
            after = batch.log_position;
            for text in frame::split(&batch.frames) {
                let Some(item) = item(text) else { continue };
                if let Some(run) = normalizer.new_run(&item) {
                    let graph = graph_of_run(app, run).await?;
                    normalizer.begin(run, &graph);
                }
                normalizer.accept(&item);
            }
        }
        if !page.more {
            return Ok(normalizer.tree());
        }
    }
}

fn item(text: &str) -> Option<StreamItem> {
    let frame = Frame::decode(text)?;
    if !frame.is_end() {
        return Some(StreamItem::Frame(text.into()));
    }
    let end = serde_json::from_str(frame.data).ok()?;
    Some(StreamItem::End(frame.run?, end, Some(frame.id)))
}
