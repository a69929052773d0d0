//! A connection of a box to its proxy.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::client::TlsStream;

use super::ProxySettings;
use super::authority::CertificateAuthority;
use super::meter::{Activity, Counters, Metered, until_idle};
use super::policy::{Policy, Scheme, Target, is_reserved};
use super::upstream::{Upstream, begin_tls, dial};

/// Until the headers of a request have come.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Until the box has begun TLS in a tunnel.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection without a single byte for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Headers of a request.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// What is read ahead of a connection.
const MAX_BUFFER_BYTES: usize = 128 << 10;
/// The first message of TLS.
const MAX_HELLO_BYTES: usize = 32 << 10;

type ProxyBody = Either<Full<Bytes>, Incoming>;

/// What a connection is served with. The policy is that of its beginning.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: ProxySettings,
    pub(super) authority: Arc<CertificateAuthority>,
    pub(super) policy: Arc<Policy>,
    pub(super) counters: Arc<Counters>,
    pub(super) lookups: Arc<Semaphore>,
}

/// Why a request is not forwarded, in words for the box.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    fn invalid(text: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn into_response(self) -> Response<ProxyBody> {
        let mut response = answer(format!("{}\n", self.text));
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

fn answer(text: String) -> Response<ProxyBody> {
    Response::new(Either::Left(Full::new(Bytes::from(text))))
}

/// Serves a connection to its end.
pub(super) async fn serve(stream: TcpStream, context: Context) {
    context.counters.count_connection();
    let context = Arc::new(context);
    let activity = Activity::default();
    let stream = Metered::new(stream, Arc::clone(&context.counters), Arc::clone(&activity));
    tokio::select! {
        () = serve_requests(stream, &context) => {}
        () = until_idle(&activity, IDLE_TIMEOUT) => {}
    }
}

fn server() -> http1::Builder {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(MAX_HEADER_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES);
    server
}

async fn serve_requests(stream: Metered<TcpStream>, context: &Arc<Context>) {
    let tunnel: Arc<Mutex<Option<Tunnel>>> = Arc::default();
    let forwarder = Arc::new(Forwarder::new(context, None));
    let service = service_fn(|request| {
        let (forwarder, tunnel) = (Arc::clone(&forwarder), Arc::clone(&tunnel));
        async move { Ok::<_, Infallible>(forwarder.answer(request, &tunnel).await) }
    });
    let served = server()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    let tunnel = tunnel.lock().take();
    if let (Ok(()), Some(tunnel)) = (served, tunnel) {
        tunnel.run(context).await;
    }
}

/// A connection to a host that waits for the box to use it.
#[derive(Debug)]
struct Tunnel {
    target: Target,
    end: TunnelEnd,
    upgrade: OnUpgrade,
}

#[derive(Debug)]
enum TunnelEnd {
    /// The box speaks TLS with the host itself.
    Opaque(TcpStream),
    /// The proxy speaks TLS with both.
    Intercepted(Box<TlsStream<TcpStream>>),
}

impl Tunnel {
    async fn run(self, context: &Arc<Context>) {
        let Ok(Ok(upgraded)) = timeout(HANDSHAKE_TIMEOUT, self.upgrade).await else {
            return;
        };
        let mut client = TokioIo::new(upgraded);
        let begun = match self.end {
            TunnelEnd::Opaque(host) => pass_on(&mut client, host, &self.target).await,
            TunnelEnd::Intercepted(host) => intercept(&mut client, *host, &self.target, context).await,
        };
        if begun.is_err() {
            // Before the box sees the end of the connection.
            context.counters.count_refusal();
        }
    }
}

/// Passes TLS on, once its first message has named the host that the box may call. An error means that it did not.
async fn pass_on(client: &mut TokioIo<Upgraded>, mut host: TcpStream, target: &Target) -> io::Result<()> {
    let hello = timeout(HANDSHAKE_TIMEOUT, read_hello(client, target)).await??;
    // From here on, errors are those of the two ends.
    if host.write_all(&hello).await.is_ok() {
        let _ = copy_bidirectional(client, &mut host).await;
    }
    Ok(())
}

/// The bytes up to the first message of TLS, which names the host.
async fn read_hello(client: &mut (impl AsyncRead + Unpin), target: &Target) -> io::Result<Vec<u8>> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::new();
    loop {
        let known = bytes.len();
        if known > MAX_HELLO_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fresh = &bytes[known..];
        while !fresh.is_empty() {
            acceptor.read_tls(&mut fresh)?;
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    check_name(target, hello.server_name())?;
                    return Ok(bytes);
                }
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// A host may serve others behind the same address: the box must name the one that it was allowed.
fn check_name(target: &Target, named: Option<&str>) -> io::Result<()> {
    let is_same = match (target.ip, named) {
        (Some(_), None) => true,
        (None, Some(name)) => name.eq_ignore_ascii_case(&target.host),
        _ => false,
    };
    is_same.then_some(()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Ends TLS of the box, and forwards its requests one by one. An error means that the box did not begin TLS with this
/// host.
async fn intercept(
    client: &mut TokioIo<Upgraded>,
    host: TlsStream<TcpStream>,
    target: &Target,
    context: &Arc<Context>,
) -> io::Result<()> {
    let acceptor = LazyConfigAcceptor::new(Acceptor::default(), client);
    let begun = timeout(HANDSHAKE_TIMEOUT, acceptor).await??;
    check_name(target, begun.client_hello().server_name())?;
    let config = context.authority.server_config(&target.host, target.ip)?;
    let client = timeout(HANDSHAKE_TIMEOUT, begun.into_stream(config)).await??;
    let forwarder = Forwarder::new(context, Some(target.clone()));
    let Ok(upstream) = Upstream::open(target, Scheme::Https, host).await else {
        return Ok(());
    };
    forwarder.keep(upstream);
    let forwarder = Arc::new(forwarder);
    let service = service_fn(|request| {
        let forwarder = Arc::clone(&forwarder);
        async move { Ok::<_, Infallible>(forwarder.answer_within(request).await) }
    });
    // What breaks here is the business of the box and the host.
    let _ = server().serve_connection(TokioIo::new(client), service).await;
    Ok(())
}

/// Forwards the requests of a connection, one after another.
#[derive(Debug)]
struct Forwarder {
    context: Arc<Context>,
    /// The host of a tunnel.
    origin: Option<Target>,
    /// Taken while a request uses it.
    upstream: Mutex<Option<Upstream>>,
}

impl Forwarder {
    fn new(context: &Arc<Context>, origin: Option<Target>) -> Self {
        Self {
            context: Arc::clone(context),
            origin,
            upstream: Mutex::default(),
        }
    }

    fn keep(&self, upstream: Upstream) {
        *self.upstream.lock() = Some(upstream);
    }

    /// Answers a request to the proxy itself.
    async fn answer(&self, request: Request<Incoming>, tunnel: &Mutex<Option<Tunnel>>) -> Response<ProxyBody> {
        let answered = if request.method() == Method::CONNECT {
            self.open_tunnel(request, tunnel).await
        } else {
            self.forward_plain(request).await
        };
        answered.unwrap_or_else(|refusal| self.refuse(refusal))
    }

    /// Answers a request within TLS.
    async fn answer_within(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        let answered = self.forward_within(request).await;
        answered.unwrap_or_else(|refusal| self.refuse(refusal))
    }

    fn refuse(&self, refusal: Refusal) -> Response<ProxyBody> {
        self.context.counters.count_refusal();
        refusal.into_response()
    }

    fn check(&self, target: &Target, scheme: Scheme) -> Result<(), Refusal> {
        let checked = self.context.policy.check(target, scheme);
        checked.map_err(|why| Refusal::new(StatusCode::FORBIDDEN, why))
    }

    async fn open_tunnel(
        &self,
        mut request: Request<Incoming>,
        tunnel: &Mutex<Option<Tunnel>>,
    ) -> Result<Response<ProxyBody>, Refusal> {
        let authority = request.uri().authority().map(http::uri::Authority::as_str);
        let target = authority.and_then(|authority| Target::parse(authority, Scheme::Https));
        let target = target.ok_or_else(|| Refusal::invalid("CONNECT needs a host and a port"))?;
        check_host_header(request.headers(), &target, Scheme::Https, HostHeader::Optional)?;
        self.check(&target, Scheme::Https)?;
        let stream = dial(&self.context, &target).await?;
        let end = if self.context.policy.intercepts(&target) {
            let stream = begin_tls(&self.context, &target, stream).await?;
            TunnelEnd::Intercepted(Box::new(stream))
        } else {
            TunnelEnd::Opaque(stream)
        };
        *tunnel.lock() = Some(Tunnel {
            target,
            end,
            upgrade: hyper::upgrade::on(&mut request),
        });
        Ok(answer(String::new()))
    }

    async fn forward_plain(&self, request: Request<Incoming>) -> Result<Response<ProxyBody>, Refusal> {
        let uri = request.uri();
        if uri.scheme_str() != Some("http") {
            let text = "this is the proxy of a sandbox: it takes CONNECT, and requests for http:// addresses";
            return Err(Refusal::invalid(text));
        }
        let authority = uri.authority().map(http::uri::Authority::as_str);
        let target = authority.and_then(|authority| Target::parse(authority, Scheme::Http));
        let target = target.ok_or_else(|| Refusal::invalid("the address has no host name"))?;
        check_host_header(request.headers(), &target, Scheme::Http, HostHeader::Optional)?;
        self.check(&target, Scheme::Http)?;
        self.forward(request, &target, Scheme::Http).await
    }

    async fn forward_within(&self, request: Request<Incoming>) -> Result<Response<ProxyBody>, Refusal> {
        let Some(target) = self.origin.as_ref() else {
            return Err(Refusal::invalid("this connection has no host"));
        };
        // TRACE would show what the proxy added.
        if request.method() == Method::CONNECT || request.method() == Method::TRACE {
            let text = "CONNECT and TRACE are not forwarded";
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        if let Some(authority) = request.uri().authority()
            && Target::parse(authority.as_str(), Scheme::Https).as_ref() != Some(target)
        {
            return Err(misdirected());
        }
        check_host_header(request.headers(), target, Scheme::Https, HostHeader::Required)?;
        self.forward(request, target, Scheme::Https).await
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        target: &Target,
        scheme: Scheme,
    ) -> Result<Response<ProxyBody>, Refusal> {
        let (mut parts, body) = request.into_parts();
        check_framing(&parts)?;
        remove_connection_headers(&mut parts.headers);
        parts.extensions.clear();
        parts.version = Version::HTTP_11;
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        let host = HeaderValue::try_from(target.authority(scheme));
        let host = host.map_err(|_| Refusal::invalid("the host name is not one"))?;
        parts.headers.insert(header::HOST, host);
        self.context.policy.apply(target, scheme, &mut parts);
        let mut upstream = self.upstream(target, scheme).await?;
        let sent = upstream.sender.send_request(Request::from_parts(parts, body)).await;
        // The answer is still to be read from it.
        self.keep(upstream);
        let response = sent.map_err(|_| {
            let text = format!("{target} gave no valid answer");
            Refusal::new(StatusCode::BAD_GATEWAY, text)
        })?;
        let (mut parts, body) = response.into_parts();
        remove_connection_headers(&mut parts.headers);
        parts.extensions.clear();
        parts.version = Version::HTTP_11;
        Ok(Response::from_parts(parts, Either::Right(body)))
    }

    /// The connection of the request before, if it leads to the same host; else a new one.
    async fn upstream(&self, target: &Target, scheme: Scheme) -> Result<Upstream, Refusal> {
        let known = self.upstream.lock().take();
        if let Some(mut known) = known.filter(|known| known.target == *target && known.scheme == scheme)
            && known.sender.ready().await.is_ok()
        {
            return Ok(known);
        }
        let stream = dial(&self.context, target).await?;
        match scheme {
            Scheme::Http => Upstream::open(target, scheme, stream).await,
            Scheme::Https => {
                let stream = begin_tls(&self.context, target, stream).await?;
                Upstream::open(target, scheme, stream).await
            }
        }
    }
}

fn misdirected() -> Refusal {
    let text = "the host of the request is not the host of the connection";
    Refusal::new(StatusCode::MISDIRECTED_REQUEST, text)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostHeader {
    Optional,
    Required,
}

/// There is one host for everyone who reads the request.
fn check_host_header(
    headers: &HeaderMap,
    target: &Target,
    scheme: Scheme,
    presence: HostHeader,
) -> Result<(), Refusal> {
    let mut sent = headers.get_all(header::HOST).iter();
    let Some(host) = sent.next() else {
        return match presence {
            HostHeader::Optional => Ok(()),
            HostHeader::Required => Err(Refusal::invalid("the request has no Host header")),
        };
    };
    if sent.next().is_some() {
        return Err(Refusal::invalid("the request has several Host headers"));
    }
    let named = host.to_str().ok().and_then(|host| Target::parse(host, scheme));
    if named.as_ref() == Some(target) {
        Ok(())
    } else {
        Err(misdirected())
    }
}

/// A length in two ways could be read in two ways.
fn check_framing(request: &Parts) -> Result<(), Refusal> {
    let has = |name: HeaderName| request.headers.contains_key(name);
    let lengths = request.headers.get_all(header::CONTENT_LENGTH).iter().count();
    if lengths > 1 || (lengths == 1 && has(header::TRANSFER_ENCODING)) {
        return Err(Refusal::invalid("the request states its length twice"));
    }
    Ok(())
}

/// Removes headers that belong to one connection, and those that `Connection` declares to.
fn remove_connection_headers(headers: &mut HeaderMap) {
    let declared: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse::<HeaderName>().ok())
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    let reserved: Vec<HeaderName> = headers.keys().filter(|name| is_reserved(name)).cloned().collect();
    for name in declared.into_iter().chain(reserved) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_host() {
        let target = Target::parse("api.example.com", Scheme::Https).unwrap();
        for (hosts, is_fine) in [
            (vec!["api.example.com"], true),
            (vec!["API.example.com:443"], true),
            (vec!["evil.example.com"], false),
            (vec!["api.example.com:80"], false),
            (vec!["api.example.com", "evil.example.com"], false),
            (vec!["evil@api.example.com"], false),
            (vec![], false),
        ] {
            let mut headers = HeaderMap::new();
            for host in &hosts {
                headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
            }
            let checked = check_host_header(&headers, &target, Scheme::Https, HostHeader::Required);
            assert_eq!(checked.is_ok(), is_fine, "{hosts:?}");
        }
    }

    #[test]
    fn headers_of_a_connection_go_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-secret, host"),
            ("x-secret", "1"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic eA=="),
            ("host", "api.example.com"),
            ("content-length", "1"),
            ("accept", "*/*"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        remove_connection_headers(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "content-length", "host"]);
    }

    #[tokio::test]
    async fn a_tunnel_is_for_tls() {
        let target = Target::parse("api.example.com", Scheme::Https).unwrap();
        for sent in [&b"SSH-2.0-x\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", b""] {
            let mut sent = sent;
            assert!(read_hello(&mut sent, &target).await.is_err());
        }
    }
}
