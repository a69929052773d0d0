//! The certificate of the listeners, reloaded when its files change.

mod validity;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use towpath_api::serve::Tls;
use towpath_domain::{Clock, Timestamp};
use zeroize::Zeroizing;

use crate::config::{Config, Mode, TlsFiles};

const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Certificates that expire within this time are reported.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 86_400);
/// Interval between such reports.
const REMIND_EVERY: Duration = Duration::from_secs(86_400);

pub struct Identity {
    /// The certificate with its chain, and its key.
    pub key: CertifiedKey,
    pub ends: Option<Timestamp>,
}

pub fn read(files: &TlsFiles) -> anyhow::Result<Identity> {
    let cert = files.cert.display();
    let key_file = files.key.display();
    let bytes = std::fs::read(&files.cert).with_context(|| format!("tls.cert {cert}"))?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .with_context(|| format!("tls.cert {cert}: not in PEM"))?;
    let Some(ends) = chain.first().map(|first| validity::not_after(first)) else {
        bail!("tls.cert {cert}: it contains no certificate in PEM");
    };
    let bytes = Zeroizing::new(std::fs::read(&files.key).with_context(|| format!("tls.key {key_file}"))?);
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        anyhow!("tls.key {key_file}: it contains no private key in PEM; a key with a passphrase is not supported")
    })?;
    let provider = rustls::crypto::ring::default_provider();
    let key = CertifiedKey::from_der(chain, key, &provider).map_err(|why| match why {
        rustls::Error::InconsistentKeys(_) => anyhow!("tls.key {key_file}: it does not belong to tls.cert {cert}"),
        why => anyhow!("tls.cert {cert}, tls.key {key_file}: not usable: {why}"),
    })?;
    Ok(Identity { key, ends })
}

/// The certificate of a process, reloaded until this is dropped.
pub struct Certificate {
    tls: Tls,
    watching: JoinHandle<()>,
}

impl Drop for Certificate {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Certificate {
    /// Reads the certificate if TLS is configured.
    pub fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(files) = config.settings.tls.clone() else {
            return Ok(None);
        };
        let seen = FileStamps::of_files(&files);
        let identity = read(&files)?;
        let tls = Tls::new(identity.key).context("TLS")?;
        // A closing terminal sends SIGHUP to `towpath dev`, which must end then.
        let hangups = (config.mode != Mode::Dev)
            .then(|| signal(SignalKind::hangup()))
            .transpose()?;
        let watch = CertificateWatcher {
            files,
            tls: tls.clone(),
            seen,
            ends: identity.ends,
            reminded: None,
        };
        Ok(Some(Self {
            tls,
            watching: tokio::spawn(watch.run(hangups)),
        }))
    }

    /// The TLS configuration of listeners.
    pub fn tls(&self) -> Tls {
        self.tls.clone()
    }
}

struct CertificateWatcher {
    files: TlsFiles,
    tls: Tls,
    seen: FileStamps,
    ends: Option<Timestamp>,
    reminded: Option<Instant>,
}

impl CertificateWatcher {
    async fn run(mut self, mut hangups: Option<Signal>) {
        let mut timer = tokio::time::interval(POLL_INTERVAL);
        loop {
            let asked = tokio::select! {
                _ = timer.tick() => false,
                () = next(&mut hangups) => true,
            };
            self.reload_if_changed(asked);
            self.remind();
        }
    }

    fn reload_if_changed(&mut self, asked: bool) {
        // Taken before the read, so that the next poll finds concurrent changes.
        let now = FileStamps::of_files(&self.files);
        if now == self.seen && !asked {
            return;
        }
        self.seen = now;
        match fresh(&self.files) {
            Ok(identity) => {
                self.tls.replace(identity.key);
                self.ends = identity.ends;
                self.reminded = None;
                tracing::info!(ends = identity.ends.map(shown), "the certificate is reloaded");
            }
            Err(why) => tracing::error!("{why:#}; the old certificate stays in use"),
        }
    }

    fn remind(&mut self) {
        if self.reminded.is_some_and(|last| last.elapsed() < REMIND_EVERY) {
            return;
        }
        let Some(ends) = self.ends else { return };
        let left = ends.since(Clock::system().now());
        if left < EXPIRY_WARNING {
            self.reminded = Some(Instant::now());
            let ends = shown(ends);
            if left.is_zero() {
                tracing::error!(
                    ends,
                    "THE CERTIFICATE OF tls.cert HAS EXPIRED: clients refuse to connect"
                );
            } else {
                tracing::warn!(ends, "the certificate of tls.cert expires soon");
            }
        }
    }
}

async fn next(hangups: &mut Option<Signal>) {
    match hangups {
        Some(hangups) => {
            hangups.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Reads a new certificate; an expired one is refused.
fn fresh(files: &TlsFiles) -> anyhow::Result<Identity> {
    let identity = read(files)?;
    let now = Clock::system().now();
    if let Some(ends) = identity.ends.filter(|ends| *ends <= now) {
        bail!("tls.cert {}: it expired at {}", files.cert.display(), shown(ends));
    }
    Ok(identity)
}

/// A time for people.
pub fn shown(time: Timestamp) -> String {
    time.to_utc().format("%Y-%m-%d %H:%M UTC").to_string()
}

/// Detects that a file was replaced.
#[derive(Debug, PartialEq, Eq)]
struct FileStamps([Option<(i64, i64, u64, u64)>; 2]);

impl FileStamps {
    fn of_files(files: &TlsFiles) -> Self {
        let look = |path: &Path| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.mtime(), about.mtime_nsec(), about.size(), about.ino()))
        };
        Self([look(&files.cert), look(&files.key)])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn files(cert: &str, key: &str) -> TlsFiles {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testing/certificates");
        TlsFiles {
            cert: folder.join(cert),
            key: folder.join(key),
        }
    }

    #[test]
    fn a_certificate_and_its_key_are_read() {
        let identity = read(&files("first.pem", "first.key.pem")).unwrap();
        assert_eq!(identity.ends.map(shown).as_deref(), Some("2120-01-01 00:00 UTC"));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (cert, key, expected) in [
            ("none.pem", "first.key.pem", "tls.cert"),
            ("first.key.pem", "first.key.pem", "it contains no certificate"),
            ("first.pem", "first.pem", "it contains no private key"),
            ("first.pem", "second.key.pem", "it does not belong to tls.cert"),
        ] {
            let why = match read(&files(cert, key)) {
                Ok(_) => panic!("{cert} with {key} was read"),
                Err(why) => format!("{why:#}"),
            };
            assert!(why.contains(expected), "{cert} with {key}: {why}");
        }
    }
}
