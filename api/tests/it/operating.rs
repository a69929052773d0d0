//! The operators' routes: who may, lists that stay right, and what operators do to jobs.

mod pausing;

use std::collections::HashSet;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, WorkerId};
use towpath_store::attempts::{self, Attempt};
use towpath_store::jobs::{self, JobTransition, NewJob};
use towpath_store::workers::{self, Worker};
use towpath_store::{lanes, pools};

use crate::world::{Answer, Call, KEY, World, on_both_databases};

on_both_databases!(
    a_job_is_shown_with_all_that_belongs_to_it,
    a_list_is_whole_while_its_jobs_move,
    lists_are_narrowed_by_what_is_asked,
    dead_letters_are_read_on_and_tried_again,
    a_retry_is_refused_where_it_would_be_wrong,
    cancelling_ends_what_waits_and_says_so_of_what_is_over,
    many_jobs_at_once_each_by_itself,
);

impl World {
    /// As an operator, without naming a workspace.
    async fn operator(&self, method: Method, path: &str) -> Answer {
        self.call(Call::new(method, path).header("x-api-key", KEY)).await
    }

    async fn shown(&self, path: &str) -> Value {
        self.operator(Method::GET, path).await.expect(200)
    }

    async fn done(&self, path: &str) -> Value {
        self.operator(Method::POST, path).await.expect(200)
    }

    /// A job of any kind, as somebody might have recorded it.
    async fn job(&self, kind: &str, pool: &str, state: JobState) -> JobId {
        let id = JobId::new();
        let lane = (kind == "flush_wal").then(|| "fold".to_owned());
        let input = match kind {
            "flush_wal" => json!({"mark": JobId::new(), "barrier": null}),
            _ => json!({"text": "private"}),
        };
        let job = NewJob {
            id,
            tenant_id: self.tenant,
            kind,
            pool,
            priority: 0,
            state,
            run_at: self.clock.now().plus(Duration::from_secs(60)),
            deadline_at: None,
            input: input.to_string(),
            lane,
            lane_seq: None,
            lane_held: false,
            keep_place: false,
            parent_id: None,
            traceparent: None,
        };
        self.store.write(async |tx| jobs::insert(tx, &job).await).await.unwrap();
        id
    }

    async fn dead(&self, kind: &str, pool: &str) -> JobId {
        let id = self.job(kind, pool, JobState::Ready).await;
        // Each a moment of its own.
        self.clock.advance(Duration::from_millis(1));
        self.store
            .write(async |tx| {
                let job = jobs::get(tx, id).await?.unwrap();
                let attempt = Attempt {
                    fence: 0,
                    outcome: "failed".to_owned(),
                    failure: Some(0),
                    error: "it broke".to_owned(),
                    worker_id: None,
                    at: tx.now(),
                };
                attempts::record(tx, id, &attempt).await?;
                let mut to = JobTransition::of(&job, JobState::Failed);
                to.dead = true;
                to.error = Some("it broke".to_owned());
                jobs::apply(tx, &job, &to).await
            })
            .await
            .unwrap();
        id
    }

    async fn worker(&self, pools: Value) -> WorkerId {
        let row = Worker {
            id: WorkerId::new(),
            host: "box".to_owned(),
            pid: 7,
            pools: pools.to_string(),
            version: "0.1.0".to_owned(),
            draining: false,
            started_at: self.clock.now(),
            seen_at: self.clock.now(),
            finished: "{}".to_owned(),
            drain_at: None,
        };
        self.store
            .write(async |tx| workers::heartbeat(tx, &row).await)
            .await
            .unwrap();
        row.id
    }

    async fn state(&self, id: JobId) -> JobState {
        let job = self.store.read(async |tx| jobs::get(tx, id).await).await.unwrap();
        job.unwrap().state
    }
}

fn ids(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect()
}

const NOBODY: &str = "00000000-0000-4000-8000-000000000009";

async fn session(world: &World, key: &str) -> String {
    let begin = Call::new(Method::POST, "/auth/session").header("x-api-key", key);
    let session = world.call(begin).await.expect(201);
    format!("Bearer {}", session["token"].as_str().unwrap())
}

#[tokio::test]
async fn only_an_operators_key_opens_them() {
    let world = World::new().await;
    let plain = world.key(None).await;
    // All there are: whoever adds one cannot forget it here.
    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        if path.starts_with("/internal/") {
            let path = path.replace("{pool}", "flushes");
            let path = path
                .split('/')
                .map(|step| if step.starts_with('{') { NOBODY } else { step });
            let path = path.collect::<Vec<_>>().join("/");
            let methods = operations.as_object().unwrap().keys();
            routes.extend(methods.filter_map(|name| Some((name.to_uppercase().parse::<Method>().ok()?, path.clone()))));
        }
    }
    routes.retain(|(method, _)| [Method::GET, Method::POST, Method::PATCH, Method::DELETE].contains(method));
    assert!(routes.len() >= 21, "{routes:?}");
    for (method, path) in &routes {
        let call = Call::new(method.clone(), path)
            .header("x-api-key", plain.reveal())
            .header("x-tenant-id", &world.tenant.to_string());
        let refused = world.call(call).await.expect(403);
        let reads = *method == Method::GET && !path.ends_with("/body");
        let scope = if reads { "operator:read" } else { "operator" };
        let lacks = format!("the API key lacks the scope {scope}");
        assert_eq!(refused, json!({"detail": lacks}), "{method} {path}");
        world.open(method.clone(), path).await.expect(401);
        let in_session = session(&world, plain.reveal()).await;
        let call = Call::new(method.clone(), path).header("authorization", &in_session);
        world.call(call).await.expect(403);
    }
    world.shown("/internal/queues").await;
    let paused = world
        .store
        .read(async |tx| pools::is_paused(tx, "flushes").await)
        .await
        .unwrap();
    assert!(!paused, "a refused request does nothing");
}

async fn a_job_is_shown_with_all_that_belongs_to_it(world: World) {
    let id = world.dead("clean_export", "exports").await;
    let path = format!("/internal/jobs/{id}");
    let answer = world.operator(Method::GET, &path).await;
    assert!(!answer.text.contains("private"), "{}", answer.text);
    let shown = answer.expect(200);
    assert_eq!(shown["state"], "failed");
    assert_eq!(shown["dead"], true);
    assert_eq!(shown["tenant_id"], world.tenant.to_string());
    assert_eq!(shown["explanation"]["reason"], "over");
    assert_eq!(shown["attempts"][0]["error"], "it broke");
    assert_eq!((&shown["steps"], &shown["children"]), (&json!([]), &json!([])));
    let asked = world.shown(&format!("{path}?input=true")).await;
    assert_eq!(asked["input"], json!({"text": "private"}));

    let unknown = format!("/internal/jobs/{}", JobId::new());
    assert_eq!(
        world.operator(Method::GET, &unknown).await.expect(404),
        json!({"detail": "job not found"})
    );
    let nowhere = world.operator(Method::GET, "/internal/jobs/x").await.expect(422);
    assert_eq!(nowhere["detail"][0]["loc"], json!(["path", "job_id"]));
}

async fn a_list_is_whole_while_its_jobs_move(world: World) {
    let mut recorded = HashSet::new();
    for _ in 0..25 {
        recorded.insert(world.job("a", "ones", JobState::Ready).await.to_string());
    }
    let mut seen = Vec::new();
    let mut path = "/internal/jobs?limit=4".to_owned();
    let mut later = Vec::new();
    loop {
        let answer = world.shown(&path).await;
        seen.extend(ids(&answer));
        // What was seen and what was not moves on, and new ones come in.
        for id in [seen.first(), recorded.iter().find(|id| !seen.contains(id))]
            .into_iter()
            .flatten()
        {
            let id: JobId = id.parse().unwrap();
            world
                .store
                .write(async |tx| {
                    let job = jobs::get(tx, id).await?.unwrap();
                    jobs::apply(tx, &job, &JobTransition::of(&job, JobState::Cancelled)).await
                })
                .await
                .unwrap();
        }
        later.push(world.job("a", "ones", JobState::Scheduled).await.to_string());
        let Some(cursor) = answer["next_cursor"].as_str() else {
            break;
        };
        path = format!("/internal/jobs?limit=4&cursor={cursor}");
    }
    assert_eq!(seen.len(), 25, "each once");
    assert_eq!(
        seen.iter().cloned().collect::<HashSet<_>>(),
        recorded,
        "and none missed"
    );
    assert!(seen.iter().all(|id| !later.contains(id)));
}

async fn lists_are_narrowed_by_what_is_asked(world: World) {
    let ready = world.job("a", "ones", JobState::Ready).await.to_string();
    let dead = world.dead("b", "twos").await.to_string();
    let fold = world.dead("flush_wal", "flushes").await.to_string();
    for (query, expected) in [
        ("pool=ones", vec![&ready]),
        ("kind=b", vec![&dead]),
        ("state=failed", vec![&fold, &dead]),
        ("state=failed&pool=flushes", vec![&fold]),
        ("lane=fold", vec![&fold]),
        ("pool=none", vec![]),
    ] {
        let found = ids(&world.shown(&format!("/internal/jobs?{query}")).await);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{query}");
    }
    let of = format!("/internal/jobs?tenant={}&state=ready", world.tenant);
    assert_eq!(ids(&world.shown(&of).await), [ready]);
    let others = format!("/internal/jobs?tenant={}", TenantId::new());
    assert_eq!(ids(&world.shown(&others).await), Vec::<String>::new());
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("state=lost", "state"),
        ("pool=%00", "pool"),
        ("cursor=x", "cursor"),
        ("more=1", "more"),
    ] {
        let refused = world
            .operator(Method::GET, &format!("/internal/jobs?{query}"))
            .await
            .expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["query", field]), "{query}");
    }
}

async fn dead_letters_are_read_on_and_tried_again(world: World) {
    let mut dead = Vec::new();
    for _ in 0..5 {
        dead.push(world.dead("flush_wal", "flushes").await.to_string());
    }
    world.job("a", "ones", JobState::Ready).await;
    dead.reverse();
    let first = world.shown("/internal/dead?limit=2").await;
    assert_eq!(ids(&first), dead[..2]);
    // One of those that were seen leaves: the rest stays in its place.
    world.done(&format!("/internal/dead/{}/retry", dead[1])).await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = world.shown(&format!("/internal/dead?limit=10&cursor={cursor}")).await;
    assert_eq!(ids(&rest), dead[2..]);
    assert_eq!(rest["next_cursor"], Value::Null);

    let again: JobId = dead[1].parse().unwrap();
    assert_eq!(world.state(again).await, JobState::Ready);
    let gone = world
        .operator(Method::POST, &format!("/internal/dead/{again}/retry"))
        .await;
    assert_eq!(gone.expect(404), json!({"detail": "dead letter not found"}));
    for cursor in ["x", "1_x", "99999999999999999999_0199a5c4-1111-7000-8000-00000000abcd"] {
        let refused = world
            .operator(Method::GET, &format!("/internal/dead?cursor={cursor}"))
            .await
            .expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["query", "cursor"]));
    }
}

async fn a_retry_is_refused_where_it_would_be_wrong(world: World) {
    for (kind, pool, why) in [
        ("export_part", "export_parts", "the job's input cannot be read"),
        (
            "unheard_of",
            "ones",
            "this server does not know jobs of the kind unheard_of",
        ),
    ] {
        let id = world.dead(kind, pool).await;
        let refused = world
            .operator(Method::POST, &format!("/internal/jobs/{id}/retry"))
            .await
            .expect(409);
        assert_eq!(refused, json!({ "detail": why }));
        assert_eq!(world.state(id).await, JobState::Failed);
    }
    let ready = world.job("flush_wal", "flushes", JobState::Ready).await;
    let refused = world
        .operator(Method::POST, &format!("/internal/jobs/{ready}/retry"))
        .await
        .expect(409);
    assert_eq!(refused, json!({"detail": "the job has not ended: it is ready"}));
    let missing = format!("/internal/jobs/{}/retry", JobId::new());
    world.operator(Method::POST, &missing).await.expect(404);
}

async fn cancelling_ends_what_waits_and_says_so_of_what_is_over(world: World) {
    world
        .store
        .write(async |tx| lanes::lock(tx, "fold", 1).await.map(drop))
        .await
        .unwrap();
    let id = world.job("flush_wal", "flushes", JobState::Scheduled).await;
    let shown = world.done(&format!("/internal/jobs/{id}/cancel")).await;
    assert_eq!(shown["state"], "cancelled");
    let refused = world
        .operator(Method::POST, &format!("/internal/jobs/{id}/cancel"))
        .await
        .expect(409);
    assert_eq!(refused, json!({"detail": "the job has ended: cancelled"}));
    let unknown = world.job("unheard_of", "ones", JobState::Ready).await;
    let refused = world
        .operator(Method::POST, &format!("/internal/jobs/{unknown}/cancel"))
        .await
        .expect(409);
    assert_eq!(
        refused,
        json!({"detail": "this server does not know jobs of the kind unheard_of"})
    );
}

async fn many_jobs_at_once_each_by_itself(world: World) {
    let mut good = Vec::new();
    for _ in 0..7 {
        good.push(world.dead("flush_wal", "flushes").await);
    }
    let bad = world.dead("unheard_of", "flushes").await;
    let call = |body: Value| {
        world.call(
            Call::new(Method::POST, "/internal/jobs/bulk")
                .header("x-api-key", KEY)
                .json(&body),
        )
    };
    let mut body = json!({"action": "retry", "filter": {"pool": "flushes", "state": "failed"}, "limit": 3});
    let (mut done, mut refused, mut rounds) = (0, Vec::new(), 0);
    loop {
        let outcome = call(body.clone()).await.expect(200);
        done += outcome["done"].as_u64().unwrap();
        refused.extend(outcome["refused"].as_array().unwrap().clone());
        rounds += 1;
        if outcome["next_cursor"].is_null() {
            break;
        }
        body["cursor"] = outcome["next_cursor"].clone();
    }
    assert_eq!((done, rounds), (7, 3));
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0]["id"], bad.to_string());
    assert!(refused[0]["reason"].as_str().unwrap().contains("unheard_of"));

    let outcome = call(json!({"action": "cancel", "ids": [good[0], good[0], JobId::new()]}))
        .await
        .expect(200);
    // The same job twice: done once, over the second time.
    assert_eq!(
        (outcome["done"].as_u64(), outcome["refused"].as_array().map(Vec::len)),
        (Some(1), Some(2))
    );
    // Rules across fields.
    for body in [
        json!({"action": "retry"}),
        json!({"action": "retry", "filter": {}}),
        json!({"action": "retry", "ids": [bad], "filter": {"pool": "a"}}),
    ] {
        let refused = call(body.clone()).await.expect(400);
        assert!(refused["detail"].to_string().contains("filter"), "{body}: {refused}");
    }
    for (body, field) in [
        (json!({"action": "retry", "ids": []}), json!(["body", "ids"])),
        (
            json!({"action": "retry", "filter": {"pool": "a"}, "limit": 0}),
            json!(["body", "limit"]),
        ),
        (
            json!({"action": "retry", "ids": [bad], "limit": 0}),
            json!(["body", "limit"]),
        ),
        (json!({"action": "drop", "ids": [bad]}), json!(["body", "action"])),
    ] {
        let refused = call(body.clone()).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], field, "{body}");
    }
}
