//! Prices of models, and the costs that follow from them.

use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(
    prices_are_created_changed_and_deleted,
    costs_follow_from_the_prices_of_the_workspace,
    what_is_wrong_with_a_price_is_named,
    another_workspace_sees_and_pays_nothing,
);

const PATH: &str = "/model-price-map";

async fn send(world: &World, method: Method, path: &str, body: &Value) -> Answer {
    world
        .call(Call::new(method, path).in_workspace(world.tenant).json(body))
        .await
}

async fn open_jobs(world: &World) -> i64 {
    let keys = [format!("reprice:{}", world.tenant)];
    let read = world
        .store
        .read(async |tx| towpath_store::jobs::in_lanes(tx, &keys).await)
        .await;
    read.unwrap().iter().filter(|lane| lane.open).count() as i64
}

async fn prices_are_created_changed_and_deleted(world: World) {
    let bundled = world.get(PATH).await.expect(200);
    let bundled = bundled.as_array().unwrap();
    assert!(bundled.iter().any(|price| price["name"] == "gpt-4o-mini"));
    assert!(bundled.iter().all(|price| price["tenant_id"].is_null()));
    assert_eq!(open_jobs(&world).await, 0);

    let new = json!({
        "name": "barge", "match_pattern": "^barge(-\\d+)?$", "provider": "acme",
        "prompt_cost": 0.0000025, "completion_cost": "1.875e-8",
        "prompt_cost_details": {"cache_read": "0.00000125", "audio": 1},
    });
    let made = world.post(PATH, &new).await.expect(200);
    assert_eq!(made["tenant_id"], json!(world.tenant));
    assert_eq!(
        (&made["prompt_cost"], &made["completion_cost"]),
        (&json!("0.0000025"), &json!("0.00000001875"))
    );
    assert_eq!(
        made["prompt_cost_details"],
        json!({"audio": "1", "cache_read": "0.00000125"})
    );
    assert_eq!(made["completion_cost_details"], json!({}));
    assert_eq!(
        made["match_path"],
        json!(["model", "model_name", "model_id", "model_path", "endpoint_name"])
    );
    assert_eq!(open_jobs(&world).await, 1, "costs are computed again");
    let listed = world.get(PATH).await.expect(200);
    assert_eq!(listed[0], made);
    assert_eq!(listed.as_array().unwrap().len(), bundled.len() + 1);

    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    let other = json!({
        "name": "tug", "match_pattern": "^tug$", "match_path": ["deployment"], "start_time": "2026-03-01T00:00:00Z",
        "prompt_cost": "1", "completion_cost": "2", "provider": null, "prompt_cost_details": null,
    });
    let changed = send(&world, Method::PUT, &path, &other).await.expect(200);
    assert_eq!((&changed["id"], &changed["name"]), (&made["id"], &json!("tug")));
    assert_eq!(changed["match_path"], json!(["deployment"]));
    assert_eq!(changed["prompt_cost_details"], json!({}));
    let gone = world
        .call(Call::new(Method::DELETE, &path).in_workspace(world.tenant))
        .await;
    assert_eq!(gone.status, 204);
    assert_eq!(
        world.get(PATH).await.expect(200).as_array().unwrap().len(),
        bundled.len()
    );
    send(&world, Method::PUT, &path, &other).await.expect(404);
    let common = format!("{PATH}/{}", bundled[0]["id"].as_str().unwrap());
    let refused = world
        .call(Call::new(Method::DELETE, &common).in_workspace(world.tenant))
        .await;
    assert_eq!(refused.status, 404, "the server's prices belong to no workspace");
    let again = Call::new(Method::POST, &format!("{PATH}/reprice")).in_workspace(world.tenant);
    assert_eq!(world.call(again).await.status, 202);
    assert_eq!(open_jobs(&world).await, 1, "one job is enough");
}

fn id(number: u32) -> Uuid {
    Uuid::from_u128(0x0194_fdc2_0000_7000_8000_0000_0000_0000 + u128::from(number))
}

/// A call of a model as the SDK sends it.
fn call(number: u32, model: &str, usage: &Value) -> Value {
    let run = id(number);
    json!({
        "id": run, "trace_id": run, "dotted_order": format!("20260301T1000{number:02}000000Z{run}"),
        "session_name": "canal", "name": "call", "run_type": "llm",
        "start_time": format!("2026-03-01T10:00:{number:02}.000000Z"),
        "end_time": format!("2026-03-01T10:00:{number:02}.500000Z"),
        "inputs": {}, "outputs": {"usage_metadata": usage},
        "extra": {"metadata": {"ls_provider": "acme", "ls_model_name": model}},
    })
}

async fn costs_follow_from_the_prices_of_the_workspace(world: World) {
    let price = json!({
        "name": "barge", "match_pattern": "^barge$", "prompt_cost": "0.000003", "completion_cost": "0.000015",
        "prompt_cost_details": {"cache_read": "0.0000003"},
    });
    let made = world.post(PATH, &price).await.expect(200);
    let usage = json!({"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010,
                       "input_token_details": {"cache_read": 900}, "output_token_details": {"reasoning": 4}});
    let sent = json!({"input_tokens": 1, "output_tokens": 1, "total_cost": 0.5});
    let posts = json!({"post": [
        call(1, "barge", &usage), call(2, "raft", &usage), call(3, "barge", &sent),
    ]});
    world.post("/runs/batch", &posts).await.expect(202);
    let read = async |number: u32| world.get(&format!("/runs/{}", id(number))).await.expect(200);

    let priced = read(1).await;
    assert_eq!(priced["prompt_cost"], "0.00057");
    assert_eq!(priced["completion_cost"], "0.00015");
    assert_eq!(priced["total_cost"], "0.00072");
    assert_eq!(priced["prompt_cost_details"], json!({"cache_read": "0.00027"}));
    assert_eq!(priced["prompt_token_details"], json!({"cache_read": 900}));
    assert_eq!(priced["completion_token_details"], json!({"reasoning": 4}));
    assert_eq!(priced["completion_cost_details"], Value::Null);
    assert_eq!(read(2).await["total_cost"], Value::Null);
    assert_eq!(read(3).await["total_cost"], "0.5");

    let session = priced["session_id"].clone();
    let stats = world
        .post("/runs/stats", &json!({"session": [session]}))
        .await
        .expect(200);
    assert_eq!(
        (&stats["total_cost"], &stats["prompt_cost"], &stats["completion_cost"]),
        (&json!("0.50072"), &json!("0.00057"), &json!("0.00015"))
    );
    let filter = json!({"session": [session], "filter": "and(gt(total_cost, 0.0007), lt(total_cost, 0.4))"});
    let found = world.post("/runs/query", &filter).await.expect(200);
    assert_eq!(found["runs"].as_array().unwrap().len(), 1);
    let project = world
        .get(&format!("/sessions/{}?include_stats=true", session.as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(project["total_cost"], "0.50072");

    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    let mut higher = price;
    higher["completion_cost"] = json!("0.00002");
    send(&world, Method::PUT, &path, &higher).await.expect(200);
    assert_eq!(read(1).await["completion_cost"], "0.0002");
}

async fn what_is_wrong_with_a_price_is_named(world: World) {
    let good = json!({"name": "a", "match_pattern": "a", "prompt_cost": "1", "completion_cost": "1"});
    for (field, value) in [
        ("name", json!("")),
        ("match_pattern", json!("(?=a)")),
        ("match_pattern", json!("(")),
        ("match_path", json!([])),
        ("provider", json!("\u{0}")),
        ("prompt_cost", json!("cheap")),
        ("prompt_cost", json!(-1)),
        ("prompt_cost", json!(null)),
        ("completion_cost", json!("1000")),
        ("completion_cost", json!("0.0000000000000000001")),
        ("prompt_cost_details", json!({"audio": []})),
        ("completion_cost_details", json!({"": "1"})),
    ] {
        let mut wrong = good.clone();
        wrong[field] = value;
        let refused = world.post(PATH, &wrong).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["body", field]), "{refused}");
    }
    assert_eq!(open_jobs(&world).await, 0);
}

async fn another_workspace_sees_and_pays_nothing(world: World) {
    let price = json!({"name": "barge", "match_pattern": "^barge$", "prompt_cost": "1", "completion_cost": "1"});
    let made = world.post(PATH, &price).await.expect(200);
    let other = world.second_workspace().await;
    let ask = |method: Method, path: &str| Call::new(method, path).in_workspace(other);
    let listed = world.call(ask(Method::GET, PATH)).await.expect(200);
    assert!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .all(|price| price["tenant_id"].is_null())
    );
    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    world.call(ask(Method::PUT, &path).json(&price)).await.expect(404);
    world.call(ask(Method::DELETE, &path)).await.expect(404);
    let posts = json!({"post": [call(1, "barge", &json!({"input_tokens": 1, "output_tokens": 1}))]});
    let sent = world.call(ask(Method::POST, "/runs/batch").json(&posts)).await;
    assert_eq!(sent.status, 202);
    let read = world
        .call(ask(Method::GET, &format!("/runs/{}", id(1))))
        .await
        .expect(200);
    assert_eq!((&read["total_tokens"], &read["total_cost"]), (&json!(2), &Value::Null));
}
