//! What sort of address an address is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Sorts of addresses. Only `Public` may be called by everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Somewhere on the internet.
    Public,
    /// This machine.
    Loopback,
    /// An inner network.
    Private,
    /// The same wire.
    LinkLocal,
    /// Where clouds hand out credentials.
    Metadata,
    /// Not a single host: unspecified, multicast, broadcast, documentation, tunnels, reserved.
    Special,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "public",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Metadata => "cloud metadata",
            Self::Special => "special-purpose",
        })
    }
}

/// The kind of an address. An IPv4 address embedded in an IPv6 one counts as itself.
#[must_use]
pub fn kind(ip: IpAddr) -> Kind {
    match unwrapped(ip) {
        IpAddr::V4(ip) => kind_v4(ip),
        IpAddr::V6(ip) => kind_v6(ip),
    }
}

/// The IPv4 address embedded in an IPv6 one (mapped, or for a NAT64 gateway), else the address itself.
#[must_use]
pub(super) fn unwrapped(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return v4.into();
    }
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low).into(),
        _ => ip,
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}

fn kind_v4(ip: Ipv4Addr) -> Kind {
    match ip.octets() {
        // Metadata services: AWS and most others, AWS containers, Alibaba, Azure (in a public range), Oracle.
        [169, 254, 169, 254]
        | [169, 254, 170, 2 | 23]
        | [100, 100, 100, 200]
        | [168, 63, 129, 16]
        | [192, 0, 0, 192] => Kind::Metadata,
        [127, ..] => Kind::Loopback,
        [169, 254, ..] => Kind::LinkLocal,
        // 100.64/10 is used internally by carriers and some clouds.
        [10, ..] | [192, 168, ..] | [172, 16..=31, ..] | [100, 64..=127, ..] => Kind::Private,
        [0 | 224..=255, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Kind::Special,
        _ => Kind::Public,
    }
}

fn kind_v6(ip: Ipv6Addr) -> Kind {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Kind::Loopback,
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254 | 0x23] => Kind::Metadata,
        [0xfe80..=0xfebf, ..] => Kind::LinkLocal,
        // Unique local, and the site-local ones of old.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Kind::Private,
        // Within 2000::/3, the only allocated range: protocol assignments with Teredo, 6to4, documentation. Tunnel
        // addresses embed an IPv4 address that would be called.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => Kind::Special,
        [0x2000..=0x3fff, ..] => Kind::Public,
        _ => Kind::Special,
    }
}
