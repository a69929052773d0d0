//! Whose deployments a key calls by way of the gateway.

use http::{Method, StatusCode};
use towpath_api::{GatewayAccess, Settings};
use towpath_domain::{Scope, TenantId};

use crate::gateway::{Upstream, ask, deployment, place};
use crate::world::{Call, KEY, World};

/// A key of two workspaces says by the header which one it means.
#[tokio::test]
async fn a_header_says_whose_name_is_meant() {
    let world = World::new().await;
    let second = world.second_workspace().await;
    let mut upstreams = Vec::new();
    for workspace in [world.tenant, second] {
        let upstream = Upstream::start().await;
        let id = deployment(&world, workspace, "one").await;
        place(&world, workspace, id, &upstream.address.to_string()).await;
        upstreams.push((workspace, upstream));
    }
    let get = async |workspace: &str| {
        let call = Call::new(Method::GET, "/d/one/threads")
            .header("x-api-key", KEY)
            .header("x-tenant-id", workspace);
        world.call(call).await
    };
    for (workspace, upstream) in &upstreams {
        let answer = get(&workspace.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(
            upstream.asked().len(),
            1,
            "the deployment of the named workspace answers"
        );
    }
    assert_eq!(get(&TenantId::new().to_string()).await.status, StatusCode::FORBIDDEN);
    assert_eq!(get("mine").await.status, StatusCode::UNPROCESSABLE_ENTITY);
}

/// What a key may do says the scope; whose deployments it may call, the key's workspace and the operator.
#[tokio::test]
async fn a_workspace_narrows_whose_deployments_are_called() {
    for access in [GatewayAccess::Organization, GatewayAccess::Workspace] {
        let settings = Settings {
            gateway_access: access,
            ..Settings::default()
        };
        let world = World::with(settings).await;
        let upstream = Upstream::start().await;
        let second = world.second_workspace().await;
        let mut ids = Vec::new();
        for (workspace, name) in [(world.tenant, "own"), (second, "sibling")] {
            let id = deployment(&world, workspace, name).await;
            place(&world, workspace, id, &upstream.address.to_string()).await;
            ids.push(id);
        }
        let organization = world.organization().await;
        let bound = Some(world.tenant);
        let unlimited = world.key(bound).await;
        let limited = world.key_with(organization, bound, &[Scope::AgentsInvoke]).await;
        let named = world
            .key_with(organization, bound, &[Scope::AgentsInvokeOf(ids[1])])
            .await;
        let wide = world.limited_key(&[Scope::AgentsInvoke]).await;
        let is_open = access == GatewayAccess::Organization;
        let other: u16 = if is_open { 200 } else { 404 };
        for (what, key, own, sibling) in [
            ("of a workspace, without scopes", &unlimited, 200, other),
            ("of a workspace, for all deployments", &limited, 200, 404),
            ("of a workspace, for the sibling's deployment", &named, 403, other),
            ("of all workspaces", &wide, 200, 200),
        ] {
            for (way, expected) in [
                (ids[0].to_string(), own),
                ("own".to_owned(), own),
                (ids[1].to_string(), sibling),
                ("sibling".to_owned(), sibling),
            ] {
                let path = format!("/d/{way}/threads");
                let (status, ..) = ask(&world, Method::GET, &path, Some(key.reveal()), "").await;
                assert_eq!(status, expected, "{access:?}, a key {what}, {path}");
            }
        }
    }
}
