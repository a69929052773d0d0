//! The life of an agent server as whoever started it sees it, whatever it runs in: a task of its own holds the process or
//! the container, and tells here.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Result;
use crate::health;

/// How an agent server stands, and how to stop it. Dropped, it is stopped.
#[derive(Debug)]
pub(crate) struct Life {
    stop: CancellationToken,
    loaded: CancellationToken,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<String>>,
}

/// The other side: what the task that holds it is told, and tells.
#[derive(Debug)]
pub(crate) struct Holder {
    /// Cancelled when it is to stop.
    pub(crate) stop: CancellationToken,
    loaded: CancellationToken,
    ended: watch::Sender<Option<String>>,
}

impl Life {
    /// Both sides of one that begins.
    pub(crate) fn begin() -> (Self, Holder) {
        let (stop, loaded) = (CancellationToken::new(), CancellationToken::new());
        let (tell, ended) = watch::channel(None);
        let holder = Holder {
            stop: stop.clone(),
            loaded: loaded.clone(),
            ended: tell,
        };
        (Self { stop, loaded, ended }, holder)
    }

    /// Waits until it stands by.
    pub(crate) async fn loaded(&self, limit: Duration, cancel: &CancellationToken) -> Result<()> {
        health::loaded(&self.loaded, self.ended.clone(), limit, cancel).await
    }

    /// Waits until it answers that it is healthy; where it does.
    pub(crate) async fn healthy(
        &self,
        place: health::Place<'_>,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<SocketAddr> {
        health::wait(place, self.ended.clone(), limit, cancel).await
    }

    /// Says how it ended, once it has.
    pub(crate) fn ending(&self) -> watch::Receiver<Option<String>> {
        self.ended.clone()
    }

    /// Whether it runs and was not asked to stop.
    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.is_cancelled() && self.ended.borrow().is_none()
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        // An error says that its task is gone, and so is it.
        let _ = ended.wait_for(Option::is_some).await;
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Holder {
    /// What hears its lines, and that it stands by among them.
    pub(crate) fn listener(&self) -> impl Fn(&[u8]) + Send + use<> {
        let loaded = self.loaded.clone();
        move |line| {
            if line == health::STANDING_BY {
                loaded.cancel();
            }
        }
    }

    /// It has ended.
    pub(crate) fn ended(&self, how: String) {
        self.ended.send_replace(Some(how));
    }
}
