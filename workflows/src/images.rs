//! Images that were pushed to the platform's own registry: where they lie, and who pulls them with what.

use std::time::Duration;

use towpath_domain::registry::RegistryLogin;
use towpath_domain::{Clock, DeploymentId, TenantId};
use towpath_store::image_tokens::{ImageToken, Right};
use towpath_store::sealing::Sealer;

/// A pull has to begin within this time.
const PULL: Duration = Duration::from_secs(60 * 60);

/// Where the images of a deployment lie in the object store.
#[must_use]
pub fn folder(tenant: TenantId, deployment: DeploymentId) -> String {
    format!("images/{tenant}/{deployment}")
}

/// What opens an image of this deployment, where it was pushed to this platform: its repository says so. The registry's
/// host need not be known: the token opens nothing but what whoever named the image may read anyway.
pub(crate) fn own_login(
    uri: &str,
    tenant: TenantId,
    deployment: DeploymentId,
    sealer: &Sealer,
    clock: &Clock,
) -> Option<RegistryLogin> {
    let (host, rest) = uri.split_once('/')?;
    let repository = rest.split(['@', ':']).next()?;
    if repository != format!("images/{deployment}") {
        return None;
    }
    let token = ImageToken {
        tenant,
        deployment,
        right: Right::Pull,
    };
    Some(RegistryLogin {
        registry: host.to_owned(),
        username: "towpath".to_owned(),
        password: token.sign(sealer, clock.now(), PULL),
    })
}
