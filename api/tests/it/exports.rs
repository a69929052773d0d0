//! Bulk exports and destinations over HTTP. What an export writes is the matter of `workflows`.

use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::world::{Call, World, on_both_databases};

on_both_databases!(
    a_schedule_is_shown_listed_and_cancelled,
    a_deleted_project_is_gone_with_its_schedules,
    a_deleted_destination_is_gone_with_what_was_on_its_way_there,
);

impl World {
    async fn destination(&self) -> Value {
        let new = json!({"destination_type": "file", "display_name": "shelf", "config": {"prefix": "traces"}});
        self.post("/api/v1/bulk-exports/destinations", &new).await.expect(200)
    }

    /// A request for an export that is in order.
    async fn request(&self) -> Value {
        let destination = self.destination().await;
        let project = self.post("/sessions", &json!({"name": "canal"})).await.expect(200);
        json!({
            "bulk_export_destination_id": destination["id"],
            "session_id": project["id"],
            "start_time": "2026-02-01T00:00:00Z",
            "end_time": "2026-02-03T00:00:00Z",
        })
    }

    async fn cancel(&self, id: &str, status: &str) -> crate::world::Answer {
        let call = Call::new(Method::PATCH, &format!("/api/v1/bulk-exports/{id}")).in_workspace(self.tenant);
        self.call(call.json(&json!({"status": status}))).await
    }
}

#[tokio::test]
async fn an_export_is_recorded_shown_and_cancelled() {
    let world = World::new().await;
    let request = world.request().await;
    let export = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    assert_eq!(export["status"], "CREATED");
    assert_eq!(export["compression"], "zstandard");
    let id = export["id"].as_str().unwrap();
    assert_eq!(
        world.get(&format!("/api/v1/bulk-exports/{id}")).await.expect(200),
        export
    );
    assert_eq!(world.get("/api/v1/bulk-exports").await.expect(200), json!([export]));
    assert_eq!(
        world.get(&format!("/api/v1/bulk-exports/{id}/runs")).await.expect(200),
        json!([])
    );

    let wrong = world.cancel(id, "Paused").await.expect(422);
    assert_eq!(wrong["detail"][0]["loc"], json!(["body", "status"]));
    for status in ["Cancelled", "CANCELLED"] {
        assert_eq!(world.cancel(id, status).await.expect(200)["status"], "CANCELLED");
    }
}

#[tokio::test]
async fn exports_of_another_workspace_are_not_there() {
    let world = World::new().await;
    let request = world.request().await;
    let export = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    let other = world.second_workspace().await;
    let id = export["id"].as_str().unwrap();
    for path in [
        format!("/api/v1/bulk-exports/{id}"),
        format!("/api/v1/bulk-exports/{id}/runs"),
    ] {
        let answer = world
            .call(Call::new(Method::GET, &path).in_workspace(other))
            .await
            .expect(404);
        assert_eq!(answer, json!({"detail": "export not found"}));
    }
    let cancel = Call::new(Method::PATCH, &format!("/api/v1/bulk-exports/{id}")).in_workspace(other);
    world
        .call(cancel.json(&json!({"status": "Cancelled"})))
        .await
        .expect(404);
    // Neither its destination nor its project can be used from there.
    let foreign = Call::new(Method::POST, "/api/v1/bulk-exports")
        .in_workspace(other)
        .json(&request);
    world.call(foreign).await.expect(404);
    assert_eq!(
        world.get(&format!("/api/v1/bulk-exports/{id}")).await.expect(200)["status"],
        "CREATED"
    );
}

#[tokio::test]
async fn refusals_name_the_field() {
    let world = World::new().await;
    let request = world.request().await;
    let with = |field: &str, value: Value| {
        let mut request = request.clone();
        request[field] = value;
        request
    };
    for (status, field, value) in [
        (422, "start_time", json!("yesterday")),
        (422, "session_id", json!("x")),
        (422, "unheard_of", json!(1)),
        (422, "export_fields", json!(["no_such_field"])),
        (422, "compression", json!("rar")),
        (400, "end_time", json!("2026-01-01T00:00:00Z")),
        (400, "filter", json!("eq(nam, \"lock\")")),
        (422, "interval_hours", json!(169)),
        (400, "end_time", json!(null)),
        (422, "format_version", json!("v2")),
    ] {
        let answer = world
            .post("/api/v1/bulk-exports", &with(field, value))
            .await
            .expect(status);
        if status == 422 {
            assert_eq!(answer["detail"][0]["loc"][1], field, "{answer}");
        } else {
            assert!(answer["detail"].as_str().unwrap().contains(field), "{field}: {answer}");
        }
    }
    let unknown = world
        .post("/api/v1/bulk-exports", &with("session_id", json!(Uuid::from_u128(1))))
        .await;
    unknown.expect(404);
    let mut open = request.clone();
    open.as_object_mut().unwrap().remove("session_id");
    assert_eq!(
        world.post("/api/v1/bulk-exports", &open).await.expect(422),
        json!({"detail": [{"loc": ["body", "session_id"], "msg": "field required", "type": "missing"}]})
    );
    assert_eq!(world.get("/api/v1/bulk-exports").await.expect(200), json!([]));
    let run = world
        .get(&format!("/api/v1/bulk-exports/{}/runs/x", Uuid::from_u128(1)))
        .await
        .expect(422);
    assert_eq!(run["detail"][0]["loc"], json!(["path", "run_id"]));
}

async fn a_schedule_is_shown_listed_and_cancelled(world: World) {
    let mut request = world.request().await;
    let once = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    request["interval_hours"] = json!(24);
    let both = world.post("/api/v1/bulk-exports", &request).await.expect(400);
    assert!(both["detail"].as_str().unwrap().contains("end_time"), "{both}");
    request.as_object_mut().unwrap().remove("end_time");
    request["format_version"] = json!("v2_beta");
    let schedule = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    assert_eq!(schedule["status"], "RUNNING");
    assert_eq!(schedule["interval_hours"], 24);
    assert_eq!(schedule["format_version"], "v2_beta");
    assert_eq!(
        (&schedule["end_time"], &schedule["source_bulk_export_id"]),
        (&json!(null), &json!(null))
    );
    let id = schedule["id"].as_str().unwrap().to_owned();
    assert_eq!(
        world.get(&format!("/api/v1/bulk-exports/{id}")).await.expect(200),
        schedule
    );
    let ids = async |query: &str| -> Vec<Value> {
        let found = world.get(&format!("/api/v1/bulk-exports{query}")).await.expect(200);
        found
            .as_array()
            .unwrap()
            .iter()
            .map(|export| export["id"].clone())
            .collect()
    };
    let (one, other) = (once["id"].clone(), schedule["id"].clone());
    assert_eq!(ids("").await, [other.clone(), one.clone()]);
    assert_eq!(ids("?limit=1").await, std::slice::from_ref(&other));
    assert_eq!(ids("?limit=1&offset=1").await, std::slice::from_ref(&one));
    assert_eq!(ids("?status=CREATED").await, std::slice::from_ref(&one));
    let project = request["session_id"].as_str().unwrap().to_owned();
    assert_eq!(
        ids(&format!("?session_id={project}&status=RUNNING")).await,
        std::slice::from_ref(&other)
    );
    assert_eq!(ids(&format!("?source_bulk_export_id={id}")).await, Vec::<Value>::new());
    let nobody = Uuid::from_u128(1);
    assert_eq!(
        ids(&format!("?bulk_export_destination_id={nobody}")).await,
        Vec::<Value>::new()
    );
    world.get("/api/v1/bulk-exports?status=Nearly").await.expect(422);
    // It has no runs of its own, and none was spawned yet.
    assert_eq!(
        world.get(&format!("/api/v1/bulk-exports/{id}/runs")).await.expect(200),
        json!([])
    );
    let spawned = format!("/api/v1/bulk-exports/runs?source_bulk_export_id={id}");
    assert_eq!(world.get(&spawned).await.expect(200), json!([]));
    let missing = format!("/api/v1/bulk-exports/runs?source_bulk_export_id={nobody}");
    assert_eq!(
        world.get(&missing).await.expect(404),
        json!({"detail": "export not found"})
    );
    world.get("/api/v1/bulk-exports/runs").await.expect(422);

    for _ in 0..2 {
        let cancelled = world.cancel(&id, "Cancelled").await.expect(200);
        assert_eq!(cancelled["status"], "CANCELLED");
        assert!(cancelled["finished_at"].is_string());
    }
    assert_eq!(ids("?status=RUNNING").await, Vec::<Value>::new());
}

async fn a_deleted_project_is_gone_with_its_schedules(world: World) {
    let mut request = world.request().await;
    request.as_object_mut().unwrap().remove("end_time");
    request["interval_hours"] = json!(1);
    let schedule = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    let project = request["session_id"].as_str().unwrap().to_owned();
    let delete = || Call::new(Method::DELETE, &format!("/api/v1/sessions/{project}")).in_workspace(world.tenant);
    let other = world.second_workspace().await;
    let foreign = Call::new(Method::DELETE, &format!("/api/v1/sessions/{project}")).in_workspace(other);
    world.call(foreign).await.expect(404);
    assert_eq!(world.call(delete()).await.status, 204);
    world.call(delete()).await.expect(404);
    world.get(&format!("/sessions/{project}")).await.expect(404);
    let id = schedule["id"].as_str().unwrap();
    let shown = world.get(&format!("/api/v1/bulk-exports/{id}")).await.expect(200);
    assert_eq!(shown["status"], "CANCELLED");
    assert_eq!(shown["error"], "the tracing project was deleted");
    world.post("/api/v1/bulk-exports", &request).await.expect(404);
    // The name is free, the id is not.
    let again = json!({"name": "canal", "id": project});
    world.post("/sessions", &again).await.expect(409);
    world.post("/sessions", &json!({"name": "canal"})).await.expect(200);
}

async fn a_deleted_destination_is_gone_with_what_was_on_its_way_there(world: World) {
    let request = world.request().await;
    let destination = request["bulk_export_destination_id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/bulk-exports/destinations/{destination}");
    let export = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    let cancelled = world.post("/api/v1/bulk-exports", &request).await.expect(200);
    world
        .cancel(cancelled["id"].as_str().unwrap(), "Cancelled")
        .await
        .expect(200);
    let mut every_hour = request.clone();
    every_hour.as_object_mut().unwrap().remove("end_time");
    every_hour["interval_hours"] = json!(1);
    let schedule = world.post("/api/v1/bulk-exports", &every_hour).await.expect(200);
    let kept = world.destination().await;

    let delete = |tenant| Call::new(Method::DELETE, &path).in_workspace(tenant);
    let other = world.second_workspace().await;
    assert_eq!(
        world.call(delete(other)).await.expect(404),
        json!({"detail": "destination not found"})
    );
    let unknown = Call::new(Method::DELETE, "/api/v1/bulk-exports/destinations/x").in_workspace(world.tenant);
    world.call(unknown).await.expect(422);
    let deleted = world.call(delete(world.tenant)).await;
    assert_eq!((deleted.status.as_u16(), deleted.text.as_str()), (204, ""));
    for _ in 0..2 {
        world.call(delete(world.tenant)).await.expect(404);
    }

    world.get(&path).await.expect(404);
    let rename = Call::new(Method::PATCH, &path).in_workspace(world.tenant);
    world
        .call(rename.json(&json!({"display_name": "again"})))
        .await
        .expect(404);
    assert_eq!(
        world.get("/api/v1/bulk-exports/destinations").await.expect(200),
        json!([kept])
    );
    world.post("/api/v1/bulk-exports", &request).await.expect(404);
    world.post("/api/v1/bulk-exports", &every_hour).await.expect(404);
    for (made, status, error) in [
        (&export, "FAILED", json!("the destination was deleted")),
        (&schedule, "CANCELLED", json!("the destination was deleted")),
        (&cancelled, "CANCELLED", Value::Null),
    ] {
        let id = made["id"].as_str().unwrap();
        let shown = world.get(&format!("/api/v1/bulk-exports/{id}")).await.expect(200);
        assert_eq!((&shown["status"], &shown["error"]), (&json!(status), &error), "{shown}");
        assert_eq!(shown["bulk_export_destination_id"], destination.as_str());
        assert!(shown["finished_at"].is_string());
        world.get(&format!("/api/v1/bulk-exports/{id}/runs")).await.expect(200);
    }
    // What is over stays so.
    let id = export["id"].as_str().unwrap();
    world.cancel(id, "Cancelled").await.expect(400);
}

#[tokio::test]
async fn no_answer_repeats_a_secret() {
    let world = World::new().await;
    let secret = "wJalrXUtnFEMI-K7MDENG";
    let s3 = |credentials: Value| {
        json!({
            "destination_type": "s3",
            "display_name": "bucket",
            // Nobody listens there.
            "config": {"bucket_name": "traces", "endpoint_url": "http://127.0.0.1:1"},
            "credentials": credentials,
        })
    };
    for (status, credentials) in [
        (400, json!({"access_key_id": "AKIA", "secret_access_key": secret})),
        (422, json!(secret)),
        (422, json!({"access_key_id": [secret], "secret_access_key": secret})),
    ] {
        let answer = world.post("/api/v1/bulk-exports/destinations", &s3(credentials)).await;
        assert!(!answer.text.contains(secret), "{}", answer.text);
        answer.expect(status);
    }
    assert_eq!(
        world.get("/api/v1/bulk-exports/destinations").await.expect(200),
        json!([])
    );
}
