//! The assistants that a server brings along.

use anyhow::Context as _;
use towpath_domain::TenantId;
use towpath_runtime::Graphs;
use towpath_store::Store;
use towpath_store::assistants::{self, AssistantContent};

/// Each graph has an assistant of the same name from the start.
pub async fn ensure_assistants(store: &Store, tenant: TenantId, graphs: &Graphs) -> anyhow::Result<()> {
    let contents: Vec<AssistantContent> = graphs
        .iter()
        .map(|graph| AssistantContent {
            graph_id: graph.id().to_owned(),
            name: graph.name().unwrap_or(graph.id()).to_owned(),
            description: graph.description().map(str::to_owned),
            config: "{}".to_owned(),
            context: "{}".to_owned(),
            metadata: r#"{"created_by":"system"}"#.to_owned(),
        })
        .collect();
    store
        .write(async |tx| {
            for content in &contents {
                assistants::ensure_system(tx, tenant, content).await?;
            }
            Ok(())
        })
        .await
        .context("the graphs' assistants")
}
