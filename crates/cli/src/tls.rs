//! The certificate that listeners show: read from files, and again when they change.

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

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(5);
/// A certificate that ends within this is worth a word …
pub const SOON: Duration = Duration::from_secs(14 * 86_400);
/// … and another one after this.
const REMIND_EVERY: Duration = Duration::from_secs(86_400);

/// What the files hold.
pub struct Identity {
    /// The certificate with its chain, and its key.
    pub key: CertifiedKey,
    /// When the certificate ends.
    pub ends: Option<Timestamp>,
}

/// Reads a certificate and its key.
///
/// # Errors
/// A file cannot be read, holds something else, or the two do not belong together. No error shows what the key's file holds.
pub fn read(files: &TlsFiles) -> anyhow::Result<Identity> {
    let cert = files.cert.display();
    let key_file = files.key.display();
    let bytes = std::fs::read(&files.cert).with_context(|| format!("tls.cert {cert}"))?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .with_context(|| format!("tls.cert {cert}: it is not in PEM"))?;
    let Some(ends) = chain.first().map(|first| validity::not_after(first)) else {
        bail!("tls.cert {cert}: it holds no certificate in PEM");
    };
    let bytes = Zeroizing::new(std::fs::read(&files.key).with_context(|| format!("tls.key {key_file}"))?);
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        anyhow!("tls.key {key_file}: it holds no private key in PEM; one with a passphrase cannot be used")
    })?;
    let provider = rustls::crypto::ring::default_provider();
    let key = CertifiedKey::from_der(chain, key, &provider).map_err(|why| match why {
        rustls::Error::InconsistentKeys(_) => anyhow!("tls.key {key_file}: it is not the key of tls.cert {cert}"),
        why => anyhow!("tls.cert {cert}, tls.key {key_file}: they cannot be used: {why}"),
    })?;
    Ok(Identity { key, ends })
}

/// The certificate of a process, kept up to date until this is dropped.
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
    /// Reads it, where TLS is to be spoken.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(files) = config.settings.tls.clone() else {
            return Ok(None);
        };
        let seen = Seen::look(&files);
        let identity = read(&files)?;
        let tls = Tls::new(identity.key).context("TLS")?;
        // A terminal that closes sends it to `towpath dev`, which has to end then.
        let hangups = (config.mode != Mode::Dev)
            .then(|| signal(SignalKind::hangup()))
            .transpose()?;
        let watch = Watch {
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

    /// What listeners speak with it.
    pub fn tls(&self) -> Tls {
        self.tls.clone()
    }
}

struct Watch {
    files: TlsFiles,
    tls: Tls,
    seen: Seen,
    ends: Option<Timestamp>,
    reminded: Option<Instant>,
}

impl Watch {
    async fn run(mut self, mut hangups: Option<Signal>) {
        let mut timer = tokio::time::interval(EVERY);
        loop {
            let asked = tokio::select! {
                _ = timer.tick() => false,
                () = next(&mut hangups) => true,
            };
            self.look(asked);
            self.remind();
        }
    }

    fn look(&mut self, asked: bool) {
        // Before the files are read: what changes meanwhile is found the next time.
        let now = Seen::look(&self.files);
        if now == self.seen && !asked {
            return;
        }
        self.seen = now;
        match fresh(&self.files) {
            Ok(identity) => {
                self.tls.replace(identity.key);
                self.ends = identity.ends;
                self.reminded = None;
                tracing::info!(ends = identity.ends.map(shown), "the certificate was read again");
            }
            Err(why) => tracing::error!("{why:#}; the certificate that was there stays"),
        }
    }

    fn remind(&mut self) {
        if self.reminded.is_some_and(|last| last.elapsed() < REMIND_EVERY) {
            return;
        }
        let Some(ends) = self.ends else { return };
        let left = ends.since(Clock::system().now());
        if left < SOON {
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

/// Reads what is to replace another certificate.
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

/// What tells a file from the one before it.
#[derive(Debug, PartialEq, Eq)]
struct Seen([Option<(i64, i64, u64, u64)>; 2]);

impl Seen {
    fn look(files: &TlsFiles) -> Self {
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
            ("first.key.pem", "first.key.pem", "it holds no certificate"),
            ("first.pem", "first.pem", "it holds no private key"),
            ("first.pem", "second.key.pem", "it is not the key of tls.cert"),
        ] {
            let why = match read(&files(cert, key)) {
                Ok(_) => panic!("{cert} with {key} was read"),
                Err(why) => format!("{why:#}"),
            };
            assert!(why.contains(expected), "{cert} with {key}: {why}");
        }
    }
}
