//! A TCP proxy that does harm on demand, put between the product and Redis, PostgreSQL or an object store.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// What the proxy does to bytes, on connections old and new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: bytes pass.
    None,
    /// Every chunk comes this much later, in both directions.
    Delay(Duration),
    /// Connections stay open and new ones are accepted, but no byte passes: what a peer sees when the other machine
    /// lost its power. Bytes that were held pass when the fault is over.
    HalfOpen,
    /// Open connections are closed and new ones are closed at once.
    Reset,
}

/// A proxy in front of one address. Dropping it closes every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    accepted: Arc<AtomicUsize>,
    accepting: AbortHandle,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target`.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (fault, watching) = watch::channel(Fault::None);
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&accepted);
        let accepting = tokio::spawn(async move {
            // Owned here, so that aborting this task closes every connection.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                connections.spawn(serve(client, target, watching.clone()));
                while connections.try_join_next().is_some() {}
            }
        })
        .abort_handle();
        Self {
            address,
            fault,
            accepted,
            accepting,
        }
    }

    /// Where to connect instead of the target.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a fault, or ends it with [`Fault::None`].
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Connections accepted since the start; tells a reconnect storm.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(client: TcpStream, target: SocketAddr, mut fault: watch::Receiver<Fault>) {
    if *fault.borrow() == Fault::Reset {
        return;
    }
    // A half-open peer accepts (its kernel does) and says nothing: the target is not even asked.
    if fault.wait_for(|fault| *fault != Fault::HalfOpen).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut reset = fault.clone();
    tokio::select! {
        () = copy(from_client, to_server, fault.clone()) => {}
        () = copy(from_server, to_client, fault) => {}
        _ = reset.wait_for(|fault| *fault == Fault::Reset) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut fault: watch::Receiver<Fault>) {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut chunk).await else {
            return;
        };
        let now = *fault.borrow();
        if let Fault::Delay(delay) = now {
            tokio::time::sleep(delay).await;
        }
        if fault.wait_for(|fault| *fault != Fault::HalfOpen).await.is_err() {
            return;
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}
