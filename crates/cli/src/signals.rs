//! SIGTERM and SIGINT: the first one starts the drain, the second one ends the process at once. SIGXFSZ is ignored, so
//! that its write fails with an error.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens to both signals from its creation.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to listen. Before that, either signal kills the process, except the first process of a container, which
    /// ignores them.
    pub fn listen() -> std::io::Result<Self> {
        // Sent to a process that writes beyond its file size limit (`ulimit -f`); the default action kills it.
        // Listening is enough: the write fails as well, and that error is reported.
        let _ = signal(SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal and returns its number.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }

    /// The result of `work`, or `None` if a signal comes first; `work` is then dropped. Used during the start, before
    /// there is anything to drain: the first process of a container only receives signals that it listens to.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            number = self.next() => {
                tracing::info!(signal = number, "stopped during the start");
                None
            }
        }
    }

    /// From now on, a further signal ends the process at once, with the exit code that a shell expects. Running jobs
    /// are recovered when their lease expires, so nothing acknowledged is lost.
    pub fn end_at_next(mut self) {
        tokio::spawn(async move {
            let number = self.next().await;
            eprintln!("a second signal: ending without waiting for running jobs");
            std::process::exit(128 + number);
        });
    }
}

/// Drains this process when its standard input ends. The system closes it when the parent process dies for any reason.
pub fn terminate_when_stdin_ends() -> std::io::Result<()> {
    std::thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM);
    })?;
    Ok(())
}
