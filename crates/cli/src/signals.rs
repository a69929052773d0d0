//! SIGTERM and SIGINT: the first asks to drain, the second ends the process at once. SIGXFSZ is an error like any
//! other.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, listened to from the moment this is made.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens. Until then either signal kills the process, but where it is the first one of a container: there it is
    /// ignored.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> std::io::Result<Self> {
        // Sent to whoever writes past its limit on file sizes (`ulimit -f`), and kills where nobody listens. Nobody
        // has to hear it: the write fails, too, and that is told.
        let _ = signal(SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32));
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

    /// What `work` gives, or nothing when a signal comes first: then it is dropped where it stands. For a start, before
    /// there is anything to drain. The first process of a container hears only signals that it listens to.
    pub async fn unless_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            number = self.next() => {
                tracing::info!(signal = number, "asked to stop before the start was over");
                None
            }
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

/// Has this process asked to drain when its standard input ends. The system closes that when whoever holds the other end
/// dies, however that happens.
///
/// # Errors
/// When the system gives no thread.
pub fn terminate_when_stdin_ends() -> std::io::Result<()> {
    std::thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM);
    })?;
    Ok(())
}
