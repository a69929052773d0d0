//! The certificate authority of a box: its processes trust it, and only the proxy outside has its key.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{HTTP_1, der, tls_error};

/// The proxy keeps certificates of this many hosts of a box.
const MAX_HOSTS: usize = 64;
const AUTHORITY_NAME: &str = "Towpath sandbox authority";
const LEAF_NAME: &str = "Towpath sandbox proxy";
/// A certificate lasts as long as the box runs; nobody else trusts it.
const NOT_BEFORE: &str = "200101000000Z";
const NOT_AFTER: &str = "491231235959Z";
const KEY_ID_BYTES: usize = 20;

/// Issues the certificates that the proxy shows to a box.
pub struct CertificateAuthority {
    key: EcdsaKeyPair,
    /// The key of every certificate that it issues.
    leaf_key: Vec<u8>,
    leaf_point: Vec<u8>,
    random: SystemRandom,
    hosts: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority").finish_non_exhaustive()
    }
}

fn failed(_: impl fmt::Debug) -> io::Error {
    io::Error::other("making a key failed")
}

/// A new key, as PKCS #8.
fn new_key(random: &SystemRandom) -> io::Result<Vec<u8>> {
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, random).map_err(failed)?;
    Ok(document.as_ref().to_vec())
}

impl CertificateAuthority {
    /// Makes the key of an authority, to be kept outside of the box.
    pub fn new_key() -> io::Result<Vec<u8>> {
        new_key(&SystemRandom::new())
    }

    /// The authority with a key.
    pub fn from_key(key: &[u8]) -> io::Result<Self> {
        let random = SystemRandom::new();
        let parse = |key: &[u8]| EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key, &random);
        let key = parse(key).map_err(|_| io::Error::other("the key of the authority is damaged"))?;
        let leaf_key = new_key(&random)?;
        let leaf_point = parse(&leaf_key).map_err(failed)?.public_key().as_ref().to_vec();
        Ok(Self {
            key,
            leaf_key,
            leaf_point,
            random,
            hosts: Mutex::default(),
        })
    }

    /// Its own certificate, as PEM, for the box.
    pub fn certificate_pem(&self) -> io::Result<String> {
        let point = self.key.public_key().as_ref();
        let id = key_id(point);
        let extensions = [
            der::critical_extension(
                der::BASIC_CONSTRAINTS,
                &der::sequence(&[der::boolean_true(), der::integer(&[0])]),
            ),
            // Certificates and revocation lists.
            der::critical_extension(der::KEY_USAGE, &der::bit_string(1, &[0b0000_0110])),
            der::extension(der::SUBJECT_KEY_ID, &der::octet_string(&id)),
            der::extension(der::AUTHORITY_KEY_ID, &authority_id(&id)),
        ];
        let certificate = self.sign(AUTHORITY_NAME, point, &extensions)?;
        let text = STANDARD.encode(certificate);
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(rest.len().min(64));
            pem.push_str(line);
            pem.push('\n');
            rest = after;
        }
        pem.push_str("-----END CERTIFICATE-----\n");
        Ok(pem)
    }

    /// How to speak TLS as a host.
    pub fn server_config(&self, host: &str, ip: Option<IpAddr>) -> io::Result<Arc<ServerConfig>> {
        if let Some(known) = self.hosts.lock().get(host) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.issue(host, ip)?);
        let mut hosts = self.hosts.lock();
        if hosts.len() >= MAX_HOSTS {
            hosts.clear();
        }
        hosts.insert(host.to_owned(), made.clone());
        Ok(made)
    }

    fn issue(&self, host: &str, ip: Option<IpAddr>) -> io::Result<ServerConfig> {
        let subject = match ip {
            Some(IpAddr::V4(ip)) => der::context(7, &ip.octets()),
            Some(IpAddr::V6(ip)) => der::context(7, &ip.octets()),
            None => der::context(2, host.as_bytes()),
        };
        let id = key_id(self.key.public_key().as_ref());
        let extensions = [
            der::critical_extension(der::BASIC_CONSTRAINTS, &der::sequence(&[])),
            // Signatures.
            der::critical_extension(der::KEY_USAGE, &der::bit_string(7, &[0b1000_0000])),
            der::extension(
                der::EXTENDED_KEY_USAGE,
                &der::sequence(&[der::object_id(der::SERVER_AUTH)]),
            ),
            der::extension(der::SUBJECT_ALT_NAME, &der::sequence(&[subject])),
            der::extension(der::SUBJECT_KEY_ID, &der::octet_string(&key_id(&self.leaf_point))),
            der::extension(der::AUTHORITY_KEY_ID, &authority_id(&id)),
        ];
        let certificate = CertificateDer::from(self.sign(LEAF_NAME, &self.leaf_point, &extensions)?);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.clone()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(tls_error)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(tls_error)?;
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        Ok(config)
    }

    /// A certificate for a public key.
    fn sign(&self, subject: &str, point: &[u8], extensions: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        let mut serial = [0; 16];
        self.random.fill(&mut serial).map_err(failed)?;
        // Positive, and of the same length always.
        serial[0] = (serial[0] & 0x3f) | 0x40;
        let content = der::sequence(&[
            // Version 3.
            der::explicit(0, &der::integer(&[2])),
            der::integer(&serial),
            der::signature_algorithm(),
            der::name(AUTHORITY_NAME),
            der::sequence(&[der::utc_time(NOT_BEFORE), der::utc_time(NOT_AFTER)]),
            der::name(subject),
            der::public_key(point),
            der::explicit(3, &der::sequence(extensions)),
        ]);
        let signature = self.key.sign(&self.random, &content).map_err(failed)?;
        Ok(der::sequence(&[
            content,
            der::signature_algorithm(),
            der::bit_string(0, signature.as_ref()),
        ]))
    }
}

fn key_id(point: &[u8]) -> Vec<u8> {
    digest(&SHA256, point).as_ref()[..KEY_ID_BYTES].to_vec()
}

fn authority_id(id: &[u8]) -> Vec<u8> {
    der::sequence(&[der::context(0, id)])
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// Whether a client that trusts `authority` alone accepts the certificate of another for `host`, as `name`.
    async fn accepts(authority: &CertificateAuthority, issuer: &CertificateAuthority, host: &str, name: &str) -> bool {
        let mut roots = RootCertStore::empty();
        let pem = authority.certificate_pem().unwrap();
        roots
            .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let config = issuer.server_config(host, host.parse().ok()).unwrap();
        let (near, far) = tokio::io::duplex(16 << 10);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let (shown, seen) = tokio::join!(
            TlsAcceptor::from(config).accept(far),
            TlsConnector::from(Arc::new(client)).connect(name, near)
        );
        drop(shown);
        seen.is_ok()
    }

    fn authority() -> CertificateAuthority {
        CertificateAuthority::from_key(&CertificateAuthority::new_key().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_box_accepts_certificates_of_its_own_authority_for_the_host() {
        let own = authority();
        for host in ["api.example.com", "192.0.2.7", "2001:db8::7"] {
            assert!(accepts(&own, &own, host, host).await, "{host}");
        }
        assert!(!accepts(&own, &own, "api.example.com", "other.example.com").await);
        assert!(!accepts(&own, &authority(), "api.example.com", "api.example.com").await);
    }

    #[tokio::test]
    async fn an_authority_is_the_same_after_a_restart() {
        let key = CertificateAuthority::new_key().unwrap();
        let before = CertificateAuthority::from_key(&key).unwrap();
        let after = CertificateAuthority::from_key(&key).unwrap();
        assert!(accepts(&before, &after, "api.example.com", "api.example.com").await);
        assert!(CertificateAuthority::from_key(&key[1..]).is_err());
    }

    #[test]
    fn certificates_of_hosts_are_bounded() {
        let own = authority();
        for host in 0..=MAX_HOSTS {
            own.server_config(&format!("{host}.example.com"), None).unwrap();
        }
        assert_eq!(own.hosts.lock().len(), 1);
    }
}
