//! A connection to an agent server.
//!
//! One for each request: a kept one may end at the moment a request is sent on it, and nobody knows then whether the
//! request was read. On loopback a new one costs some ten microseconds.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{HOST, HeaderValue};
use http::{StatusCode, Uri};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::headers;
use crate::request_permits::RequestPermits;

/// A connection that is not there by now never will be.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A connection that nothing was sent on yet.
pub(crate) struct Connection {
    send: SendRequest<Body>,
    host: HeaderValue,
}

/// Connects to `host:port`.
pub(super) async fn connect(address: &str) -> io::Result<Connection> {
    let stream = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??;
    // Requests are small and somebody waits for them.
    stream.set_nodelay(true)?;
    connect_over(stream, address).await
}

/// Speaks HTTP over a connection that is there.
pub(crate) async fn connect_over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    host: &str,
) -> io::Result<Connection> {
    let (send, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the answer's body, or with the protocol it was upgraded to.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to an agent server broke off");
        }
    });
    let host = HeaderValue::from_str(host).map_err(io::Error::other)?;
    Ok(Connection { send, host })
}

impl Connection {
    /// Sends the request; its answer's head is there when this returns, its body passes on as it comes.
    pub(crate) async fn send(mut self, mut request: Request) -> hyper::Result<Response> {
        request.headers_mut().insert(HOST, self.host);
        *request.version_mut() = http::Version::HTTP_11;
        let held = RequestPermits::of(request.extensions());
        let client = headers::is_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
        // Only the path goes over the wire.
        let path = request.uri().path_and_query().cloned();
        if let Some(path) = path {
            *request.uri_mut() = Uri::from(path);
        }
        let mut response = self.send.send_request(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = client
        {
            let server = hyper::upgrade::on(&mut response);
            let places = held.detach();
            tokio::spawn(async move {
                let _places = places;
                let (client, server) = match tokio::try_join!(client, server) {
                    Ok(both) => both,
                    Err(error) => {
                        tracing::debug!(%error, "a change of protocol broke off");
                        return;
                    }
                };
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
            // Both sides have to be told of it in full, and a browser takes cookies from this answer too.
            headers::strip_origin_wide(response.headers_mut());
            return Ok(response.map(Body::new));
        }
        headers::strip_hop_by_hop(response.headers_mut());
        headers::filter_response(response.headers_mut());
        Ok(response.map(Body::new))
    }
}
