//! How often one caller may ask: each rule of the hosted platform in both regions at its boundary, whose requests are
//! counted together, and what those are told who are refused.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use towpath_api::client::Client;
use towpath_api::limits::{PerMinuteLimits, Table};
use towpath_api::serve::{self, serve_with_limits};
use towpath_api::{Limits, Proxies};
use towpath_domain::Scope;
use towpath_queue::Windows;

use crate::dashboard::{cookie, sign_in};
use crate::world::{Call, KEY, World};

const SPEC: &str = include_str!("../../src/limits/rules.json");
const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);

async fn following(region: &str) -> World {
    let table = Table::load(region).unwrap();
    World::limited(|clock| {
        Limits::new(
            Some(table),
            PerMinuteLimits::default(),
            Windows::local(clock.clone()),
            clock,
        )
    })
    .await
}

async fn with_own(own: PerMinuteLimits) -> World {
    World::limited(|clock| Limits::new(None, own, Windows::local(clock.clone()), clock)).await
}

/// Who asks.
#[derive(Clone, Debug, Default)]
struct Caller {
    key: Option<String>,
    token: Option<String>,
    user: Option<&'static str>,
    address: Option<&'static str>,
}

impl Caller {
    fn at(address: &'static str) -> Self {
        Self {
            address: Some(address),
            ..Self::default()
        }
    }

    fn keyed(key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..Self::at("192.0.2.1")
        }
    }

    async fn in_session(world: &World, user: &'static str) -> Self {
        let call = Call::new(Method::POST, "/auth/session").header("x-api-key", KEY);
        let session = world.call(call).await.expect(201);
        Self {
            token: session["token"].as_str().map(str::to_owned),
            user: Some(user),
            ..Self::at("192.0.2.1")
        }
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The limit that refuses, `-` where none does.
    fn limit(&self) -> &str {
        self.header("ratelimit").split('"').nth(1).unwrap_or("-")
    }
}

async fn ask(world: &World, caller: &Caller, method: &str, path: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(key) = &caller.key {
        request = request.header("x-api-key", key);
    }
    if let Some(token) = &caller.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    if let Some(user) = caller.user {
        request = request.header("x-user-id", user);
    }
    let address = caller.address.map(|text| text.parse::<IpAddr>().unwrap());
    let client = Client {
        address,
        secure: false,
        is_proxied: false,
    };
    let request = request.extension(client).body(Body::empty()).unwrap();
    let response = world.router.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// Asks so often that the next is refused.
async fn fill(world: &World, caller: &Caller, (method, path): (&str, &str), times: u32) {
    for time in 0..times {
        let answer = ask(world, caller, method, path).await;
        assert_ne!(
            answer.status,
            429,
            "{method} {path}, the {time}th: {}",
            answer.header("ratelimit")
        );
    }
}

/// A request that only this rule counts.
fn request_of(id: &str) -> (&'static str, &'static str) {
    match id {
        "options_info_metadata" => ("POST", "/api/v1/v1/metadata/submit"),
        "auth_key" | "auth_user" => ("GET", "/auth/nothing"),
        "beacon" => ("POST", "/v1/beacon"),
        "repos_key" | "repos_user" => ("GET", "/repos/a/b"),
        "runs_batch" => ("POST", "/runs/batch"),
        "otel_traces" => ("POST", "/api/v1/otel/v1/traces"),
        "charts_key" | "charts_user" => ("POST", "/api/v1/charts/preview"),
        "runs_multipart" => ("POST", "/api/v1/runs/multipart"),
        "runs_query_key" | "runs_query_user" => ("POST", "/runs/query"),
        "generate_key" | "generate_user" => ("POST", "/generate"),
        "commits_key" | "commits_user" => ("GET", "/api/v1/commits/a/b"),
        "deletion_key" => ("DELETE", "/sessions"),
        "deletion_user" => ("POST", "/nothing/trigger"),
        "runs_post" => ("POST", "/runs"),
        "runs_patch" => ("PATCH", "/nothing/runs"),
        "feedback_post" => ("POST", "/api/v1/feedback"),
        "run_lookup" => ("GET", "/api/v1/runs/0a1b2c3d-0000-4000-8000-00000000000f"),
        "examples_get" => ("GET", "/datasets/x/examples"),
        "default_key" | "default_user" | "catch_all" => ("GET", "/nothing"),
        "public_download" => ("GET", "/public/download/x"),
        "runs_stats" => ("POST", "/runs/stats"),
        other => panic!("{other} is no rule of this test"),
    }
}

/// Every rule: the last that passes, the first that is refused, the first that passes again.
async fn holds_at_its_boundaries(region: &str) {
    let world = following(region).await;
    let keyed = Caller::keyed(KEY);
    let user = Caller::in_session(&world, "user-1").await;
    let nobody = Caller::at("192.0.2.7");
    // The session was asked for with the key.
    world.clock.advance(Duration::from_secs(60));
    let spec: Value = serde_json::from_str(SPEC).unwrap();
    let rules = spec["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 29);
    for rule in rules {
        let id = rule["id"].as_str().unwrap();
        let count = u32::try_from(rule[region]["count"].as_u64().unwrap()).unwrap();
        let length = rule[region]["interval_s"].as_u64().unwrap();
        let caller = match rule["identity"][0].as_str().unwrap() {
            "x-api-key" => &keyed,
            "x-user-id" => &user,
            _ => &nobody,
        };
        let (method, path) = request_of(id);
        let told = |wait: u64| {
            (
                429_u16,
                wait.to_string(),
                format!("\"{id}\";r=0;t={wait}"),
                format!("\"{id}\";q={count};w={length}"),
            )
        };
        let look = async || {
            let answer = ask(&world, caller, method, path).await;
            let [after, limit, policy] =
                ["retry-after", "ratelimit", "ratelimit-policy"].map(|name| answer.header(name).to_owned());
            (answer.status, after, limit, policy)
        };

        fill(&world, caller, (method, path), 1).await;
        world.clock.advance(SECOND);
        fill(&world, caller, (method, path), count - 1).await;
        assert_eq!(look().await, told(length - 1), "{region} {id}: one more than it allows");
        // The first leaves the window a second before the others do.
        world
            .clock
            .advance(SECOND * u32::try_from(length - 1).unwrap() - MICROSECOND);
        assert_eq!(look().await, told(1), "{region} {id}: a moment too soon");
        world.clock.advance(MICROSECOND);
        fill(&world, caller, (method, path), 1).await;
        let wait = if count == 1 { length } else { 1 };
        assert_eq!(look().await, told(wait), "{region} {id}: the window is full again");
        // Empty, for the next rule.
        world.clock.advance(SECOND * u32::try_from(length).unwrap());
    }
}

#[tokio::test]
async fn every_rule_of_the_us_holds_at_its_boundaries() {
    holds_at_its_boundaries("us").await;
}

#[tokio::test]
async fn every_rule_of_the_eu_holds_at_its_boundaries() {
    holds_at_its_boundaries("eu").await;
}

#[tokio::test]
async fn each_key_address_and_known_user_is_counted_for_itself() {
    let world = following("us").await;
    let query = ("POST", "/runs/query");
    fill(&world, &Caller::keyed(KEY), query, 15).await;
    let refused = ask(&world, &Caller::keyed(KEY), query.0, query.1).await;
    assert_eq!((refused.status, refused.limit()), (429, "runs_query_key"));
    // From elsewhere it is the same key.
    let elsewhere = Caller {
        address: Some("192.0.2.9"),
        ..Caller::keyed(KEY)
    };
    assert_eq!(ask(&world, &elsewhere, query.0, query.1).await.status, 429);
    // Keys that open nothing are counted together, however many somebody invents.
    for n in 0..15 {
        let invented = Caller::keyed(&format!("no such key {n}"));
        assert_eq!(ask(&world, &invented, query.0, query.1).await.status, 401);
    }
    let refused = ask(&world, &Caller::keyed("one more"), query.0, query.1).await;
    assert_eq!((refused.status, refused.limit()), (429, "runs_query_key"));
    // Under both its places it is one route.
    assert_eq!(
        ask(&world, &Caller::keyed(KEY), "POST", "/api/v1/runs/query")
            .await
            .status,
        429
    );

    // A user's id that comes with no key or session is anybody's: its address is counted.
    let stranger = Caller {
        user: Some("user-1"),
        ..Caller::at("192.0.2.20")
    };
    fill(&world, &stranger, query, 100).await;
    let other = Caller {
        user: Some("user-2"),
        ..stranger.clone()
    };
    assert_eq!(ask(&world, &other, query.0, query.1).await.limit(), "catch_all");
    let forged = Caller {
        token: Some("tps_nothing".to_owned()),
        ..other.clone()
    };
    assert_eq!(ask(&world, &forged, query.0, query.1).await.limit(), "catch_all");

    // A user who is known counts with the address.
    let known = Caller {
        address: stranger.address,
        ..Caller::in_session(&world, "user-1").await
    };
    fill(&world, &known, query, 300).await;
    assert_eq!(ask(&world, &known, query.0, query.1).await.limit(), "runs_query_user");
    for somebody_else in [
        Caller {
            user: Some("user-2"),
            ..known.clone()
        },
        Caller {
            address: Some("192.0.2.21"),
            ..known.clone()
        },
    ] {
        let answer = ask(&world, &somebody_else, query.0, query.1).await;
        assert_eq!(answer.limit(), "-", "{somebody_else:?}");
    }

    // With IPv6 whoever has one address has those of its network.
    fill(&world, &Caller::at("2001:db8::1"), ("GET", "/nothing"), 100).await;
    assert_eq!(
        ask(&world, &Caller::at("2001:db8::2"), "GET", "/nothing").await.status,
        429
    );
    assert_eq!(
        ask(&world, &Caller::at("2001:db8:0:1::1"), "GET", "/nothing")
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn refusals_have_the_shape_of_their_route() {
    let world = following("us").await;
    let nobody = Caller::at("192.0.2.1");
    fill(&world, &nobody, ("POST", "/runs/multipart"), 100).await;
    let problem = json!({
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Rate limit exceeded"
    });
    let ingest = json!({"error": "too many requests", "details": "Rate limit exceeded"});
    let platform = json!({"detail": "Rate limit exceeded"});
    for (method, path, body) in [
        ("POST", "/runs/multipart", &ingest),
        ("POST", "/api/v1/runs/batch", &ingest),
        ("POST", "/otel/v1/traces", &ingest),
        ("GET", "/v2/deployments", &platform),
        ("POST", "/api/v1/bulk-exports", &platform),
        ("GET", "/no/such/route", &platform),
        ("PUT", "/auth/session", &platform),
        ("POST", "/api/v2/runs/query", &problem),
    ] {
        let answer = ask(&world, &nobody, method, path).await;
        assert_eq!(answer.status, 429, "{method} {path}");
        assert_eq!(
            serde_json::from_str::<Value>(&answer.text).unwrap(),
            *body,
            "{method} {path}"
        );
        assert_eq!(answer.header("retry-after"), "60");
        assert_eq!(answer.header("ratelimit"), "\"catch_all\";r=0;t=60");
        assert_eq!(answer.header("ratelimit-policy"), "\"catch_all\";q=100;w=60");
        assert!(answer.headers.contains_key("x-request-id"));
    }
    // Whoever is not refused is told nothing of limits.
    let other = ask(&world, &Caller::at("192.0.2.2"), "GET", "/nothing").await;
    assert_eq!(
        (other.status, other.header("ratelimit"), other.header("retry-after")),
        (404, "", "")
    );
}

#[tokio::test]
async fn health_metrics_and_pages_are_never_refused() {
    let world = following("us").await;
    let nobody = Caller::at("192.0.2.1");
    fill(&world, &nobody, ("GET", "/nothing"), 100).await;
    for _ in 0..2 {
        assert_eq!(ask(&world, &nobody, "GET", "/nothing").await.status, 429);
    }
    for (path, status) in [
        ("/livez", 200),
        ("/ok", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/ui/sign-in", 200),
        ("/ui/limits", 401),
        // Agent servers have no rules of the platform.
        ("/d/nothing/threads", 401),
    ] {
        assert_eq!(ask(&world, &nobody, "GET", path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn what_official_servers_report_is_answered_and_not_kept() {
    let world = World::new().await;
    for path in [
        "/v1/metadata/submit",
        "/api/v1/v1/metadata/submit",
        "/v1/beacon",
        "/api/v1/v1/beacon",
    ] {
        let call = Call::new(Method::POST, path).json(&json!({"nodes_executed": 7}));
        let answer = world.call(call).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (204, ""), "{path}");
    }
}

#[tokio::test]
async fn limits_of_ones_own_count_keys_and_workspaces() {
    let own = PerMinuteLimits {
        key: 5,
        workspace: 8,
        deployment: 0,
    };
    let world = with_own(own).await;
    let second = world.key(Some(world.tenant)).await;
    let (first, second) = (Caller::keyed(KEY), Caller::keyed(second.reveal()));
    let get = ("GET", "/settings");
    fill(&world, &first, get, 5).await;
    let refused = ask(&world, &first, get.0, get.1).await;
    assert_eq!(refused.header("ratelimit-policy"), "\"own-key\";q=5;w=60");
    // Eight of the workspace, whichever key they have.
    fill(&world, &second, get, 3).await;
    let refused = ask(&world, &second, get.0, get.1).await;
    assert_eq!(refused.header("ratelimit-policy"), "\"own-workspace\";q=8;w=60");
    let body: Value = serde_json::from_str(&refused.text).unwrap();
    assert_eq!(body["details"], "Rate limit exceeded");
    // Without a key nothing is counted, and a minute later all may ask again.
    fill(&world, &Caller::at("192.0.2.1"), ("GET", "/nothing"), 20).await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(ask(&world, &first, get.0, get.1).await.status, 200);
}

#[tokio::test]
async fn operators_see_who_is_near_a_limit_and_who_was_refused() {
    let world = following("us").await;
    let reader = world.limited_key(&[Scope::OperatorRead]).await;
    let operator = Caller::keyed(reader.reveal());
    let look = async || {
        let answer = ask(&world, &operator, "GET", "/internal/limits").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(!answer.text.contains(KEY), "{}", answer.text);
        serde_json::from_str::<Value>(&answer.text).unwrap()
    };
    let seen = look().await;
    assert_eq!(
        (&seen["table"], &seen["counted"], &seen["callers"]),
        (&json!("us"), &json!("here"), &json!([]))
    );
    assert_eq!(seen["items"].as_array().unwrap().len(), 29);

    fill(&world, &Caller::keyed(KEY), ("POST", "/runs/query"), 15).await;
    for _ in 0..3 {
        ask(&world, &Caller::keyed(KEY), "POST", "/runs/query").await;
    }
    fill(&world, &Caller::at("192.0.2.5"), ("GET", "/nothing"), 50).await;
    fill(&world, &Caller::at("192.0.2.6"), ("GET", "/nothing"), 49).await;
    let seen = look().await;
    let callers = seen["callers"].as_array().unwrap();
    let lines: Vec<_> = callers
        .iter()
        .map(|caller| {
            let [limit, who] = ["limit", "who"].map(|name| caller[name].as_str().unwrap().to_owned());
            (
                limit,
                who,
                caller["count"].as_u64(),
                caller["refused"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (lines[0].0.as_str(), lines[0].2, lines[0].3),
        ("runs_query_key", Some(15), 3)
    );
    assert!(
        lines[0].1.starts_with("key ") && lines[0].1.len() == 16,
        "{}",
        lines[0].1
    );
    let near = ("catch_all".to_owned(), "address 192.0.2.5".to_owned(), Some(50), 0);
    assert_eq!(lines[1], near);
    let of = |name: &str| {
        let items = seen["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["name"] == name).unwrap();
        (item["passed"].as_u64().unwrap(), item["refused"].as_u64().unwrap())
    };
    assert_eq!(of("runs_query_key"), (15, 3));
    assert_eq!(of("catch_all"), (99, 0));

    // Once its window is over nobody is near it; a refusal is shown for an hour.
    world.clock.advance(Duration::from_secs(60));
    let seen = look().await;
    assert_eq!(seen["callers"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&seen["callers"][0]["count"], &seen["callers"][0]["refused"]),
        (&Value::Null, &json!(3))
    );
    world.clock.advance(Duration::from_secs(3600));
    assert_eq!(look().await["callers"], json!([]));

    // Without limits there is nothing to see.
    let world = World::new().await;
    let seen = world.get("/internal/limits").await.expect(200);
    assert_eq!(
        seen,
        json!({"table": null, "counted": "off", "items": [], "callers": []})
    );
}

#[tokio::test]
async fn the_page_shows_callers_and_escapes_what_they_call_themselves() {
    let world = following("us").await;
    let page = async |world: &World| {
        let cookie = cookie(&sign_in(world, KEY).await);
        let call = Call::new(Method::GET, "/ui/limits").header("cookie", &cookie);
        let answer = world.call(call).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.text.contains(KEY));
        answer.text
    };
    assert!(page(&world).await.contains("No caller is near a limit"));
    let user = Caller::in_session(&world, "<script>alert(1)</script>").await;
    fill(&world, &user, ("POST", "/nothing/trigger"), 30).await;
    assert_eq!(
        ask(&world, &user, "POST", "/nothing/trigger").await.limit(),
        "deletion_user"
    );
    let text = page(&world).await;
    for part in [
        "deletion_user",
        "30 of 30",
        "30 in 60 s",
        "192.0.2.1",
        "rules: us",
        "counted in this process",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(!text.contains("<script>alert"), "{text}");
    let none = World::new().await;
    assert!(page(&none).await.contains("No limits"));
}

/// Sends these heads on one connection and counts the answers of each status.
async fn statuses(address: std::net::SocketAddr, forwarded: &str, requests: usize) -> (usize, usize) {
    let mut text = String::new();
    for left in (0..requests).rev() {
        let close = if left == 0 { "connection: close\r\n" } else { "" };
        text += &format!("GET /nothing HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {forwarded}\r\n{close}\r\n");
    }
    let mut client = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = client.split();
    let mut answers = String::new();
    let (sent, read) = tokio::join!(writer.write_all(text.as_bytes()), reader.read_to_string(&mut answers));
    sent.unwrap();
    read.unwrap();
    let count = |status: &str| answers.matches(&format!("HTTP/1.1 {status} ")).count();
    (count("404"), count("429"))
}

async fn served(world: &World, proxies: &[&str]) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = serve::Limits {
        proxies: Proxies::new(proxies.iter().map(|text| Proxies::parse(text).unwrap())),
        ..serve::Limits::default()
    };
    let router = world.router.clone();
    tokio::spawn(serve_with_limits(
        limits,
        listener,
        router,
        CancellationToken::new(),
        Duration::ZERO,
    ));
    address
}

#[tokio::test]
async fn behind_two_proxies_each_client_is_counted_for_itself() {
    let world = following("us").await;
    let address = served(&world, &["127.0.0.1", "10.0.0.0/8"]).await;
    assert_eq!(statuses(address, "203.0.113.1, 10.0.0.9", 101).await, (100, 1));
    assert_eq!(statuses(address, "203.0.113.2, 10.0.0.9", 1).await, (1, 0));
    // What the client wrote there itself does not make it another.
    assert_eq!(
        statuses(address, "198.51.100.7, 203.0.113.1, 10.0.0.9", 1).await,
        (0, 1)
    );
}

#[tokio::test]
async fn a_stranger_cannot_say_who_it_is() {
    let world = following("us").await;
    let address = served(&world, &[]).await;
    assert_eq!(statuses(address, "203.0.113.1", 60).await, (60, 0));
    assert_eq!(statuses(address, "203.0.113.2", 60).await, (40, 20));
}
