//! TLS on a listener.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// HTTP/2 in the handshake.
const H2: &[u8] = b"h2";

/// What a listener speaks TLS with. Clones share one certificate.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    identity: Arc<CertificateResolver>,
}

impl Tls {
    /// TLS 1.2 and 1.3 with this certificate, for HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// The provider of the process has no cipher for them.
    pub fn new(identity: CertifiedKey) -> Result<Self, rustls::Error> {
        let identity = Arc::new(CertificateResolver(RwLock::new(Arc::new(identity))));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(identity.clone());
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            identity,
        })
    }

    /// Shows another certificate from now on. Connections that are open go on.
    pub fn replace(&self, identity: CertifiedKey) {
        let mut current = self.identity.0.write();
        *current = Arc::new(identity);
    }

    /// The handshake, which may take so long.
    pub(super) async fn accept<S>(&self, stream: S, limit: Duration) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match tokio::time::timeout(limit, self.acceptor.accept(stream)).await {
            Ok(accepted) => accepted,
            Err(_) => {
                let text = "the client does not finish its TLS handshake";
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        }
    }
}

/// Whether both sides agreed on HTTP/2.
pub(super) fn speaks_h2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(H2)
}

#[derive(Debug)]
struct CertificateResolver(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.0.read();
        Some(Arc::clone(&current))
    }
}
