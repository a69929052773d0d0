//! What pages of the dashboard show, and what their buttons do.

use http::Method;
use serde_json::json;
use towpath_domain::WorkerId;
use towpath_store::workers::{self, Worker};

use crate::dashboard::{cookie, form, sign_in};
use crate::world::{Call, KEY, World, on_both_databases};

on_both_databases!(
    traces_are_shown_as_text_with_mistakes_where_they_are,
    a_destination_is_deleted_on_its_page,
    a_sandbox_is_deleted_on_its_page,
);

/// A worker at work that serves these pools.
async fn worker(world: &World, pools: &str) -> Worker {
    let worker = Worker {
        id: WorkerId::new(),
        host: "here".to_owned(),
        pid: 1,
        pools: pools.to_owned(),
        version: "1".to_owned(),
        draining: false,
        started_at: world.clock.now(),
        seen_at: world.clock.now(),
        finished: "{}".to_owned(),
        drain_at: None,
    };
    let heard = world.store.write(async |tx| workers::heartbeat(tx, &worker).await);
    heard.await.unwrap();
    worker
}

#[tokio::test]
async fn what_callers_named_is_shown_as_text() {
    let world = World::new().await;
    let cookie = cookie(&sign_in(&world, KEY).await);
    let nasty = "/ui/jobs?kind=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&state=%3Cb%3E&before=x";
    let page = world
        .call(Call::new(Method::GET, nasty).header("cookie", &cookie))
        .await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(!page.text.contains("<script>alert"), "{}", page.text);
    for (path, status) in [
        ("/ui/jobs/x", 404),
        ("/ui/jobs/0199a5c4-0000-7000-8000-000000000001", 404),
        ("/ui/exports/x", 404),
        ("/ui/exports/0199a5c4-0000-7000-8000-000000000001", 404),
        ("/ui/exports/destinations", 200),
        ("/ui/assets/nothing.js", 404),
        ("/ui/assets/..%2Ficon.svg", 404),
        ("/ui/assets/htmx.js", 200),
        ("/ui/assets/towpath.css", 200),
        ("/ui/nothing", 404),
    ] {
        let answer = world.call(Call::new(Method::GET, path).header("cookie", &cookie)).await;
        assert_eq!(answer.status, status, "{path}");
    }
}

/// Pages of traces, of what was acknowledged and not folded yet.
async fn traces_are_shown_as_text_with_mistakes_where_they_are(world: World) {
    let cookie = cookie(&sign_in(&world, KEY).await);
    let page = async |path: String| {
        world
            .call(Call::new(Method::GET, &path).header("cookie", &cookie))
            .await
    };
    assert!(page("/ui/traces".to_owned()).await.text.contains("No traces yet"));
    let root = "0194fdc2-0000-7000-8000-000000000001";
    let child = "0194fdc2-0000-7000-8000-000000000002";
    let link = |id: &str| format!("20260301T100000000000Z{id}");
    let run = |id: &str, order: String, name: &str| {
        json!({
            "id": id, "trace_id": root, "dotted_order": order, "session_name": "canal", "run_type": "chain",
            "name": name, "start_time": "2026-03-01T10:00:00Z", "end_time": "2026-03-01T10:00:02Z",
            "inputs": {"question": "<i>why</i>"}, "parent_run_id": (id != root).then_some(root),
        })
    };
    let both = [
        run(root, link(root), "<b>root</b>"),
        run(child, format!("{}.{}", link(root), link(child)), "leaf"),
    ];
    world.post("/runs/batch", &json!({ "post": both })).await.expect(202);
    let found = world.get("/sessions?name=canal").await.expect(200);
    let project = format!("/ui/traces/{}", found[0]["id"].as_str().unwrap());
    assert!(page("/ui/traces?name=ana".to_owned()).await.text.contains(&project));

    let roots = page(project.clone()).await.text;
    assert!(roots.contains("&#60;b&#62;root") && !roots.contains("<b>root") && !roots.contains("leaf"));
    assert!(roots.contains("why&#60;/i&#62;") && roots.contains("2.0 s"));
    let all = page(format!("{project}?runs=all&filter=eq(name,%22leaf%22)"))
        .await
        .text;
    assert!(all.contains("leaf") && !all.contains("root&#60;"));
    let mistake = page(format!("{project}?filter=eq(nam,%22%3Cx%22)")).await;
    assert_eq!(mistake.status, 200);
    assert!(mistake.text.contains("at character 4") && mistake.text.contains("eq(<mark>nam,&#34;&#60;x"));

    let tree = page(format!("{project}/{child}")).await.text;
    let (above, below) = (
        tree.find(&format!("t{root}")).unwrap(),
        tree.find(&format!("t{child}")).unwrap(),
    );
    assert!(above < below && tree.contains("branch d1"));
    for gone in [
        "/ui/traces/x",
        &format!("{project}/x"),
        &format!("{project}/{}", world.tenant),
    ] {
        assert_eq!(page(gone.to_owned()).await.status, 404, "{gone}");
    }
    assert_eq!(page(format!("{project}?cursor=x")).await.status, 400);
}

async fn a_destination_is_deleted_on_its_page(world: World) {
    let new = json!({"destination_type": "file", "display_name": "shelf", "config": {"prefix": "traces"}});
    let made = world.post("/api/v1/bulk-exports/destinations", &new).await.expect(200);
    let id = made["id"].as_str().unwrap();
    let cookie = cookie(&sign_in(&world, KEY).await);
    let page = || Call::new(Method::GET, "/ui/exports/destinations").header("cookie", &cookie);
    let action = format!("/ui/exports/destinations/{id}/delete");
    let shown = world.call(page()).await;
    assert_eq!(shown.status, 200);
    for part in ["shelf", "data-confirm", action.as_str()] {
        assert!(shown.text.contains(part), "{part} is not in {}", shown.text);
    }
    let press = |path: &str| form(path, "").header("cookie", &cookie);
    let pressed = world.call(press(&action)).await;
    assert_eq!(pressed.status, 303);
    assert_eq!(pressed.headers["location"], "/ui/exports/destinations");
    for path in [action.as_str(), "/ui/exports/destinations/x/delete"] {
        assert_eq!(world.call(press(path)).await.status, 404, "{path}");
    }
    assert!(world.call(page()).await.text.contains("No destinations yet"));
    let gone = world.get(&format!("/api/v1/bulk-exports/destinations/{id}")).await;
    gone.expect(404);
}

async fn a_sandbox_is_deleted_on_its_page(world: World) {
    let session = cookie(&sign_in(&world, KEY).await);
    let look = async |path: &str| {
        world
            .call(Call::new(Method::GET, path).header("cookie", &session))
            .await
    };
    let press = async |path: &str, body: &str| world.call(form(path, body).header("cookie", &session)).await;
    assert!(look("/ui/sandboxes").await.text.contains("No sandboxes yet"));
    let new = json!({"name": "yard", "wait_for_ready": false, "idle_ttl_seconds": 0, "mem_bytes": 64 << 20});
    let made = world.post("/v2/sandboxes/boxes", &new).await.expect(201);
    let id = made["id"].as_str().unwrap();
    let address = format!("/ui/sandboxes/{id}");
    let listed = look("/ui/sandboxes").await;
    assert!(
        listed.text.contains(&address) && listed.text.contains("provisioning"),
        "{}",
        listed.text
    );
    let shown = look(&address).await;
    assert_eq!(shown.status, 200);
    for part in [
        "yard",
        "data-confirm",
        "64.0 MiB",
        "never",
        &format!("{address}/delete"),
    ] {
        assert!(shown.text.contains(part), "{part} is not in {}", shown.text);
    }
    // It does not run yet: what is in it cannot be shown, and its files cannot be kept.
    assert!(!shown.text.contains("<h2>Commands") && !shown.text.contains(&format!("{address}/snapshot")));

    let refused = press(&format!("{address}/snapshot"), "name=a+b").await;
    assert_eq!(refused.status, 422);
    assert_eq!(press(&format!("{address}/stop"), "").await.status, 303);
    assert_eq!(press(&format!("{address}/paint"), "").await.status, 404);
    let deleted = press(&format!("{address}/delete"), "").await;
    assert_eq!(deleted.status, 303);
    assert_eq!(deleted.headers["location"], "/ui/sandboxes");
    for gone in [address.as_str(), "/ui/sandboxes/x"] {
        assert_eq!(look(gone).await.status, 404, "{gone}");
    }
    assert!(look("/ui/sandboxes").await.text.contains("No sandboxes yet"));
    world.get("/v2/sandboxes/boxes/yard").await.expect(404);
}

/// Nobody else tells whoever waits for it.
#[tokio::test]
async fn a_revision_that_no_worker_begins_says_so() {
    let world = World::new().await;
    let new = json!({"name": "agent", "source": "external_docker", "secrets": [], "source_config": {},
                     "source_revision_config": {"image_uri": "example.org/agent:1"}});
    let made = world.post("/v2/deployments", &new).await.expect(201);
    let revision = made["latest_revision_id"].as_str().unwrap().to_owned();
    let session = cookie(&sign_in(&world, KEY).await);
    let path = format!("/ui/revisions/{revision}");
    let look = || Call::new(Method::GET, &path).header("cookie", &session);
    let page = world.call(look()).await;
    assert_eq!(page.status, 200);
    assert!(
        page.text.contains("No worker builds and runs deployments"),
        "{}",
        page.text
    );

    worker(&world, r#"{"builds": 2}"#).await;
    let page = world.call(look()).await;
    assert!(
        !page.text.contains("No worker builds and runs deployments"),
        "{}",
        page.text
    );
}

#[tokio::test]
async fn a_worker_is_drained_and_resumed_on_its_page() {
    let world = World::new().await;
    let worker = worker(&world, r#"{"flushes": 2}"#).await;
    let session = cookie(&sign_in(&world, KEY).await);
    let press = async |action: &str| {
        let path = format!("/ui/workers/{}/{action}", worker.id);
        world.call(form(&path, "").header("cookie", &session)).await.status
    };
    let page = async || {
        let call = Call::new(Method::GET, "/ui/workers").header("cookie", &session);
        world.call(call).await.text
    };
    for (shown, other) in [("drain", "resume"), ("resume", "drain"), ("drain", "resume")] {
        let text = page().await;
        let button = |action: &str| format!("/ui/workers/{}/{action}\"", worker.id);
        assert!(
            text.contains(&button(shown)) && !text.contains(&button(other)),
            "{text}"
        );
        assert_eq!(press(shown).await, 303);
    }
    assert_eq!(press("paint").await, 404);
}
