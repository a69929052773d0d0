//! Keys through a server, as an operator.

use serde_json::{Value, json};
use towpath_domain::KeyId;

use super::request::KeyRequest;
use crate::arguments::Keys;
use crate::arguments::remote::ServerOptions;
use crate::config::Settings;
use crate::remote::Client;

/// Larger than any real number of keys.
const MOST: u64 = 100_000;

pub(super) struct Server(Client);

impl Server {
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

    pub(super) async fn create(&self, new: &KeyRequest<'_>) -> anyhow::Result<Value> {
        let mut body = json!({ "name": new.name, "tenant_id": new.workspace, "operator": new.operator });
        // A server of the previous version does not know these fields.
        if !new.scopes.is_empty() {
            body["scopes"] = json!(new.scopes);
        }
        if let Some(days) = new.expires_in_days {
            body["expires_in_days"] = json!(days);
        }
        self.0.post("/internal/keys", Some(&body)).await
    }

    pub(super) async fn rotate(&self, key: KeyId, overlap_hours: u32) -> anyhow::Result<Value> {
        let body = json!({ "overlap_hours": overlap_hours });
        self.0.post(&format!("/internal/keys/{key}/rotate"), Some(&body)).await
    }

    pub(super) async fn list(&self) -> anyhow::Result<Vec<Value>> {
        self.0.list("/internal/keys", &[], MOST).await
    }

    pub(super) async fn reseal(&self) -> anyhow::Result<Value> {
        self.0.post("/internal/keys/reseal", None).await
    }

    pub(super) async fn revoke(&self, key: KeyId) -> anyhow::Result<Value> {
        self.0.post(&format!("/internal/keys/{key}/revoke"), None).await
    }
}
