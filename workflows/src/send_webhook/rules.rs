//! What the authors of graphs say about webhooks: which addresses may be called, and what they are told.

use std::collections::BTreeMap;

use towpath_domain::Secret;

/// Rules for webhooks. The guard of outbound calls stands behind them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Nobody is called, and runs that ask for it run nevertheless.
    pub off: bool,
    /// Only `https`.
    pub require_https: bool,
    /// Only these hosts: exact, or `*.domain`.
    pub domains: Option<Vec<String>>,
    /// Only these ports.
    pub ports: Option<Vec<u16>>,
    /// The longest address, in bytes.
    pub max_url_bytes: Option<usize>,
    /// Sent with every call.
    pub headers: Vec<(String, Secret)>,
    /// Only these fields are told.
    pub fields: Option<Vec<String>>,
}

impl Rules {
    /// Why an address must not be called.
    #[must_use]
    pub fn refuse(&self, address: &str) -> Option<String> {
        if self.off {
            return None;
        }
        if let Some(most) = self.max_url_bytes
            && address.len() > most
        {
            return Some(format!("webhook: an address has at most {most} bytes"));
        }
        let url: http::Uri = match address.parse() {
            Ok(url) => url,
            Err(_) => return Some("webhook: expected an address".to_owned()),
        };
        let https = url.scheme_str() == Some("https");
        if self.require_https && !https {
            return Some("webhook: only https is allowed".to_owned());
        }
        let port = url.port_u16().unwrap_or(if https { 443 } else { 80 });
        if self.ports.as_ref().is_some_and(|ports| !ports.contains(&port)) {
            return Some(format!("webhook: port {port} is not allowed"));
        }
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        let allowed = |domains: &Vec<String>| domains.iter().any(|domain| fits(&domain.to_ascii_lowercase(), &host));
        if self.domains.as_ref().is_some_and(|domains| !allowed(domains)) {
            return Some(format!("webhook: the host {host:?} is not allowed"));
        }
        None
    }

    /// What of a body is told.
    pub(super) fn narrow<V>(&self, body: &mut BTreeMap<String, V>) {
        if let Some(fields) = &self.fields {
            body.retain(|key, _| fields.iter().any(|field| field == key));
        }
    }
}

fn fits(domain: &str, host: &str) -> bool {
    match domain.strip_prefix("*.") {
        Some(parent) => host
            .strip_suffix(parent)
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        None => domain == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_held_against_every_rule() {
        let rules = Rules {
            require_https: true,
            domains: Some(vec!["hooks.example.com".to_owned(), "*.example.org".to_owned()]),
            ports: Some(vec![443, 8443]),
            max_url_bytes: Some(60),
            ..Rules::default()
        };
        for (address, expected) in [
            ("https://hooks.example.com/a", None),
            ("https://a.b.example.org:8443/", None),
            ("https://example.org/", Some("host")),
            ("https://evilexample.org/", Some("host")),
            ("http://hooks.example.com/", Some("https")),
            ("https://hooks.example.com:444/", Some("444")),
            (
                "https://hooks.example.com/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                Some("60"),
            ),
        ] {
            let refused = rules.refuse(address);
            assert_eq!(refused.is_some(), expected.is_some(), "{address}: {refused:?}");
            assert!(
                refused.unwrap_or_default().contains(expected.unwrap_or_default()),
                "{address}"
            );
        }
        assert_eq!(Rules::default().refuse("http://x:1/"), None);
    }

    #[test]
    fn only_allowed_fields_are_told() {
        let rules = Rules {
            fields: Some(vec!["run_id".to_owned()]),
            ..Rules::default()
        };
        let mut body = BTreeMap::from([("run_id".to_owned(), 1), ("values".to_owned(), 2)]);
        rules.narrow(&mut body);
        assert_eq!(body, BTreeMap::from([("run_id".to_owned(), 1)]));
    }
}
