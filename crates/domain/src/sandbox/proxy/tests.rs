use serde_json::json;

use super::*;

fn parse(sent: &Value) -> Result<(ProxyConfig, ProxySecrets), Rejection> {
    ProxyConfig::parse(sent, &StoredProxy::default())
}

fn with_header(header: &Value) -> Value {
    json!({"rules": [{"name": "api", "match_hosts": ["api.example.com"], "headers": [header]}]})
}

#[test]
fn a_secret_is_apart_from_what_is_stored_and_shown() {
    let sent = with_header(&json!({"name": "Authorization", "type": "opaque", "value": "hunter2"}));
    let (config, secrets) = parse(&sent).unwrap();
    assert_eq!(secrets.get("api", "authorization").unwrap().reveal(), "hunter2");
    let shown = serde_json::to_value(&config).unwrap();
    assert_eq!(
        shown,
        json!({"rules": [{"name": "api", "enabled": true, "match_hosts": ["api.example.com"],
                              "headers": [{"name": "Authorization", "type": "opaque", "is_set": true}]}]})
    );
    assert!(!format!("{config:?} {secrets:?}").contains("hunter2"));
    // What is shown can be sent back.
    let known = StoredProxy {
        config: config.clone(),
        secrets: secrets.clone(),
    };
    let (again, kept) = ProxyConfig::parse(&shown, &known).unwrap();
    assert_eq!((again, kept), (config, secrets));
    // A secret does not follow its rule to another host.
    for (member, value) in [
        ("match_hosts", json!(["api.example.com", "evil.example.com"])),
        ("match_hosts", json!(["*.example.com"])),
        ("match_port", json!(8443)),
        ("name", json!("other")),
    ] {
        let mut changed = shown.clone();
        changed["rules"][0][member] = value;
        let refused = ProxyConfig::parse(&changed, &known).unwrap_err();
        assert_eq!(refused.field, "proxy_config.rules.0.headers.0.value", "{changed}");
    }
    assert_eq!(parse(&shown).unwrap_err().field, "proxy_config.rules.0.headers.0.value");
}

#[test]
fn nothing_asks_for_nothing() {
    for sent in [
        json!({}),
        json!({"rules": []}),
        json!({"rules": null, "access_control": {"allow_list": []}, "no_proxy": ["localhost"]}),
    ] {
        assert!(parse(&sent).unwrap().0.is_empty(), "{sent}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (sent, field) in [
        (json!([]), "proxy_config"),
        (json!({"rules": {}}), "proxy_config.rules"),
        (json!({"rule": []}), "proxy_config.rule"),
        (json!({"rules": [{}]}), "proxy_config.rules.0.name"),
        (
            json!({"rules": [{"name": "a", "match_host": ["b"]}]}),
            "proxy_config.rules.0.match_host",
        ),
        (
            json!({"rules": [{"name": "a", "headers": []}]}),
            "proxy_config.rules.0.match_hosts",
        ),
        (
            json!({"rules": [{"name": "a", "match_hosts": ["b"]}]}),
            "proxy_config.rules.0.headers",
        ),
        (
            json!({"rules": [{"name": "a", "match_port": 0}]}),
            "proxy_config.rules.0.match_port",
        ),
        (
            json!({"rules": [{"name": "a", "type": "aws", "aws": {}}]}),
            "proxy_config.rules.0.aws",
        ),
        (
            json!({"rules": [{"name": "a", "type": "tunnel"}]}),
            "proxy_config.rules.0.type",
        ),
        (
            json!({"access_control": {"allow_list": ["a"], "deny_list": ["b"]}}),
            "proxy_config.access_control",
        ),
        (
            json!({"access_control": {"allow": ["a"]}}),
            "proxy_config.access_control.allow",
        ),
        (
            json!({"access_control": {"allow_list": [1]}}),
            "proxy_config.access_control.allow_list.0",
        ),
        (json!({"callbacks": [{}]}), "proxy_config.callbacks"),
        (
            with_header(&json!({"name": "a", "type": "plaintext"})),
            "proxy_config.rules.0.headers.0.value",
        ),
        (
            with_header(&json!({"name": "a", "type": "workspace_secret", "value": "{A}"})),
            "proxy_config.rules.0.headers.0.type",
        ),
        (
            with_header(&json!({"name": "a", "value": "b"})),
            "proxy_config.rules.0.headers.0.type",
        ),
        (
            json!({"rules": [{"name": "a", "type": "attribution", "match_hosts": ["b"]}]}),
            "proxy_config.rules.0.match_hosts",
        ),
        (
            json!({"rules": [{"name": "a", "type": "attribution",
                                  "headers": [{"name": "Authorization", "type": "plaintext", "value": "b"}]}]}),
            "proxy_config.rules.0.headers.0.name",
        ),
    ] {
        assert_eq!(parse(&sent).unwrap_err().field, field, "{sent}");
    }
}

#[test]
fn patterns_are_bounded() {
    let with = |count: usize, pattern: &str| json!({"access_control": {"allow_list": vec![pattern; count]}});
    assert!(parse(&with(MAX_PATTERNS, "a")).is_ok());
    assert!(parse(&with(MAX_PATTERNS + 1, "a")).is_err());
    assert!(parse(&with(MAX_EXPRESSIONS, "~a")).is_ok());
    assert!(parse(&with(MAX_EXPRESSIONS + 1, "~a")).is_err());
}

#[test]
fn a_disabled_rule_sets_no_variables() {
    let rule = |name: &str, enabled: bool| {
        json!({"name": name, "enabled": enabled, "match_hosts": ["a"], "env_vars": {name: "x"},
                   "headers": [{"name": "a", "type": "plaintext", "value": "b"}]})
    };
    let (config, _) = parse(&json!({"rules": [rule("A", true), rule("B", false)]})).unwrap();
    assert_eq!(config.variables(), BTreeMap::from([("A".to_owned(), "x".to_owned())]));
}
