//! Images of sandboxes: calls to their registries, and the login of a workspace.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method};
use towpath_domain::registry::{covers, parse_registry_name};
use towpath_domain::{BoxRegistryId, TenantId};
use towpath_durable::{Failure, IntoFailure};
use towpath_outbound::{AddressRefusal, Call, CallError, Guard, Reply};
use towpath_sandbox::ImageRequest;
use towpath_sandbox::image::{RegistryBody, RegistryLogin, RegistryReply, RegistryTransport, TransportError};
use towpath_store::sandboxes::registries::{self, Registry};
use towpath_store::sealing::OpenError;
use towpath_store::{self as store, Store};

use crate::Services;

/// Type of registries with a user name and a password.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// One answer with its body, such as a layer. Shorter than the job of a start.
const CALL_LIMIT: Duration = Duration::from_secs(500);

/// Calls registries at addresses that the operator allows.
#[derive(Debug)]
pub struct GuardedTransport(Guard);

impl GuardedTransport {
    #[must_use]
    pub const fn new(guard: Guard) -> Self {
        Self(guard)
    }
}

#[async_trait]
impl RegistryTransport for GuardedTransport {
    async fn get(&self, url: &str, headers: HeaderMap) -> Result<RegistryReply, TransportError> {
        let call = Call {
            method: Method::GET,
            url: url.to_owned(),
            headers,
            body: Bytes::new(),
            limit: CALL_LIMIT,
        };
        let reply = self.0.call(call).await.map_err(transport_error)?;
        Ok(RegistryReply {
            status: reply.status(),
            headers: reply.headers().clone(),
            body: Box::new(GuardedBody(reply)),
        })
    }
}

struct GuardedBody(Reply);

#[async_trait]
impl RegistryBody for GuardedBody {
    async fn chunk(&mut self) -> Result<Option<Bytes>, TransportError> {
        self.0.chunk().await.map_err(transport_error)
    }
}

fn transport_error(error: CallError) -> TransportError {
    match error {
        CallError::Refused(AddressRefusal::Unresolved { .. }) => TransportError::Failed(error.to_string()),
        CallError::Refused(refusal) => TransportError::Refused(refusal.to_string()),
        error => TransportError::Failed(error.to_string()),
    }
}

/// An image with the login of its workspace: that of a registry that was named, otherwise the one with the longest
/// address that the image begins with.
pub(crate) async fn image_request(
    world: &Services,
    tenant: TenantId,
    image: &str,
    named: Option<BoxRegistryId>,
) -> Result<ImageRequest, Failure> {
    let found = match named {
        Some(id) => Some(find_named(&world.store, tenant, image, id).await?),
        None => find_longest(&world.store, tenant, image).await.retry()?,
    };
    let Some(registry) = found else {
        return Ok(ImageRequest::anonymous(image));
    };
    let credentials = match registry.credentials(&world.sealer) {
        Err(OpenError::UnknownKey) => Err(OpenError::UnknownKey).retry()?,
        opened => opened.fatal()?,
    };
    let login = credentials.username.zip(credentials.password);
    Ok(ImageRequest {
        name: image.to_owned(),
        login: login.map(|(username, password)| RegistryLogin {
            username,
            password: password.reveal().to_owned(),
        }),
    })
}

async fn find_named(store: &Store, tenant: TenantId, image: &str, id: BoxRegistryId) -> Result<Registry, Failure> {
    let found = store.read(async |tx| registries::find(tx, tenant, &id.to_string()).await);
    let registry = match found.await {
        Err(store::Error::NotFound) => return Err(Failure::fatal("its registry was deleted")),
        found => found.retry()?,
    };
    if registry.auth_type != DOCKER_CONFIG {
        return Err(Failure::fatal(format!(
            "registry {} has the type {}, and images are pulled with {DOCKER_CONFIG} alone",
            registry.name, registry.auth_type
        )));
    }
    if !is_of(&registry, image) {
        return Err(Failure::fatal(format!(
            "registry {} is {}, and image {image} is of another one",
            registry.name, registry.url
        )));
    }
    Ok(registry)
}

async fn find_longest(store: &Store, tenant: TenantId, image: &str) -> store::Result<Option<Registry>> {
    let all = store.read(async |tx| registries::list(tx, tenant).await).await?;
    let matching = all
        .into_iter()
        .filter(|registry| registry.auth_type == DOCKER_CONFIG && is_of(registry, image));
    Ok(matching.max_by_key(|registry| parse_registry_name(&registry.url).unwrap_or_default().len()))
}

fn is_of(registry: &Registry, image: &str) -> bool {
    parse_registry_name(&registry.url).is_ok_and(|name| covers(&name, image))
}
