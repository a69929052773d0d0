//! Saving while the graph continues.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, watch};

use crate::{GraphError, Host, HostError, Save};

/// A run does not get further ahead of its store than this.
const AHEAD: usize = 64;

/// Takes what is to be saved, in order.
pub(super) struct Saver {
    queue: mpsc::Sender<Save>,
    sent: AtomicU64,
    done: watch::Receiver<u64>,
}

pub(super) struct SaveLoop {
    queue: mpsc::Receiver<Save>,
    done: watch::Sender<u64>,
}

/// Both ends.
pub(super) fn saver_and_loop() -> (Saver, SaveLoop) {
    let (queue, receiver) = mpsc::channel(AHEAD);
    let (sender, done) = watch::channel(0);
    let saver = Saver {
        queue,
        sent: AtomicU64::new(0),
        done,
    };
    let drain = SaveLoop {
        queue: receiver,
        done: sender,
    };
    (saver, drain)
}

impl Saver {
    /// Adds something to save. Waits when too much waits already.
    pub(super) async fn push(&self, save: Save) -> Result<(), GraphError> {
        self.queue.send(save).await.map_err(|_| saving_stopped())?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until everything added so far is durable.
    pub(super) async fn wait_saved(&self) -> Result<(), GraphError> {
        let sent = self.sent.load(Ordering::Relaxed);
        let mut done = self.done.clone();
        done.wait_for(|done| *done >= sent)
            .await
            .map(drop)
            .map_err(|_| saving_stopped())
    }
}

/// The drain stopped at an error, which is the one that counts.
fn saving_stopped() -> GraphError {
    HostError::Lost("saving stopped".to_owned()).into()
}

impl SaveLoop {
    /// Saves whatever has accumulated, until the sender is dropped.
    pub(super) async fn run(mut self, host: &dyn Host) -> Result<(), HostError> {
        let mut batch = Vec::new();
        while self.queue.recv_many(&mut batch, AHEAD).await > 0 {
            let count = batch.len() as u64;
            host.save_all(std::mem::take(&mut batch)).await?;
            self.done.send_modify(|done| *done += count);
        }
        Ok(())
    }
}
