//! What a box may call, and the headers that its requests are given.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use ipnet::IpNet;
use regex::bytes::{Regex, RegexBuilder};

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
/// A longer pattern is refused.
const MAX_PATTERN_BYTES: usize = 512;
/// What a compiled pattern may take.
const MAX_REGEX_BYTES: usize = 64 << 10;
/// Headers that belong to a connection or decide where a message ends or goes.
const RESERVED_HEADERS: [&str; 17] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
];

/// What a box may call. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub access: Access,
    /// The first that matches a request gives it headers.
    pub rules: Vec<HeaderRule>,
    /// Headers of every request, whatever its destination.
    pub attribution: Vec<(HeaderName, HeaderValue)>,
}

/// Which hosts may be called. Without a port in a pattern these are port 80 for plain HTTP and port 443 for TLS.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Those of the rules, over TLS.
    #[default]
    Rules,
    /// Only these.
    Allow(Vec<HostPattern>),
    /// All but these.
    Deny(Vec<HostPattern>),
}

/// Gives headers to requests over TLS.
#[derive(Clone, Debug)]
pub struct HeaderRule {
    pub hosts: Vec<HostPattern>,
    /// 443 by default.
    pub port: Option<u16>,
    /// Any of these; every path if empty.
    pub paths: Vec<PathPattern>,
    /// All of these, with these values.
    pub match_headers: Vec<(HeaderName, HeaderValue)>,
    /// They replace headers of the same name.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// How a host is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

/// A host and a port, in one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// In lower case, without brackets and a final dot.
    pub host: String,
    pub port: u16,
    /// The host is an address.
    pub ip: Option<IpAddr>,
}

impl Target {
    /// Parses `host`, `host:port`, `[::1]` or `[::1]:port`.
    pub fn parse(authority: &str, scheme: Scheme) -> Option<Self> {
        let (host, port) = split_port(authority)?;
        let port = port.unwrap_or(scheme.port());
        let (host, ip) = host_and_address(host)?;
        (port != 0).then_some(Self { host, port, ip })
    }

    /// The value of `Host`.
    pub fn authority(&self, scheme: Scheme) -> String {
        let host = match self.ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => self.host.clone(),
        };
        if self.port == scheme.port() {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Scheme {
    const fn port(self) -> u16 {
        match self {
            Self::Http => HTTP_PORT,
            Self::Https => HTTPS_PORT,
        }
    }
}

/// The host and its port. `None` for anything else, such as a user name.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(parse_port(port)?))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match authority.split_once(':') {
        Some((host, port)) => Some((host, Some(parse_port(port)?))),
        None => Some((authority, None)),
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// The host as it is compared, and the address that it is.
fn host_and_address(host: &str) -> Option<(String, Option<IpAddr>)> {
    if let Ok(ip) = host.parse::<Ipv6Addr>() {
        return Some((ip.to_string(), Some(ip.into())));
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Some((ip.to_string(), Some(ip.into())));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !host.is_empty() && host.len() <= 253 && host.bytes().all(is_plain) && !host.contains("..");
    is_name.then_some((host, None))
}

/// Names or addresses of hosts: `example.com`, `*.example.com`, `10.0.0.7`, `10.0.0.0/8`, `~regular expression`. All
/// but the last may end with a port (`example.com:8443`).
#[derive(Clone)]
pub struct HostPattern {
    text: String,
    kind: HostKind,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum HostKind {
    Name(String),
    /// With `*` for any characters.
    Glob(String),
    Network(IpNet),
    /// Of the whole name.
    Regex(Regex),
}

impl HostPattern {
    /// Parses a pattern. The error says what is expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str =
            "expected a host, *.example.com, an address, 10.0.0.0/8, or ~ and a regular expression; :port may follow";
        if text.len() > MAX_PATTERN_BYTES {
            return Err("expected at most 512 bytes");
        }
        let of = |kind, port| Self {
            text: text.to_owned(),
            kind,
            port,
        };
        if let Some(expression) = text.strip_prefix('~') {
            let whole = RegexBuilder::new(&format!("^(?:{expression})$"))
                .unicode(false)
                .size_limit(MAX_REGEX_BYTES)
                .dfa_size_limit(MAX_REGEX_BYTES)
                .build();
            let whole = whole.map_err(|_| "expected a regular expression behind '~', of a bounded size")?;
            return Ok(of(HostKind::Regex(whole), None));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(of(HostKind::Network(network), None));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(of(HostKind::Network(ip.into()), None));
        }
        let (host, port) = split_port(text).ok_or(EXPECTED)?;
        if port == Some(0) {
            return Err("expected a port from 1 to 65535");
        }
        if let Ok(network) = host.parse::<IpNet>() {
            return Ok(of(HostKind::Network(network), port));
        }
        if host.contains('*') {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'*');
            if !host.bytes().all(is_plain) {
                return Err(EXPECTED);
            }
            return Ok(of(HostKind::Glob(host.to_ascii_lowercase()), port));
        }
        match host_and_address(host).ok_or(EXPECTED)? {
            (_, Some(ip)) => Ok(of(HostKind::Network(ip.into()), port)),
            (name, None) => Ok(of(HostKind::Name(name), port)),
        }
    }

    fn covers_host(&self, target: &Target) -> bool {
        match &self.kind {
            HostKind::Name(name) => *name == target.host,
            HostKind::Glob(glob) => matches_glob(glob.as_bytes(), target.host.as_bytes()),
            HostKind::Network(network) => target.ip.is_some_and(|ip| network.contains(&canonical(ip))),
            HostKind::Regex(whole) => whole.is_match(target.host.as_bytes()),
        }
    }

    /// Whether it covers an address that a name was resolved to.
    fn covers_address(&self, ip: IpAddr) -> bool {
        matches!(&self.kind, HostKind::Network(network) if network.contains(&canonical(ip)))
    }
}

impl fmt::Debug for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An IPv4 address in an IPv6 one is that address.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// `*` is any number of any characters. Linear in the product of the lengths, which are bounded.
fn matches_glob(glob: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Where to continue if the characters behind the last star do not match.
    let mut again: Option<(usize, usize)> = None;
    while place < text.len() {
        match glob.get(at) {
            Some(b'*') => {
                again = Some((at, place));
                at += 1;
            }
            Some(letter) if *letter == text[place] => {
                at += 1;
                place += 1;
            }
            _ => {
                let Some((star, from)) = again else { return false };
                again = Some((star, from + 1));
                at = star + 1;
                place = from + 1;
            }
        }
    }
    glob[at..].iter().all(|letter| *letter == b'*')
}

/// The paths of a rule: `/v1/runs`, `/v1/*`, `*/runs` or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    Every,
    Exact(String),
    Prefix(String),
    Suffix(String),
}

impl PathPattern {
    /// Parses a pattern. The error says what is expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str =
            "expected a path such as /v1/runs, a prefix such as /v1/*, an ending such as */runs, or *";
        if text.len() > MAX_PATTERN_BYTES {
            return Err("expected at most 512 bytes");
        }
        let pattern = if text == "*" {
            Self::Every
        } else if let Some(ending) = text.strip_prefix("*/") {
            Self::Suffix(ending.to_owned())
        } else if let Some(prefix) = text.strip_suffix("/**").or_else(|| text.strip_suffix("/*")) {
            Self::Prefix(prefix.to_owned())
        } else {
            Self::Exact(text.to_owned())
        };
        let is_fine = match &pattern {
            Self::Every => true,
            Self::Exact(path) => path.starts_with('/') && !path.contains('*'),
            Self::Prefix(path) => (path.is_empty() || path.starts_with('/')) && !path.contains('*'),
            Self::Suffix(path) => !path.is_empty() && !path.contains('*'),
        };
        is_fine.then_some(pattern).ok_or(EXPECTED)
    }

    fn covers(&self, path: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Exact(exact) => exact == path,
            Self::Prefix(prefix) => path.starts_with(prefix.as_str()),
            Self::Suffix(ending) => path.ends_with(ending.as_str()),
        }
    }
}

/// Whether a path has one meaning for everyone: no `.`, `..` or empty parts, and none of these in disguise.
fn is_canonical(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let parts = path.strip_prefix('/').unwrap_or(path);
    let has_bad_part = |part: &str| part == "." || part == "..";
    let is_tidy = !parts.split('/').any(has_bad_part) && !path.contains("//");
    is_tidy && !path.contains('\\') && !["%2f", "%5c", "%2e"].iter().any(|code| lower.contains(code))
}

/// Checks a header that a policy sets. The error says why it cannot be set.
pub fn check_header(name: &str) -> Result<HeaderName, &'static str> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "expected the name of a header")?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        return Err("this header belongs to the connection and cannot be set");
    }
    Ok(name)
}

/// A header value that is not printed.
pub fn secret_value(text: &str) -> Result<HeaderValue, &'static str> {
    let expected = "expected printable ASCII characters";
    let mut value = HeaderValue::from_str(text).map_err(|_| expected)?;
    // Printable ASCII only: `from_str` takes any UTF-8.
    value.to_str().map_err(|_| expected)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Headers of a single connection.
pub(super) fn is_reserved(name: &HeaderName) -> bool {
    RESERVED_HEADERS.contains(&name.as_str()) && name != header::HOST && name != header::CONTENT_LENGTH
}

impl Policy {
    /// Whether a box may call it. The error is for the box.
    pub fn check(&self, target: &Target, scheme: Scheme) -> Result<(), String> {
        let usual = target.port == scheme.port();
        let has_port = |pattern: &HostPattern| pattern.port.map_or(usual, |port| port == target.port);
        let is_allowed = match &self.access {
            Access::Rules => scheme == Scheme::Https && self.rules.iter().any(|rule| rule.covers(target)),
            Access::Allow(patterns) => patterns
                .iter()
                .any(|pattern| has_port(pattern) && pattern.covers_host(target)),
            Access::Deny(patterns) => {
                let is_denied = |pattern: &HostPattern| {
                    pattern.port.is_none_or(|port| port == target.port) && pattern.covers_host(target)
                };
                usual && !patterns.iter().any(is_denied)
            }
        };
        if is_allowed {
            return Ok(());
        }
        Err(match &self.access {
            Access::Rules if self.rules.is_empty() => {
                "this sandbox has no network: its proxy_config allows no host".to_owned()
            }
            Access::Deny(_) if !usual => {
                format!("{target}: only the ports 80 and 443 are open; access_control.allow_list can name others")
            }
            _ => format!("{target} is not allowed by the proxy_config of this sandbox"),
        })
    }

    /// Whether an address that a name was resolved to may be called.
    pub(super) fn allows_address(&self, ip: IpAddr) -> bool {
        match &self.access {
            Access::Deny(patterns) => !patterns.iter().any(|pattern| pattern.covers_address(ip)),
            Access::Rules | Access::Allow(_) => true,
        }
    }

    /// Whether requests over TLS to this host are given headers.
    pub(super) fn intercepts(&self, target: &Target) -> bool {
        !self.attribution.is_empty() || self.rules.iter().any(|rule| rule.covers(target))
    }

    /// Gives a request its headers.
    pub(super) fn apply(&self, target: &Target, scheme: Scheme, request: &mut Parts) {
        for (name, value) in &self.attribution {
            request.headers.insert(name, value.clone());
        }
        if scheme == Scheme::Http {
            return;
        }
        let matched = self
            .rules
            .iter()
            .find(|rule| rule.covers(target) && rule.covers_request(request));
        for (name, value) in matched.into_iter().flat_map(|rule| &rule.headers) {
            request.headers.insert(name, value.clone());
        }
    }
}

impl HeaderRule {
    fn covers(&self, target: &Target) -> bool {
        let of_rule = self.port.unwrap_or(HTTPS_PORT);
        let has_port = |pattern: &HostPattern| pattern.port.unwrap_or(of_rule) == target.port;
        self.hosts
            .iter()
            .any(|pattern| has_port(pattern) && pattern.covers_host(target))
    }

    fn covers_request(&self, request: &Parts) -> bool {
        let path = request.uri.path();
        let has_path =
            self.paths.is_empty() || (is_canonical(path) && self.paths.iter().any(|pattern| pattern.covers(path)));
        has_path
            && self.match_headers.iter().all(|(name, value)| {
                let mut sent = request.headers.get_all(name).iter();
                // A second value could be the one that the host reads.
                sent.next() == Some(value) && sent.next().is_none()
            })
    }
}

#[cfg(test)]
mod tests;
