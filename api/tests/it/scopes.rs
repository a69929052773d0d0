//! Every operation that needs a key, with keys of each scope, in each kind of workspace.

use std::time::Duration;

use http::Method;
use towpath_api::required_scopes;
use towpath_domain::{KeyId, Scope, Secret};
use towpath_store::access;

use crate::documents::operations;
use crate::world::{Call, World};

const SCOPES: [Scope; 10] = [
    Scope::TracesWrite,
    Scope::TracesRead,
    Scope::Exports,
    Scope::AgentsInvoke,
    Scope::Deployments,
    Scope::Sandboxes,
    Scope::WorkspaceAdmin,
    Scope::OrgAdmin,
    Scope::OperatorRead,
    Scope::Operator,
];

impl World {
    /// A key that had every scope and was revoked.
    async fn revoked_key(&self) -> Secret {
        let organization = self.organization().await;
        let secret = self.key_with(organization, Some(self.tenant), &SCOPES).await;
        let revoked = self.store.write(async |tx| {
            let keys = access::list_keys(tx, Some(organization), None, 100).await?;
            let id: KeyId = keys.iter().max_by_key(|key| key.id).expect("a key was made").id;
            access::revoke_key(tx, organization, id).await
        });
        revoked.await.unwrap();
        secret
    }
}

#[tokio::test]
async fn each_operation_takes_the_scope_it_declares_and_no_other() {
    let world = World::new().await;
    let sibling = world.second_workspace().await;
    let own = world.organization().await;
    let (elsewhere, foreign) = world
        .store
        .write(async |tx| {
            let organization = access::create_organization(tx, "other").await?;
            let workspace = access::create_workspace(tx, organization, "other").await?;
            Ok((organization, workspace.id))
        })
        .await
        .unwrap();
    let revoked = world.revoked_key().await;
    let mut keys = Vec::new();
    for scope in SCOPES {
        let bound = world.key_with(own, Some(world.tenant), &[scope]).await;
        let of_others = world.key_with(elsewhere, None, &[scope]).await;
        keys.push((scope, bound, of_others));
    }
    // What was believed of keys before is asked again.
    world.clock.advance(Duration::from_secs(60));

    let document = world.open(Method::GET, "/openapi.json").await.expect(200);
    let mut cells = 0;
    for (path, method, operation) in operations(&document) {
        let is_open = operation["security"] == serde_json::json!([{}]);
        if is_open || path == "/auth/session" {
            continue;
        }
        let needed = required_scopes(&method, path);
        let needed = needed.unwrap_or_else(|_| panic!("{method} {path} declares no scope"));
        let at = unknown(path);
        // Operators' routes are about all workspaces.
        let in_workspace = operation["security"].is_null();
        let call = |key: &Secret, workspace: &str| {
            let call = Call::new(method.clone(), &at).header("x-api-key", key.reveal());
            if in_workspace {
                call.header("x-tenant-id", workspace)
            } else {
                call
            }
        };
        let here = world.tenant.to_string();
        assert_eq!(
            world.open(method.clone(), &at).await.status,
            401,
            "{method} {path} without a key"
        );
        assert_eq!(
            world.call(call(&revoked, &here)).await.status,
            401,
            "{method} {path}, revoked"
        );
        cells += 2;
        for (scope, key, of_others) in &keys {
            let allows = needed.is_empty() || needed.iter().any(|needed| scope.includes(*needed));
            let answer = world.call(call(key, &here)).await;
            let status = answer.status.as_u16();
            if allows {
                // The identifier is unknown and the body empty: what comes is the handler's answer.
                assert!(
                    ![401, 403].contains(&status),
                    "{method} {path} with {scope}: {answer:?}"
                );
            } else {
                assert_eq!(status, 403, "{method} {path} with {scope}: {}", answer.text);
                let named = needed.first().map(ToString::to_string).unwrap_or_default();
                assert!(
                    answer.text.contains(&named),
                    "{method} {path} with {scope}: {}",
                    answer.text
                );
            }
            cells += 1;
            if !in_workspace {
                continue;
            }
            for (key, workspace) in [(key, sibling), (key, foreign), (of_others, world.tenant)] {
                let answer = world.call(call(key, &workspace.to_string())).await;
                assert_eq!(answer.status, 403, "{method} {path} with {scope}: {}", answer.text);
                cells += 1;
            }
        }
    }
    println!("{cells} cells checked");
    assert!(cells > 1000, "only {cells} cells were checked");
}

fn unknown(path: &str) -> String {
    let parts = path.split('/').map(|part| {
        if part.starts_with('{') {
            "00000000-0000-0000-0000-000000000001"
        } else {
            part
        }
    });
    parts.collect::<Vec<_>>().join("/")
}
