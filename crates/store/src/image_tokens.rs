//! Tokens that open the images of one deployment at the platform's own registry. They are kept nowhere: what they say
//! is signed.
//!
//! ```text
//! <workspace>.<deployment>.<push or pull>.<seconds since 1970>.<hex of HMAC-SHA256(key, all before the last dot)>
//! ```

use std::time::Duration;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use towpath_domain::{DeploymentId, Secret, TenantId, Timestamp};

use crate::sealing::Sealer;

/// The purpose of the derived key.
const PURPOSE: &str = "image registry";

/// The permission of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Reading images, and writing them.
    Push,
    /// Reading images.
    Pull,
}

impl Right {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
        }
    }

    /// Whether it includes `other`.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        self == Self::Push || self == other
    }
}

/// The content of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageToken {
    pub tenant: TenantId,
    /// Whose images.
    pub deployment: DeploymentId,
    /// The permission.
    pub right: Right,
}

impl ImageToken {
    /// Signs it, for `span` from `now` on.
    #[must_use]
    pub fn sign(self, sealer: &Sealer, now: Timestamp, span: Duration) -> Secret {
        let until = now.plus(span).micros() / 1_000_000;
        let said = format!("{}.{}.{}.{until}", self.tenant, self.deployment, self.right.as_str());
        let signature = hex::encode(mac(&sealer.derive(PURPOSE), &said).finalize().into_bytes());
        Secret::new(format!("{said}.{signature}"))
    }

    /// What a token says, if it was signed here and it has not expired.
    #[must_use]
    pub fn read(text: &str, sealer: &Sealer, now: Timestamp) -> Option<Self> {
        let (said, signature) = text.trim().rsplit_once('.')?;
        let signature = hex::decode(signature).ok()?;
        // In constant time.
        let is_of = |key: &[u8; 32]| mac(key, said).verify_slice(&signature).is_ok();
        if !sealer.derive_all(PURPOSE).iter().any(is_of) {
            return None;
        }
        let mut parts = said.split('.');
        let mut next = || parts.next();
        let (tenant, deployment) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let right = match next()? {
            "push" => Right::Push,
            "pull" => Right::Pull,
            _ => return None,
        };
        let until: i64 = next()?.parse().ok()?;
        (now.micros() / 1_000_000 < until).then_some(Self {
            tenant,
            deployment,
            right,
        })
    }
}

fn mac(key: &[u8; 32], said: &str) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as hmac::Mac>::new_from_slice(key).expect("a key of any length will do");
    mac.update(said.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealing::Keys;

    fn sealer(text: &str) -> Sealer {
        Sealer::new(Keys::parse(text).unwrap())
    }

    #[test]
    fn a_token_says_what_was_signed_for_as_long_as_it_lasts() {
        let (ours, others) = (sealer(&"a1".repeat(32)), sealer(&"b2".repeat(32)));
        let now = Timestamp::parse("2026-03-01T12:00:00Z").unwrap();
        let token = ImageToken {
            tenant: TenantId::new(),
            deployment: DeploymentId::new(),
            right: Right::Pull,
        };
        let text = token.sign(&ours, now, Duration::from_secs(60));
        let text = text.reveal();
        assert_eq!(ImageToken::read(text, &ours, now), Some(token));
        assert_eq!(ImageToken::read(text, &others, now), None);
        assert_eq!(ImageToken::read(text, &ours, now.plus(Duration::from_secs(60))), None);
        assert_eq!(ImageToken::read(&text.replace("pull", "push"), &ours, now), None);
        assert_eq!(ImageToken::read("", &ours, now), None);
        let rotated = sealer(&format!("{},{}", "b2".repeat(32), "a1".repeat(32)));
        assert_eq!(
            ImageToken::read(text, &rotated, now),
            Some(token),
            "of before a rotation"
        );
        assert!(Right::Push.includes(Right::Pull) && !Right::Pull.includes(Right::Push));
    }
}
