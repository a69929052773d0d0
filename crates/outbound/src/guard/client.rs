//! HTTP that goes through the guard.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{AddressRefusal, Guard, Scheme};

/// Where a URL leads, as far as stated so itself.
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) scheme: Scheme,
    /// The host is an address: no resolver will be asked.
    pub(super) literal: Option<IpAddr>,
}

impl Target {
    /// The parser of the client, so that `http://2130706433/` and `http://0x7f.1/` are interpreted alike.
    pub(super) fn parse(text: &str) -> Result<Self, AddressRefusal> {
        let malformed = || AddressRefusal::Malformed(text.chars().take(200).collect());
        let url = url::Url::parse(text).map_err(|_| malformed())?;
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(malformed()),
        };
        let literal = match url.host().ok_or_else(malformed)? {
            url::Host::Ipv4(ip) => Some(ip.into()),
            url::Host::Ipv6(ip) => Some(ip.into()),
            url::Host::Domain(_) => None,
        };
        let port = url.port_or_known_default().ok_or_else(malformed)?;
        Ok(Self {
            host: url.host_str().unwrap_or_default().to_owned(),
            port,
            scheme,
            literal,
        })
    }
}

/// Resolves names for a client with a fixed port and scheme.
pub(super) struct Resolver {
    guard: Guard,
    scheme: Scheme,
    port: u16,
}

impl Resolver {
    pub(super) const fn new(guard: Guard, scheme: Scheme, port: u16) -> Self {
        Self { guard, scheme, port }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, scheme, port) = (self.guard.clone(), self.scheme, self.port);
        Box::pin(async move {
            let addresses = guard.resolve(name.as_str(), port, scheme).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Gives an object store clients that obey a [`Guard`].
#[derive(Debug)]
pub struct GuardedConnector(Guard);

impl GuardedConnector {
    /// Of this guard.
    #[must_use]
    pub const fn new(guard: Guard) -> Self {
        Self(guard)
    }
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(self.0.clone())))
    }
}

#[derive(Debug)]
struct Service(Guard);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // A call runs on the guard's runtime: a caller may keep its own runtime busy with CPU-bound work, and a
        // connection driven there would time out.
        let guard = self.0.clone();
        let call = self.0.runtime().spawn(async move { call(&guard, request).await });
        let call = AbortOnDrop(call);
        call.await
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<Result<HttpResponse, HttpError>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Future for AbortOnDrop {
    type Output = Result<HttpResponse, HttpError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|ended| ended.unwrap_or_else(|error| Err(HttpError::new(HttpErrorKind::Interrupted, error))))
    }
}

async fn call(guard: &Guard, request: HttpRequest) -> Result<HttpResponse, HttpError> {
    // An unknown kind is not retried: a refusal stays one.
    let refused = |why: AddressRefusal| HttpError::new(HttpErrorKind::Unknown, why);
    let target = Target::parse(&request.uri().to_string()).map_err(refused)?;
    if let Some(ip) = target.literal {
        // The client connects to an IP address in the URL without asking its resolver.
        guard
            .check(&target.host, SocketAddr::new(ip, target.port), target.scheme)
            .map_err(refused)?;
    }
    let client = guard
        .client(target.scheme, target.port)
        .map_err(|source| HttpError::new(HttpErrorKind::Unknown, source))?;
    client.call(request).await.map_err(|failed| match refusal(&failed) {
        Some(why) if !matches!(why, AddressRefusal::Unresolved { .. }) => refused(why),
        _ => failed,
    })
}

/// The refusal at the bottom of an error, if that is what it is.
pub(crate) fn refusal(error: &(dyn Error + 'static)) -> Option<AddressRefusal> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(why) = error.downcast_ref::<AddressRefusal>() {
            return Some(why.clone());
        }
        next = error.source();
    }
    None
}
