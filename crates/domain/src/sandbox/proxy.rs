//! What a sandbox may call, as clients configure it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::check_variables;
use super::name::check_text;
use crate::rejection::Rejection;
use crate::secret::Secret;

const MAX_RULES: usize = 64;
/// Patterns of one list.
const MAX_PATTERNS: usize = 256;
/// Patterns of the whole configuration.
const MAX_ALL_PATTERNS: usize = 1024;
/// Regular expressions of the whole configuration, each of which takes memory while its sandbox runs.
const MAX_EXPRESSIONS: usize = 32;
const MAX_HEADERS: usize = 32;
const MAX_ATTRIBUTION_HEADERS: usize = 16;
/// In characters.
const MAX_DESCRIPTION_LENGTH: usize = 1024;
const MAX_HEADER_LENGTH: usize = 16 * 1024;
/// Names of the rule that adds headers to requests to some hosts.
const HEADER_RULES: [&str; 3] = ["", "headers", "header_injection"];
const ATTRIBUTION: &str = "attribution";
/// Members of a rule that another type of rule has.
const OTHER_RULES: [&str; 5] = ["aws", "azure", "gcp", "relay_id", "rewrite"];

/// `proxy_config` without the values of secrets: what is stored, and what clients get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyConfig {
    #[serde(default)]
    pub rules: Vec<ProxyRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_control: Option<AccessControl>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Which hosts may be called; only one of the lists is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessControl {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_list: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny_list: Vec<String>,
}

/// Adds headers to requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyRule {
    /// Unique in its configuration.
    pub name: String,
    /// `attribution`; otherwise it adds headers to requests to some hosts.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default = "enabled")]
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_paths: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_headers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_scheme: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ProxyHeader>,
    /// Environment of every command while the rule is enabled.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
}

const fn enabled() -> bool {
    true
}

/// A header that a rule adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyHeader {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: ProxyHeaderKind,
    /// Whether there is a value that is not shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_set: bool,
    /// Of a plain one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyHeaderKind {
    Plaintext,
    /// Its value is stored sealed and never returned.
    Opaque,
}

/// Values of opaque headers by rule and header. Sealed before they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxySecrets(BTreeMap<String, BTreeMap<String, Secret>>);

impl ProxySecrets {
    /// The value of a header of a rule.
    #[must_use]
    pub fn get(&self, rule: &str, header: &str) -> Option<&Secret> {
        self.0.get(rule)?.get(&header.to_ascii_lowercase())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn insert(&mut self, rule: &str, header: &str, value: Secret) {
        let headers = self.0.entry(rule.to_owned()).or_default();
        headers.insert(header.to_ascii_lowercase(), value);
    }
}

/// What is stored of a sandbox before a change.
#[derive(Clone, Debug, Default)]
pub struct StoredProxy {
    pub config: ProxyConfig,
    pub secrets: ProxySecrets,
}

impl StoredProxy {
    /// The secret of a header of the same rule. A rule for other hosts does not get it: it would be sent to whoever
    /// changes the rule.
    fn secret(&self, rule: &ProxyRule, header: &str) -> Option<&Secret> {
        let before = self.config.rules.iter().find(|before| before.name == rule.name)?;
        let is_covered = |host: &String| before.match_hosts.contains(host);
        let has_same_hosts = rule.match_port == before.match_port && rule.match_hosts.iter().all(is_covered);
        has_same_hosts.then(|| self.secrets.get(&rule.name, header)).flatten()
    }
}

impl ProxyRule {
    #[must_use]
    pub fn is_attribution(&self) -> bool {
        self.kind.as_deref() == Some(ATTRIBUTION)
    }
}

impl ProxyConfig {
    /// Parses `proxy_config` of a request. Opaque headers without a value keep that of `known`, unless their rule has
    /// other hosts. No message contains a value of the request.
    pub fn parse(sent: &Value, known: &StoredProxy) -> Result<(Self, ProxySecrets), Rejection> {
        let mut secrets = ProxySecrets::default();
        let members = Members::of("proxy_config", sent)?;
        members.check_known(&["access_control", "callbacks", "description", "no_proxy", "rules"])?;
        if !members.list("callbacks")?.is_empty() {
            return Err(Rejection::unsupported(
                members.field("callbacks"),
                "a callback for credentials",
            ));
        }
        // Official clients document it as ignored: there is no way around the proxy.
        members.texts("no_proxy")?;
        let mut config = Self {
            access_control: members.access_control()?,
            description: members.text("description", MAX_DESCRIPTION_LENGTH)?,
            rules: Vec::new(),
        };
        let rules = members.list("rules")?;
        if rules.len() > MAX_RULES {
            let text = format!("expected at most {MAX_RULES} rules");
            return Err(Rejection::invalid(members.field("rules"), text));
        }
        let mut names = BTreeSet::new();
        for (index, rule) in rules.iter().enumerate() {
            let members = Members::of(&format!("proxy_config.rules.{index}"), rule)?;
            let rule = members.rule(known, &mut secrets)?;
            if !names.insert(rule.name.clone()) {
                return Err(Rejection::rule(members.field("name"), "names of rules are unique"));
            }
            config.rules.push(rule);
        }
        if config.rules.iter().filter(|rule| rule.is_attribution()).count() > 1 {
            return Err(Rejection::rule(
                "proxy_config.rules",
                "expected at most one rule of the type attribution",
            ));
        }
        config.check_patterns()?;
        Ok((config, secrets))
    }

    fn check_patterns(&self) -> Result<(), Rejection> {
        let of_rules = self
            .rules
            .iter()
            .flat_map(|rule| rule.match_hosts.iter().chain(&rule.match_paths));
        let access = self.access_control.iter();
        let of_access = access.flat_map(|access| access.allow_list.iter().chain(&access.deny_list));
        let (mut all, mut expressions) = (0, 0);
        for pattern in of_rules.chain(of_access) {
            all += 1;
            expressions += usize::from(pattern.starts_with('~'));
        }
        if all > MAX_ALL_PATTERNS || expressions > MAX_EXPRESSIONS {
            let text = format!("expected at most {MAX_ALL_PATTERNS} patterns, {MAX_EXPRESSIONS} of them with '~'");
            return Err(Rejection::invalid("proxy_config", text));
        }
        Ok(())
    }

    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Environment of every command.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, String> {
        let rules = self.rules.iter().filter(|rule| rule.enabled);
        let mut variables = BTreeMap::new();
        for rule in rules {
            variables.extend(rule.env_vars.clone());
        }
        variables
    }
}

/// An object of the request, with its place in it.
struct Members<'a> {
    place: String,
    members: &'a Map<String, Value>,
}

impl<'a> Members<'a> {
    fn of(place: &str, value: &'a Value) -> Result<Self, Rejection> {
        let members = value
            .as_object()
            .ok_or_else(|| Rejection::invalid(place, "expected an object"))?;
        Ok(Self {
            place: place.to_owned(),
            members,
        })
    }

    fn field(&self, name: &str) -> String {
        format!("{}.{name}", self.place)
    }

    /// A misspelt restriction must not count as none.
    fn check_known(&self, known: &[&str]) -> Result<(), Rejection> {
        match self.members.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let shown: String = name.chars().take(64).collect();
                let text = format!("expected one of {}", known.join(", "));
                Err(Rejection::invalid(self.field(&shown), text))
            }
        }
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    fn list(&self, name: &str) -> Result<&'a [Value], Rejection> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(values)) => Ok(values),
            Some(_) => Err(Rejection::invalid(self.field(name), "expected a list")),
        }
    }

    fn text(&self, name: &str, longest: usize) -> Result<Option<String>, Rejection> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => {
                check_text(&self.field(name), text, longest)?;
                Ok(Some(text.clone()))
            }
            Some(_) => Err(Rejection::invalid(self.field(name), "expected a text")),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, Rejection> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Rejection::invalid(self.field(name), "expected true or false")),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, Rejection> {
        let values = self.list(name)?;
        if values.len() > MAX_PATTERNS {
            let text = format!("expected at most {MAX_PATTERNS} values");
            return Err(Rejection::invalid(self.field(name), text));
        }
        let mut texts = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let place = format!("{}.{index}", self.field(name));
            let text = value
                .as_str()
                .ok_or_else(|| Rejection::invalid(place.clone(), "expected a text"))?;
            check_text(&place, text, MAX_HEADER_LENGTH)?;
            texts.push(text.to_owned());
        }
        Ok(texts)
    }

    fn access_control(&self) -> Result<Option<AccessControl>, Rejection> {
        let Some(value) = self.get("access_control") else {
            return Ok(None);
        };
        let members = Members::of(&self.field("access_control"), value)?;
        members.check_known(&["allow_list", "deny_list"])?;
        let access = AccessControl {
            allow_list: members.texts("allow_list")?,
            deny_list: members.texts("deny_list")?,
        };
        if !access.allow_list.is_empty() && !access.deny_list.is_empty() {
            let text = "send either an allow_list or a deny_list";
            return Err(Rejection::rule(members.place, text));
        }
        Ok((access != AccessControl::default()).then_some(access))
    }

    fn rule(&self, known: &StoredProxy, secrets: &mut ProxySecrets) -> Result<ProxyRule, Rejection> {
        for name in OTHER_RULES {
            if self.get(name).is_some() {
                let what = format!("a proxy rule with {name}");
                return Err(Rejection::unsupported(self.field(name), what));
            }
        }
        let kind = self.text("type", 64)?;
        let kind = kind.filter(|kind| !HEADER_RULES.contains(&kind.as_str()));
        match kind.as_deref() {
            None | Some(ATTRIBUTION) => {}
            Some("aws" | "azure" | "gcp" | "relay" | "rewrite") => {
                return Err(Rejection::unsupported(self.field("type"), "a proxy rule of this type"));
            }
            Some(_) => {
                return Err(Rejection::invalid(
                    self.field("type"),
                    "expected attribution, or nothing for a rule with headers",
                ));
            }
        }
        self.check_known(&[
            "description",
            "enabled",
            "env_vars",
            "headers",
            "match_headers",
            "match_hosts",
            "match_paths",
            "match_port",
            "match_scheme",
            "name",
            "type",
            // Clients may send a rule back as they got it.
            "aws",
            "azure",
            "gcp",
            "relay_id",
            "rewrite",
        ])?;
        let name = self.text("name", 255)?.filter(|name| !name.trim().is_empty());
        let name = name.ok_or_else(|| Rejection::invalid(self.field("name"), "expected the name of the rule"))?;
        let mut rule = ProxyRule {
            kind,
            enabled: self.flag("enabled")?.unwrap_or(true),
            description: self.text("description", MAX_DESCRIPTION_LENGTH)?,
            match_hosts: self.texts("match_hosts")?,
            match_paths: self.texts("match_paths")?,
            match_headers: self.texts("match_headers")?,
            match_port: self.port()?,
            match_scheme: self.text("match_scheme", 16)?,
            headers: Vec::new(),
            env_vars: self.variables()?,
            name,
        };
        if rule.match_scheme.as_deref().is_some_and(|scheme| scheme != "https") {
            return Err(Rejection::invalid(self.field("match_scheme"), "expected https"));
        }
        let headers = self.list("headers")?;
        let most = if rule.is_attribution() {
            MAX_ATTRIBUTION_HEADERS
        } else {
            MAX_HEADERS
        };
        if headers.len() > most {
            let text = format!("expected at most {most} headers");
            return Err(Rejection::invalid(self.field("headers"), text));
        }
        for (index, header) in headers.iter().enumerate() {
            let members = Members::of(&format!("{}.{index}", self.field("headers")), header)?;
            let header = members.header(&rule, known, secrets)?;
            rule.headers.push(header);
        }
        self.check_rule(&rule)?;
        Ok(rule)
    }

    fn check_rule(&self, rule: &ProxyRule) -> Result<(), Rejection> {
        if rule.is_attribution() {
            let restrictions = [
                ("match_hosts", rule.match_hosts.is_empty()),
                ("match_paths", rule.match_paths.is_empty()),
                ("match_headers", rule.match_headers.is_empty()),
                ("match_port", rule.match_port.is_none()),
                ("match_scheme", rule.match_scheme.is_none()),
                ("env_vars", rule.env_vars.is_empty()),
            ];
            return match restrictions.into_iter().find(|(_, is_missing)| !is_missing) {
                None => Ok(()),
                Some((name, _)) => Err(Rejection::rule(
                    self.field(name),
                    "an attribution rule is for every host and has only headers",
                )),
            };
        }
        if rule.match_hosts.is_empty() {
            return Err(Rejection::rule(
                self.field("match_hosts"),
                "name the hosts that get the headers of this rule",
            ));
        }
        if rule.headers.is_empty() {
            return Err(Rejection::rule(
                self.field("headers"),
                "name at least one header; to open a host without one, use access_control.allow_list",
            ));
        }
        Ok(())
    }

    fn port(&self) -> Result<Option<u16>, Rejection> {
        let Some(value) = self.get("match_port") else {
            return Ok(None);
        };
        let port = value.as_u64().and_then(|port| u16::try_from(port).ok());
        match port.filter(|port| *port > 0) {
            Some(port) => Ok(Some(port)),
            None => Err(Rejection::invalid(self.field("match_port"), "expected 1 to 65535")),
        }
    }

    fn variables(&self) -> Result<BTreeMap<String, String>, Rejection> {
        let Some(value) = self.get("env_vars") else {
            return Ok(BTreeMap::new());
        };
        let place = self.field("env_vars");
        let mut variables = BTreeMap::new();
        for (name, value) in Members::of(&place, value)?.members {
            let value = value
                .as_str()
                .ok_or_else(|| Rejection::invalid(place.clone(), "expected texts"))?;
            variables.insert(name.clone(), value.to_owned());
        }
        check_variables(&place, &variables)?;
        Ok(variables)
    }

    fn header(
        &self,
        rule: &ProxyRule,
        known: &StoredProxy,
        secrets: &mut ProxySecrets,
    ) -> Result<ProxyHeader, Rejection> {
        self.check_known(&["is_set", "name", "type", "value"])?;
        self.flag("is_set")?;
        let name = self.text("name", 255)?;
        let name = name.ok_or_else(|| Rejection::invalid(self.field("name"), "expected the name of a header"))?;
        if rule
            .headers
            .iter()
            .any(|header| header.name.eq_ignore_ascii_case(&name))
        {
            return Err(Rejection::rule(self.field("name"), "a rule sets a header once"));
        }
        if rule.is_attribution() && !name.to_ascii_lowercase().starts_with("x-") {
            let text = "headers of an attribution rule begin with X-";
            return Err(Rejection::invalid(self.field("name"), text));
        }
        let value = self.text("value", MAX_HEADER_LENGTH)?;
        let missing = || {
            Rejection::invalid(
                self.field("value"),
                "expected the value of the header; a stored one is kept for the same rule and hosts",
            )
        };
        match self.text("type", 64)?.as_deref() {
            Some("plaintext") => Ok(ProxyHeader {
                name,
                kind: ProxyHeaderKind::Plaintext,
                is_set: false,
                value: Some(value.ok_or_else(missing)?),
            }),
            Some("opaque") if !rule.is_attribution() => {
                let value = match value {
                    Some(value) => Secret::new(value),
                    None => known.secret(rule, &name).ok_or_else(missing)?.clone(),
                };
                secrets.insert(&rule.name, &name, value);
                Ok(ProxyHeader {
                    name,
                    kind: ProxyHeaderKind::Opaque,
                    is_set: true,
                    value: None,
                })
            }
            Some("workspace_secret") if !rule.is_attribution() => Err(Rejection::unsupported(
                self.field("type"),
                "a workspace secret (send its value with the type opaque)",
            )),
            _ => {
                let text = if rule.is_attribution() {
                    "expected plaintext: an attribution rule holds no secrets"
                } else {
                    "expected plaintext or opaque"
                };
                Err(Rejection::invalid(self.field("type"), text))
            }
        }
    }
}

#[cfg(test)]
mod tests;
