//! Things of a workspace, really made, and their ids.

use http::Method;
use serde_json::{Value, json};
use towpath_domain::{Secret, TenantId};

use super::{UNKNOWN, send};
use crate::world::World;

/// Ids by what paths call them.
pub struct Objects(Vec<(&'static str, String)>);

impl Objects {
    /// Makes one of each in a workspace; `run` is the id of its trace run.
    pub async fn make(world: &World, key: &Secret, tenant: TenantId, run: &str) -> Self {
        let post = async |path: &str, body: Value| {
            let answer = send(world, key, tenant, Method::POST, path, Some(&body)).await;
            assert!(answer.status.is_success(), "{path}: {}", answer.text);
            answer.json()
        };
        let id = |made: &Value| made["id"].as_str().expect("it has an id").to_owned();
        let shelf = json!({"destination_type": "file", "display_name": "shelf", "config": {"prefix": "traces"}});
        let destination = id(&post("/api/v1/bulk-exports/destinations", shelf).await);
        let session = id(&post("/sessions", json!({"name": "canal"})).await);
        let export = json!({
            "bulk_export_destination_id": destination, "session_id": session,
            "start_time": "2026-02-01T00:00:00Z", "end_time": "2026-02-03T00:00:00Z",
        });
        let export = id(&post("/api/v1/bulk-exports", export).await);
        let schedule = json!({
            "bulk_export_destination_id": destination, "session_id": session,
            "start_time": "2026-02-01T00:00:00Z", "interval_hours": 24,
        });
        let schedule = id(&post("/api/v1/bulk-exports", schedule).await);
        let deployment = post(
            "/v2/deployments",
            json!({
                "name": "agent", "source": "external_docker", "secrets": [], "source_config": {},
                "source_revision_config": {"image_uri": "registry.example/agent:1"},
            }),
        )
        .await;
        let revision = deployment["latest_revision_id"]
            .as_str()
            .expect("a revision was made")
            .to_owned();
        let cluster = json!({
            "compute_type": "k8s", "compute_id": "east", "compute_config": {"k8s_namespaces": ["a"]},
        });
        let listener = id(&post("/v2/listeners", cluster).await);
        let integration = json!({"name": "acme", "token": "ghp_s3cret"});
        let integration = id(&post("/v1/integrations/github", integration).await);
        let traced = json!({
            "id": run, "trace_id": run, "dotted_order": format!("20260301T120000000000Z{run}"),
            "session_name": "canal", "name": "lock", "run_type": "chain", "start_time": "2026-03-01T12:00:00.000000+00:00",
        });
        post("/runs", traced).await;
        // Feedback has an id of its sender's, too.
        let feedback = run.replace("00000000a", "00000000f");
        let given = json!({"id": feedback, "run_id": run, "key": "taste", "score": 1});
        post("/feedback", given).await;
        let login = json!({"registry": "https://registry.example", "username": "me", "password": "s3cret"});
        let secret = format!("login-{}", &tenant.to_string()[24..]);
        let path = format!("/v2/image-pull-secrets/{secret}");
        let put = send(world, key, tenant, Method::PUT, &path, Some(&login)).await;
        assert!(put.status.is_success(), "{}", put.text);
        Self(vec![
            ("destination_id", destination),
            ("session_id", session),
            ("export_id", export),
            ("schedule", schedule),
            ("project_id", id(&deployment)),
            ("deployment_id", id(&deployment)),
            ("revision_id", revision),
            ("listener_id", listener),
            ("integration_id", integration),
            ("run_id", run.to_owned()),
            ("feedback_id", feedback),
            ("name", secret),
        ])
    }

    fn of(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, id)| id.as_str())
    }

    /// The id for a parameter of a path, where there is such a thing.
    pub fn get(&self, path: &str, name: &str) -> Option<&str> {
        match name {
            // The name is that of an image-pull secret.
            "name" if path.contains("/sandboxes/") => None,
            // No export has run yet.
            "run_id" if path.contains("bulk-exports") => None,
            // A schedule is an export whose runs are those of its exports.
            "export_id" if path.ends_with("/runs") => self.of("schedule"),
            name => self.of(name),
        }
    }

    /// A text with these ids as unknown ones.
    pub fn hidden(&self, text: &str) -> String {
        let hide = |text: String, (_, id): &(&str, String)| text.replace(id.as_str(), UNKNOWN);
        self.0.iter().fold(text.to_owned(), hide)
    }

    /// Looks at them as somebody who may.
    pub async fn are_there(&self, world: &World, key: &Secret, tenant: TenantId) {
        for (path, name) in [
            ("/api/v1/bulk-exports/destinations", "destination_id"),
            ("/sessions", "session_id"),
            ("/api/v1/bulk-exports", "export_id"),
            ("/api/v1/bulk-exports", "schedule"),
            ("/v2/deployments", "deployment_id"),
            ("/v2/listeners", "listener_id"),
            ("/feedback", "feedback_id"),
        ] {
            let path = format!("{path}/{}", self.of(name).expect("it was made"));
            let answer = send(world, key, tenant, Method::GET, &path, None).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        }
    }
}
