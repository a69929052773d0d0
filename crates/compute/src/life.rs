//! The life of an agent server as whoever started it sees it, whatever it runs in: a task of its own holds the process or
//! the container, and tells here.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Result;
use crate::health::{self, Said};

/// How an agent server stands, and how to stop it. Dropped, it is stopped.
#[derive(Debug)]
pub(crate) struct Life {
    stop: CancellationToken,
    loaded: CancellationToken,
    listens: CancellationToken,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<String>>,
}

/// The other side: what the task that holds it is told, and tells.
#[derive(Debug)]
pub(crate) struct Holder {
    /// Cancelled when it is to stop.
    pub(crate) stop: CancellationToken,
    loaded: CancellationToken,
    listens: CancellationToken,
    ended: watch::Sender<Option<String>>,
}

impl Life {
    /// Both sides of one that begins.
    pub(crate) fn begin() -> (Self, Holder) {
        let (stop, loaded) = (CancellationToken::new(), CancellationToken::new());
        let listens = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        let holder = Holder {
            stop: stop.clone(),
            loaded: loaded.clone(),
            listens: listens.clone(),
            ended: tell,
        };
        let life = Self {
            stop,
            loaded,
            listens,
            ended,
        };
        (life, holder)
    }

    /// Waits until it stands by.
    pub(crate) async fn loaded(&self, limit: Duration, cancel: &CancellationToken) -> Result<()> {
        health::said(Said::Loaded, &self.loaded, self.ended.clone(), limit, cancel).await
    }

    /// Waits until it has its port, of one that was asked to say so.
    pub(crate) async fn listens(&self, limit: Duration, cancel: &CancellationToken) -> Result<()> {
        health::said(Said::Listens, &self.listens, self.ended.clone(), limit, cancel).await
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
    /// What hears its lines, and among them what it says about itself.
    pub(crate) fn listener(&self) -> impl Fn(&[u8]) + Send + use<> {
        let (loaded, listens) = (self.loaded.clone(), self.listens.clone());
        move |line| match line {
            health::STANDING_BY => loaded.cancel(),
            health::LISTENING => listens.cancel(),
            _ => {}
        }
    }

    /// It has ended.
    pub(crate) fn ended(&self, how: String) {
        self.ended.send_replace(Some(how));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What answers at its port may be another server.
    #[tokio::test]
    async fn one_that_ends_without_its_port_is_not_taken_for_another() {
        let (life, holder) = Life::begin();
        let never = CancellationToken::new();
        holder.listener()(health::STANDING_BY);
        life.loaded(Duration::from_secs(60), &never).await.unwrap();
        holder.ended("ended with exit code 1".to_owned());
        let error = life
            .listens(Duration::from_secs(60), &never)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, "the agent server ended with exit code 1 before it listened");

        let (life, holder) = Life::begin();
        holder.listener()(health::LISTENING);
        life.listens(Duration::from_secs(60), &never).await.unwrap();
    }
}
