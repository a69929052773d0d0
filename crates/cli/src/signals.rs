//! SIGTERM and SIGINT: the first asks to drain, the second ends the process at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, listened to from the moment this is made.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens. Until then either signal kills the process, which is right while there is nothing to drain.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for one of them and gives its number.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }

    /// From now on a further signal ends the process at once, as a shell expects it to be reported. What was
    /// running is found by the lease; nothing acknowledged is lost, it only takes longer.
    pub fn end_at_next(mut self) {
        tokio::spawn(async move {
            let number = self.next().await;
            eprintln!("a second signal: ending without waiting for running jobs");
            std::process::exit(128 + number);
        });
    }
}
