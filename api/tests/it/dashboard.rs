//! Sessions, and who gets to see the dashboard.

use std::time::Duration;

use http::Method;
use serde_json::json;
use towpath_api::Settings;
use towpath_domain::Secret;
use towpath_store::access;

use crate::world::{Answer, Call, KEY, World, on_both_databases};

on_both_databases!(a_session_that_was_ended_opens_nothing_anywhere);

const OURS: (&str, &str) = ("sec-fetch-site", "same-origin");

/// What a browser sends for a form of ours.
pub fn form(path: &str, body: &str) -> Call {
    Call::new(Method::POST, path)
        .header(OURS.0, OURS.1)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body.to_owned())
}

fn encoded(key: &str) -> String {
    key.replace(' ', "+").replace('\'', "%27").replace(',', "%2C")
}

/// The cookie that an answer sets, as a browser sends it back.
pub fn cookie(answer: &Answer) -> String {
    let set = answer.headers["set-cookie"].to_str().unwrap();
    set.split(';').next().unwrap().to_owned()
}

pub async fn sign_in(world: &World, key: &str) -> Answer {
    world.call(form("/ui/sign-in", &format!("key={}", encoded(key)))).await
}

async fn token(world: &World, key: &str) -> String {
    let begin = Call::new(Method::POST, "/auth/session").header("x-api-key", key);
    let session = world.call(begin).await.expect(201);
    session["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_stands_in_for_its_key_until_it_ends() {
    let world = World::new().await;
    let begun = world
        .call(Call::new(Method::POST, "/auth/session").header("x-api-key", KEY))
        .await;
    assert_eq!(begun.headers["cache-control"], "no-store");
    let session = begun.expect(201);
    assert_eq!(session["workspaces"], json!([world.tenant]));
    assert_eq!(session["expires_at"], "2026-03-02T00:00:00.000000Z");
    let bearer = format!("Bearer {}", session["token"].as_str().unwrap());
    let list = |header: &str| Call::new(Method::GET, "/api/v1/bulk-exports").header("authorization", header);
    let in_workspace = |header: &str| list(header).header("x-tenant-id", &world.tenant.to_string());

    world.call(in_workspace(&bearer)).await.expect(200);
    world
        .call(in_workspace(&bearer.replacen("Bearer", "bearer", 1)))
        .await
        .expect(200);
    // A session says which workspace it is about.
    world.call(list(&bearer)).await.expect(403);
    for wrong in [
        "Bearer",
        "Bearer tps_AAAA",
        &format!("Basic {KEY}"),
        &bearer[..bearer.len() - 1],
    ] {
        assert_eq!(world.call(in_workspace(wrong)).await.status, 401, "{wrong}");
    }
    world.clock.advance(Duration::from_secs(12 * 3600 - 1));
    world.call(in_workspace(&bearer)).await.expect(200);
    world.clock.advance(Duration::from_secs(1));
    world.call(in_workspace(&bearer)).await.expect(401);

    let stranger = Call::new(Method::POST, "/auth/session").header("x-api-key", "nobody made this one");
    world.call(stranger).await.expect(401);
    world.open(Method::POST, "/auth/session").await.expect(401);
}

#[tokio::test]
async fn a_session_ends_with_its_key() {
    let world = World::new().await;
    let key = world.key(None).await;
    let token = token(&world, key.reveal()).await;
    let call = || {
        Call::new(Method::GET, "/api/v1/bulk-exports")
            .header("authorization", &format!("Bearer {token}"))
            .header("x-tenant-id", &world.tenant.to_string())
    };
    world.call(call()).await.expect(200);
    let organization = world.organization().await;
    let keys = world
        .store
        .read(async |tx| access::list_keys(tx, Some(organization), None, 10).await)
        .await
        .unwrap();
    let id = keys.iter().find(|key| key.name == "test").unwrap().id;
    world
        .store
        .write(async |tx| access::revoke_key(tx, organization, id).await)
        .await
        .unwrap();
    // What a process knows about a key it believes for some seconds.
    world.clock.advance(Duration::from_secs(6));
    world.call(call()).await.expect(401);
}

async fn a_session_that_was_ended_opens_nothing_anywhere(world: World) {
    let ended = token(&world, KEY).await;
    let other = token(&world, KEY).await;
    // Another process of the same installation.
    let elsewhere = world.beside();
    let call = |token: &str| {
        Call::new(Method::GET, "/api/v1/bulk-exports")
            .header("authorization", &format!("Bearer {token}"))
            .header("x-tenant-id", &world.tenant.to_string())
    };
    let end =
        |token: &str| Call::new(Method::DELETE, "/auth/session").header("authorization", &format!("Bearer {token}"));
    elsewhere_answers(&elsewhere, call(&ended), 200).await;
    assert_eq!(world.call(end(&ended)).await.status, 204);
    world.call(call(&ended)).await.expect(401);
    world.call(end(&ended)).await.expect(401);
    world.call(call(&other)).await.expect(200);
    // What a process knows about a token it believes for some seconds.
    world.clock.advance(Duration::from_secs(6));
    elsewhere_answers(&elsewhere, call(&ended), 401).await;
    elsewhere_answers(&elsewhere, call(&other), 200).await;

    let key = Call::new(Method::DELETE, "/auth/session").header("x-api-key", KEY);
    world.call(key).await.expect(401);
}

async fn elsewhere_answers(router: &axum::Router, request: Call, status: u16) {
    crate::world::call(router, request).await.expect(status);
}

#[tokio::test]
async fn who_signs_out_is_out() {
    let world = World::new().await;
    let cookie = cookie(&sign_in(&world, KEY).await);
    let look = || Call::new(Method::GET, "/ui/queues").header("cookie", &cookie);
    assert_eq!(world.call(look()).await.status, 200);
    let out = world.call(form("/ui/sign-out", "").header("cookie", &cookie)).await;
    assert_eq!(out.status, 303);
    assert!(out.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(
        world.call(look()).await.status,
        401,
        "a copy of the cookie is worth nothing"
    );
    // Without a session there is nothing to end.
    assert_eq!(world.call(form("/ui/sign-out", "")).await.status, 303);
}

#[tokio::test]
async fn a_server_of_this_machine_is_called_by_its_own_name() {
    let settings = |loopback| Settings {
        loopback,
        public_url: "https://towpath.example/ops".to_owned(),
        ..Settings::default()
    };
    let world = World::with(settings(true)).await;
    let cookie = cookie(&sign_in(&world, KEY).await);
    let call = |method: &Method, path: &str, host: &str| {
        Call::new(method.clone(), path)
            .header(OURS.0, OURS.1)
            .header("cookie", &cookie)
            .header("host", host)
    };
    for (method, path) in [
        (Method::GET, "/ui/queues"),
        (Method::GET, "/ui/sign-in"),
        (Method::POST, "/ui/sign-out"),
        (Method::POST, "/ui/queues/flushes/pause"),
        (Method::GET, "/ui/assets/towpath.css"),
    ] {
        // To the browser this is a page of evil.example, which has just been moved to 127.0.0.1.
        let led = world.call(call(&method, path, "evil.example:8400")).await;
        assert_eq!(led.status, 421, "{method} {path}");
        assert!(!led.headers.contains_key("set-cookie"), "{method} {path}");
        assert!(
            led.headers["content-security-policy"]
                .to_str()
                .unwrap()
                .contains("frame-ancestors 'none'")
        );
    }
    for host in ["127.0.0.1:8400", "localhost:8400", "[::1]:8400", "towpath.example"] {
        let page = world.call(call(&Method::GET, "/ui/queues", host)).await;
        assert_eq!(page.status, 200, "{host}");
    }
    // Programs come with a key, which no page of elsewhere has.
    let keyed = Call::new(Method::GET, "/api/v1/bulk-exports").in_workspace(world.tenant);
    world
        .call(keyed.header("host", "towpath.internal:8400"))
        .await
        .expect(200);
    // What the network reaches has whatever name it was given there.
    let world = World::with(settings(false)).await;
    let page = world
        .call(Call::new(Method::GET, "/ui/sign-in").header("host", "any.example"))
        .await;
    assert_eq!(page.status, 200);
}

#[tokio::test]
async fn the_dashboard_opens_to_operators_only() {
    let world = World::new().await;
    for path in [
        "/ui/queues",
        "/ui/jobs",
        "/ui/workers",
        "/ui/sandboxes",
        "/ui/exports",
        "/ui/exports/destinations",
        "/ui/schedules",
        "/ui/limits",
        "/ui/dead",
        "/ui/quarantine",
    ] {
        let page = world.open(Method::GET, path).await;
        assert_eq!(page.status, 401, "{path}");
        assert!(page.text.contains("API key") && !page.text.contains("Pause"), "{path}");
        let fragment = Call::new(Method::GET, path).header("hx-request", "true");
        let fragment = world.call(fragment).await;
        assert_eq!((fragment.status.as_u16(), fragment.text.as_str()), (401, ""), "{path}");
    }
    // A key alone, or a session as a header, opens no page: only what a browser keeps to itself does.
    let keyed = Call::new(Method::GET, "/ui/queues").in_workspace(world.tenant);
    assert_eq!(world.call(keyed).await.status, 401);

    let plain = world.key(None).await;
    let refused = sign_in(&world, plain.reveal()).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("not an operator key") && !refused.headers.contains_key("set-cookie"));
    assert_eq!(sign_in(&world, "nobody made this key").await.status, 401);
    let session = format!("towpath_session={}", token(&world, plain.reveal()).await);
    let page = Call::new(Method::GET, "/ui/queues").header("cookie", &session);
    assert_eq!(world.call(page).await.status, 403);

    let signed_in = sign_in(&world, KEY).await;
    assert_eq!(signed_in.status, 303);
    assert_eq!(signed_in.headers["location"], "/ui/queues");
    let cookie = cookie(&signed_in);
    let set = signed_in.headers["set-cookie"].to_str().unwrap();
    assert!(
        set.ends_with("; Path=/ui; HttpOnly; SameSite=Strict; Max-Age=43200"),
        "{set}"
    );
    let page = world
        .call(Call::new(Method::GET, "/ui/queues").header("cookie", &format!("a=b; {cookie}")))
        .await;
    assert_eq!(page.status, 200);
    assert!(page.text.starts_with("<!doctype html>"), "{}", page.text);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    // Deployments answer at this address too: a script need not be ours because it comes from here.
    let scripts = policy.split("; ").find_map(|part| part.strip_prefix("script-src "));
    let nonce = scripts.unwrap().strip_prefix("'nonce-").unwrap().trim_end_matches('\'');
    assert!(nonce.len() >= 32, "{policy}");
    assert_eq!(
        page.text.matches(&format!("nonce=\"{nonce}\"")).count(),
        3,
        "{}",
        page.text
    );
    assert_eq!(page.headers["cache-control"], "no-store");
    let fragment = Call::new(Method::GET, "/ui/queues")
        .header("cookie", &cookie)
        .header("hx-request", "true");
    let fragment = world.call(fragment).await;
    assert_eq!(fragment.status, 200);
    assert!(!fragment.text.contains("<html") && fragment.text.contains("<h1>Queues</h1>"));
    // The cookie is for pages: the API does not know it.
    let api = Call::new(Method::GET, "/api/v1/bulk-exports").header("cookie", &cookie);
    world.call(api).await.expect(401);
    // Anybody can say so; who may is decided where the connection is.
    let told = form("/ui/sign-in", &format!("key={}", encoded(KEY))).header("x-forwarded-proto", "https");
    let told = world.call(told).await;
    assert!(!told.headers["set-cookie"].to_str().unwrap().contains("Secure"));
}

#[tokio::test]
async fn behind_https_the_cookie_is_of_this_host_alone() {
    let world = World::with(Settings {
        public_url: "https://towpath.example".to_owned(),
        ..Settings::default()
    })
    .await;
    let signed_in = sign_in(&world, KEY).await;
    let set = signed_in.headers["set-cookie"].to_str().unwrap();
    assert!(
        set.starts_with("__Host-towpath_session=") && set.contains("; Path=/;") && set.contains("; Secure"),
        "{set}"
    );
    let cookie = cookie(&signed_in);
    let page = Call::new(Method::GET, "/ui/queues").header("cookie", &cookie);
    assert_eq!(world.call(page).await.status, 200);
    // One that another name of the domain could have set.
    let planted = cookie.replace("__Host-", "");
    let page = Call::new(Method::GET, "/ui/queues").header("cookie", &planted);
    assert_eq!(world.call(page).await.status, 401);
}

#[tokio::test]
async fn forms_of_others_change_nothing() {
    let world = World::new().await;
    let cookie = cookie(&sign_in(&world, KEY).await);
    for path in ["/ui/queues/flushes/pause", "/ui/sign-out", "/ui/sign-in"] {
        for site in ["cross-site", "same-site", "none"] {
            let call = Call::new(Method::POST, path)
                .header("cookie", &cookie)
                .header("content-type", "application/x-www-form-urlencoded")
                .header("sec-fetch-site", site)
                .body("key=x");
            let answer = world.call(call).await;
            assert_eq!(answer.status, 403, "{path} {site}");
            assert!(!answer.headers.contains_key("set-cookie"), "{path} {site}");
        }
    }
    let unknown = form("/ui/queues/no-such-pool/pause", "").header("cookie", &cookie);
    assert_eq!(world.call(unknown).await.status, 404);
    let without = world.call(form("/ui/queues/flushes/pause", "")).await;
    assert_eq!(without.status, 303);
    assert_eq!(without.headers["location"], "/ui/sign-in");
}

#[tokio::test]
async fn a_link_signs_in_once() {
    let world = World::new().await;
    let link = world.app.sign_in_link(&Secret::new(KEY)).await.unwrap().unwrap();
    let entered = world.open(Method::GET, &link).await;
    assert_eq!(entered.status, 200);
    let page = Call::new(Method::GET, "/ui/jobs").header("cookie", &cookie(&entered));
    assert_eq!(world.call(page).await.status, 200);
    let again = world.open(Method::GET, &link).await;
    assert_eq!(again.status, 401);
    assert!(!again.headers.contains_key("set-cookie"));

    let late = world.app.sign_in_link(&Secret::new(KEY)).await.unwrap().unwrap();
    world.clock.advance(Duration::from_secs(15 * 60));
    assert_eq!(world.open(Method::GET, &late).await.status, 401);
    assert_eq!(world.open(Method::GET, "/ui/enter?code=x").await.status, 401);
    let unknown = Secret::new("nobody made this key");
    assert_eq!(world.app.sign_in_link(&unknown).await.unwrap(), None);
    // A session's token is no code for a link.
    let token = token(&world, KEY).await;
    assert_eq!(
        world.open(Method::GET, &format!("/ui/enter?code={token}")).await.status,
        401
    );
}
