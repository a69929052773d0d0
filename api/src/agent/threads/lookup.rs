//! The thread of an address.

use towpath_domain::ThreadId;
use towpath_store::threads as rows;

use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

pub(super) async fn find(app: &AgentApp, id: ThreadId) -> Result<rows::Thread, AgentError> {
    let read = app.store.read(async |tx| rows::get(tx, app.tenant, id).await).await;
    read.map_err(|error| AgentError::from(error).or_missing(AgentError::no_thread(id)))
}
