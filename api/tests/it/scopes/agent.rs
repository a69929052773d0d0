//! The agent server that asks for keys: its routes as its description and that of the operators list them.

use std::time::Duration;

use http::Method;
use serde_json::json;
use towpath_domain::{OrganizationId, Scope, Scopes, Secret, TenantId};
use towpath_store::access::{self, KeyLimits, NewKey};

use super::{SCOPES, columns, filled};
use crate::agent::Agent;
use crate::documents::operations;
use crate::world::{Answer, Call, World, call};

impl Agent {
    /// A key of a workspace of its own organisation, which is as the workspace is called.
    async fn key(&self, tenant: TenantId, scopes: &[Scope], is_over: bool) -> Secret {
        let scopes: Scopes = scopes.iter().copied().collect();
        let made = self.store.write(async |tx| {
            access::ensure_workspace(tx, tenant).await?;
            let new = NewKey {
                organization: OrganizationId(tenant.0),
                workspace: Some(tenant),
                name: "limited",
                operator: false,
            };
            let limits = KeyLimits {
                scopes: Some(scopes.clone()),
                expires_at: is_over.then(|| tx.now().minus(Duration::from_secs(1))),
            };
            access::create_limited_key(tx, new, limits).await
        });
        made.await.unwrap().1
    }
}

#[tokio::test]
async fn each_route_of_an_agent_server_takes_keys_that_may_call() {
    let agent = Agent::sqlite().await;
    let router = agent.with_keys();
    let world = World::new().await;
    let of_agent = call(&router, Call::new(Method::GET, "/openapi.json")).await.expect(200);
    let of_operators = world.open(Method::GET, "/openapi.json").await.expect(200);
    let own = operations(&of_agent).filter(|(_, _, operation)| operation["security"] != json!([{}]));
    // Those that agent servers have, too.
    let groups = ["queues", "scaling", "jobs", "workers", "dead", "schedules"];
    let internal = operations(&of_operators).filter(|(path, ..)| {
        let group = path.strip_prefix("/internal/").and_then(|rest| rest.split('/').next());
        group.is_some_and(|group| groups.contains(&group))
    });

    let foreign = agent.key(TenantId::new(), &SCOPES, false).await;
    let over = agent.key(agent.tenant, &SCOPES, true).await;
    let mut keys = Vec::new();
    for scope in columns() {
        keys.push((scope, agent.key(agent.tenant, &[scope], false).await));
    }
    let mut cells = 0;
    for (path, method, _) in own.chain(internal) {
        let at = filled(path, |_| None);
        let is_internal = path.starts_with("/internal/");
        let ask = async |key: Option<&Secret>| -> Answer {
            let asked = Call::new(method.clone(), &at).header("content-type", "application/json");
            let asked = match key {
                Some(key) => asked.header("x-api-key", key.reveal()),
                None => asked,
            };
            let answered = tokio::time::timeout(Duration::from_secs(60), call(&router, asked)).await;
            answered.unwrap_or_else(|_| panic!("awaited: an answer to {method} {path}"))
        };
        for (what, key) in [("without a key", None), ("with a key that is over", Some(&over))] {
            let answer = ask(key).await;
            assert_eq!(answer.status, 401, "{method} {path} {what}: {}", answer.text);
            cells += 1;
        }
        if !is_internal {
            let answer = ask(Some(&foreign)).await;
            assert_eq!(
                answer.status, 403,
                "{method} {path} of another organisation: {}",
                answer.text
            );
            cells += 1;
        }
        for (scope, key) in &keys {
            let needed = match (is_internal, &method) {
                (false, _) => Scope::AgentsInvoke,
                (true, &Method::GET) => Scope::OperatorRead,
                (true, _) => Scope::Operator,
            };
            let answer = ask(Some(key)).await;
            if scope.includes(needed) {
                // What comes is the handler's: the body is empty and the ids are unknown.
                assert!(
                    ![401, 403].contains(&answer.status.as_u16()),
                    "{method} {path} with {scope}: {}",
                    answer.text
                );
            } else {
                assert_eq!(answer.status, 403, "{method} {path} with {scope}: {}", answer.text);
            }
            cells += 1;
        }
    }
    println!("{cells} cells checked");
    assert!(cells > 700, "only {cells} cells were checked");
}
