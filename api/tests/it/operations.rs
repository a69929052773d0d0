//! Health, readiness, metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use http::Method;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use towpath_api::{Health, Ops, health_router};
use towpath_domain::Secret;

use crate::world::{Call, World, call, recorder};

fn ops(health: Health) -> Router {
    health_router(Ops::new(health, recorder().handle()))
}

#[tokio::test]
async fn a_live_process_says_so_whatever_is_away() {
    let health = Health::new(CancellationToken::new()).require(
        "database",
        Box::new(|| Box::pin(async { panic!("livez must not ask") })),
    );
    let router = ops(health);
    for path in ["/livez", "/ok"] {
        assert_eq!(
            call(&router, Call::new(Method::GET, path)).await.expect(200),
            json!({"ok": true})
        );
    }
}

#[tokio::test]
async fn degraded_is_ready_and_a_missing_database_is_not() {
    let up = Arc::new(AtomicBool::new(true));
    let health = |database: &Arc<AtomicBool>| {
        let database = Arc::clone(database);
        Health::new(CancellationToken::new())
            .require(
                "database",
                Box::new(move || {
                    let up = database.load(Ordering::SeqCst);
                    Box::pin(async move {
                        if up {
                            Ok(())
                        } else {
                            Err("the connection was refused".into())
                        }
                    })
                }),
            )
            .optional(
                "redis",
                Box::new(|| Box::pin(async { Err("no answer in time".into()) })),
            )
    };
    let router = ops(health(&up));
    assert_eq!(
        call(&router, Call::new(Method::GET, "/readyz")).await.expect(200),
        json!({"status": "degraded"})
    );
    let verbose = call(&router, Call::new(Method::GET, "/readyz?verbose"))
        .await
        .expect(200);
    assert_eq!(verbose["dependencies"]["redis"]["status"], "unavailable");
    assert_eq!(verbose["dependencies"]["redis"]["error"], "no answer in time");
    assert_eq!(verbose["dependencies"]["database"]["status"], "ok");

    up.store(false, Ordering::SeqCst);
    let router = ops(health(&up));
    let answer = call(&router, Call::new(Method::GET, "/readyz?verbose=1")).await;
    let answer = answer.expect(503);
    assert_eq!(answer["status"], "unavailable");
    assert_eq!(
        answer["dependencies"]["database"]["error"],
        "the connection was refused"
    );
}

#[tokio::test]
async fn what_another_process_does_makes_none_less_ready() {
    let health = Health::new(CancellationToken::new()).informational(
        "deployments",
        Box::new(|| Box::pin(async { Err("another process does it".into()) })),
    );
    let answer = call(&ops(health), Call::new(Method::GET, "/readyz?verbose")).await;
    let answer = answer.expect(200);
    assert_eq!(answer["status"], "ready");
    assert_eq!(answer["dependencies"]["deployments"]["status"], "standby");
    assert_eq!(
        answer["dependencies"]["deployments"]["error"],
        "another process does it"
    );
}

#[tokio::test]
async fn a_draining_process_is_not_ready_and_still_alive() {
    let draining = CancellationToken::new();
    let router = ops(Health::new(draining.clone()));
    call(&router, Call::new(Method::GET, "/readyz")).await.expect(200);
    draining.cancel();
    assert_eq!(
        call(&router, Call::new(Method::GET, "/readyz")).await.expect(503),
        json!({"status": "draining"})
    );
    call(&router, Call::new(Method::GET, "/livez")).await.expect(200);
}

#[test]
fn metrics_name_the_route_not_the_path() {
    let recorder = recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let world = World::new().await;
            world
                .get("/sessions/00000000-0000-0000-0000-000000000001")
                .await
                .expect(404);
            world.open(Method::GET, "/private/path").await.expect(404);
        });
    });
    let text = handle.render();
    assert!(
        text.contains(r#"towpath_http_requests_total{route="/sessions/{session_id}",method="GET",status="4xx"} 1"#),
        "{text}"
    );
    assert!(text.contains(r#"route="none""#) && !text.contains("private"), "{text}");
    assert!(text.contains("towpath_http_request_seconds"), "{text}");
}

#[tokio::test]
async fn metrics_and_dependencies_can_be_behind_a_key() {
    let key = Secret::new("a key of those who scrape, long enough");
    let health = Health::new(CancellationToken::new()).optional(
        "redis",
        Box::new(|| Box::pin(async { Err("no answer in time".into()) })),
    );
    let router = health_router(Ops::new(health, recorder().handle()).with_key(Some(&key)));
    let bearer = format!("Bearer {}", key.reveal());
    let get = |path: &str| Call::new(Method::GET, path);

    for stranger in [
        get("/metrics"),
        get("/metrics").header("authorization", "Bearer another"),
    ] {
        let refused = call(&router, stranger).await;
        assert_eq!(refused.status, 401);
        assert!(refused.text.contains("metrics.key"), "{}", refused.text);
    }
    let scraped = call(&router, get("/metrics").header("authorization", &bearer)).await;
    assert_eq!(scraped.status, 200);
    let scraped = call(&router, get("/metrics").header("x-api-key", key.reveal())).await;
    assert_eq!(scraped.status, 200);

    // Probes learn what they need without one.
    let terse = call(&router, get("/readyz?verbose")).await.expect(200);
    assert_eq!(terse, json!({"status": "degraded"}));
    let told = get("/readyz?verbose").header("authorization", &bearer);
    let told = call(&router, told).await.expect(200);
    assert_eq!(told["dependencies"]["redis"]["status"], "unavailable");
    call(&router, get("/livez")).await.expect(200);
}
