//! Tells an address where a task of the Agent2Agent protocol stands. Tried again until the address takes it, as [`send_webhook`].
//!
//! The job names the row of the address: what convinces the receiver stands in no job, and an address that was taken back is not
//! called any more. `x-a2a-notification-token` is the token that came with the address.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_domain::TenantId;
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_durable::{Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_store::a2a_push_configs::{self, PushConfig};
use towpath_store::{self as store, Tx};
use uuid::Uuid;

use crate::agent::AgentWorld;
use crate::send_webhook;

const TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");

/// Calls one address of a task.
#[derive(Debug, Serialize, Deserialize)]
pub struct SendPush {
    /// Its workspace.
    pub tenant: TenantId,
    /// The row of the address.
    pub config: Uuid,
    /// What it is told.
    pub body: Box<RawValue>,
}

/// Records a call.
///
/// # Errors
/// As every statement.
pub async fn start(tx: &mut Tx<'_>, tenant: TenantId, config: Uuid, body: Box<RawValue>) -> store::Result<()> {
    let call = SendPush { tenant, config, body };
    towpath_durable::start(tx, &call, Start::new(tenant)).await.map(drop)
}

impl Workflow for SendPush {
    const KIND: &'static str = "send_push";
    const POOL: &'static str = send_webhook::POOL;
    const RETRY: RetryPolicy = send_webhook::RETRY;
    type World = AgentWorld;

    async fn run(&self, ctx: &mut Ctx, world: &AgentWorld) -> Outcome {
        let config = world
            .store
            .read(async |tx| a2a_push_configs::get(tx, self.tenant, self.config).await);
        let config = match config.await {
            // Taken back, or gone with its thread.
            Err(store::Error::NotFound) => return ctx.done(),
            config => config.retry()?,
        };
        let authored = world.settings.authored.current();
        if authored.webhooks.off {
            tracing::debug!("webhooks are turned off: none is sent");
            return ctx.done();
        }
        if let Some(refused) = authored.webhooks.refuse(&config.url) {
            return Err(Failure::fatal(refused));
        }
        let body = self.body.get().to_owned();
        send_webhook::post(ctx, world, &config.url, body, headers(&config)).await
    }

    /// Nothing depends on it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }
}

/// What convinces the receiver.
fn headers(config: &PushConfig) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut tell = |name: HeaderName, text: &str| {
        if let Ok(mut value) = HeaderValue::from_str(text) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    };
    if let Some(token) = config.token() {
        tell(TOKEN, token.reveal());
    }
    if let (Some(scheme), Some(credentials)) = (&config.scheme, config.credentials()) {
        tell(AUTHORIZATION, &format!("{scheme} {}", credentials.reveal()));
    }
    headers
}
