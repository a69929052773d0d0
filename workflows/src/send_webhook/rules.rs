//! Webhook rules of the graphs' authors: allowed addresses, and fields to send.

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_domain::Secret;

/// Rules for webhooks. The guard of outbound calls applies in addition.
#[derive(Clone, Debug, Default)]
pub struct WebhookRules {
    /// No webhook is sent; runs that request one still run.
    pub off: bool,
    pub require_https: bool,
    /// Allowed hosts: exact, or `*.domain`.
    pub domains: Option<Vec<String>>,
    /// Allowed ports.
    pub ports: Option<Vec<u16>>,
    /// Maximum length of an address, in bytes.
    pub max_url_bytes: Option<usize>,
    /// Sent with every call.
    pub headers: Vec<(String, Secret)>,
    /// Allowed fields of the body.
    pub fields: Option<Vec<String>>,
    /// This machine is not called, even if the guard allows it.
    pub no_loopback: bool,
}

impl WebhookRules {
    /// Why an address must not be called.
    #[must_use]
    pub fn check_address(&self, address: &str) -> Option<String> {
        if self.off {
            return None;
        }
        if let Some(most) = self.max_url_bytes
            && address.len() > most
        {
            return Some(format!("webhook: expected an address of at most {most} bytes"));
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
        // Other names of this machine are found when they are resolved for the call.
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        if self.no_loopback && (host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())) {
            return Some("webhook: calls to this machine are not allowed".to_owned());
        }
        let allowed = |domains: &Vec<String>| domains.iter().any(|domain| fits(&domain.to_ascii_lowercase(), &host));
        if self.domains.as_ref().is_some_and(|domains| !allowed(domains)) {
            return Some(format!("webhook: the host {host:?} is not allowed"));
        }
        None
    }

    /// Keeps the allowed fields of a body.
    pub(super) fn keep_allowed_fields<V>(&self, body: &mut BTreeMap<String, V>) {
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
        let rules = WebhookRules {
            require_https: true,
            domains: Some(vec!["hooks.example.com".to_owned(), "*.example.org".to_owned()]),
            ports: Some(vec![443, 8443]),
            max_url_bytes: Some(60),
            ..WebhookRules::default()
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
            let refused = rules.check_address(address);
            assert_eq!(refused.is_some(), expected.is_some(), "{address}: {refused:?}");
            assert!(
                refused.unwrap_or_default().contains(expected.unwrap_or_default()),
                "{address}"
            );
        }
        assert_eq!(WebhookRules::default().check_address("http://x:1/"), None);
    }

    #[test]
    fn this_machine_can_be_excluded() {
        let rules = WebhookRules {
            no_loopback: true,
            ..WebhookRules::default()
        };
        for address in ["http://localhost:1/", "https://127.0.0.2/", "http://[::1]:8080/a"] {
            let refused = rules.check_address(address).unwrap_or_default();
            assert!(refused.contains("this machine"), "{address}: {refused}");
            assert_eq!(WebhookRules::default().check_address(address), None);
        }
        assert_eq!(rules.check_address("https://10.0.0.1/"), None);
    }

    #[test]
    fn only_allowed_fields_are_told() {
        let rules = WebhookRules {
            fields: Some(vec!["run_id".to_owned()]),
            ..WebhookRules::default()
        };
        let mut body = BTreeMap::from([("run_id".to_owned(), 1), ("values".to_owned(), 2)]);
        rules.keep_allowed_fields(&mut body);
        assert_eq!(body, BTreeMap::from([("run_id".to_owned(), 1)]));
    }
}
