//! Sessions: a key is exchanged for a sealed token with the key id and an expiry time. Tokens are not stored. A session
//! ends at its expiry, with its key, or when its holder ends it; ended sessions are stored until they would have
//! expired.
//!
//! ```text
//! tps_ base64url( sealed( key id 16 | expires at, microseconds 8 ) )
//! ```
//! The dashboard keeps it in a cookie of its own pages; programs send it as `Authorization: Bearer` and get it from
//! `platform/sign_in.rs`.

use std::collections::HashSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use towpath_domain::{KeyId, TenantId, Timestamp};
use towpath_store::access::{KeyHash, Principal};
use towpath_store::ended_sessions;
use towpath_store::sealing::{SealContext, Sealer};
use uuid::Uuid;

use crate::auth::Authenticator;
use crate::metric;

/// Lifetime of a session.
pub(crate) const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);
/// Lifetime of a sign-in link, which is printed in a terminal.
const LINK_TTL: Duration = Duration::from_secs(15 * 60);
const PREFIX: &str = "tps_";

/// Purpose of a token; a token of one purpose is not accepted for the other.
#[derive(Clone, Copy)]
enum Purpose {
    Session,
    Link,
}

impl Purpose {
    fn place(self) -> SealContext<'static> {
        SealContext {
            tenant: TenantId::nil(),
            table: "session",
            column: match self {
                Self::Session => "token",
                Self::Link => "link",
            },
            row: Uuid::nil(),
        }
    }
}

/// Whether the value of an `Authorization` header is a session token.
pub(crate) fn is_token_of(authorization: &str) -> bool {
    authorization
        .split_once(' ')
        .is_some_and(|(_, token)| token.trim().starts_with(PREFIX))
}

/// Ends the session of a token, if it has not ended.
pub(crate) async fn over(authenticator: Authenticator<'_>, token: &str) -> Result<(), towpath_store::Error> {
    let Some((_, until)) = read(authenticator.sealer, Purpose::Session, token, authenticator.clock.now()) else {
        return Ok(());
    };
    let hash = KeyHash::of(token.as_bytes());
    authenticator
        .store
        .write(async |tx| ended_sessions::insert(tx, &hash, until).await)
        .await?;
    authenticator.keys.forget_session(token);
    Ok(())
}

/// Counts an attempt to start a session.
pub(crate) fn count(granted: bool) {
    let outcome = if granted { "granted" } else { "refused" };
    metrics::counter!(metric::SIGN_INS, "outcome" => outcome).increment(1);
}

/// A token for the holder of `key`, and when it ends.
pub(crate) fn issue(authenticator: Authenticator<'_>, key: KeyId) -> (String, Timestamp) {
    let until = authenticator.clock.now().plus(SESSION_TTL);
    (write(authenticator.sealer, Purpose::Session, key, until), until)
}

/// The principal of a token, if the token and its key are valid.
pub(crate) async fn holder(
    authenticator: Authenticator<'_>,
    token: &str,
) -> Result<Option<Principal>, towpath_store::Error> {
    match read(authenticator.sealer, Purpose::Session, token, authenticator.clock.now()) {
        Some((key, _)) => {
            let Authenticator { keys, store, clock, .. } = authenticator;
            keys.holder(store, clock, token, key).await
        }
        None => Ok(None),
    }
}

/// A code for a link that signs in its first user.
pub(crate) fn link_code(authenticator: Authenticator<'_>, key: KeyId) -> String {
    let until = authenticator.clock.now().plus(LINK_TTL);
    write(authenticator.sealer, Purpose::Link, key, until)
}

/// The key of a link's code. The caller checks whether the code was used before.
pub(crate) fn linked_key(authenticator: Authenticator<'_>, code: &str) -> Option<KeyId> {
    read(authenticator.sealer, Purpose::Link, code, authenticator.clock.now()).map(|(key, _)| key)
}

/// Codes of used sign-in links.
#[derive(Default)]
pub(crate) struct UsedLinks(Mutex<HashSet<[u8; 32]>>);

impl UsedLinks {
    /// Whether this is the first use of a valid code. Codes expire after minutes and are created at start only, so the
    /// set stays small.
    pub(crate) fn first_use(&self, code: &str) -> bool {
        let mark = KeyHash::of(code.as_bytes()).bytes();
        self.0.lock().insert(mark)
    }
}

fn write(sealer: &Sealer, purpose: Purpose, key: KeyId, until: Timestamp) -> String {
    let mut plain = key.0.as_bytes().to_vec();
    plain.extend_from_slice(&until.micros().to_be_bytes());
    format!(
        "{PREFIX}{}",
        URL_SAFE_NO_PAD.encode(sealer.seal(purpose.place(), &plain))
    )
}

/// Key and expiry of a token, if it is valid.
fn read(sealer: &Sealer, purpose: Purpose, token: &str, now: Timestamp) -> Option<(KeyId, Timestamp)> {
    let sealed = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX)?).ok()?;
    let plain = sealer.open(purpose.place(), &sealed).ok()?;
    let (key, until) = plain.split_at_checked(16)?;
    let until = Timestamp::from_micros(i64::from_be_bytes(until.try_into().ok()?));
    let key = KeyId(Uuid::from_slice(key).ok()?);
    (now < until).then_some((key, until))
}

#[cfg(test)]
mod tests {
    use towpath_store::sealing::Keys;

    use super::*;

    #[test]
    fn a_token_opens_until_it_ends_and_only_as_what_it_is() {
        let sealer = Sealer::new(Keys::parse(&"01".repeat(32)).unwrap());
        let (key, now) = (KeyId::new(), Timestamp::from_micros(1_000_000));
        let until = now.plus(Duration::from_secs(60));
        let token = write(&sealer, Purpose::Session, key, until);
        assert_eq!(read(&sealer, Purpose::Session, &token, now), Some((key, until)));
        assert_eq!(read(&sealer, Purpose::Session, &token, until), None);
        assert_eq!(read(&sealer, Purpose::Link, &token, now), None);
        let other = Sealer::new(Keys::parse(&"02".repeat(32)).unwrap());
        assert_eq!(read(&other, Purpose::Session, &token, now), None);
        for wrong in [
            "",
            "tps_",
            "tps_AAAA",
            &token[1..],
            &token[..token.len() - 2],
            &format!("{token}A"),
        ] {
            assert_eq!(read(&sealer, Purpose::Session, wrong, now), None, "{wrong}");
        }
    }
}
