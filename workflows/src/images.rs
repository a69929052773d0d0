//! Images in the platform's own registry: their paths and pull tokens.

use std::time::Duration;

use towpath_domain::registry::RegistryLogin;
use towpath_domain::{Clock, DeploymentId, TenantId};
use towpath_store::image_tokens::{ImageToken, Right};
use towpath_store::sealing::Sealer;

/// A pull must begin within this time.
const PULL: Duration = Duration::from_secs(60 * 60);

/// Path of a deployment's images in the object store.
#[must_use]
pub fn folder(tenant: TenantId, deployment: DeploymentId) -> String {
    format!("images/{tenant}/{deployment}")
}

/// A login for an image of this deployment that was pushed to this platform, as its repository shows. The registry's
/// host does not matter: the token only opens what the deployment's owner may read anyway.
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
