//! The lifecycle of an agent server from the caller's side, for all backends: a task holds the process or container and
//! reports here.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::health::{self, StartupSignal};

/// The state of an agent server, and the way to stop it. Dropped, it is stopped.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    stop: CancellationToken,
    loaded: CancellationToken,
    listens: CancellationToken,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<String>>,
}

/// The other side: commands for the task that holds it, and its reports.
#[derive(Debug)]
pub(crate) struct LifecycleReporter {
    /// Cancelled when it is to stop.
    pub(crate) stop: CancellationToken,
    loaded: CancellationToken,
    listens: CancellationToken,
    ended: watch::Sender<Option<String>>,
}

impl Lifecycle {
    /// Both sides of one that begins.
    pub(crate) fn start() -> (Self, LifecycleReporter) {
        let (stop, loaded) = (CancellationToken::new(), CancellationToken::new());
        let listens = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        let holder = LifecycleReporter {
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

    /// Whether a standby is still running. Checked before the current one is stopped.
    pub(crate) fn check_standby(&self) -> Result<()> {
        match self.ended.borrow().as_ref() {
            Some(how) => Err(Error::Refused(format!("the agent server {how} while on standby"))),
            None => Ok(()),
        }
    }

    /// Waits until it stands by.
    pub(crate) async fn wait_loaded(&self, limit: Duration, cancel: &CancellationToken) -> Result<()> {
        health::wait_signal(StartupSignal::Loaded, &self.loaded, self.ended.clone(), limit, cancel).await
    }

    /// Waits until it has its port, of one that was asked to say so.
    pub(crate) async fn wait_listening(&self, limit: Duration, cancel: &CancellationToken) -> Result<()> {
        health::wait_signal(
            StartupSignal::Listening,
            &self.listens,
            self.ended.clone(),
            limit,
            cancel,
        )
        .await
    }

    /// Waits until it answers that it is healthy; where it does.
    pub(crate) async fn wait_healthy(
        &self,
        place: health::HealthTarget<'_>,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<SocketAddr> {
        health::wait(place, self.ended.clone(), limit, cancel).await
    }

    /// Says how it ended, once it has.
    pub(crate) fn subscribe_end(&self) -> watch::Receiver<Option<String>> {
        self.ended.clone()
    }

    /// Whether it runs and was not asked to stop.
    pub(crate) fn is_running(&self) -> bool {
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

impl Drop for Lifecycle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl LifecycleReporter {
    /// Listens to its output, including what it reports about itself.
    pub(crate) fn listener(&self) -> impl Fn(&[u8]) + Send + use<> {
        let (loaded, listens) = (self.loaded.clone(), self.listens.clone());
        move |line| match line {
            health::STANDING_BY => loaded.cancel(),
            health::LISTENING => listens.cancel(),
            _ => {}
        }
    }

    pub(crate) fn report_end(&self, how: String) {
        self.ended.send_replace(Some(how));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What answers at its port may be another server.
    #[tokio::test]
    async fn one_that_ends_without_its_port_is_not_taken_for_another() {
        let (life, holder) = Lifecycle::start();
        let never = CancellationToken::new();
        holder.listener()(health::STANDING_BY);
        life.wait_loaded(Duration::from_secs(60), &never).await.unwrap();
        holder.report_end("exited with code 1".to_owned());
        let error = life
            .wait_listening(Duration::from_secs(60), &never)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, "the agent server exited with code 1 before it listened");

        let (life, holder) = Lifecycle::start();
        holder.listener()(health::LISTENING);
        life.wait_listening(Duration::from_secs(60), &never).await.unwrap();
    }

    #[test]
    fn one_that_ended_stands_by_no_more() {
        let (life, holder) = Lifecycle::start();
        life.check_standby().unwrap();
        holder.report_end("was terminated by signal: 9".to_owned());
        let error = life.check_standby().unwrap_err().to_string();
        assert!(error.contains("signal: 9 while on standby"), "{error}");
    }
}
