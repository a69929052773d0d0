//! What a server says about itself.

use http::Method;
use serde_json::{Value, json};
use towpath_api::agent::{DeploymentIdentity, Settings};
use towpath_store::Dialect;

use super::{Agent, on_both_databases};
use crate::world::{Call, call};

on_both_databases!(info_names_the_deployment, metrics_have_the_connections_to_postgresql);

async fn info_names_the_deployment(agent: Agent) {
    let host = async |deployment: DeploymentIdentity| -> Value {
        let settings = Settings {
            deployment,
            ..Settings::default()
        };
        let info = call(&agent.beside_with(settings), Call::new(Method::GET, "/info")).await;
        info.expect(200)["host"].clone()
    };
    let none = json!({"kind": "self-hosted", "project_id": null, "host_revision_id": null, "revision_id": null,
                      "tenant_id": null});
    assert_eq!(host(DeploymentIdentity::default()).await, none);
    let id = |text: &str| Some(text.to_owned());
    let deployment = DeploymentIdentity {
        project: id("p"),
        revision: id("r"),
        server_revision: None,
        tenant: id("t"),
    };
    let expected = json!({"kind": "self-hosted", "project_id": "p", "host_revision_id": "r", "revision_id": "r",
                          "tenant_id": "t"});
    assert_eq!(host(deployment.clone()).await, expected);
    let released = DeploymentIdentity {
        server_revision: id("s"),
        ..deployment
    };
    assert_eq!(host(released).await["revision_id"], "s");
}

async fn metrics_have_the_connections_to_postgresql(agent: Agent) {
    let found = agent.get("/metrics?format=json").await.expect(200);
    let text = agent.get("/metrics").await.text;
    if agent.store.dialect() == Dialect::Sqlite {
        assert!(
            found.get("postgres").is_none() && !text.contains("lg_api_pg_pool_"),
            "{found}"
        );
        return;
    }
    let number = |name: &str| found["postgres"][name].as_u64().unwrap();
    assert!((1..=number("pool_max")).contains(&number("pool_size")), "{found}");
    assert!(number("pool_available") <= number("pool_size"), "{found}");
    assert_eq!(number("requests_errors"), 0, "{found}");
    for (name, kind) in [
        ("max", "gauge"),
        ("size", "gauge"),
        ("available", "gauge"),
        ("requests_queued_total", "counter"),
        ("requests_errors_total", "counter"),
    ] {
        let name = format!("lg_api_pg_pool_{name}");
        assert!(
            text.contains(&format!("\n# TYPE {name} {kind}\n{name} ")),
            "{name}: {text}"
        );
    }
}
