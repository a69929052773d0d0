//! A TCP proxy that harms on demand: in front of Redis, PostgreSQL or an object store it shows what a network can do to
//! the caller that talks to them.
//!
//! The mode may change at any moment and holds for connections old and new. A mode that loses bytes spoils a connection
//! for good, as in life: what comes after a hole in a byte stream means nothing.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Read at once from either side.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks under way in one direction; a longer [`Mode::Delay`] of more data than this pushes back on the sender.
const CHUNKS_HELD: usize = 256;
/// Between two pieces of [`Mode::Slice`], so that the receiver's kernel does not join them again.
const SLICE_PAUSE: Duration = Duration::from_millis(1);
/// Pieces of a second in which [`Mode::Throttle`] lets bytes through.
const THROTTLE_STEPS: u64 = 50;

/// What the proxy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bytes pass.
    Pass,
    /// Every byte arrives this much later, in both directions.
    Delay(Duration),
    /// Bytes are held, and pass in order when the mode changes: a peer that is stopped, or a network that pauses.
    Stall,
    /// Connections stay open and new ones are accepted, but bytes vanish, and so does the news that a side hung up.
    HalfOpen(Direction),
    /// New connections are closed at once. Old ones pass.
    Drop,
    /// Connections, old and new, are reset (RST).
    ResetAll,
    /// At most so many bytes per second and direction.
    Throttle(u64),
    /// At most so many bytes at a time: finds the caller that takes one read for one message.
    Slice(usize),
}

/// A direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What the client sends.
    ToUpstream,
    /// What the upstream answers.
    ToClient,
    /// Either.
    Both,
}

/// As a program is told: `pass`, `delay 250` (milliseconds), `stall`, `half-open both|up|down`, `drop`, `reset`,
/// `throttle 20000` (bytes a second), `slice 97` (bytes).
impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let number = || {
            rest.parse::<u64>()
                .map_err(|_| format!("{word} takes a number, not {rest:?}"))
        };
        Ok(match word {
            "pass" => Self::Pass,
            "delay" => Self::Delay(Duration::from_millis(number()?)),
            "stall" => Self::Stall,
            "half-open" => Self::HalfOpen(match rest {
                "both" | "" => Direction::Both,
                "up" => Direction::ToUpstream,
                "down" => Direction::ToClient,
                _ => return Err(format!("half-open takes both, up or down, not {rest:?}")),
            }),
            "drop" => Self::Drop,
            "reset" => Self::ResetAll,
            "throttle" => Self::Throttle(number()?),
            "slice" => Self::Slice(usize::try_from(number()?).unwrap_or(usize::MAX)),
            _ => return Err(format!("{word:?} is no mode")),
        })
    }
}

impl Mode {
    fn swallows(self, way: Direction) -> bool {
        matches!(self, Self::HalfOpen(lost) if lost == Direction::Both || lost == way)
    }
}

/// A proxy on a loopback port of its own. Dropping it closes its port and every connection.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
    harmed: Arc<AtomicUsize>,
    open: Arc<()>,
    /// Aborted on drop.
    _accepting: JoinSet<()>,
}

impl FaultProxy {
    /// A proxy in front of `upstream`, in [`Mode::Pass`]. The upstream need not be there yet.
    ///
    /// # Panics
    /// If the machine has no free loopback port.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("loopback has a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let (mode, watching) = watch::channel(Mode::Pass);
        let (accepted, harmed, open) = (Arc::default(), Arc::default(), Arc::new(()));
        let mut accepting = JoinSet::new();
        let line = ConnectionContext {
            mode: watching,
            harmed: Arc::clone(&harmed),
        };
        accepting.spawn(accept(listener, upstream, line, Arc::clone(&accepted), open.clone()));
        Self {
            addr,
            mode,
            accepted,
            harmed,
            open,
            _accepting: accepting,
        }
    }

    /// Where clients are to connect instead of to the upstream.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the mode, for connections old and new.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Connections accepted since the start, in whatever mode; tells a reconnect storm.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How often a mode did harm: to bytes that came, or to a connection. A test that sees none has tested nothing.
    #[must_use]
    pub fn harmed(&self) -> usize {
        self.harmed.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        // The proxy and the task that accepts hold one each.
        Arc::strong_count(&self.open) - 2
    }
}

/// What a connection knows of its proxy.
#[derive(Clone)]
struct ConnectionContext {
    mode: watch::Receiver<Mode>,
    harmed: Arc<AtomicUsize>,
}

impl ConnectionContext {
    fn harm(&self) {
        self.harmed.fetch_add(1, Ordering::SeqCst);
    }
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    line: ConnectionContext,
    accepted: Arc<AtomicUsize>,
    open: Arc<()>,
) {
    // Owned here, so that the end of this task closes every connection.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::SeqCst);
        let (line, open) = (line.clone(), open.clone());
        connections.spawn(async move {
            // An error is the end of a connection, which is all there is to say about it.
            let _ = serve(client, upstream, line).await;
            drop(open);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, mut line: ConnectionContext) -> io::Result<()> {
    let at_start = *line.mode.borrow_and_update();
    if matches!(at_start, Mode::Drop | Mode::ResetAll) || at_start.swallows(Direction::Both) {
        line.harm();
    }
    match at_start {
        Mode::Drop => return Ok(()),
        Mode::ResetAll => return client.set_zero_linger(),
        _ => {}
    }
    client.set_nodelay(true)?;
    let was_reset = if at_start.swallows(Direction::Both) {
        // The kernel of a machine that no one can reach any more accepted; the upstream never hears of it.
        let (from_client, _to_client) = client.split();
        tokio::select! {
            () = swallow(from_client) => false,
            () = reset(&mut line) => true,
        }
    } else {
        let mut server = TcpStream::connect(upstream).await?;
        server.set_nodelay(true)?;
        let was_reset = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let up = pump(from_client, to_server, Direction::ToUpstream, line.clone());
            let down = pump(from_server, to_client, Direction::ToClient, line.clone());
            tokio::select! {
                _ = async { tokio::try_join!(up, down) } => false,
                () = reset(&mut line) => true,
            }
        };
        if was_reset {
            server.set_zero_linger()?;
        }
        was_reset
    };
    // Closing a socket without lingering sends RST instead of FIN.
    if was_reset { client.set_zero_linger() } else { Ok(()) }
}

/// Returns when connections are to be reset.
async fn reset(line: &mut ConnectionContext) {
    if line.mode.wait_for(|mode| *mode == Mode::ResetAll).await.is_err() {
        std::future::pending::<()>().await;
    }
    line.harm();
}

/// One direction, to its end. Taking and giving are apart, so that a delay adds to the time of each chunk and not to
/// the time between them.
async fn pump(from: ReadHalf<'_>, mut to: WriteHalf<'_>, way: Direction, line: ConnectionContext) -> io::Result<()> {
    let (held, mut due) = mpsc::channel(CHUNKS_HELD);
    let taking = take(from, held, way, line.clone());
    let giving = async {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            give(&mut to, bytes, way, line.clone()).await?;
        }
        // The sender hung up, and everything it said has been passed on.
        to.shutdown().await
    };
    tokio::try_join!(taking, giving).map(|_| ())
}

async fn take(
    mut from: ReadHalf<'_>,
    held: mpsc::Sender<(Instant, Vec<u8>)>,
    way: Direction,
    line: ConnectionContext,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut chunk).await;
        let now = *line.mode.borrow();
        if now.swallows(way) {
            line.harm();
            swallow(from).await;
            return Ok(());
        }
        let length = read?;
        if length == 0 {
            return Ok(());
        }
        let delay = if let Mode::Delay(delay) = now {
            line.harm();
            delay
        } else {
            Duration::ZERO
        };
        if held
            .send((Instant::now() + delay, chunk[..length].to_vec()))
            .await
            .is_err()
        {
            return Ok(());
        }
    }
}

async fn give(to: &mut WriteHalf<'_>, bytes: Vec<u8>, way: Direction, mut line: ConnectionContext) -> io::Result<()> {
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let now = *line.mode.borrow_and_update();
        if matches!(now, Mode::Stall | Mode::Throttle(_) | Mode::Slice(_)) || now.swallows(way) {
            line.harm();
        }
        let (length, pause) = match now {
            Mode::Stall => {
                if line.mode.changed().await.is_err() {
                    return Ok(());
                }
                continue;
            }
            // Bytes that were under way when the line broke. Never to return is what spoils the connection.
            now if now.swallows(way) => std::future::pending().await,
            Mode::Throttle(rate) => {
                let rate = rate.max(1);
                let piece = (rate / THROTTLE_STEPS).clamp(1, rest.len() as u64);
                (
                    usize::try_from(piece).unwrap_or(rest.len()),
                    Duration::from_micros(piece * 1_000_000 / rate),
                )
            }
            Mode::Slice(length) => (length.clamp(1, rest.len()), SLICE_PAUSE),
            _ => (rest.len(), Duration::ZERO),
        };
        let (piece, later) = rest.split_at(length);
        to.write_all(piece).await?;
        rest = later;
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    Ok(())
}

/// Reads and forgets, also the end: no one hears of it.
async fn swallow(mut from: ReadHalf<'_>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while matches!(from.read(&mut chunk).await, Ok(1..)) {}
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An upstream that says everything back.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        addr
    }

    async fn said_back(stream: &mut TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(text).await?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).await?;
        Ok(back)
    }

    /// Whether nothing comes back for a while. Nothing can be waited for here but time.
    async fn silent(stream: &mut TcpStream) -> bool {
        let answer = said_back(stream, b"anybody?");
        tokio::time::timeout(Duration::from_millis(100), answer).await.is_err()
    }

    #[tokio::test]
    async fn bytes_pass_whole_in_every_mode_that_only_slows() {
        let proxy = FaultProxy::start(echo().await).await;
        let text: Vec<u8> = (0..2_000_u32).map(|n| n as u8).collect();
        let delay = Duration::from_millis(30);
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        for mode in [Mode::Pass, Mode::Delay(delay), Mode::Throttle(20_000), Mode::Slice(97)] {
            proxy.set(mode);
            let start = Instant::now();
            assert_eq!(said_back(&mut stream, &text).await.unwrap(), text, "{mode:?}");
            match mode {
                Mode::Delay(_) => assert!(start.elapsed() >= 2 * delay),
                Mode::Throttle(rate) => assert!(start.elapsed().as_secs_f64() >= 0.8 * 2_000.0 / rate as f64),
                _ => {}
            }
        }
        assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
        assert!(proxy.harmed() > 20, "slices are counted: {}", proxy.harmed());
    }

    #[test]
    fn modes_are_read_as_a_program_is_told() {
        for (text, mode) in [
            ("pass", Mode::Pass),
            ("delay 250", Mode::Delay(Duration::from_millis(250))),
            ("half-open down", Mode::HalfOpen(Direction::ToClient)),
            ("half-open", Mode::HalfOpen(Direction::Both)),
            ("reset", Mode::ResetAll),
            ("slice 97", Mode::Slice(97)),
        ] {
            assert_eq!(text.parse(), Ok(mode));
        }
        for text in ["", "delay", "delay soon", "half-open left", "burn"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_stall_holds_bytes_until_it_is_over() {
        let proxy = FaultProxy::start(echo().await).await;
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        said_back(&mut stream, b"hello").await.unwrap();
        proxy.set(Mode::Stall);
        assert!(silent(&mut stream).await);
        proxy.set(Mode::Pass);
        let mut back = [0; 8];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"anybody?");
    }

    #[tokio::test]
    async fn a_half_open_connection_stays_dead_and_a_new_one_lives() {
        for way in [Direction::Both, Direction::ToUpstream, Direction::ToClient] {
            let proxy = FaultProxy::start(echo().await).await;
            let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
            said_back(&mut old, b"hello").await.unwrap();
            proxy.set(Mode::HalfOpen(way));
            assert!(silent(&mut old).await, "{way:?}");
            let mut during = TcpStream::connect(proxy.addr()).await.expect("a dead peer accepts");
            assert!(silent(&mut during).await, "{way:?}");
            proxy.set(Mode::Pass);
            assert!(silent(&mut old).await, "{way:?}");
            assert!(silent(&mut during).await, "{way:?}");
            let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
            assert_eq!(said_back(&mut new, b"hello").await.unwrap(), b"hello");
        }
    }

    #[tokio::test]
    async fn half_open_hides_that_the_upstream_hung_up() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy = FaultProxy::start(listener.local_addr().unwrap()).await;
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        let (upstream, _) = listener.accept().await.unwrap();
        proxy.set(Mode::HalfOpen(Direction::Both));
        drop(upstream);
        assert!(silent(&mut client).await);
    }

    #[tokio::test]
    async fn new_connections_are_dropped_and_old_ones_pass() {
        let proxy = FaultProxy::start(echo().await).await;
        let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
        said_back(&mut old, b"hello").await.unwrap();
        proxy.set(Mode::Drop);
        let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
        assert!(said_back(&mut new, b"hello").await.is_err());
        assert_eq!(said_back(&mut old, b"hello").await.unwrap(), b"hello");
    }

    #[tokio::test]
    async fn a_reset_is_a_reset() {
        let proxy = FaultProxy::start(echo().await).await;
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        said_back(&mut stream, b"hello").await.unwrap();
        proxy.set(Mode::ResetAll);
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        proxy.set(Mode::Pass);
        let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(said_back(&mut new, b"hello").await.unwrap(), b"hello");
    }

    #[tokio::test]
    async fn an_end_is_passed_on_after_the_last_byte() {
        let proxy = FaultProxy::start(echo().await).await;
        proxy.set(Mode::Delay(Duration::from_millis(20)));
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.unwrap();
        assert_eq!(back, b"hello");
    }
}
