//! Keys that open nothing: how many of one address are looked at with patience, and who is never held up by them.

use axum::body::Body;
use http::header::{CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode};
use tower::ServiceExt as _;
use towpath_api::Settings;
use towpath_api::client::Client;

use crate::world::{KEY, World};

/// So few that no test takes as long as the next one is held back.
const LIMIT: u32 = 2;

async fn world() -> World {
    let settings = Settings {
        failed_keys_per_minute: LIMIT,
        ..Settings::default()
    };
    World::with(settings).await
}

async fn send(world: &World, from: &str, mut request: Request<Body>) -> (StatusCode, HeaderMap) {
    request.extensions_mut().insert(Client {
        address: Some(from.parse().unwrap()),
        secure: false,
        is_proxied: false,
    });
    let answer = world.router.clone().oneshot(request).await.unwrap();
    (answer.status(), answer.headers().clone())
}

/// Asks with a key: a page of the API, or for a session.
async fn ask(world: &World, from: &str, method: Method, path: &str, key: &str) -> (StatusCode, HeaderMap) {
    let request = Request::builder().method(method).uri(path);
    let request = request
        .header("x-api-key", key)
        .header("x-tenant-id", world.tenant.to_string());
    send(world, from, request.body(Body::empty()).unwrap()).await
}

async fn sign_in(world: &World, from: &str, key: &str) -> (StatusCode, HeaderMap) {
    let request = Request::post("/ui/sign-in")
        .header(HOST, "127.0.0.1")
        .header(ORIGIN, "http://127.0.0.1")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let form = format!("key={}", key.replace(' ', "+").replace(',', "%2C"));
    send(world, from, request.body(Body::from(form)).unwrap()).await
}

fn expect_pause(answer: &(StatusCode, HeaderMap), of: &str) {
    assert_eq!(answer.0, StatusCode::TOO_MANY_REQUESTS, "{of}");
    let wait: u64 = answer.1[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{of} may come back after {wait} s");
}

#[tokio::test]
async fn keys_that_open_nothing_are_limited_by_address() {
    let world = world().await;
    for number in 0..LIMIT {
        let (status, _) = ask(&world, "192.0.2.1", Method::GET, "/sessions", &format!("tp_{number}")).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "key {number}");
    }
    // Wherever keys are taken.
    for (method, path) in [
        (Method::GET, "/sessions"),
        (Method::GET, "/internal/queues"),
        (Method::POST, "/auth/session"),
        (Method::GET, "/d/one/threads"),
    ] {
        let answer = ask(&world, "192.0.2.1", method, path, "tp_more").await;
        expect_pause(&answer, path);
    }
    // A key that opens something does so from there too, and others are not held up.
    for from in ["192.0.2.1", "192.0.2.2"] {
        let (status, _) = ask(&world, from, Method::GET, "/sessions", KEY).await;
        assert_eq!(status, StatusCode::OK, "the good key from {from}");
    }
    let (status, _) = ask(&world, "192.0.2.2", Method::GET, "/sessions", "tp_more").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "another address");
    // Who sends none guesses nothing.
    let without = Request::get("/sessions").body(Body::empty()).unwrap();
    let (status, _) = send(&world, "192.0.2.1", without).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "without a key");
}

#[tokio::test]
async fn sign_ins_are_limited_with_them() {
    let world = world().await;
    for number in 0..LIMIT {
        let (status, _) = sign_in(&world, "192.0.2.1", &format!("tp_{number}")).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "sign-in {number}");
    }
    expect_pause(&sign_in(&world, "192.0.2.1", "tp_more").await, "signing in");
    let link = Request::get("/ui/enter?code=tps_none").header(HOST, "127.0.0.1");
    let answer = send(&world, "192.0.2.1", link.body(Body::empty()).unwrap()).await;
    expect_pause(&answer, "a link");
    let api = ask(&world, "192.0.2.1", Method::GET, "/sessions", "tp_more").await;
    expect_pause(&api, "a key of the API");
    let (status, headers) = sign_in(&world, "192.0.2.1", KEY).await;
    assert_eq!(status, StatusCode::SEE_OTHER, "the good key");
    assert!(headers.contains_key("set-cookie"), "{headers:?}");
}
