//! Sessions: what tells the calls of one client from those of others, so that it can cancel them.
//!
//! The id is drawn at the handshake and kept nowhere but in the metadata of the runs that are called under it. So a
//! cancellation finds its run whichever process it reaches, and who does not know the id cancels nothing. Revisions without a
//! handshake have no sessions: a client that closes the connection cancels its call.

use axum::response::IntoResponse as _;
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::{Value, json};
use towpath_domain::agent::{CancelAction, Object};
use towpath_store::runs;
use uuid::Uuid;

use super::failure::Failure;
use super::rpc::is_id;
use crate::agent::app::AgentApp;
use crate::agent::auth;
use crate::agent::errors::AgentError;
use crate::agent::runs::cancel::cancel_run;

/// The header that names a session.
pub(super) const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// The session that a request names.
pub(super) fn read_session_id(headers: &HeaderMap) -> Result<Option<Uuid>, Failure> {
    let Some(text) = headers.get(&SESSION_HEADER) else {
        return Ok(None);
    };
    let id = text.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| {
        // By this status a client knows that it has to begin anew.
        let unknown = AgentError::missing("Mcp-Session-Id: this server gave no such id");
        Failure::Http(Box::new(unknown.into_response()))
    })
}

/// What the metadata of a run say of the call that made it.
pub(super) fn call_metadata(session: Uuid, request: &Value) -> Object {
    Object::from_iter([
        ("mcp_session_id".to_owned(), json!(session)),
        ("mcp_request_id".to_owned(), request.clone()),
    ])
}

/// Cancels the call that a notification names, if it goes on.
pub(super) async fn cancel(app: &AgentApp, headers: &HeaderMap, params: &Object) -> Result<(), Failure> {
    let request = params.get("requestId").filter(|id| is_id(id));
    let (Some(session), Some(request)) = (read_session_id(headers)?, request) else {
        return Ok(());
    };
    let metadata = Value::Object(call_metadata(session, request));
    let open = app
        .store
        .read(async |tx| runs::open_with_metadata(tx, app.tenant, &metadata).await)
        .await?;
    for run in open {
        let value = Object::from_iter([("run_id".to_owned(), json!(run.id))]);
        match auth::authorize_operation(app, ("threads", "update"), Some(run.thread_id), value).await {
            Ok(_) => {
                cancel_run(app, run.id, CancelAction::Interrupt).await?;
            }
            // One that the caller does not see is not there.
            Err(refusal) if refusal.status() == StatusCode::NOT_FOUND => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(())
}
