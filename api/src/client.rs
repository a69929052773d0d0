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
        let mut address = peer.ip().to_canonical();
        if !self.contains(address) {
            return Client {
                address: Some(address),
                secure: tls,
                is_proxied: false,
            };
        }
        let (hops, scheme) = forwarded_hops(headers);
        // The nearest proxy wrote the last of them, and its client may have sent the others.
        for hop in hops.iter().rev() {
            if !self.contains(address) {
                break;
            }
            match hop {
                Some(hop) => address = hop.to_canonical(),
                None => break,
            }
        }
        let secure = scheme.map_or(tls, |scheme| scheme.eq_ignore_ascii_case("https"));
        Client {
            address: Some(address),
            secure,
            is_proxied: true,
        }
    }
}

/// What proxies say: the addresses of each hop, the client's first, and the scheme the nearest was asked by. Of both
/// forms of such headers the older counts, which more proxies overwrite.
fn forwarded_hops(headers: &HeaderMap) -> (Vec<Option<IpAddr>>, Option<String>) {
    let mut scheme = items(headers, FORWARDED_PROTO).last();
    if headers.contains_key(FORWARDED_FOR) || !headers.contains_key(FORWARDED) {
        let hops = items(headers, FORWARDED_FOR).map(|item| node(&item)).collect();
        return (hops, scheme);
    }
    let mut hops = Vec::new();
    for item in items(headers, FORWARDED) {
        let of = |wanted: &str| {
            let mut pairs = item.split(';').filter_map(|pair| pair.trim().split_once('='));
            let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim_matches('"').to_owned())
        };
        hops.push(of("for").and_then(|hop| node(&hop)));
        if !headers.contains_key(FORWARDED_PROTO) {
            scheme = of("proto").or(scheme);
        }
    }
    (hops, scheme)
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
    fn addresses_and_networks_are_proxies() {
        for text in ["10.0.0.1", "10.0.0.0/8", "fd00::/8", "::1"] {
            assert!(Proxies::parse(text).is_some(), "{text}");
        }
        for text in ["", "proxy.example", "10.0.0.0/33", "10.0.0.1:80"] {
            assert!(Proxies::parse(text).is_none(), "{text}");
        }
    }
}
