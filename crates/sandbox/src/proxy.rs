//! The forward proxy of a box: the only way from it to a network.
//!
//! A box has no interface but loopback. Its agent listens on a port of that, and hands the listening socket to the
//! platform, which accepts the connections outside of the box and decides by the [`Policy`] of the box. `CONNECT` is for
//! TLS alone, and its first message has to name the host. A name is resolved once, and the connection goes to an address
//! that was checked. For hosts that a rule covers, the proxy ends TLS with a certificate of the box's own
//! [`CertificateAuthority`] and adds headers. These never enter the box, unless the host itself sends them back.
//!
//! Bounds: connections per box, time and size of headers, time without a byte.

mod authority;
mod connection;
mod der;
mod meter;
mod policy;
mod upstream;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::error::{Error, Result};
use connection::Context;
use meter::Counters;

pub use authority::CertificateAuthority;
pub use meter::Traffic;
pub use policy::{Access, HeaderRule, HostPattern, PathPattern, Policy, Scheme, Target, check_header, secret_value};

/// The port of the proxy on the loopback interface of a box.
pub const PROXY_PORT: u16 = 61_080;
/// Connections of a box at a time; further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// Names that a box resolves at a time: its share of what all boxes may.
const MAX_LOOKUPS: usize = 8;
/// After an accept that failed for want of something.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
const HTTP_1: &[u8] = b"http/1.1";

/// Resolves names for boxes.
#[async_trait]
pub trait Resolver: fmt::Debug + Send + Sync {
    /// Addresses of a name or an address, all of which boxes may call. The error is for the box.
    async fn resolve(&self, host: &str, port: u16) -> std::result::Result<Vec<SocketAddr>, String>;
}

/// What the proxies of all boxes share.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    resolver: Arc<dyn Resolver>,
    tls: Arc<ClientConfig>,
}

impl ProxySettings {
    /// Of intercepted hosts, certificates of these roots are accepted.
    pub fn new(resolver: Arc<dyn Resolver>, roots: RootCertStore) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(tls_error)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![HTTP_1.to_vec()];
        Ok(Self {
            resolver,
            tls: Arc::new(tls),
        })
    }
}

fn tls_error(error: rustls::Error) -> io::Error {
    io::Error::other(error)
}

/// The proxy's end of a running box.
#[derive(Debug)]
pub struct ProxyEndpoint {
    /// Accepts connections of the box.
    pub listener: std::net::TcpListener,
    /// The authority that the box trusts.
    pub authority: CertificateAuthority,
}

/// The proxy of a box, which ends with its connections when this is dropped.
#[derive(Debug)]
pub struct BoxProxy {
    policy: watch::Sender<Arc<Policy>>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

impl BoxProxy {
    /// Serves a box from now on.
    pub fn start(settings: ProxySettings, endpoint: ProxyEndpoint, policy: Policy) -> Result<Self> {
        let what = "the proxy of the sandbox";
        let ProxyEndpoint { listener, authority } = endpoint;
        listener.set_nonblocking(true).map_err(Error::io(what))?;
        let listener = TcpListener::from_std(listener).map_err(Error::io(what))?;
        let counters = Arc::new(Counters::default());
        let policy = watch::Sender::new(Arc::new(policy));
        let acceptor = Acceptor {
            settings,
            authority: Arc::new(authority),
            policy: policy.subscribe(),
            counters: Arc::clone(&counters),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        };
        Ok(Self {
            policy,
            counters,
            task: tokio::spawn(acceptor.run(listener)),
        })
    }

    /// Changes what new connections may do.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// What was counted since the last call.
    #[must_use]
    pub fn take_traffic(&self) -> Traffic {
        self.counters.take()
    }
}

impl Drop for BoxProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Acceptor {
    settings: ProxySettings,
    authority: Arc<CertificateAuthority>,
    policy: watch::Receiver<Arc<Policy>>,
    counters: Arc<Counters>,
    lookups: Arc<Semaphore>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        // Dropped with this future, it ends the connections.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection::serve(stream, self.context()));
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
                },
            }
        }
    }

    fn context(&self) -> Context {
        Context {
            settings: self.settings.clone(),
            authority: Arc::clone(&self.authority),
            policy: Arc::clone(&self.policy.borrow()),
            counters: Arc::clone(&self.counters),
            lookups: Arc::clone(&self.lookups),
        }
    }
}
