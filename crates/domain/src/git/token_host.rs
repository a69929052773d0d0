//! Where the token of an integration may be sent.

use std::fmt;

use super::{RepoUrl, Transport, check_host};

/// Where a token may be sent: to the host of its API, over https. If it were sent to any repository's host, a caller
/// who chooses the repository could obtain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenHost {
    host: String,
    port: u16,
}

impl TokenHost {
    /// The host of the repositories for this API address: its host name without a leading `api.`.
    ///
    /// # Errors
    /// It names no host, as `must …`.
    pub fn of_api(api_url: &str) -> Result<Self, String> {
        let (scheme, rest) = api_url.split_once("://").ok_or("must be an http or https address")?;
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !authority.ends_with(']') => {
                let port: u16 = port.parse().map_err(|_| "must have a port between 1 and 65535")?;
                (host, Some(port))
            }
            _ => (authority, None),
        };
        check_host(host)?;
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        Ok(Self {
            host: host.strip_prefix("api.").unwrap_or(&host).to_owned(),
            // The port of a plain API is not the port of the repositories.
            port: port.filter(|_| scheme.eq_ignore_ascii_case("https")).unwrap_or(443),
        })
    }

    #[must_use]
    pub fn matches(&self, url: &RepoUrl) -> bool {
        url.transport() == Transport::Https && self.host == url.host() && self.port == url.port()
    }
}

impl fmt::Display for TokenHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        f.write_str("https://")?;
        if host.contains(':') {
            write!(f, "[{host}]")?;
        } else {
            f.write_str(host)?;
        }
        if *port == 443 { Ok(()) } else { write!(f, ":{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_its_host_and_nowhere_else() {
        let github = TokenHost::of_api("https://api.github.com").unwrap();
        assert_eq!(github.to_string(), "https://github.com");
        let own = TokenHost::of_api("https://Git.Example.org:8443/api/v3").unwrap();
        assert_eq!(own.to_string(), "https://git.example.org:8443");
        let plain = TokenHost::of_api("http://[2001:db8::1]:3000/api/v1").unwrap();
        assert_eq!(plain.to_string(), "https://[2001:db8::1]");
        for (token, url, expected) in [
            (&github, "https://github.com/acme/agent", true),
            (&github, "https://GitHub.com:443/acme/agent", true),
            (&github, "http://github.com/acme/agent", false),
            (&github, "http://github.com:443/acme/agent", false),
            (&github, "ssh://git@github.com/acme/agent", false),
            (&github, "https://github.com:8443/acme/agent", false),
            (&github, "https://github.com.evil.example/acme/agent", false),
            (&github, "https://evil.example/github.com/agent", false),
            (&github, "https://gist.github.com/acme/agent", false),
            (&own, "https://git.example.org:8443/a/b", true),
            (&own, "https://git.example.org/a/b", false),
            (&plain, "https://[2001:db8::1]/a", true),
        ] {
            assert_eq!(token.matches(&RepoUrl::parse(url).unwrap()), expected, "{token} {url}");
        }
        for wrong in ["github.com", "https://", "https://a b/", "https://x:99999/"] {
            assert!(TokenHost::of_api(wrong).is_err(), "{wrong}");
        }
    }
}
