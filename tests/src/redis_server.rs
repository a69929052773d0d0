//! A Redis of a test's own: it may be flushed, stopped and killed without hurting anyone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::{free_address, until};

/// A private `redis-server` on loopback, without persistence. Dropping it kills it.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    folder: PathBuf,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts one, or `None` where `redis-server` is not installed.
    pub async fn start(folder: &Path) -> Option<Self> {
        let mut server = Self {
            address: free_address(),
            folder: folder.to_owned(),
            child: None,
        };
        server.restart().await.then_some(server)
    }

    /// Starts it again on the same address, empty. False where `redis-server` is not installed.
    ///
    /// # Panics
    /// If it does not answer within ten seconds.
    pub async fn restart(&mut self) -> bool {
        let port = self.address.port().to_string();
        let log = std::fs::File::create(self.folder.join("redis.log")).expect("the world's folder is ours");
        let spawned = Command::new("redis-server")
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port,
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
            ])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let Ok(child) = spawned else { return false };
        self.child = Some(child);
        until("redis to answer", Duration::from_secs(180), async || {
            self.command("PING").await.ok()
        })
        .await;
        true
    }

    /// Its address, for `REDIS_URI` and for a proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends one inline command and gives the first line of the answer.
    pub async fn command(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut line = Vec::new();
        loop {
            let byte = stream.read_u8().await?;
            if byte == b'\n' {
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            line.push(byte);
        }
    }

    /// Loses everything, as a failover with lost writes would.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn flush(&self) {
        assert_eq!(self.command("FLUSHALL").await.expect("redis runs"), "+OK");
    }

    /// SIGSTOP: connections stay open and nothing answers, the half-open case.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Goes on after [`RedisServer::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// SIGKILL; connections are refused from here on, until [`RedisServer::restart`].
    pub async fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill().await;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().and_then(Child::id) {
            let _ = kill(Pid::from_raw(i32::try_from(pid).expect("pids are small")), signal);
        }
    }
}
