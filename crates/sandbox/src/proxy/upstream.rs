//! Connections from the proxy to hosts.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::connection::{Context, Refusal};
use super::policy::{Scheme, Target};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// A name may have many addresses; these are tried.
const MAX_ADDRESSES: usize = 4;

/// Resolves a name once, checks its addresses, and connects to one of those.
pub(super) async fn dial(context: &Context, target: &Target) -> Result<TcpStream, Refusal> {
    let lookup = async {
        // The semaphore is never closed.
        let _permit = context.lookups.acquire().await;
        let resolver = &context.settings.resolver;
        resolver.resolve(&target.host, target.port).await
    };
    let resolved = timeout(RESOLVE_TIMEOUT, lookup).await;
    let addresses = resolved
        .map_err(|_| {
            Refusal::new(
                StatusCode::GATEWAY_TIMEOUT,
                format!("{target}: resolving the name timed out"),
            )
        })?
        .map_err(|why| Refusal::new(StatusCode::FORBIDDEN, why))?;
    if !addresses
        .iter()
        .all(|address| context.policy.allows_address(address.ip()))
    {
        let text = format!("{target} is not allowed by the proxy_config of this sandbox");
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    let mut status = StatusCode::BAD_GATEWAY;
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Without it, small requests only wait longer.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(_)) => status = StatusCode::BAD_GATEWAY,
            Err(_) => status = StatusCode::GATEWAY_TIMEOUT,
        }
    }
    // The address stays unknown to the box.
    Err(Refusal::new(status, format!("{target} cannot be reached")))
}

/// Speaks TLS with the host, whose certificate must be valid.
pub(super) async fn begin_tls(
    context: &Context,
    target: &Target,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Refusal> {
    let name = ServerName::try_from(target.host.clone());
    let name = name.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, format!("{target} is not a host name")))?;
    let connector = TlsConnector::from(Arc::clone(&context.settings.tls));
    let refused = |status, why: String| Refusal::new(status, format!("{target}: {why}"));
    match timeout(TLS_TIMEOUT, connector.connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(refused(StatusCode::BAD_GATEWAY, format!("TLS failed: {error}"))),
        Err(_) => Err(refused(StatusCode::GATEWAY_TIMEOUT, "TLS timed out".to_owned())),
    }
}

/// HTTP with a host. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) target: Target,
    pub(super) scheme: Scheme,
    pub(super) sender: SendRequest<Incoming>,
    driver: JoinHandle<()>,
}

impl Upstream {
    pub(super) async fn open(
        target: &Target,
        scheme: Scheme,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, Refusal> {
        let begun = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = begun.map_err(|_| {
            let text = format!("{target} closed the connection");
            Refusal::new(StatusCode::BAD_GATEWAY, text)
        })?;
        Ok(Self {
            target: target.clone(),
            scheme,
            sender,
            driver: tokio::spawn(async move {
                // The request that suffers from an error reports it.
                let _ = connection.await;
            }),
        })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
