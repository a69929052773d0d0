//! The operators' routes and pages of the quarantine. How entries are folded again is the matter of `workflows`.

use bytes::Bytes;
use http::Method;
use object_store::path::Path;
use serde_json::{Value, json};
use towpath_domain::{QuarantineId, TenantId};
use towpath_store::projects;
use towpath_store::quarantine::{self as stored, Entry, Kind};
use towpath_traces::accept::{self, Request, Route};
use towpath_traces::body::Limits;
use towpath_traces::objects::Objects;
use towpath_traces::wal::frame;

use crate::dashboard::{cookie, form, sign_in};
use crate::world::{Answer, Call, KEY, World, on_both_databases};

on_both_databases!(
    entries_are_listed_page_by_page,
    an_entry_is_shown_with_its_frames,
    an_entry_is_retried_or_dropped,
    many_entries_at_once_each_by_itself,
    pages_show_entries_and_what_is_not_shown,
);

const BODY: &str = r#"{"post": [{"id": "0194fdc2-0000-7000-8000-000000000001", "name": "one", "run_type": "chain",
    "session_name": "canal", "start_time": "2026-03-01T10:00:00Z", "inputs": {}}]}"#;

impl World {
    fn objects(&self) -> Objects {
        Objects::folder(&self.folder.path().join("objects")).unwrap()
    }

    async fn quarantined(&self, tenant: TenantId, kind: Kind) -> Entry {
        let id = QuarantineId::new();
        let request = Request {
            tenant,
            route: Route::Batch,
            content_type: "application/json",
            content_encoding: None,
            body: BODY.into(),
            received_at: self.clock.now(),
        };
        let accepted = accept::accept(request, &Limits::default()).unwrap();
        let mut pieces = frame::write(std::iter::once(&accepted.frame));
        if kind == Kind::Damaged {
            pieces[2] = BODY.replace("canal", "fanal").into();
        }
        let frames: usize = pieces.iter().skip(1).map(Bytes::len).sum();
        let entry = Entry {
            id,
            tenant_id: tenant,
            kind,
            reason: "<b>it</b> cannot be merged".to_owned(),
            path: format!("quarantine/{tenant}/{id}.unit"),
            byte_offset: pieces[0].len() as i64,
            bytes: frames as i64,
            decoded_bytes: BODY.len() as i64,
            items: 1,
            names: r#"{"canal":"0194fdc2-0000-7000-8000-000000000009"}"#.to_owned(),
            projects: None,
            first_start: None,
            last_start: None,
            accepted_at: self.clock.now(),
            created_at: self.clock.now(),
        };
        if kind != Kind::Missing {
            let path = Path::from(entry.path.as_str());
            self.objects().put(&path, pieces).await.unwrap();
        }
        let put = self
            .store
            .write(async |tx| stored::put_all(tx, std::slice::from_ref(&entry)).await);
        put.await.unwrap();
        entry
    }

    async fn entries(&self) -> usize {
        let listed = self.store.read(async |tx| stored::list(tx, None, 1000, 0).await);
        listed.await.unwrap().len()
    }

    async fn asked(&self, method: Method, path: &str) -> Answer {
        let path = format!("/internal/quarantine{path}");
        self.call(Call::new(method, &path).header("x-api-key", KEY)).await
    }

    async fn bulk(&self, body: &Value) -> Answer {
        let call = Call::new(Method::POST, "/internal/quarantine/bulk").header("x-api-key", KEY);
        self.call(call.json(body)).await
    }
}

fn ids(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn entries_are_listed_page_by_page(world: World) {
    let other = TenantId::new();
    let mut all = Vec::new();
    for tenant in [world.tenant, other, world.tenant, other, world.tenant] {
        all.push(world.quarantined(tenant, Kind::Rejected).await);
        world.clock.advance(std::time::Duration::from_secs(1));
    }
    let mut seen = Vec::new();
    let mut path = "?limit=2".to_owned();
    loop {
        let answer = world.asked(Method::GET, &path).await.expect(200);
        seen.extend(ids(&answer));
        let Some(cursor) = answer["next_cursor"].as_str() else {
            break;
        };
        path = format!("?limit=2&cursor={cursor}");
    }
    all.sort_by_key(|entry| (entry.tenant_id, std::cmp::Reverse(entry.accepted_at)));
    assert_eq!(seen, all.iter().map(|entry| entry.id.to_string()).collect::<Vec<_>>());
    let own = world.asked(Method::GET, &format!("?tenant={other}")).await.expect(200);
    assert_eq!((ids(&own).len(), &own["next_cursor"]), (2, &Value::Null));
    let usage = world.asked(Method::GET, "/usage").await.expect(200);
    let of_other = usage["items"].as_array().unwrap().iter();
    let of_other = of_other.filter(|usage| usage["tenant_id"] == other.to_string());
    assert_eq!(of_other.map(|usage| &usage["entries"]).collect::<Vec<_>>(), [2]);
    for (query, field) in [
        ("limit=0", "limit"),
        ("tenant=x", "tenant"),
        ("cursor=x", "cursor"),
        ("cursor=1_x_y", "cursor"),
        ("more=1", "more"),
    ] {
        let refused = world.asked(Method::GET, &format!("?{query}")).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["query", field]), "{query}");
    }
}

async fn an_entry_is_shown_with_its_frames(world: World) {
    let entry = world.quarantined(world.tenant, Kind::Rejected).await;
    let shown = world.asked(Method::GET, &format!("/{}", entry.id)).await;
    assert!(
        !shown.text.contains("session_name"),
        "bodies are shown to those who ask"
    );
    let shown = shown.expect(200);
    assert_eq!(
        (&shown["kind"], &shown["object"]),
        (&json!("rejected"), &json!("present"))
    );
    assert_eq!(shown["names"]["canal"], "0194fdc2-0000-7000-8000-000000000009");
    assert_eq!(shown["projects"], Value::Null);
    let frame = &shown["frames"][0];
    assert_eq!(frame["route"], "POST /runs/batch");
    assert_eq!((&frame["encoding"], &frame["items"]), (&json!("identity"), &json!(1)));
    assert_eq!(frame["body_bytes"], BODY.len());
    let body = world.asked(Method::GET, &format!("/{}/body", entry.id)).await;
    assert_eq!((body.status.as_u16(), body.text.as_str()), (200, BODY));
    assert_eq!(body.headers["content-disposition"], "attachment");
    assert_eq!(
        world
            .asked(Method::GET, &format!("/{}/body?frame=1", entry.id))
            .await
            .expect(404),
        json!({"detail": "frame not found"})
    );
    for frame in ["-1", "1048576", "x"] {
        let refused = world
            .asked(Method::GET, &format!("/{}/body?frame={frame}", entry.id))
            .await;
        assert_eq!(
            refused.expect(422)["detail"][0]["loc"],
            json!(["query", "frame"]),
            "{frame}"
        );
    }

    let damaged = world.quarantined(world.tenant, Kind::Damaged).await;
    let shown = world.asked(Method::GET, &format!("/{}", damaged.id)).await.expect(200);
    let frame = &shown["frames"][0];
    assert!(frame["damage"].as_str().unwrap().contains("checksum"), "{frame}");
    assert_eq!((&frame["route"], &frame["items"]), (&Value::Null, &json!(1)));
    let refused = world
        .asked(Method::GET, &format!("/{}/body", damaged.id))
        .await
        .expect(409);
    assert!(refused["detail"].as_str().unwrap().contains(&damaged.path), "{refused}");

    let missing = world.quarantined(world.tenant, Kind::Missing).await;
    let shown = world.asked(Method::GET, &format!("/{}", missing.id)).await.expect(200);
    assert_eq!((&shown["object"], &shown["frames"]), (&json!("absent"), &json!([])));
    world
        .asked(Method::GET, &format!("/{}/body", missing.id))
        .await
        .expect(409);
    for path in ["", "/body"] {
        let unknown = format!("/{}{path}", QuarantineId::new());
        assert_eq!(
            world.asked(Method::GET, &unknown).await.expect(404),
            json!({"detail": "quarantine entry not found"})
        );
    }
}

async fn an_entry_is_retried_or_dropped(world: World) {
    let retried = world.quarantined(world.tenant, Kind::Rejected).await;
    let dropped = world.quarantined(world.tenant, Kind::Rejected).await;
    let missing = world.quarantined(world.tenant, Kind::Missing).await;
    let refused = world
        .asked(Method::POST, &format!("/{}/retry", missing.id))
        .await
        .expect(409);
    assert!(refused["detail"].as_str().unwrap().contains(&missing.path), "{refused}");
    let answer = world
        .asked(Method::POST, &format!("/{}/retry", retried.id))
        .await
        .expect(200);
    assert_eq!(answer["id"], retried.id.to_string());
    world
        .asked(Method::POST, &format!("/{}/drop", dropped.id))
        .await
        .expect(200);
    assert_eq!(world.entries().await, 1);
    let has = async |entry: &Entry| world.objects().get(&Path::from(entry.path.as_str())).await.is_ok();
    assert_eq!((has(&retried).await, has(&dropped).await), (true, false));
    for action in ["retry", "drop"] {
        for gone in [&retried, &dropped] {
            let path = format!("/{}/{action}", gone.id);
            let refused = world.asked(Method::POST, &path).await.expect(404);
            assert_eq!(refused, json!({"detail": "quarantine entry not found"}));
        }
    }
}

async fn many_entries_at_once_each_by_itself(world: World) {
    let mut entries = Vec::new();
    for _ in 0..5 {
        entries.push(world.quarantined(world.tenant, Kind::Rejected).await);
    }
    let missing = world.quarantined(world.tenant, Kind::Missing).await;
    let foreign = world.quarantined(TenantId::new(), Kind::Rejected).await;
    let named = json!({"action": "retry", "ids": [entries[0].id, entries[0].id, missing.id]});
    let outcome = world.bulk(&named).await.expect(200);
    assert_eq!((&outcome["done"], &outcome["items"]), (&json!(1), &json!(1)));
    assert_eq!(outcome["refused"].as_array().map(Vec::len), Some(2));

    let mut body = json!({"action": "drop", "all": true, "tenant": world.tenant, "limit": 2});
    let (mut done, mut rounds) = (0, 0);
    loop {
        let outcome = world.bulk(&body).await.expect(200);
        done += outcome["done"].as_u64().unwrap();
        rounds += 1;
        if outcome["next_cursor"].is_null() {
            break;
        }
        body["cursor"] = outcome["next_cursor"].clone();
    }
    assert_eq!((done, rounds), (5, 3));
    let left = world.asked(Method::GET, "").await.expect(200);
    assert_eq!(ids(&left), [foreign.id.to_string()]);

    for body in [
        json!({"action": "retry"}),
        json!({"action": "drop", "all": false}),
        json!({"action": "drop", "all": true, "ids": [foreign.id]}),
        json!({"action": "drop", "ids": [foreign.id], "tenant": world.tenant}),
    ] {
        let refused = world.bulk(&body).await.expect(400);
        assert!(refused["detail"].to_string().contains("all"), "{body}: {refused}");
    }
    for (body, field) in [
        (json!({"action": "retry", "ids": []}), "ids"),
        (json!({"action": "retry", "all": true, "limit": 0}), "limit"),
        (json!({"action": "retry", "all": true, "cursor": "x"}), "cursor"),
        (json!({"action": "forget", "all": true}), "action"),
    ] {
        let refused = world.bulk(&body).await.expect(422);
        assert_eq!(refused["detail"][0]["loc"], json!(["body", field]), "{body}");
    }
    assert_eq!(world.entries().await, 1, "a refused request does nothing");
}

async fn pages_show_entries_and_what_is_not_shown(world: World) {
    let cookie = cookie(&sign_in(&world, KEY).await);
    let page = async |path: &str| {
        let answer = world.call(Call::new(Method::GET, path).header("cookie", &cookie)).await;
        (answer.status.as_u16(), answer.text)
    };
    let post = async |path: &str| {
        let answer = world.call(form(path, "").header("cookie", &cookie)).await;
        answer.status.as_u16()
    };
    let project = world
        .store
        .write(async |tx| projects::ensure(tx, world.tenant, "canal").await)
        .await
        .unwrap();
    let of_project = format!("/ui/traces/{project}");
    assert!(page("/ui/quarantine").await.1.contains("No entries"));
    for path in ["/ui/traces", &of_project] {
        assert!(!page(path).await.1.contains("not shown"), "{path}");
    }
    let entry = world.quarantined(world.tenant, Kind::Rejected).await;
    let foreign = world.quarantined(TenantId::new(), Kind::Damaged).await;
    let (status, list) = page("/ui/quarantine").await;
    assert_eq!(status, 200, "{list}");
    assert!(list.contains(&format!("q{}", entry.id)) && list.contains(&format!("q{}", foreign.id)));
    assert!(list.contains("&#60;b&#62;it") && !list.contains("<b>it"));
    let own = page(&format!("/ui/quarantine?tenant={}", world.tenant)).await.1;
    assert!(own.contains(&format!("q{}", entry.id)) && !own.contains(&format!("q{}", foreign.id)));
    let banner = page("/ui/traces").await.1;
    assert!(
        banner.contains("2 operations of 2 workspaces are in quarantine and not shown."),
        "{banner}"
    );
    let banner = page(&of_project).await.1;
    assert!(
        banner.contains("1 operation is in quarantine and not shown."),
        "{banner}"
    );
    assert!(banner.contains(&format!("/ui/quarantine?tenant={}", world.tenant)));

    let (status, detail) = page(&format!("/ui/quarantine/{}", entry.id)).await;
    assert_eq!(status, 200, "{detail}");
    for part in ["POST /runs/batch", &entry.path, "any in the workspace", "data-confirm"] {
        assert!(detail.contains(part), "{part} is not in {detail}");
    }
    assert!(!detail.contains("session_name"));
    let (_, detail) = page(&format!("/ui/quarantine/{}", foreign.id)).await;
    assert!(detail.contains("does not match its checksum"), "{detail}");

    assert_eq!(post(&format!("/ui/quarantine/{}/forget", entry.id)).await, 404);
    assert_eq!(post(&format!("/ui/quarantine/{}/retry", entry.id)).await, 303);
    assert_eq!(post(&format!("/ui/quarantine/{}/drop", foreign.id)).await, 303);
    assert_eq!(post(&format!("/ui/quarantine/{}/drop", foreign.id)).await, 404);
    assert_eq!(world.entries().await, 0);
    for gone in [
        "/ui/quarantine/x".to_owned(),
        format!("/ui/quarantine/{}", entry.id),
        "/ui/quarantine?tenant=x".to_owned(),
    ] {
        assert_eq!(page(&gone).await.0, 404, "{gone}");
    }
}
