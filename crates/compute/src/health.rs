//! Waiting until a new agent server says that it is healthy.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::OFlag;
use tokio::fs::OpenOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// The line that a standby agent server prints once its graphs are loaded.
pub(crate) const STANDING_BY: &[u8] = b"towpath: standing by";
/// What it says once it listens, where it was asked to.
pub(crate) const LISTENING: &[u8] = b"towpath: listening";
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Time limit to become healthy on the deployment's database while another revision could serve: its graphs are loaded,
/// and it was healthy on an empty one.
const SWITCH: Duration = Duration::from_secs(30);
/// What one question may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// More is not an address.
const LONGEST_ADDRESS: u64 = 64;

/// Where an agent server is to be asked.
pub(crate) enum HealthTarget<'a> {
    /// There.
    Address(SocketAddr),
    /// Where this file says, once it is there.
    File(&'a Path),
}

impl HealthTarget<'_> {
    async fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::File(path) => written(path).await.ok()?.trim().parse().ok(),
        }
    }
}

/// The address that an agent server reports. The content is untrusted.
async fn written(path: &Path) -> std::io::Result<String> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
        .await?;
    let mut text = String::new();
    file.take(LONGEST_ADDRESS).read_to_string(&mut text).await?;
    Ok(text)
}

/// Asks `/ok` until it answers 200. Returns the address.
pub(crate) async fn wait(
    place: HealthTarget<'_>,
    mut ended: watch::Receiver<Option<String>>,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<SocketAddr> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(how) = ended.borrow_and_update().clone() {
            return Err(Error::Refused(format!("the agent server {how} before it was healthy")));
        }
        if let Some(address) = place.address().await
            && timeout(ASK_LIMIT, request_health(address))
                .await
                .is_ok_and(|healthy| healthy.unwrap_or(false))
        {
            return Ok(address);
        }
        tokio::select! {
            () = cancel.cancelled() => return Err(Error::Cancelled),
            () = tokio::time::sleep_until(deadline) => {
                return Err(Error::TimedOut(format!(
                    "the agent server did not answer /ok within {} s",
                    limit.as_secs()
                )));
            }
            _ = ended.changed() => {}
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
    }
}

/// What an agent server says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartupSignal {
    /// It stands by.
    Loaded,
    /// It has its port.
    Listening,
}

/// Waits until an agent server has said it.
pub(crate) async fn wait_signal(
    what: StartupSignal,
    heard: &CancellationToken,
    mut ended: watch::Receiver<Option<String>>,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<()> {
    let (done, missing) = match what {
        StartupSignal::Loaded => ("had loaded its graphs", "load its graphs"),
        StartupSignal::Listening => ("listened", "listen"),
    };
    tokio::select! {
        () = heard.cancelled() => Ok(()),
        () = cancel.cancelled() => Err(Error::Cancelled),
        how = ended.wait_for(Option::is_some) => {
            let how = how.ok().and_then(|how| how.clone()).unwrap_or_default();
            Err(Error::Refused(format!("the agent server {how} before it {done}")))
        }
        () = tokio::time::sleep(limit) => Err(Error::TimedOut(format!(
            "the agent server did not {missing} within {} s",
            limit.as_secs()
        ))),
    }
}

/// Time limit for a new agent server to become healthy. If nothing served before, there is nothing to return to.
pub(crate) fn switch_limit(replaces: bool, health: Duration) -> Duration {
    if replaces { SWITCH.min(health) } else { health }
}

/// Whether the agent server at this address answers `/ok` in time.
pub(crate) async fn answers(address: &str) -> bool {
    let Ok(address) = address.parse::<SocketAddr>() else {
        return false;
    };
    let asked = timeout(ASK_LIMIT, request_health(address)).await;
    asked.is_ok_and(|healthy| healthy.unwrap_or(false))
}

/// Whether an agent server reports that it is healthy. It uses plain HTTP.
async fn request_health(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /ok HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_replaces_another_gets_less_time() {
        let health = Duration::from_secs(300);
        assert_eq!(switch_limit(true, health), SWITCH);
        assert_eq!(switch_limit(false, health), health);
        assert_eq!(switch_limit(true, Duration::from_secs(5)), Duration::from_secs(5));
    }
}
