//! A TCP proxy that simulates a more distant database: it delays every byte by half of the latency in each direction.
//!
//! Only the arrival of bytes is delayed, not their rate, as on a long line. A separate thread keeps the time, because
//! the timers of the runtime count whole milliseconds.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use url::{Host, Url};

const CHUNK_BYTES: usize = 16 * 1024;
/// Default port of PostgreSQL.
const PORT: u16 = 5432;

/// Dropping it closes its port and every connection.
pub struct Proxy {
    uri: String,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy for the database at `uri` that adds `latency` to each round trip.
    pub async fn start(uri: &str, latency: Duration) -> anyhow::Result<Self> {
        let database = Url::parse(uri).context("the address of the database")?;
        let upstream = (host(&database)?, database.port().unwrap_or(PORT));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let uri = at(database, listener.local_addr()?)?;
        let (held, due) = mpsc::channel();
        std::thread::Builder::new()
            .name("latency".to_owned())
            .spawn(move || deliver(&due))?;
        let line = ProxyDirection {
            delayed: held,
            delay: latency / 2,
        };
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, upstream, line));
        Ok(Self {
            uri,
            _accepting: accepting,
        })
    }

    /// The address of the database through the proxy.
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

fn host(database: &Url) -> anyhow::Result<String> {
    match database.host() {
        Some(Host::Domain("")) | None => Err(anyhow!("--latency needs a database address with a host")),
        Some(Host::Domain(name)) => Ok(name.to_owned()),
        Some(Host::Ipv4(ip)) => Ok(ip.to_string()),
        Some(Host::Ipv6(ip)) => Ok(ip.to_string()),
    }
}

/// `database` with another address.
fn at(mut database: Url, address: SocketAddr) -> anyhow::Result<String> {
    database
        .set_ip_host(address.ip())
        .and_then(|()| database.set_port(Some(address.port())))
        .map_err(|()| anyhow!("the address of the database cannot be changed"))?;
    Ok(database.into())
}

/// Bytes in transit.
struct Chunk {
    due: Instant,
    bytes: Bytes,
    to: UnboundedSender<Bytes>,
}

/// Shared state of the directions of a connection.
#[derive(Clone)]
struct ProxyDirection {
    delayed: mpsc::Sender<Chunk>,
    delay: Duration,
}

/// Delivers each chunk when it is due. All have the same delay, so they are due in order of arrival. Ends with the
/// proxy and its last connection.
fn deliver(chunks: &mpsc::Receiver<Chunk>) {
    for chunk in chunks {
        loop {
            let left = chunk.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // It may return early.
            std::thread::park_timeout(left);
        }
        // Its connection may have ended.
        let _ = chunk.to.send(chunk.bytes);
    }
}

async fn accept(listener: TcpListener, upstream: (String, u16), line: ProxyDirection) {
    // Owned by this task, so that its end closes every connection.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(serve(client, upstream.clone(), line.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(client: TcpStream, upstream: (String, u16), line: ProxyDirection) {
    // Closing the connection is enough to report the error to the client.
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    // Otherwise the kernel would add a delay.
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        forward(from_client, to_server, line.clone()),
        forward(from_server, to_client, line)
    );
}

/// Forwards one direction. Reading does not wait for writing, so the data in transit is unbounded.
async fn forward(mut from: OwnedReadHalf, mut into: OwnedWriteHalf, line: ProxyDirection) {
    let (to, mut due) = unbounded_channel();
    let reading = async move {
        loop {
            let mut bytes = BytesMut::with_capacity(CHUNK_BYTES);
            let Ok(1..) = from.read_buf(&mut bytes).await else {
                break;
            };
            let chunk = Chunk {
                due: Instant::now() + line.delay,
                bytes: bytes.freeze(),
                to: to.clone(),
            };
            if line.delayed.send(chunk).is_err() {
                break;
            }
        }
    };
    let writing = async move {
        // Ends when reading has ended and everything is written.
        while let Some(bytes) = due.recv().await {
            if into.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = into.shutdown().await;
    };
    tokio::join!(reading, writing);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Duration = Duration::from_millis(200);
    /// Would take more than six seconds if each chunk waited for the previous one.
    const CHUNKS: usize = 64;

    #[tokio::test]
    async fn bytes_arrive_late_and_together() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("postgres://user:secret@{}/name?a=b", echo.local_addr().unwrap());
        let proxy = Proxy::start(&uri, LATENCY).await.unwrap();
        let echoing = async {
            let (mut peer, _) = echo.accept().await.unwrap();
            let (mut from, mut to) = peer.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        };
        let asking = async {
            let address = Url::parse(proxy.uri()).unwrap();
            assert_eq!(
                (address.username(), address.path(), address.query()),
                ("user", "/name", Some("a=b"))
            );
            let (mut from, mut to) = TcpStream::connect((host(&address).unwrap(), address.port().unwrap()))
                .await
                .unwrap()
                .into_split();
            let began = Instant::now();
            to.write_all(b"a").await.unwrap();
            assert_eq!(from.read_u8().await.unwrap(), b'a');
            assert!(began.elapsed() >= LATENCY);

            let sent: Vec<u8> = (0..CHUNKS * CHUNK_BYTES).map(|at| (at / 1000) as u8).collect();
            let began = Instant::now();
            let mut received = Vec::new();
            let writing = async {
                to.write_all(&sent).await.unwrap();
                to.shutdown().await.unwrap();
            };
            let ((), read) = tokio::join!(writing, from.read_to_end(&mut received));
            read.unwrap();
            assert!(received == sent, "other bytes came back");
            assert!(began.elapsed() < LATENCY * 20, "{:?}", began.elapsed());
        };
        tokio::join!(echoing, asking);
    }

    #[tokio::test]
    async fn an_address_without_a_host_is_refused() {
        assert!(Proxy::start("postgres:///name", LATENCY).await.is_err());
    }
}
