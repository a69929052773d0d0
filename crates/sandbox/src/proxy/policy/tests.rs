use super::*;

fn target(text: &str, scheme: Scheme) -> Target {
    Target::parse(text, scheme).unwrap()
}

fn patterns(texts: &[&str]) -> Vec<HostPattern> {
    texts.iter().map(|text| HostPattern::parse(text).unwrap()).collect()
}

fn allows(access: Access, to: &str, scheme: Scheme) -> bool {
    let policy = Policy {
        access,
        ..Policy::default()
    };
    policy.check(&target(to, scheme), scheme).is_ok()
}

fn rule(host: &str, header: (&'static str, &str)) -> HeaderRule {
    HeaderRule {
        hosts: patterns(&[host]),
        port: None,
        paths: Vec::new(),
        match_headers: Vec::new(),
        headers: vec![(HeaderName::from_static(header.0), secret_value(header.1).unwrap())],
    }
}

fn request(path: &str, headers: &[(&str, &str)]) -> Parts {
    let mut made = http::Request::get(path);
    for (name, value) in headers {
        made = made.header(*name, *value);
    }
    made.body(()).unwrap().into_parts().0
}

#[test]
fn hosts_have_one_spelling() {
    for (text, expected) in [
        ("Example.COM", "example.com:443"),
        ("example.com.:8443", "example.com:8443"),
        ("[::1]:80", "[::1]:80"),
        ("[0:0::1]", "[::1]:443"),
        ("127.0.0.1", "127.0.0.1:443"),
    ] {
        assert_eq!(target(text, Scheme::Https).to_string(), expected);
    }
    for text in [
        "",
        "a b",
        "user@example.com",
        "example.com:",
        "example.com:+80",
        "example.com:0",
        "example.com:65536",
        "example.com:80:80",
        "a..b",
        "%65xample.com",
        "[::1",
        "[::1]x",
        "::1",
        "exämple.com",
    ] {
        assert!(Target::parse(text, Scheme::Https).is_none(), "{text}");
    }
}

#[test]
fn nothing_is_open_by_default() {
    assert!(!allows(Access::Rules, "example.com", Scheme::Https));
    assert!(!allows(Access::Rules, "example.com", Scheme::Http));
}

#[test]
fn a_pattern_covers_what_it_says() {
    for (pattern, covered, others) in [
        (
            "example.com",
            vec!["example.com", "EXAMPLE.com."],
            vec!["a.example.com", "example.com.evil.org"],
        ),
        (
            "*.example.com",
            vec!["a.example.com", "a.b.example.com"],
            vec!["example.com", "aexample.com"],
        ),
        (
            "10.0.0.0/8",
            vec!["10.1.2.3", "[::ffff:10.1.2.3]"],
            vec!["11.1.2.3", "10.evil.org"],
        ),
        ("192.0.2.7", vec!["192.0.2.7"], vec!["192.0.2.8"]),
        (
            "~api[0-9]+\\.example\\.com",
            vec!["api1.example.com"],
            vec!["xapi1.example.com", "api1.example.com.evil.org"],
        ),
        ("*", vec!["example.com", "192.0.2.7"], vec![]),
    ] {
        for host in covered {
            assert!(
                allows(Access::Allow(patterns(&[pattern])), host, Scheme::Https),
                "{pattern} {host}"
            );
            assert!(
                !allows(Access::Deny(patterns(&[pattern])), host, Scheme::Https),
                "{pattern} {host}"
            );
        }
        for host in others {
            assert!(
                !allows(Access::Allow(patterns(&[pattern])), host, Scheme::Https),
                "{pattern} {host}"
            );
            assert!(
                allows(Access::Deny(patterns(&[pattern])), host, Scheme::Https),
                "{pattern} {host}"
            );
        }
    }
    for text in ["", "a b", "~(", "example.com:0", "*.exa/mple.com", "http://example.com"] {
        assert!(HostPattern::parse(text).is_err(), "{text}");
    }
}

#[test]
fn other_ports_are_named_or_closed() {
    for (pattern, to, scheme, is_allowed) in [
        ("example.com", "example.com:22", Scheme::Https, false),
        ("example.com", "example.com:80", Scheme::Https, false),
        ("example.com", "example.com", Scheme::Http, true),
        ("example.com:8443", "example.com:8443", Scheme::Https, true),
        ("example.com:8443", "example.com:443", Scheme::Https, false),
        ("[2001:db8::1]:8443", "[2001:db8::1]:8443", Scheme::Https, true),
    ] {
        let access = Access::Allow(patterns(&[pattern]));
        assert_eq!(allows(access, to, scheme), is_allowed, "{pattern} {to}");
    }
    assert!(!allows(Access::Deny(Vec::new()), "example.com:25", Scheme::Https));
}

#[test]
fn a_denied_network_holds_for_resolved_addresses_too() {
    let policy = Policy {
        access: Access::Deny(patterns(&["192.0.2.0/24"])),
        ..Policy::default()
    };
    assert!(!policy.allows_address("192.0.2.1".parse().unwrap()));
    assert!(!policy.allows_address("::ffff:192.0.2.1".parse().unwrap()));
    assert!(policy.allows_address("198.51.100.1".parse().unwrap()));
}

#[test]
fn the_first_rule_that_matches_gives_its_headers() {
    let policy = Policy {
        rules: vec![
            HeaderRule {
                paths: vec![PathPattern::parse("/v1/*").unwrap()],
                ..rule("api.example.com", ("authorization", "first"))
            },
            rule("api.example.com", ("authorization", "second")),
        ],
        ..Policy::default()
    };
    let to = target("api.example.com", Scheme::Https);
    for (path, expected) in [
        ("/v1/runs", "first"),
        ("/v1/../admin", "second"),
        ("/v1//x", "second"),
        ("/v1/%2e%2e/x", "second"),
        ("/", "second"),
    ] {
        let mut made = request(path, &[("authorization", "of the box")]);
        policy.apply(&to, Scheme::Https, &mut made);
        assert_eq!(made.headers["authorization"], expected, "{path}");
        assert_eq!(made.headers.get_all("authorization").iter().count(), 1);
    }
    let mut made = request("/v1/runs", &[]);
    policy.apply(&to, Scheme::Http, &mut made);
    assert!(made.headers.is_empty(), "a secret is not sent in the clear");
    policy.apply(&target("other.example.com", Scheme::Https), Scheme::Https, &mut made);
    assert!(made.headers.is_empty());
    assert!(policy.check(&to, Scheme::Http).is_err());
    policy.check(&to, Scheme::Https).unwrap();
}

#[test]
fn a_placeholder_selects_a_rule() {
    let account = |name: &str, secret: &str| HeaderRule {
        match_headers: vec![(header::AUTHORIZATION, HeaderValue::from_str(name).unwrap())],
        ..rule("api.example.com", ("authorization", secret))
    };
    let policy = Policy {
        rules: vec![account("Bearer a", "secret a"), account("Bearer b", "secret b")],
        ..Policy::default()
    };
    let to = target("api.example.com", Scheme::Https);
    for (sent, expected) in [
        (vec![("authorization", "Bearer b")], "secret b"),
        (vec![("authorization", "Bearer c")], "Bearer c"),
        (
            vec![("authorization", "Bearer a"), ("authorization", "Bearer b")],
            "Bearer a",
        ),
    ] {
        let mut made = request("/", &sent);
        policy.apply(&to, Scheme::Https, &mut made);
        assert_eq!(made.headers["authorization"], expected);
    }
}

#[test]
fn paths_are_patterns_of_their_ends() {
    for (pattern, path, is_covered) in [
        ("/v1/runs", "/v1/runs", true),
        ("/v1/runs", "/v1/runs/1", false),
        ("/v1/*", "/v10", true),
        ("/v1/**", "/v1/a/b", true),
        ("*/runs", "/v1/xruns", true),
        ("*", "/", true),
    ] {
        assert_eq!(
            PathPattern::parse(pattern).unwrap().covers(path),
            is_covered,
            "{pattern} {path}"
        );
    }
    for text in ["", "v1", "/a/*/b", "*/", "**"] {
        assert!(PathPattern::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_secret_is_not_printed_and_reserved_headers_are_not_set() {
    let made = format!("{:?}", rule("example.com", ("authorization", "hunter2")));
    assert!(!made.contains("hunter2"), "{made}");
    for name in ["Host", "content-length", "Transfer-Encoding", "a b", ""] {
        assert!(check_header(name).is_err(), "{name}");
    }
    for value in ["a\r\nb: c", "\u{e9}"] {
        assert!(secret_value(value).is_err(), "{value:?}");
    }
}
