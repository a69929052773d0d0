//! What a server says about itself.

use http::Method;
use serde_json::{Value, json};
use towpath_api::agent::{DeploymentIdentity, Settings};
use towpath_queue::Queue;
use towpath_store::Dialect;

use super::{Agent, on_both_databases};
use crate::world::{Call, call};

on_both_databases!(
    info_names_the_deployment,
    metrics_have_the_connections_to_postgresql,
    metrics_have_the_connections_to_redis,
    names_of_metrics_begin_as_set,
);

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

async fn metrics_have_the_connections_to_redis(agent: Agent) {
    let found = agent.get("/metrics?format=json").await.expect(200);
    let text = agent.get("/metrics").await.text;
    assert!(found.get("redis").is_none() && !text.contains("redis_pool_"), "{found}");
    // One that nobody listens on: the connections are counted, not assumed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let queue = Queue::redis(&format!("redis://{closed}/"), towpath_queue::Options::default());
    let router = agent.beside_on(&queue.await.unwrap());
    let found = call(&router, Call::new(Method::GET, "/metrics?format=json")).await;
    assert_eq!(
        found.expect(200)["redis"],
        json!({"pool_max": 3, "pool_size": 0, "pool_available": 0})
    );
    let text = call(&router, Call::new(Method::GET, "/metrics")).await.text;
    for (name, value) in [("max", 3), ("size", 0), ("available", 0)] {
        let name = format!("lg_api_redis_pool_{name}");
        assert!(
            text.contains(&format!("\n# TYPE {name} gauge\n{name} {value}\n")),
            "{name}: {text}"
        );
    }
}

async fn names_of_metrics_begin_as_set(agent: Agent) {
    let router = agent.beside_with(Settings {
        metric_prefix: "mine_".to_owned(),
        ..Settings::default()
    });
    call(&router, Call::new(Method::GET, "/info")).await.expect(200);
    let text = call(&router, Call::new(Method::GET, "/metrics")).await.text;
    assert!(text.contains("\nmine_num_pending_runs 0\n"), "{text}");
    assert!(text.contains("\nmine_http_requests_total{"), "{text}");
    assert!(!text.contains("lg_api_"), "{text}");
}
