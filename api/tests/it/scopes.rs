//! Every route of every router, with keys of each scope, in each kind of workspace: the exact status of each cell. Routes
//! are enumerated from the routers and their descriptions; one without a declared status fails.

mod agent;
mod expected;
mod objects;
mod undescribed;

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use towpath_api::required_scopes;
use towpath_domain::{DeploymentId, KeyId, OrganizationId, Scope, Secret, TenantId};
use towpath_store::access::{self, KeyLimits, NewKey};

use self::expected::{Row, row};
use self::objects::Objects;
use crate::documents::operations;
use crate::world::{Answer, Call, World};

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

/// An id that nothing has.
const UNKNOWN: &str = "00000000-0000-0000-0000-000000000001";

/// Each scope, that of one deployment too.
fn columns() -> Vec<Scope> {
    let one = Scope::AgentsInvokeOf(DeploymentId::new());
    SCOPES.into_iter().chain([one]).collect()
}

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

    /// A key with every scope that ends by itself after a second.
    async fn ending_key(&self) -> Secret {
        let new = NewKey {
            organization: self.organization().await,
            workspace: Some(self.tenant),
            name: "ending",
            operator: false,
        };
        let limits = KeyLimits {
            scopes: Some(SCOPES.into_iter().collect()),
            expires_at: Some(self.clock.now().plus(Duration::from_secs(1))),
        };
        let made = self
            .store
            .write(async |tx| access::create_limited_key(tx, new.clone(), limits.clone()).await);
        made.await.unwrap().1
    }

    /// Another organisation with a workspace.
    async fn elsewhere(&self) -> (OrganizationId, TenantId) {
        let made = self.store.write(async |tx| {
            let organization = access::create_organization(tx, "other").await?;
            let workspace = access::create_workspace(tx, organization, "other").await?;
            Ok((organization, workspace.id))
        });
        made.await.unwrap()
    }
}

/// An operation that needs a key.
struct Operation {
    method: Method,
    path: String,
    /// One of them is needed; none where any key does.
    needed: Vec<Scope>,
    /// Whether it is about one workspace. Operators' routes are about all.
    in_workspace: bool,
    row: &'static Row,
}

impl Operation {
    async fn all(world: &World) -> Vec<Self> {
        let document = world.open(Method::GET, "/openapi.json").await.expect(200);
        let mut all = Vec::new();
        let mut rows = BTreeSet::new();
        for (path, method, operation) in operations(&document) {
            // Who has no key, or makes a session of one, is looked at elsewhere.
            if operation["security"] == json!([{}]) || path == "/auth/session" {
                continue;
            }
            let needed = required_scopes(&method, path);
            let needed = needed.unwrap_or_else(|_| panic!("{method} {path} declares no scope"));
            let row = row(&method, path).unwrap_or_else(|| panic!("{method} {path} has no line: what does it answer?"));
            rows.insert((row.method, row.path));
            all.push(Self {
                in_workspace: operation["security"].is_null(),
                path: path.clone(),
                method,
                needed,
                row,
            });
        }
        let unused: Vec<_> = expected::ROWS
            .iter()
            .filter(|row| !rows.contains(&(row.method, row.path)))
            .map(|row| (row.method, row.path))
            .collect();
        assert!(unused.is_empty(), "lines without an operation: {unused:?}");
        all
    }

    fn call(&self, at: &str, key: &Secret, workspace: TenantId) -> Call {
        let call = Call::new(self.method.clone(), at).header("x-api-key", key.reveal());
        let call = if self.in_workspace {
            call.header("x-tenant-id", &workspace.to_string())
        } else {
            call
        };
        self.row.filled(call)
    }

    fn allows(&self, scope: Scope) -> bool {
        self.needed.is_empty() || self.needed.iter().any(|needed| scope.includes(*needed))
    }
}

#[tokio::test]
async fn each_operation_takes_the_scope_it_declares_and_no_other() {
    let world = World::new().await;
    let sibling = world.second_workspace().await;
    let own = world.organization().await;
    let (elsewhere, foreign) = world.elsewhere().await;
    let ended = [world.revoked_key().await, world.ending_key().await];
    let mut keys = Vec::new();
    for scope in columns() {
        let bound = world.key_with(own, Some(world.tenant), &[scope]).await;
        let of_others = world.key_with(elsewhere, None, &[scope]).await;
        keys.push((scope, bound, of_others));
    }
    // What was believed of keys before is asked again, and what ends by itself has ended.
    world.clock.advance(Duration::from_secs(60));

    let mut cells = 0;
    for operation in Operation::all(&world).await {
        let Operation { method, path, .. } = &operation;
        let at = filled(path, |_| None);
        let bare = world.open(method.clone(), &at).await;
        assert_eq!(bare.status, 401, "{method} {path} without a key");
        for (what, key) in ["revoked", "expired"].into_iter().zip(&ended) {
            let answer = world.call(operation.call(&at, key, world.tenant)).await;
            assert_eq!(answer.status, 401, "{method} {path}, {what}: {}", answer.text);
        }
        cells += 3;
        for (scope, key, of_others) in &keys {
            let answer = world.call(operation.call(&at, key, world.tenant)).await;
            if operation.allows(*scope) {
                assert_eq!(
                    answer.status, operation.row.status,
                    "{method} {path} with {scope}: {}",
                    answer.text
                );
            } else {
                assert_eq!(answer.status, 403, "{method} {path} with {scope}: {}", answer.text);
                let named = operation.needed.first().map(ToString::to_string).unwrap_or_default();
                assert!(
                    answer.text.contains(&named),
                    "{method} {path} with {scope}: {}",
                    answer.text
                );
            }
            cells += 1;
            if !operation.in_workspace {
                continue;
            }
            for (key, workspace) in [(key, sibling), (key, foreign), (of_others, world.tenant)] {
                let answer = world.call(operation.call(&at, key, workspace)).await;
                assert_eq!(answer.status, 403, "{method} {path} with {scope}: {}", answer.text);
                cells += 1;
            }
        }
    }
    println!("{cells} cells checked");
    assert!(cells > 4000, "only {cells} cells were checked");
}

/// Whoever knows the id of something of another workspace learns nothing by it.
#[tokio::test]
async fn what_others_have_is_as_what_nobody_has() {
    let world = World::new().await;
    let sibling = world.second_workspace().await;
    let own = world.organization().await;
    let (elsewhere, foreign) = world.elsewhere().await;
    let here = world.key_with(own, Some(world.tenant), &SCOPES).await;
    let next_door = world.key_with(own, Some(sibling), &SCOPES).await;
    let far = world.key_with(elsewhere, None, &SCOPES).await;
    let others = [
        Objects::make(&world, &next_door, sibling, "00000000-0000-4000-8000-00000000a001").await,
        Objects::make(&world, &far, foreign, "00000000-0000-4000-8000-00000000a002").await,
    ];
    let mut cells = 0;
    for operation in Operation::all(&world).await {
        let Operation { method, path, .. } = &operation;
        // Trace runs are named by who sends them: the same id is another one in each workspace.
        if !operation.in_workspace || !path.contains('{') || operation.row.is_ingest() {
            continue;
        }
        let at = filled(path, |_| None);
        let unknown = world.call(operation.call(&at, &here, world.tenant)).await;
        for objects in &others {
            let known = filled(path, |name| objects.get(path, name));
            if known == at {
                continue;
            }
            let answer = world.call(operation.call(&known, &here, world.tenant)).await;
            assert_eq!(
                (answer.status, objects.hidden(&answer.text)),
                (unknown.status, unknown.text.clone()),
                "{method} {known}"
            );
            cells += 1;
        }
    }
    // They are there: who may see them does.
    for (objects, key, tenant) in [(&others[0], &next_door, sibling), (&others[1], &far, foreign)] {
        objects.are_there(&world, key, tenant).await;
    }
    println!("{cells} cells checked");
    assert!(cells > 80, "only {cells} cells were checked");
}

/// A path with what `known` names for each parameter, and with an unknown id for the others.
fn filled<'o>(template: &str, known: impl Fn(&str) -> Option<&'o str>) -> String {
    let parts = template.split('/').map(
        |part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => known(name.trim_start_matches('*')).unwrap_or(UNKNOWN),
            None => part,
        },
    );
    parts.collect::<Vec<_>>().join("/")
}

/// Sends something as the holder of a key.
async fn send(
    world: &World,
    key: &Secret,
    tenant: TenantId,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let call = Call::new(method, path)
        .header("x-api-key", key.reveal())
        .header("x-tenant-id", &tenant.to_string());
    world
        .call(match body {
            Some(body) => call.json(body),
            None => call,
        })
        .await
}
