//! Deployments and revisions over HTTP. How a revision is built is the matter of `workflows`.

mod injections;
mod refusals;
mod rules;
mod sources;

use http::Method;
use serde_json::{Value, json};
use towpath_domain::deployment::{Level, LogKind, RevisionStatus};
use towpath_domain::{DeploymentId, RevisionId};
use towpath_store::revision_logs::{self, NewLine};
use towpath_store::{deployments, projects, revisions};

use crate::world::{Answer, Call, World, on_both_databases};

on_both_databases!(
    a_deployment_is_recorded_and_shown,
    secrets_are_masked_kept_and_replaced,
    one_revision_is_in_progress_and_stale_ones_are_skipped,
    a_revision_is_interrupted_and_another_deployed_again,
    a_deployment_is_deleted_once_it_is_torn_down,
    lists_are_filtered,
    logs_are_read_on_where_one_was,
);

/// A request for a deployment of a repository that is in order.
fn github() -> Value {
    json!({
        "name": "agent", "source": "github", "secrets": [{"name": "MODEL_KEY", "value": "s3cret"}],
        "source_config": {"repo_url": "https://github.com/acme/agent"},
        "source_revision_config": {"repo_ref": "main", "graph_config_path": "langgraph.json"},
    })
}

/// A request for a deployment of an image that is in order.
fn image() -> Value {
    json!({
        "name": "agent", "source": "external_docker", "secrets": [],
        "source_config": {}, "source_revision_config": {"image_uri": "registry.example/agent:1"},
    })
}

/// `base` with the value at a pointer replaced.
fn with(mut base: Value, place: &str, value: Value) -> Value {
    let (parent, name) = place.rsplit_once('/').unwrap();
    base.pointer_mut(parent).unwrap()[name] = value;
    base
}

fn id<T: std::str::FromStr>(value: &Value) -> T
where
    T::Err: std::fmt::Debug,
{
    value.as_str().unwrap().parse().unwrap()
}

impl World {
    async fn deploy(&self, body: &Value) -> Value {
        self.post("/v2/deployments", body).await.expect(201)
    }

    async fn change(&self, deployment: &Value, body: &Value) -> Answer {
        let path = format!("/v2/deployments/{}", deployment["id"].as_str().unwrap());
        self.call(Call::new(Method::PATCH, &path).in_workspace(self.tenant).json(body))
            .await
    }

    async fn act(&self, method: Method, path: &str) -> Answer {
        self.call(Call::new(method, path).in_workspace(self.tenant)).await
    }

    /// The revision as it is now.
    async fn revision(&self, deployment: &Value, revision: &Value) -> Value {
        let path = format!(
            "/v2/deployments/{}/revisions/{}",
            deployment["id"].as_str().unwrap(),
            revision.as_str().unwrap()
        );
        self.get(&path).await.expect(200)
    }

    /// Brings a revision there, step by step, as its workflow does.
    async fn bring(&self, revision: &Value, to: RevisionStatus) {
        use RevisionStatus as S;
        let revision: RevisionId = id(revision);
        self.store
            .write(async |tx| {
                for step in [
                    S::AwaitingBuild,
                    S::Building,
                    S::AwaitingDeploy,
                    S::Deploying,
                    S::Deployed,
                ] {
                    revisions::advance(tx, self.tenant, revision, step).await?;
                    if step == to {
                        break;
                    }
                }
                Ok(())
            })
            .await
            .unwrap();
        let at = self
            .store
            .read(async |tx| revisions::get(tx, self.tenant, revision).await)
            .await
            .unwrap();
        assert_eq!(at.status, to);
    }
}

async fn a_deployment_is_recorded_and_shown(world: World) {
    let made = world.deploy(&github()).await;
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["tenant_id"], world.tenant.to_string());
    assert_eq!(made["status"], "AWAITING_DATABASE");
    assert_eq!(made["active_revision_id"], Value::Null);
    assert_eq!(made["secrets"], json!([{"name": "MODEL_KEY", "value": "********"}]));
    assert_eq!(made["source_revision_config"]["graph_config_path"], "langgraph.json");
    assert_eq!(
        made["source_revision_config"]["langgraph_config_path"],
        "langgraph.json"
    );
    assert_eq!(made["source_revision_config"]["repo_commit_sha"], Value::Null);
    assert_eq!(
        made["source_config"]["custom_url"],
        format!("http://127.0.0.1:8400/d/{id}")
    );
    assert_eq!(made["source_config"]["resource_spec"], Value::Null);
    for prefix in ["", "/api-host"] {
        assert_eq!(
            world.get(&format!("{prefix}/v2/deployments/{id}")).await.expect(200),
            made
        );
        let listed = world.get(&format!("{prefix}/v2/deployments")).await.expect(200);
        assert_eq!(listed, json!({"resources": [made], "offset": 1}));
    }
    let revision = world.revision(&made, &made["latest_revision_id"]).await;
    assert_eq!(
        (revision["status"].as_str(), revision["source"].as_str()),
        (Some("CREATING"), Some("github"))
    );
    assert_eq!(revision["source_revision_config"]["repo_ref"], "main");
    let listed = world
        .get(&format!("/v2/deployments/{id}/revisions?limit=1"))
        .await
        .expect(200);
    assert_eq!(listed, json!({"resources": [revision], "offset": 1}));
    // The tracing project of its name.
    let project = world.get("/sessions?name=agent").await.expect(200);
    assert_eq!(project[0]["id"], made["tracing_project_id"]);
    // What was answered can be sent back: nothing in it changes anything, but secrets make a revision.
    let mut back = made.clone();
    back.as_object_mut().unwrap().remove("secrets");
    back.as_object_mut().unwrap().remove("source_revision_config");
    let same = world.change(&made, &back).await.expect(200);
    assert_eq!(same["latest_revision_id"], made["latest_revision_id"]);
}

#[tokio::test]
async fn sizes_are_filled_in() {
    let world = World::new().await;
    let body = with(
        image(),
        "/source_config/resource_spec",
        json!({"cpu": 1.5, "max_scale": 3, "db_cpu": 0.5}),
    );
    let made = world.deploy(&body).await;
    let spec = &made["source_config"]["resource_spec"];
    for (name, value) in [
        ("cpu", json!(1.5)),
        ("cpu_limit", json!(3)),
        ("memory_mb", json!(1024)),
        ("memory_limit_mb", json!(2048)),
        ("min_scale", json!(1)),
        ("max_scale", json!(3)),
        ("queue_cpu", json!(1.5)),
        ("queue_max_scale", json!(3)),
        ("db_cpu_limit", json!(1)),
        ("db_memory_mb", Value::Null),
    ] {
        assert_eq!(spec[name], value, "{name}");
    }
    let prod = json!({
        "name": "later", "source": "internal_source", "secrets": [],
        "source_config": {"deployment_type": "prod"}, "source_revision_config": {},
    });
    let made = world.deploy(&prod).await;
    assert_eq!(made["source_config"]["resource_spec"]["max_scale"], 10);
    assert_eq!(made["source_config"]["resource_spec"]["memory_mb"], 2048);
}

async fn secrets_are_masked_kept_and_replaced(world: World) {
    let made = world.deploy(&github()).await;
    let sent = json!({"secrets": [
        {"name": "MODEL_KEY", "value": "********"}, {"name": "OTHER", "value": "fresh"},
    ]});
    let changed = world.change(&made, &sent).await.expect(200);
    let names = json!([{"name": "MODEL_KEY", "value": "********"}, {"name": "OTHER", "value": "********"}]);
    assert_eq!(changed["secrets"], names);
    assert_ne!(changed["latest_revision_id"], made["latest_revision_id"]);
    let sealer = &world.app.sealer;
    let revision: RevisionId = id(&changed["latest_revision_id"]);
    let row = world
        .store
        .read(async |tx| revisions::get(tx, world.tenant, revision).await)
        .await
        .unwrap();
    let opened = row.secrets(sealer).unwrap();
    let opened: Vec<_> = opened
        .iter()
        .map(|one| (one.name.as_str(), one.value.reveal()))
        .collect();
    assert_eq!(opened, [("MODEL_KEY", "s3cret"), ("OTHER", "fresh")]);
    assert!(!String::from_utf8_lossy(&row.secrets.unwrap()).contains("s3cret"));
    let unknown = json!({"secrets": [{"name": "NEW", "value": "********"}]});
    let refused = world.change(&made, &unknown).await.expect(400);
    assert!(refused["detail"].as_str().unwrap().contains("NEW"), "{refused}");
    let none = world.change(&made, &json!({"secrets": []})).await.expect(200);
    assert_eq!(none["secrets"], json!([]));
}

async fn one_revision_is_in_progress_and_stale_ones_are_skipped(world: World) {
    let made = world.deploy(&github()).await;
    let first = made["latest_revision_id"].clone();
    world.bring(&first, RevisionStatus::Building).await;
    let again = json!({"source_revision_config": {"repo_ref": "main"}});
    let second = world.change(&made, &again).await.expect(200)["latest_revision_id"].clone();
    assert_eq!(world.revision(&made, &second).await["status"], "QUEUED");
    let third = world.change(&made, &again).await.expect(200)["latest_revision_id"].clone();
    assert_eq!(world.revision(&made, &first).await["status"], "BUILDING");
    let skipped = world.revision(&made, &second).await;
    assert_eq!(skipped["status"], "SKIPPED");
    assert_eq!(skipped["error"], "a newer revision replaced it before it started");
    assert_eq!(world.revision(&made, &third).await["status"], "QUEUED");
    let path = format!(
        "/v2/deployments/{}/revisions?status=SKIPPED,QUEUED",
        made["id"].as_str().unwrap()
    );
    let listed = world.get(&path).await.expect(200);
    assert_eq!(listed["resources"].as_array().unwrap().len(), 2);
    assert_eq!(listed["resources"][0]["id"], third);
}

async fn a_revision_is_interrupted_and_another_deployed_again(world: World) {
    let made = world.deploy(&github()).await;
    let deployment = made["id"].as_str().unwrap();
    let first = made["latest_revision_id"].clone();
    let of = |revision: &Value, action: &str| {
        format!(
            "/v2/deployments/{deployment}/revisions/{}/{action}",
            revision.as_str().unwrap()
        )
    };
    let refused = world.act(Method::POST, &of(&first, "redeploy")).await.expect(400);
    let text = "revision_id: the revision is CREATING and has no build to deploy again";
    assert_eq!(refused, json!({"detail": text}));
    world.bring(&first, RevisionStatus::Deployed).await;
    let secrets = json!({"secrets": [{"name": "MODEL_KEY", "value": "changed"}]});
    let second = world.change(&made, &secrets).await.expect(200)["latest_revision_id"].clone();
    let path = format!(
        "/v1/projects/{deployment}/revisions/{}/interrupt",
        second.as_str().unwrap()
    );
    for path in [path, of(&second, "interrupt")] {
        let stopped = world.act(Method::POST, &path).await.expect(200);
        assert_eq!(stopped["status"], "INTERRUPTED");
    }
    let refused = world.act(Method::POST, &of(&first, "interrupt")).await.expect(400);
    assert_eq!(
        refused["detail"],
        "revision_id: the revision is DEPLOYED and cannot be interrupted"
    );

    let changed = world.act(Method::POST, &of(&first, "redeploy")).await.expect(200);
    let third = world.revision(&made, &changed["latest_revision_id"]).await;
    assert_eq!(third["redeploy_of"], first);
    let revision: RevisionId = id(&third["id"]);
    let row = world
        .store
        .read(async |tx| revisions::get(tx, world.tenant, revision).await)
        .await
        .unwrap();
    let secrets = row.secrets(&world.app.sealer).unwrap();
    assert_eq!(secrets[0].value.reveal(), "s3cret", "the secrets it had");
    // Of one that was deployed again, what it deploys is where it came from.
    world.bring_image(&third["id"]).await;
    let changed = world.act(Method::POST, &of(&third["id"], "redeploy")).await.expect(200);
    let fourth = world.revision(&made, &changed["latest_revision_id"]).await;
    assert_eq!(fourth["redeploy_of"], first);
}

impl World {
    /// Brings a revision that builds nothing to `DEPLOYED`.
    async fn bring_image(&self, revision: &Value) {
        use RevisionStatus as S;
        let revision: RevisionId = id(revision);
        let brought = self.store.write(async |tx| {
            let mut all = true;
            for step in [S::AwaitingDeploy, S::Deploying, S::Deployed] {
                all &= revisions::advance(tx, self.tenant, revision, step).await?;
            }
            Ok(all)
        });
        assert!(brought.await.unwrap());
    }
}

#[tokio::test]
async fn a_revision_can_be_asked_for_alone() {
    let world = World::new().await;
    let made = world.deploy(&github()).await;
    world.bring(&made["latest_revision_id"], RevisionStatus::Deployed).await;
    let path = format!("/v2/deployments/{}/revisions", made["id"].as_str().unwrap());
    let second = world.act(Method::POST, &path).await.expect(201);
    assert_eq!(second["status"], "CREATING");
    let third = world
        .post(&path, &json!({"source_revision_config": {"repo_ref": "next"}}))
        .await
        .expect(201);
    assert_eq!(third["source_revision_config"]["repo_ref"], "next");
    let latest = world
        .get(&format!("/v2/deployments/{}", made["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(latest["latest_revision_id"], third["id"]);
    assert_eq!(latest["secrets"].as_array().unwrap().len(), 1, "secrets go on");
}

async fn a_deployment_is_deleted_once_it_is_torn_down(world: World) {
    let made = world.deploy(&github()).await;
    let path = format!("/v2/deployments/{}", made["id"].as_str().unwrap());
    let deleted = world
        .act(Method::DELETE, &format!("{path}?delete_tracing_project=true"))
        .await;
    assert_eq!((deleted.status.as_u16(), deleted.text.as_str()), (204, ""));
    assert_eq!(world.act(Method::DELETE, &path).await.status, 204);
    let shown = world.get(&path).await.expect(200);
    assert_eq!(shown["status"], "AWAITING_DELETE");
    assert_eq!(
        world.revision(&made, &made["latest_revision_id"]).await["status"],
        "INTERRUPTED"
    );
    let refused = world.change(&made, &json!({"secrets": []})).await.expect(400);
    let text = "deployment_id: the deployment is being deleted and cannot be changed";
    assert_eq!(refused, json!({"detail": text}));
    // Torn down.
    let deployment: DeploymentId = id(&made["id"]);
    let forgotten = world
        .store
        .write(async |tx| deployments::forget(tx, world.tenant, deployment).await);
    assert!(forgotten.await.unwrap());
    let gone = json!({"detail": format!("Deployment ID {deployment} not found.")});
    assert_eq!(world.get(&path).await.expect(404), gone);
    assert_eq!(world.act(Method::DELETE, &path).await.expect(404), gone);
    assert_eq!(world.get(&format!("{path}/revisions")).await.expect(404), gone);
    world.deploy(&github()).await;
}

#[tokio::test]
async fn several_are_deleted_at_once() {
    let world = World::new().await;
    let first = world.deploy(&github()).await;
    let second = world.deploy(&with(github(), "/name", json!("other"))).await;
    let nobody = DeploymentId::new();
    let delete = async |ids: &str| {
        let path = format!("/v2/deployments?deployment_ids={ids}");
        world.act(Method::DELETE, &path).await
    };
    let (first, second) = (first["id"].as_str().unwrap(), second["id"].as_str().unwrap());
    let some = delete(&format!("{first},{nobody}")).await.expect(207);
    assert_eq!(some, json!({"deleted": [first], "not_found": [nobody]}));
    assert_eq!(
        delete(second).await.expect(200),
        json!({"deleted": [second], "not_found": []})
    );
    let none = delete(&nobody.to_string()).await.expect(404);
    assert_eq!(none, json!({"detail": format!("Deployment ID {nobody} not found.")}));
    delete("").await.expect(422);
    delete("x").await.expect(422);
    world.act(Method::DELETE, "/v2/deployments").await.expect(422);
}

async fn lists_are_filtered(world: World) {
    let first = world
        .deploy(&with(github(), "/source_config/deployment_type", json!("prod")))
        .await;
    let second = world.deploy(&with(image(), "/name", json!("Under_Score"))).await;
    let names = async |query: &str| -> Vec<String> {
        let answer = world.get(&format!("/v2/deployments?{query}")).await.expect(200);
        let all = answer["resources"].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("").await, ["Under_Score", "agent"]);
    assert_eq!(names("limit=1").await, ["Under_Score"]);
    assert_eq!(names("limit=1&offset=1").await, ["agent"]);
    assert_eq!(names("name=agent&name_contains=agent").await, ["agent"]);
    assert_eq!(names("name=age").await, [""; 0]);
    assert_eq!(names("name_contains=R_S").await, ["Under_Score"]);
    assert_eq!(
        names("name_contains=g_n").await,
        [""; 0],
        "an underscore is no wildcard"
    );
    assert_eq!(names("status=AWAITING_DATABASE").await.len(), 2);
    assert_eq!(names("status=READY").await, [""; 0]);
    assert_eq!(names("deployment_type=prod").await, ["agent"]);
    let one = format!("deployment_ids={}", first["id"].as_str().unwrap());
    assert_eq!(names(&one).await, ["agent"]);
    let both = format!("{one},{}", second["id"].as_str().unwrap());
    assert_eq!(names(&both).await.len(), 2);
    assert_eq!(names("image_version=1").await, [""; 0]);
}

#[tokio::test]
async fn deployments_of_another_workspace_are_not_there() {
    let world = World::new().await;
    let made = world.deploy(&github()).await;
    let other = world.second_workspace().await;
    let deployment = made["id"].as_str().unwrap();
    let revision = made["latest_revision_id"].as_str().unwrap();
    let base = format!("/v2/deployments/{deployment}");
    let text = format!("Deployment ID {deployment} not found.");
    for (method, path) in [
        (Method::GET, base.clone()),
        (Method::PATCH, base.clone()),
        (Method::DELETE, base.clone()),
        (Method::GET, format!("{base}/revisions")),
        (Method::POST, format!("{base}/revisions")),
        (Method::GET, format!("{base}/revisions/{revision}")),
        (Method::POST, format!("{base}/revisions/{revision}/redeploy")),
        (Method::POST, format!("{base}/revisions/{revision}/interrupt")),
        (Method::POST, format!("{base}/upload-url")),
        (Method::POST, format!("{base}/push-token")),
        (Method::POST, format!("/v1/projects/{deployment}/deploy_logs")),
        (
            Method::POST,
            format!("/v1/projects/{deployment}/revisions/{revision}/build_logs"),
        ),
    ] {
        let call = Call::new(method, &path).in_workspace(other).json(&json!({}));
        assert_eq!(world.call(call).await.expect(404), json!({"detail": text}), "{path}");
    }
    let listed = world
        .call(Call::new(Method::GET, "/v2/deployments").in_workspace(other))
        .await;
    assert_eq!(listed.expect(200)["resources"], json!([]));
    // Its name is free there.
    let create = Call::new(Method::POST, "/v2/deployments")
        .in_workspace(other)
        .json(&github());
    world.call(create).await.expect(201);
}

async fn logs_are_read_on_where_one_was(world: World) {
    let made = world.deploy(&github()).await;
    let (deployment, revision): (DeploymentId, RevisionId) = (id(&made["id"]), id(&made["latest_revision_id"]));
    let say = async |kind, lines: &[(Level, &str)]| {
        let line = |(level, text): &(Level, &str)| NewLine {
            at: world.clock.now(),
            level: *level,
            message: (*text).to_owned(),
        };
        let lines: Vec<_> = lines.iter().map(line).collect();
        world
            .store
            .write(async |tx| revision_logs::append(tx, world.tenant, deployment, Some(revision), kind, &lines).await)
            .await
            .unwrap();
    };
    say(
        LogKind::Build,
        &[
            (Level::Info, "fetching"),
            (Level::Warning, "no lock file"),
            (Level::Error, "Broken"),
        ],
    )
    .await;
    say(LogKind::Deploy, &[(Level::Info, "up")]).await;
    let path = format!("/v1/projects/{deployment}/revisions/{revision}/build_logs");
    let read = async |body: Value| {
        let answer = world.post(&path, &body).await.expect(200);
        let lines = answer["logs"].as_array().unwrap().iter();
        let texts: Vec<_> = lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect();
        (texts, answer["next_offset"].clone())
    };
    assert_eq!(read(json!({})).await.0, ["Broken", "no lock file", "fetching"]);
    let (texts, next) = read(json!({"order": "asc", "limit": 2})).await;
    assert_eq!(texts, ["fetching", "no lock file"]);
    let (texts, next) = read(json!({"order": "asc", "limit": 2, "offset": next})).await;
    assert_eq!(texts, ["Broken"]);
    let (texts, none) = read(json!({"order": "asc", "offset": next})).await;
    assert_eq!((texts.len(), none), (0, Value::Null));
    say(LogKind::Build, &[(Level::Debug, "100 %")]).await;
    assert_eq!(read(json!({"order": "asc", "offset": next})).await.0, ["100 %"]);
    assert_eq!(read(json!({"level": "WARNING"})).await.0, ["Broken", "no lock file"]);
    assert_eq!(read(json!({"level": "critical"})).await.0, ["Broken"]);
    assert_eq!(read(json!({"query": "broken"})).await.0, ["Broken"]);
    assert_eq!(read(json!({"query": "%"})).await.0, ["100 %"]);
    assert_eq!(read(json!({"start_time": "2026-03-01T12:00:00Z"})).await.0.len(), 4);
    assert_eq!(
        read(json!({"start_time": "2026-03-01T13:00:00+00:00"})).await.0.len(),
        0
    );
    assert_eq!(read(json!({"end_time": 1_772_366_400_000_i64})).await.0.len(), 0);
    // What JSON calls an integer may have a fraction of zero.
    assert_eq!(read(json!({"end_time": 1_772_366_400_000.0})).await.0.len(), 0);
    for deploy in [
        format!("/v1/projects/{deployment}/deploy_logs"),
        format!("/v1/projects/{deployment}/revisions/{revision}/deploy_logs"),
    ] {
        let answer = world.post(&deploy, &json!({})).await.expect(200);
        assert_eq!(answer["logs"][0]["message"], "up");
        assert_eq!(answer["logs"][0]["level"], "INFO");
        assert_eq!(answer["logs"][0]["timestamp"], 1_772_366_400_000_i64);
    }
    for wrong in [
        json!({"limit": 0}),
        json!({"limit": 1001}),
        json!({"order": "up"}),
        json!({"level": "LOUD"}),
        json!({"offset": "x"}),
        json!({"start_time": "yesterday"}),
        json!({"start_time": true}),
        json!({"end_time": 1.5}),
    ] {
        let refused = world.post(&path, &wrong).await.expect(422);
        let field = wrong.as_object().unwrap().keys().next().unwrap();
        assert_eq!(refused["detail"][0]["loc"], json!(["body", field]), "{refused}");
    }
    let other = RevisionId::new();
    let path = format!("/v1/projects/{deployment}/revisions/{other}/build_logs");
    world.post(&path, &json!({})).await.expect(404);
}

#[tokio::test]
async fn a_project_of_its_name_is_used_and_survives() {
    let world = World::new().await;
    let project = world.post("/sessions", &json!({"name": "agent"})).await.expect(200);
    let made = world.deploy(&github()).await;
    assert_eq!(made["tracing_project_id"], project["id"]);
    let kept = world
        .store
        .read(async |tx| projects::by_name(tx, world.tenant, "agent").await)
        .await
        .unwrap();
    assert!(kept.is_some());
}
