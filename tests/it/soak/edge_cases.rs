//! Requests that make no sense or mean harm, and unusual ones that are right. None is answered with 500, which `Client`
//! looks for; what the right ones are answered with is known.

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use towpath_tests::Random;

use super::client::Request;
use super::day::{Day, uuid};

/// Routes of the platform. `ID` becomes an id or something else, `NUMBER` a number or something else.
static PLATFORM: [(Method, &str); 26] = [
    (Method::GET, "/runs/ID"),
    (Method::PATCH, "/runs/ID"),
    (Method::POST, "/runs"),
    (Method::POST, "/runs/batch"),
    (Method::POST, "/runs/multipart"),
    (Method::POST, "/runs/query"),
    (Method::POST, "/runs/stats"),
    (Method::POST, "/api/v2/runs/query"),
    (Method::POST, "/otel/v1/traces"),
    (Method::POST, "/feedback"),
    (Method::GET, "/feedback?run=ID&limit=NUMBER"),
    (Method::PATCH, "/feedback/ID"),
    (Method::DELETE, "/feedback/ID"),
    (Method::POST, "/feedback/tokens"),
    (Method::POST, "/sessions"),
    (Method::GET, "/sessions?limit=NUMBER&offset=NUMBER"),
    (Method::GET, "/sessions/ID"),
    (Method::PATCH, "/sessions/ID"),
    (Method::POST, "/api/v1/bulk-exports"),
    (Method::PATCH, "/api/v1/bulk-exports/ID"),
    (Method::GET, "/api/v1/bulk-exports?offset=NUMBER&session_id=ID"),
    (Method::GET, "/api/v1/bulk-exports/ID/runs"),
    (Method::POST, "/api/v1/bulk-exports/destinations"),
    (Method::GET, "/internal/jobs/ID"),
    (Method::GET, "/internal/quarantine?limit=NUMBER&tenant=ID"),
    (Method::POST, "/internal/queues/ID/pause"),
];
/// Routes of an agent server.
static AGENTS: [(Method, &str); 24] = [
    (Method::POST, "/runs"),
    (Method::POST, "/runs/wait"),
    (Method::POST, "/runs/stream"),
    (Method::POST, "/runs/search"),
    (Method::POST, "/runs/cancel"),
    (Method::GET, "/runs/ID"),
    (Method::POST, "/runs/crons"),
    (Method::PATCH, "/runs/crons/ID"),
    (Method::POST, "/runs/crons/search"),
    (Method::POST, "/threads/search"),
    (Method::GET, "/threads/ID"),
    (Method::PATCH, "/threads/ID"),
    (Method::DELETE, "/threads/ID"),
    (Method::GET, "/threads/ID/runs?limit=NUMBER"),
    (Method::POST, "/threads/ID/runs"),
    (Method::POST, "/threads/ID/runs/ID/cancel"),
    (Method::POST, "/threads/ID/state"),
    (Method::GET, "/threads/ID/history?limit=NUMBER"),
    (Method::POST, "/assistants/search"),
    (Method::GET, "/assistants/ID"),
    (Method::PUT, "/store/items"),
    (Method::DELETE, "/store/items"),
    (Method::GET, "/store/items?key=ID&namespace=ID"),
    (Method::POST, "/store/items/search"),
];
/// Bodies that nothing can be made of.
const BODIES: [&[u8]; 18] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\"text\"",
    b"\xff\xfe{}",
    b"{\"limit\":18446744073709551616}",
    b"{\"limit\":-1,\"offset\":1e999}",
    b"{\"id\":\"not an id\",\"thread_id\":7}",
    b"{\"session\":\"\\u0000\",\"name\":\"\\u0000\"}",
    b"{\"assistant_id\":\"\\u0000\",\"input\":null}",
    b"{\"assistant_id\":\"nobody\",\"input\":{\"a\":1e308}}",
    b"{\"namespace\":[\"a.b\",\"\"],\"key\":\"\",\"value\":{}}",
    b"{\"namespace\":[\"\\ud800\"],\"key\":\"\\u0000\",\"value\":{}}",
    b"{\"post\":{},\"patch\":[null]}",
    b"{\"run_id\":\"00000000-0000-0000-0000-000000000000\",\"score\":1e400}",
    b"{\"filter\":\"and(eq(name, \\\"\",\"session\":[\"00000000-0000-0000-0000-000000000000\"]}",
    b"{\"schedule\":\"99 99 99 99 99\",\"assistant_id\":\"agent\"}",
];
/// What stands for an id, beside random ones.
const IDS: [&str; 6] = [
    "00000000-0000-0000-0000-000000000000",
    "not-an-id",
    "%00",
    "..%2f..%2fetc",
    "%F0%9F%9A%A3",
    "1e999",
];
const NUMBERS: [&str; 7] = ["0", "-1", "1000", "99999999999999999999", "1e9", "NaN", "%00"];
const TYPES: [&str; 4] = [
    "application/json",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-protobuf",
];
/// Deeper than any reader goes.
const DEPTH: usize = 2000;

/// One that makes no sense.
pub async fn request(day: &Day<'_>, dice: &mut Random) {
    let (client, routes) = if dice.one_in(2) {
        (day.platform, &PLATFORM[..])
    } else {
        (day.agents, &AGENTS[..])
    };
    let (method, route) = dice.pick(routes);
    let mut path = (*route).to_owned();
    while path.contains("ID") {
        let id = if dice.one_in(3) {
            uuid(dice).to_string()
        } else {
            IDS[dice.index(IDS.len())].to_owned()
        };
        path = path.replacen("ID", &id, 1);
    }
    while path.contains("NUMBER") {
        path = path.replacen("NUMBER", dice.pick::<&str>(&NUMBERS), 1);
    }
    let body = if dice.one_in(8) {
        Bytes::from("[".repeat(DEPTH))
    } else {
        Bytes::from_static(BODIES[dice.index(BODIES.len())])
    };
    let request = Request::raw(method.clone(), path, body).header("content-type", dice.pick::<&str>(&TYPES));
    // It may be answered with anything but 500, or break off.
    client.once(&request).await;
}

/// One that is right.
pub async fn legal(day: &Day<'_>, dice: &mut Random) {
    let nobody = uuid(dice);
    let (client, request, status) = match dice.below(6) {
        0 => {
            let body = json!({
                "id": [nobody], "limit": 1, "order": "asc", "select": ["id", "no such field"],
                "filter": "and(gte(latency, \"0s\"), neq(error, null), has(tags, \"🚣\"))",
            });
            (day.platform, Request::post("/runs/query", &body), 200)
        }
        1 => {
            let body = json!({ "filter": "or(search(\"%_\\\\\"), in(name, [\"a\", \"ünï\"]))" });
            (day.platform, Request::post("/runs/query/validate", &body), 200)
        }
        2 => (
            day.platform,
            Request::get("/feedback?key=%F0%9F%9A%A3&offset=1000000000"),
            200,
        ),
        3 => {
            let body = json!({
                "namespace_prefix": [], "limit": 10_000, "offset": 0, "filter": { "n": { "$gt": 1e300 } },
            });
            (day.agents, Request::post("/store/items/search", &body), 200)
        }
        4 => {
            let body =
                json!({ "limit": 1000, "offset": 1_000_000, "metadata": { "round": day.number }, "status": "idle" });
            (day.agents, Request::post("/threads/search", &body), 200)
        }
        _ => {
            let body = json!({
                "namespace": ["soak", "🚣"], "key": format!("'; DROP TABLE item; -- {nobody}"), "ttl": 0.5,
                "value": { "n": 1.797e308, "deep": [[[[[[[[]]]]]]]] },
            });
            (day.agents, Request::json(Method::PUT, "/store/items", &body), 204)
        }
    };
    client.insist(&request, &[status]).await;
}
