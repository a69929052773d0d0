//! Whether the traffic of clients is encrypted, and when the certificate expires.

use std::os::unix::fs::PermissionsExt as _;

use towpath_domain::{Clock, Timestamp};

use super::findings::{Findings, Verdict};
use crate::config::{Settings, TlsFiles};
use crate::serve::is_in_clear;
use crate::tls;

pub(super) fn check(settings: &Settings, findings: &mut Findings) {
    let Some(files) = &settings.tls else {
        let listen = settings.listen;
        if is_in_clear(settings, listen) {
            let text = format!(
                "keys and traces are sent to {listen} without encryption: set tls.cert and tls.key, or name the TLS \
                 proxy in http.trusted_proxies and its https address in public_url"
            );
            findings.add("tls", Verdict::Warning, text);
        } else {
            let text = "off and not needed: only this machine or a trusted proxy reaches the server";
            findings.add("tls", Verdict::Ok, text);
        }
        return;
    };
    match tls::read(files) {
        Ok(identity) => {
            let (verdict, text) = judge(identity.ends, Clock::system().now());
            findings.add("tls", verdict, text);
        }
        Err(why) => findings.add("tls", Verdict::Failed, format!("{why:#}")),
    }
    permissions(files, findings);
}

fn judge(ends: Option<Timestamp>, now: Timestamp) -> (Verdict, String) {
    let Some(ends) = ends else {
        let text = "the key matches the certificate; the expiry date of the certificate cannot be read".to_owned();
        return (Verdict::Warning, text);
    };
    let left = ends.since(now);
    let ends = tls::shown(ends);
    if left.is_zero() {
        return (Verdict::Failed, format!("the certificate expired at {ends}"));
    }
    if left < tls::EXPIRY_WARNING {
        return (Verdict::Warning, format!("the certificate expires at {ends}"));
    }
    let text = format!("the key matches the certificate, which is valid until {ends}");
    (Verdict::Ok, text)
}

fn permissions(files: &TlsFiles, findings: &mut Findings) {
    let mode = std::fs::metadata(&files.key).map(|about| about.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o007 != 0) {
        let text = format!(
            "{} is readable by all users; run chmod 640 or 600 on it",
            files.key.display()
        );
        findings.add("tls", Verdict::Warning, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_judged_by_its_end() {
        let ends: Timestamp = "2030-01-31T00:00:00Z".parse().unwrap();
        for (now, verdict) in [
            ("2030-01-01T00:00:00Z", Verdict::Ok),
            ("2030-01-20T00:00:00Z", Verdict::Warning),
            ("2030-01-31T00:00:00Z", Verdict::Failed),
            ("2031-01-01T00:00:00Z", Verdict::Failed),
        ] {
            assert_eq!(judge(Some(ends), now.parse().unwrap()).0, verdict, "{now}");
        }
        assert_eq!(judge(None, ends).0, Verdict::Warning);
    }
}
