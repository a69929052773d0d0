//! Whose requests are counted together.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use towpath_domain::{DeploymentId, TenantId};
use towpath_store::access::KeyHash;

/// Of a user's id no more is shown.
const SHOWN: usize = 64;

#[derive(Clone)]
pub(crate) enum LimitIdentity {
    /// A key that opens something.
    Key(KeyHash),
    /// A user at an address.
    User {
        id: Vec<u8>,
        address: Option<IpAddr>,
    },
    /// An address, or a network of IPv6.
    Address(Option<IpAddr>),
    Workspace(TenantId),
    Deployment(DeploymentId),
}

impl LimitIdentity {
    /// What stands for it among windows.
    pub(crate) fn digest(&self) -> [u8; 16] {
        match self {
            Self::Key(hash) => first(hash.bytes()),
            Self::User { id, address } => {
                let digest = Sha256::new().chain_update(id).chain_update([0_u8]);
                first(digest.chain_update(octets(*address)).finalize().into())
            }
            Self::Address(address) => octets(*address),
            Self::Workspace(id) => id.0.into_bytes(),
            Self::Deployment(id) => id.0.into_bytes(),
        }
    }
}

/// For people: never a secret.
impl fmt::Display for LimitIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(hash) => write!(f, "key {}", hex::encode(&hash.bytes()[..6])),
            Self::User { id, address } => {
                let id = String::from_utf8_lossy(id);
                let id: String = id.chars().take(SHOWN).collect();
                write!(f, "user {id} at {}", text(*address))
            }
            Self::Address(address) => write!(f, "address {}", text(*address)),
            Self::Workspace(id) => write!(f, "workspace {id}"),
            Self::Deployment(id) => write!(f, "deployment {id}"),
        }
    }
}

fn first(digest: [u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

fn octets(address: Option<IpAddr>) -> [u8; 16] {
    match address {
        Some(IpAddr::V4(address)) => address.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(address)) => address.octets(),
        None => [0; 16],
    }
}

fn text(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_in_each_of_their_parts_and_show_no_secret() {
        let at = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let user = |id: &str, address| LimitIdentity::User {
            id: id.as_bytes().to_vec(),
            address,
        };
        let all = [
            LimitIdentity::Key(KeyHash::of(b"one")),
            LimitIdentity::Key(KeyHash::of(b"two")),
            user("a", at("1.1.1.1")),
            user("a", at("1.1.1.2")),
            user("b", at("1.1.1.1")),
            user("", at("1.1.1.1")),
            LimitIdentity::Address(at("1.1.1.1")),
            LimitIdentity::Address(at("2001:db8::")),
            LimitIdentity::Address(None),
        ];
        let digests: std::collections::HashSet<[u8; 16]> = all.iter().map(LimitIdentity::digest).collect();
        assert_eq!(digests.len(), all.len());
        assert_eq!(all[0].to_string(), "key 7692c3ad3540");
        assert_eq!(all[2].to_string(), "user a at 1.1.1.1");
        assert_eq!(all[8].to_string(), "address an unknown address");
    }
}
