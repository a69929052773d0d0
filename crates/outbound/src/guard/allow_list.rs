//! What an operator lists as callable.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

use super::{Kind, host_name, same};

/// An entry of `outbound.allow`: a host, an address, a network, or a port.
///
/// ```text
/// minio.internal   minio.internal:9000   10.0.0.7   10.0.0.0/8   10.0.0.0/8:9000   [fd00::/8]:9000   :9000
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowEntry {
    target: Target,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// Any address except link-local, metadata and special ones, since a port alone is unspecific.
    Any,
    Host(String),
    Address(IpAddr),
    Network(IpNet),
}

/// A text that is not an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host, an address, a network (10.0.0.0/8) or a port (:9000)")]
pub struct ParseAllowed(String);

impl AllowEntry {
    /// Whether the entry can allow a call to this machine.
    #[must_use]
    pub fn reaches_loopback(&self) -> bool {
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        match &self.target {
            // The operator's DNS says where a name leads.
            Target::Any | Target::Host(_) => true,
            Target::Address(listed) => listed.is_loopback(),
            Target::Network(listed) => loopback.iter().any(|ip| listed.contains(ip)),
        }
    }

    /// Whether the entry allows a call to `ip`, an address of `host`, at `port`.
    pub(super) fn covers(&self, host: &str, ip: IpAddr, port: u16, kind: Kind) -> bool {
        if self.port.is_some_and(|listed| listed != port) {
            return false;
        }
        match &self.target {
            Target::Any => matches!(kind, Kind::Public | Kind::Private | Kind::Loopback),
            // A name may point wherever the operator's DNS says, but never to a metadata service.
            Target::Host(listed) => *listed == host_name(host) && kind != Kind::Metadata,
            Target::Address(listed) => same(*listed, ip),
            Target::Network(listed) => listed.contains(&ip),
        }
    }
}

impl FromStr for AllowEntry {
    type Err = ParseAllowed;

    fn from_str(text: &str) -> Result<Self, ParseAllowed> {
        let malformed = || ParseAllowed(text.to_owned());
        let text = text.trim();
        if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
            return Ok(Self {
                target: Target::Any,
                port: Some(port),
            });
        }
        let (target, port) = match text.rsplit_once(':') {
            // A bare IPv6 address or network has colons of its own.
            Some((host, port)) if host.ends_with(']') || !host.contains(':') => {
                (host, Some(port.parse().map_err(|_| malformed())?))
            }
            _ => (text, None),
        };
        let target = target.trim_matches(['[', ']']);
        let target = if let Ok(network) = target.parse::<IpNet>() {
            Target::Network(network)
        } else if let Ok(address) = target.parse::<IpAddr>() {
            Target::Address(address)
        } else {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            if target.is_empty() || !target.chars().all(fits) {
                return Err(malformed());
            }
            Target::Host(host_name(target))
        };
        Ok(Self { target, port })
    }
}

impl fmt::Display for AllowEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Any => {}
            Target::Host(host) => f.write_str(host)?,
            Target::Address(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
            Target::Address(ip) => write!(f, "{ip}")?,
            Target::Network(IpNet::V6(net)) => write!(f, "[{net}]")?,
            Target::Network(net) => write!(f, "{net}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}
