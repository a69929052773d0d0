//! Keys by way of a server, as an operator.

use serde_json::{Value, json};
use towpath_domain::{KeyId, TenantId};

use crate::arguments::Keys;
use crate::config::Settings;
use crate::remote::Client;
use crate::remote::arguments::ServerOptions;

/// More than anybody has.
const MOST: u64 = 100_000;

/// A server that is asked.
pub(super) struct Server(Client);

impl Server {
    /// # Errors
    /// Wrong usage: an address that is none, no key.
    pub(super) fn new(url: String, command: &Keys, settings: &Settings) -> anyhow::Result<Self> {
        let options = ServerOptions {
            server: url,
            api_key: command.api_key.clone(),
            tenant: None,
            data_dir: Some(settings.data_dir.clone()),
            output: command.output,
        };
        Client::new(&options).map(Self)
    }

    pub(super) async fn create(
        &self,
        name: &str,
        workspace: Option<TenantId>,
        operator: bool,
    ) -> anyhow::Result<Value> {
        let body = json!({ "name": name, "tenant_id": workspace, "operator": operator });
        self.0.post("/internal/keys", Some(&body)).await
    }

    pub(super) async fn list(&self) -> anyhow::Result<Vec<Value>> {
        self.0.list("/internal/keys", &[], MOST).await
    }

    pub(super) async fn revoke(&self, key: KeyId) -> anyhow::Result<Value> {
        self.0.post(&format!("/internal/keys/{key}/revoke"), None).await
    }
}
