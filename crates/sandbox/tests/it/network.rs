//! The proxy of boxes. A server on loopback is the internet: the resolver of the tests allows it by name.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use towpath_sandbox::proxy::{Access, HeaderRule, HostPattern, Policy, Resolver, secret_value};
use towpath_sandbox::{BoxProxy, BoxSpec, CertificateAuthority, Driver as _, ProxyEndpoint, ProxySettings};

use crate::fixture::{SandboxFixture, as_root, prints, request, run};

const PATIENCE: Duration = Duration::from_secs(30);
const SECRET: &str = "hunter2-of-the-owner";

/// Names and where they lead.
#[derive(Debug)]
struct Names {
    plain: SocketAddr,
    tls: SocketAddr,
    lookups: AtomicUsize,
}

#[async_trait]
impl Resolver for Names {
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let before = self.lookups.fetch_add(1, Ordering::SeqCst);
        match host {
            "api.test" | "other.test" => Ok(vec![if port == 80 { self.plain } else { self.tls }]),
            // Its owner answers with an inner address from the second question on.
            "rebinding.test" if before == 0 => Ok(vec![self.tls]),
            _ => Err(format!("{host} is a private address")),
        }
    }
}

/// Servers that answer with the head of the request they got.
pub struct Internet {
    names: Arc<Names>,
    /// Heads of requests.
    seen: Arc<Mutex<Vec<String>>>,
    authority: Arc<CertificateAuthority>,
}

impl Internet {
    pub async fn new() -> Self {
        let authority = CertificateAuthority::from_key(&CertificateAuthority::new_key().unwrap()).unwrap();
        let authority = Arc::new(authority);
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let names = Names {
            plain: plain.local_addr().unwrap(),
            tls: tls.local_addr().unwrap(),
            lookups: AtomicUsize::new(0),
        };
        let heads = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = plain.accept().await {
                tokio::spawn(echo(stream, Arc::clone(&heads)));
            }
        });
        let (heads, issuer) = (Arc::clone(&seen), Arc::clone(&authority));
        tokio::spawn(async move {
            while let Ok((stream, _)) = tls.accept().await {
                let (heads, issuer) = (Arc::clone(&heads), Arc::clone(&issuer));
                tokio::spawn(async move {
                    // The name that the client asks for, if it is one of ours.
                    let begun = tokio_rustls::LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
                    let begun = begun.await?;
                    let name = begun.client_hello().server_name().unwrap_or("api.test").to_owned();
                    let stream = begun.into_stream(issuer.server_config(&name, None)?).await?;
                    echo(stream, heads).await
                });
            }
        });
        Self {
            names: Arc::new(names),
            seen,
            authority,
        }
    }

    pub fn settings(&self) -> ProxySettings {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.authority)).unwrap();
        ProxySettings::new(self.names.clone(), roots).unwrap()
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn certificate(authority: &CertificateAuthority) -> CertificateDer<'static> {
    let pem = authority.certificate_pem().unwrap();
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    loop {
        let head = read_head(&mut stream).await?;
        seen.lock().unwrap().push(head.clone());
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
        stream.write_all(answer.as_bytes()).await?;
    }
}

/// A proxy without a box, on a port of the machine.
struct ProxyFixture {
    internet: Internet,
    proxy: BoxProxy,
    address: SocketAddr,
    /// Of the box.
    authority: CertificateAuthority,
}

impl ProxyFixture {
    async fn new(policy: Policy) -> Self {
        let internet = Internet::new().await;
        let key = CertificateAuthority::new_key().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = ProxyEndpoint {
            listener,
            authority: CertificateAuthority::from_key(&key).unwrap(),
        };
        Self {
            proxy: BoxProxy::start(internet.settings(), endpoint, policy).unwrap(),
            authority: CertificateAuthority::from_key(&key).unwrap(),
            internet,
            address,
        }
    }

    /// What the proxy answers to these bytes, until it closes the connection.
    async fn send(&self, text: &str) -> String {
        let stream = TcpStream::connect(self.address).await.unwrap();
        exchange(stream, text).await
    }

    /// A tunnel, or the refusal.
    async fn tunnel(&self, authority: &str) -> Result<TcpStream, String> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let text = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let head = timeout(PATIENCE, read_head(&mut stream)).await.unwrap().unwrap();
        if head.starts_with("HTTP/1.1 200") {
            Ok(stream)
        } else {
            Err(head)
        }
    }

    /// TLS with `name` in a tunnel, of a client that trusts this authority alone.
    async fn tls(
        &self,
        authority: &str,
        name: &str,
        trusted: &CertificateAuthority,
    ) -> io::Result<TlsStream<TcpStream>> {
        let stream = self.tunnel(authority).await.map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate(trusted)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await?
    }

    /// What is answered to a request within TLS that the proxy ends.
    async fn send_within(&self, text: &str) -> String {
        let stream = self.tls("api.test:443", "api.test", &self.authority).await.unwrap();
        exchange(stream, text).await
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) -> String {
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the answer ends");
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(host: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: {host}\r\nAuthorization: of the box\r\nConnection: close\r\n\r\n")
}

pub fn allow(patterns: &[&str]) -> Policy {
    let patterns = patterns.iter().map(|text| HostPattern::parse(text).unwrap()).collect();
    Policy {
        access: Access::Allow(patterns),
        ..Policy::default()
    }
}

fn with_secret() -> Policy {
    Policy {
        rules: vec![HeaderRule {
            hosts: vec![HostPattern::parse("api.test").unwrap()],
            port: None,
            paths: Vec::new(),
            match_headers: Vec::new(),
            headers: vec![(AUTHORIZATION, secret_value(SECRET).unwrap())],
        }],
        ..Policy::default()
    }
}

#[tokio::test]
async fn a_box_calls_what_its_policy_allows_and_nothing_else() {
    let fixture = ProxyFixture::new(allow(&["api.test", "inner.test"])).await;
    let answer = fixture
        .send("GET http://api.test/x?y=1 HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("GET /x?y=1 HTTP/1.1\r\n"), "{answer}");
    let mut stream = fixture
        .tls("api.test:443", "api.test", &fixture.internet.authority)
        .await
        .expect("the host's own certificate");
    stream
        .write_all(b"GET /tls HTTP/1.1\r\nHost: api.test\r\n\r\n")
        .await
        .unwrap();
    let head = timeout(PATIENCE, read_head(&mut stream)).await.unwrap().unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");

    for (refused, status) in [
        ("other.test:443", 403),
        ("api.test:22", 403),
        ("api.test:80", 403),
        ("127.0.0.1:443", 403),
        ("169.254.169.254:443", 403),
        ("[::1]:443", 403),
        // Allowed by name, and refused for its address.
        ("inner.test:443", 403),
        ("user@api.test:443", 400),
        ("api.test:99999", 400),
    ] {
        let head = fixture.tunnel(refused).await.expect_err(refused);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{refused}: {head}");
    }
    for (refused, status) in [
        ("GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n", 403),
        ("GET http://inner.test/ HTTP/1.1\r\nHost: inner.test\r\n", 403),
        ("GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n", 403),
        ("GET http://api.test:8080/ HTTP/1.1\r\nHost: api.test:8080\r\n", 403),
        ("GET http://api.test/ HTTP/1.1\r\nHost: other.test\r\n", 421),
        (
            "GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\nHost: other.test\r\n",
            400,
        ),
        ("GET https://api.test/ HTTP/1.1\r\nHost: api.test\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.test\r\n", 400),
    ] {
        let answer = fixture.send(&format!("{refused}Connection: close\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{refused}: {answer}");
    }
    let long = format!(
        "GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\nX: {}\r\n\r\n",
        "x".repeat(80 << 10)
    );
    assert!(!fixture.send(&long).await.starts_with("HTTP/1.1 200"));
    assert_eq!(fixture.internet.seen().len(), 2, "{:?}", fixture.internet.seen());
    let traffic = fixture.proxy.take_traffic();
    assert!(traffic.refused >= 15, "{traffic:?}");
    assert!(traffic.sent_bytes > 0 && traffic.received_bytes > 0, "{traffic:?}");
}

#[tokio::test]
async fn a_tunnel_leads_to_the_host_that_was_allowed() {
    let fixture = ProxyFixture::new(allow(&["api.test"])).await;
    // Another name behind the same address.
    let fronted = fixture
        .tls("api.test:443", "other.test", &fixture.internet.authority)
        .await;
    assert!(fronted.is_err());
    // A client that names no host: the address is the name.
    let nameless = fixture
        .tls("api.test:443", "127.0.0.1", &fixture.internet.authority)
        .await;
    assert!(nameless.is_err());
    for sent in ["GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", "SSH-2.0-client\r\n"] {
        let stream = fixture.tunnel("api.test:443").await.unwrap();
        assert_eq!(exchange(stream, sent).await, "", "{sent}");
    }
    assert!(fixture.internet.seen().is_empty(), "{:?}", fixture.internet.seen());
    assert_eq!(fixture.proxy.take_traffic().refused, 4);
}

#[tokio::test]
async fn a_name_is_resolved_once_for_a_connection() {
    let fixture = ProxyFixture::new(allow(&["rebinding.test"])).await;
    let first = fixture
        .tls("rebinding.test:443", "rebinding.test", &fixture.internet.authority)
        .await;
    first.expect("the connection leads to the address that was checked");
    assert_eq!(fixture.internet.names.lookups.load(Ordering::SeqCst), 1);
    fixture
        .tunnel("rebinding.test:443")
        .await
        .expect_err("the second answer is checked too");
}

#[tokio::test]
async fn headers_are_added_outside_of_the_box() {
    let fixture = ProxyFixture::new(with_secret()).await;
    let answer = fixture.send_within(&get("api.test")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = fixture.internet.seen().pop().unwrap();
    assert!(seen.contains(&format!("authorization: {SECRET}\r\n")), "{seen}");
    assert!(!seen.contains("of the box") && !seen.contains("connection:"), "{seen}");
    // A host without a rule is neither opened nor intercepted, and nothing is sent in the clear.
    fixture.tunnel("other.test:443").await.expect_err("no rule covers it");
    let plain = fixture.send(&get("api.test").replace("/x", "http://api.test/x")).await;
    assert!(plain.starts_with("HTTP/1.1 403"), "{plain}");

    let count = fixture.internet.seen().len();
    for (sent, status) in [
        (get("other.test"), 421),
        (get("api.test").replace("/x", "https://other.test/x"), 421),
        (
            get("api.test").replace("Host: api.test", "Host: api.test\r\nHost: other.test"),
            400,
        ),
        (get("api.test").replace("Host: api.test\r\n", ""), 400),
        (get("api.test").replace("GET", "TRACE"), 405),
    ] {
        let answer = fixture.send_within(&sent).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{sent}: {answer}");
        assert!(!answer.contains(SECRET), "{answer}");
    }
    // Who names another host in TLS gets no certificate.
    let other = fixture.tls("api.test:443", "other.test", &fixture.authority).await;
    assert!(other.is_err());
    assert_eq!(fixture.internet.seen().len(), count);
}

#[tokio::test]
async fn a_body_is_no_second_request() {
    let mut policy = with_secret();
    policy.access = Access::Allow(vec![HostPattern::parse("api.test").unwrap()]);
    let fixture = ProxyFixture::new(policy).await;
    let inner = "GET /inner HTTP/1.1\r\nHost: api.test\r\n\r\n";
    let body = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
    let lengths = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\nConnection";
    let plain = get("api.test").replace("/x", "http://api.test/x");
    let plain = fixture.send(&(plain.replace("Connection", lengths) + &body)).await;
    let within = get("api.test").replace("Connection", lengths) + &body;
    let within = fixture.send_within(&within).await;
    // The proxy reads the chunks and ignores the other length, as RFC 9112, 6.3 has it.
    let heads = fixture.internet.seen();
    assert_eq!(heads.len(), 2, "{heads:?}, {plain}, {within}");
    for head in heads {
        assert!(head.starts_with("GET /x HTTP/1.1\r\n"), "{head}");
        assert!(!head.to_lowercase().contains("content-length"), "{head}");
    }
}

#[tokio::test]
async fn an_attribution_is_sent_to_every_host() {
    let name = HeaderName::from_static("x-agent");
    let policy = Policy {
        attribution: vec![(name, HeaderValue::from_static("canal"))],
        ..allow(&["api.test"])
    };
    let fixture = ProxyFixture::new(policy).await;
    fixture.send_within(&get("api.test")).await;
    fixture.send(&get("api.test").replace("/x", "http://api.test/x")).await;
    let seen = fixture.internet.seen();
    assert_eq!(seen.len(), 2);
    for head in seen {
        assert!(head.contains("x-agent: canal\r\n"), "{head}");
        assert!(head.contains("authorization: of the box\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_change_holds_for_new_connections() {
    let fixture = ProxyFixture::new(Policy::default()).await;
    let head = fixture.tunnel("api.test:443").await.expect_err("nothing is open");
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    fixture.proxy.set_policy(allow(&["api.test"]));
    let open = fixture
        .tls("api.test:443", "api.test", &fixture.internet.authority)
        .await;
    let mut open = open.unwrap();
    fixture.proxy.set_policy(Policy::default());
    fixture.tunnel("api.test:443").await.expect_err("closed again");
    // One that was opened before goes on.
    open.write_all(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        .await
        .unwrap();
    let head = timeout(PATIENCE, read_head(&mut open)).await.unwrap().unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // Connections end with the proxy.
    drop(fixture.proxy);
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, open.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection is still open");
}

/// A box with a proxy, and the internet.
struct NetworkedBox {
    world: SandboxFixture,
    internet: Internet,
    spec: BoxSpec,
}

impl NetworkedBox {
    async fn new() -> Option<Self> {
        let world = SandboxFixture::new().await?;
        let spec = BoxSpec {
            has_proxy: true,
            env: BTreeMap::from([("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())]),
            ..world.spec()
        };
        Some(Self {
            internet: Internet::new().await,
            world,
            spec,
        })
    }
}

/// Prints what the host answers.
fn fetch(url: &str) -> String {
    format!("python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\", timeout=20).read().decode())'")
}

#[tokio::test]
async fn programs_in_a_box_use_the_proxy_and_never_see_a_secret() {
    let Some(NetworkedBox { world, internet, spec }) = NetworkedBox::new().await else {
        return;
    };
    let (handle, agent) = world.start(&spec, 1).await;
    let endpoint = world.driver.open_proxy(&handle).await.unwrap().expect("it has a proxy");
    let proxy = BoxProxy::start(internet.settings(), endpoint, with_secret()).unwrap();

    prints(&agent, &request(&fetch("https://api.test/x"))).await;
    let seen = internet.seen().pop().unwrap();
    assert!(seen.contains(&format!("authorization: {SECRET}\r\n")), "{seen}");
    for attempt in [
        fetch("https://other.test/"),
        fetch("http://api.test/"),
        fetch("http://169.254.169.254/latest/meta-data"),
        format!("env -u HTTPS_PROXY -u https_proxy {}", fetch("https://api.test/")),
        format!(
            "exec 3<>/dev/tcp/{}/{}",
            internet.names.tls.ip(),
            internet.names.tls.port()
        ),
        "exec 3<>/dev/tcp/1.1.1.1/443".to_owned(),
        "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 443)'".to_owned(),
    ] {
        for request in [request(&attempt), as_root(&attempt)] {
            let outcome = run(&agent, &request).await;
            assert_ne!(outcome.exit_code, 0, "{attempt}: {outcome:?}");
        }
    }
    // Nothing of the secret and of the key is in the box: not in variables, processes or files.
    let search = format!(
        "env | grep -e {SECRET}; cat /proc/*/environ /proc/*/cmdline | grep -a -e {SECRET}; \
         grep -r --exclude=agent -e {SECRET} -e 'PRIVATE KEY' /run /tmp /etc /home /var; ls /run/towpath | grep key; true"
    );
    // The search itself names it in its command line.
    let found = prints(&agent, &as_root(&search)).await;
    let found: Vec<&str> = found
        .lines()
        .filter(|line| !line.contains("grep -r --exclude"))
        .collect();
    assert!(found.is_empty(), "{found:?}");
    assert!(proxy.take_traffic().sent_bytes > 0);
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn a_proxy_is_found_again_after_a_restart_of_the_platform() {
    let Some(NetworkedBox { world, internet, spec }) = NetworkedBox::new().await else {
        return;
    };
    let (handle, agent) = world.start(&spec, 1).await;
    let endpoint = world.driver.open_proxy(&handle).await.unwrap().unwrap();
    drop(BoxProxy::start(internet.settings(), endpoint, with_secret()).unwrap());

    let platform = world.reopen();
    let adopted = platform.adopt(handle.id, 1).await.unwrap().unwrap();
    let endpoint = platform.open_proxy(&adopted).await.unwrap().unwrap();
    let _proxy = BoxProxy::start(internet.settings(), endpoint, with_secret()).unwrap();
    prints(&agent, &request(&fetch("https://api.test/x"))).await;
    assert_eq!(internet.seen().len(), 1);

    // Another life has another authority, and a box without a proxy has neither.
    let certificate = prints(&agent, &request("cat /run/towpath/authority.pem")).await;
    let (next, agent) = world.start(&spec, 2).await;
    assert_ne!(
        prints(&agent, &request("cat /run/towpath/authority.pem")).await,
        certificate
    );
    world.driver.destroy(next.id, 2).await.unwrap();
    let (closed, agent) = world.start(&world.spec(), 1).await;
    assert!(world.driver.open_proxy(&closed).await.unwrap().is_none());
    let variables = prints(&agent, &request("env | grep -i proxy; true")).await;
    assert_eq!(variables, "");
    world.driver.destroy(closed.id, 1).await.unwrap();
}
