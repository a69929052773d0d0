//! A database that is further away: a TCP proxy in front of it that delays every byte by half of the latency in each
//! direction.
//!
//! Bytes that follow one another are under way together, as on a long line: only their arrival is delayed, never their
//! rate. A thread of its own watches the time, since the timers of the runtime count whole milliseconds.

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

/// Read at once from either side.
const CHUNK_BYTES: usize = 16 * 1024;
/// Of PostgreSQL, where an address names none.
const PORT: u16 = 5432;

/// The proxy. Dropping it closes its port and every connection.
pub struct Proxy {
    uri: String,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// A proxy in front of the database at `uri`, over which a round trip takes so much longer.
    ///
    /// # Errors
    /// The address names no host, or there is no free port.
    pub async fn start(uri: &str, latency: Duration) -> anyhow::Result<Self> {
        let database = Url::parse(uri).context("the address of the database")?;
        let upstream = (host(&database)?, database.port().unwrap_or(PORT));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let uri = at(database, listener.local_addr()?)?;
        let (held, due) = mpsc::channel();
        std::thread::Builder::new()
            .name("latency".to_owned())
            .spawn(move || deliver(&due))?;
        let line = Line {
            held,
            delay: latency / 2,
        };
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, upstream, line));
        Ok(Self {
            uri,
            _accepting: accepting,
        })
    }

    /// The database's address over the proxy.
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

/// The same database at another address.
fn at(mut database: Url, address: SocketAddr) -> anyhow::Result<String> {
    database
        .set_ip_host(address.ip())
        .and_then(|()| database.set_port(Some(address.port())))
        .map_err(|()| anyhow!("the address of the database cannot be changed"))?;
    Ok(database.into())
}

/// Bytes under way.
struct Chunk {
    due: Instant,
    bytes: Bytes,
    to: UnboundedSender<Bytes>,
}

/// What a direction of a connection knows of its proxy.
#[derive(Clone)]
struct Line {
    held: mpsc::Sender<Chunk>,
    delay: Duration,
}

/// Hands each chunk over when it is due. All have the same delay, so they are due in the order in which they came. Ends
/// with the proxy and its last connection.
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
        // Its connection may be over by now.
        let _ = chunk.to.send(chunk.bytes);
    }
}

async fn accept(listener: TcpListener, upstream: (String, u16), line: Line) {
    // Owned here, so that the end of this task closes every connection.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(serve(client, upstream.clone(), line.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(client: TcpStream, upstream: (String, u16), line: Line) {
    // Closing the connection tells the client all there is to say about an error.
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    // Otherwise the kernel would add a delay of its own.
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        pass(from_client, to_server, line.clone()),
        pass(from_server, to_client, line)
    );
}

/// One direction. Reading does not wait for writing, so that what is under way is not bounded.
async fn pass(mut from: OwnedReadHalf, mut into: OwnedWriteHalf, line: Line) {
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
            if line.held.send(chunk).is_err() {
                break;
            }
        }
    };
    let writing = async move {
        // Over once nothing is read any more and everything that was is written.
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
    /// So many would take more than six seconds if each waited for the one before it.
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
