//! Who calls: the address a request comes from, and whether it came over TLS, also through proxies.
//!
//! What a header says of that is anybody's to write. It counts only where the connection itself comes from a proxy that
//! the operator named, and only as far back as the proxies before it are named too.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use ipnet::IpNet;

const FORWARDED: &str = "forwarded";
const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// The other side of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Where it is, as far as that is known.
    pub address: Option<IpAddr>,
    /// Whether it speaks TLS, with us or with a proxy that may say so.
    pub secure: bool,
    /// Whether a proxy that the operator named hands its requests on.
    pub is_proxied: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.extensions))
    }
}

impl Client {
    /// That of a request that came through [`serve`](crate::serve).
    pub(crate) fn of(extensions: &http::Extensions) -> Self {
        extensions.get().copied().unwrap_or_default()
    }
}

/// Whose an address is: with IPv6 whoever has one has the 2^64 of its network.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let bits = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        address => address,
    }
}

/// Proxies whose word about their clients counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies(Arc<[IpNet]>);

impl Proxies {
    /// Reads an address or a network, such as `10.0.0.0/8`.
    #[must_use]
    pub fn parse(text: &str) -> Option<IpNet> {
        let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
        text.parse().ok().or_else(address)
    }

    /// Those at these addresses.
    #[must_use]
    pub fn new(at: impl IntoIterator<Item = IpNet>) -> Self {
        Self(at.into_iter().collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them is at `address`.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Whose request it is that came from `peer`.
    pub(crate) fn client(&self, peer: SocketAddr, tls: bool, headers: &HeaderMap) -> Client {
        let sender = peer.ip().to_canonical();
        if !self.contains(sender) {
            return Client {
                address: Some(sender),
                secure: tls,
                is_proxied: false,
            };
        }
        let (older, newer) = (x_forwarded(headers), forwarded(headers));
        let walked = |hops: Option<Vec<Option<IpAddr>>>| hops.map(|hops| self.walk_back(sender, &hops));
        // A proxy writes one kind of header and may hand on what its client wrote into the other. Which one is not known,
        // so the two count only where they agree.
        let address = match (walked(older.hops), walked(newer.hops)) {
            (Some(one), Some(other)) if one != other => sender,
            (Some(found), _) | (None, Some(found)) => found,
            (None, None) => sender,
        };
        let secure = match (older.is_secure, newer.is_secure) {
            (Some(one), Some(other)) if one != other => tls,
            (Some(secure), _) | (None, Some(secure)) => secure,
            (None, None) => tls,
        };
        Client {
            address: Some(address),
            secure,
            is_proxied: true,
        }
    }

    /// The first address that is no proxy, from the proxy at `address` on. The nearest proxy wrote the last hop, and its
    /// client may have sent the others.
    fn walk_back(&self, mut address: IpAddr, hops: &[Option<IpAddr>]) -> IpAddr {
        for hop in hops.iter().rev() {
            if !self.contains(address) {
                break;
            }
            match hop {
                Some(hop) => address = hop.to_canonical(),
                None => break,
            }
        }
        address
    }
}

/// What one kind of header says; `None` where it says nothing.
struct ForwardedInfo {
    /// The address of each hop, the client's first; `None` for a hidden one.
    hops: Option<Vec<Option<IpAddr>>>,
    /// Whether the nearest proxy was asked over TLS.
    is_secure: Option<bool>,
}

fn x_forwarded(headers: &HeaderMap) -> ForwardedInfo {
    let hops = || items(headers, FORWARDED_FOR).map(|item| node(&item)).collect();
    let scheme = items(headers, FORWARDED_PROTO).last();
    ForwardedInfo {
        hops: headers.contains_key(FORWARDED_FOR).then(hops),
        is_secure: scheme.map(|scheme| scheme.eq_ignore_ascii_case("https")),
    }
}

/// RFC 7239.
fn forwarded(headers: &HeaderMap) -> ForwardedInfo {
    let (mut hops, mut names_hops, mut is_secure) = (Vec::new(), false, None);
    for item in items(headers, FORWARDED) {
        let of = |wanted: &str| {
            let mut pairs = item.split(';').filter_map(|pair| pair.trim().split_once('='));
            let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim_matches('"').to_owned())
        };
        let hop = of("for");
        names_hops |= hop.is_some();
        hops.push(hop.and_then(|hop| node(&hop)));
        is_secure = of("proto")
            .map(|scheme| scheme.eq_ignore_ascii_case("https"))
            .or(is_secure);
    }
    ForwardedInfo {
        hops: names_hops.then_some(hops),
        is_secure,
    }
}

/// The parts of a list, over all lines of its header.
fn items<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = String> + use<'h> {
    let lines = headers.get_all(name).iter();
    let texts = lines.map(|line| line.to_str().unwrap_or_default());
    texts
        .flat_map(|line| line.split(','))
        .map(|item| item.trim().to_owned())
}

/// An address with or without a port; `None` for what hides one.
fn node(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip());
    }
    text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn client(peer: &str, headers: &[(&'static str, &'static str)]) -> (String, bool) {
        let proxies = Proxies::new(["10.0.0.0/8", "fd00::1"].map(|text| Proxies::parse(text).unwrap()));
        let mut map = HeaderMap::new();
        for &(name, value) in headers {
            map.append(name, HeaderValue::from_static(value));
        }
        let client = proxies.client(peer.parse().unwrap(), false, &map);
        (client.address.unwrap().to_string(), client.secure)
    }

    #[test]
    fn a_stranger_says_nothing_of_itself() {
        let told = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.1.1.1;proto=https"),
        ];
        assert_eq!(client("9.9.9.9:1", &told), ("9.9.9.9".to_owned(), false));
    }

    #[test]
    fn a_proxy_says_who_its_client_is() {
        for (peer, headers, address, secure) in [
            (
                "10.0.0.1:1",
                &[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "https")][..],
                "1.1.1.1",
                true,
            ),
            // What its client wrote there before does not count.
            (
                "10.0.0.1:1",
                &[("x-forwarded-for", "6.6.6.6, 1.1.1.1")][..],
                "1.1.1.1",
                false,
            ),
            (
                "10.0.0.1:1",
                &[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "1.1.1.1, 10.2.0.1")][..],
                "1.1.1.1",
                false,
            ),
            (
                "[::ffff:10.0.0.1]:1",
                &[("x-forwarded-for", "[2001:db8::1]:4711")][..],
                "2001:db8::1",
                false,
            ),
            (
                "[fd00::1]:1",
                &[("forwarded", "for=\"[2001:db8::1]:4711\";proto=HTTPS;by=10.0.0.1")][..],
                "2001:db8::1",
                true,
            ),
            ("10.0.0.1:1", &[("x-forwarded-for", "unknown")][..], "10.0.0.1", false),
            ("10.0.0.1:1", &[][..], "10.0.0.1", false),
        ] {
            assert_eq!(
                client(peer, headers),
                (address.to_owned(), secure),
                "{peer} {headers:?}"
            );
        }
    }

    #[test]
    fn of_two_kinds_of_headers_neither_counts_where_they_differ() {
        let (older, proto) = (("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "https"));
        for (headers, address, secure) in [
            (
                &[older, proto, ("forwarded", "for=1.1.1.1;proto=https")][..],
                "1.1.1.1",
                true,
            ),
            // One proxy more in one of them is the same client.
            (
                &[older, ("forwarded", "for=1.1.1.1, for=10.2.0.1")][..],
                "1.1.1.1",
                false,
            ),
            // Written by a client, and handed on by a proxy that knows the other kind.
            (&[older, ("forwarded", "for=6.6.6.6")][..], "10.0.0.1", false),
            (&[older, ("forwarded", "for=unknown")][..], "10.0.0.1", false),
            (&[older, proto, ("forwarded", "proto=http")][..], "1.1.1.1", false),
            (&[older, ("forwarded", "proto=https")][..], "1.1.1.1", true),
        ] {
            assert_eq!(
                client("10.0.0.1:1", headers),
                (address.to_owned(), secure),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn addresses_and_networks_are_proxies() {
        for text in ["10.0.0.1", "10.0.0.0/8", "fd00::/8", "::1"] {
            assert!(Proxies::parse(text).is_some(), "{text}");
        }
        for text in ["", "proxy.example", "10.0.0.0/33", "10.0.0.1:80"] {
            assert!(Proxies::parse(text).is_none(), "{text}");
        }
    }
}
