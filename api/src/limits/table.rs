//! The rules of the hosted platform, as data, and which of them a request falls under.
//!
//! One rule counts a request: the first in the order of evaluation that matches its method and path, and whose identity
//! the request has. That is decided before routing, so that paths without a route are counted too.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use http::Method;
use regex::Regex;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The 29 rules for both regions.
const HOSTED: &str = include_str!("rules.json");
/// What stands before the paths of rules, where they have none of it themselves: clients put it there or leave it out.
const PREFIXES: [&str; 3] = ["/api/v1", "/api/v2", "/v1"];
/// The longest window. Its moments have to be kept for as long.
const MAX_INTERVAL_SECONDS: u64 = 86_400;

/// Rules in the order of their evaluation.
#[derive(Debug)]
pub struct Table {
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
}

/// At most so many requests of one identity in any span of so long.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) category: String,
    pub(crate) identity: IdentityKind,
    pub(crate) count: u32,
    pub(crate) length: Duration,
    /// None is every method.
    methods: Option<Vec<String>>,
    condition: Condition,
}

/// Whose requests a rule counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentityKind {
    /// Of one API key.
    Key,
    /// Of one user at one address.
    User,
    Address,
}

/// What of a request decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestFacts<'r> {
    pub(crate) method: &'r Method,
    pub(crate) path: &'r str,
    /// It has an API key.
    pub(crate) key: bool,
    /// It names a user, and its caller is known.
    pub(crate) user: bool,
}

/// Why rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error("{0}")]
    Unreadable(#[from] std::io::Error),
    /// It is of another shape.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    /// It says what cannot be counted.
    #[error("{0}")]
    Invalid(String),
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    defaults: Defaults,
    rules: Vec<RuleDocument>,
    /// Without it, the order of the rules.
    evaluation_order: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct Defaults {
    region: Option<String>,
}

/// As with [`Parts`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleDocument {
    id: String,
    #[serde(default)]
    category: String,
    methods: Option<Vec<String>>,
    #[serde(rename = "match")]
    condition: ConditionDocument,
    identity: Vec<String>,
    us: Option<Quota>,
    eu: Option<Quota>,
    count: Option<u32>,
    interval_s: Option<u64>,
    /// For people.
    #[serde(rename = "note")]
    _note: Option<IgnoredAny>,
}

#[derive(Clone, Copy, Deserialize)]
struct Quota {
    count: u32,
    interval_s: u64,
}

/// A name that is not known would make a rule match more than its author means.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionDocument {
    any: Option<Vec<ConditionDocument>>,
    method: Option<String>,
    path_is: Option<String>,
    path_prefix: Option<String>,
    path_contains: Option<String>,
    path_suffix: Option<String>,
    path_regex: Option<String>,
    header_present: Option<String>,
    always: Option<bool>,
}

#[derive(Debug)]
enum Condition {
    Any(Vec<Condition>),
    All(Vec<Condition>),
    Method(String),
    /// The path, with or without a prefix.
    Is(String),
    /// It, and what is below it, with or without a prefix.
    Prefix(String),
    Contains(String),
    Suffix(String),
    Matches(Regex),
    HasKey,
    HasUser,
    Always,
}

impl Table {
    /// Reads what the setting names: `us`, `eu`, or a file.
    ///
    /// # Errors
    /// There is no such file, or it has no rules that can be used.
    pub fn load(choice: &str) -> Result<Self, Error> {
        match choice {
            "us" | "eu" => Self::parse(HOSTED, choice, Some(choice)),
            file => {
                let text = std::fs::read_to_string(Path::new(file))?;
                Self::parse(&text, file, None)
            }
        }
    }

    fn parse(text: &str, name: &str, region: Option<&str>) -> Result<Self, Error> {
        let document: Document = serde_json::from_str(text)?;
        let region = region
            .or(document.defaults.region.as_deref())
            .unwrap_or("us")
            .to_owned();
        if !matches!(region.as_str(), "us" | "eu") {
            return Err(Error::Invalid(format!(
                "defaults.region: expected us or eu, not {region}"
            )));
        }
        let mut rules = Vec::with_capacity(document.rules.len());
        let mut ids = HashSet::new();
        for line in document.rules {
            let id = line.id.clone();
            if !ids.insert(id.clone()) {
                return Err(Error::Invalid(format!("{id}: two rules have this id")));
            }
            let rule = line
                .rule(&region)
                .map_err(|why| Error::Invalid(format!("{id}: {why}")))?;
            rules.push(rule);
        }
        if rules.is_empty() {
            return Err(Error::Invalid("rules: there are none".to_owned()));
        }
        if let Some(order) = document.evaluation_order {
            rules = ordered(rules, &order)?;
        }
        Ok(Self {
            name: name.to_owned(),
            rules,
        })
    }

    /// The rule that counts a request.
    pub(crate) fn find(&self, sight: &RequestFacts<'_>) -> Option<usize> {
        self.rules.iter().position(|rule| rule.counts(sight))
    }
}

/// Each rule exactly once.
fn ordered(rules: Vec<Rule>, order: &[String]) -> Result<Vec<Rule>, Error> {
    let mut left: Vec<Option<Rule>> = rules.into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(left.len());
    for id in order {
        let found = left
            .iter_mut()
            .find(|rule| matches!(rule, Some(rule) if rule.id == *id));
        let rule = found.and_then(Option::take);
        sorted.push(rule.ok_or_else(|| Error::Invalid(format!("evaluation_order: {id} is no rule, or there twice")))?);
    }
    match left.into_iter().flatten().next() {
        Some(rule) => Err(Error::Invalid(format!("evaluation_order: {} is not in it", rule.id))),
        None => Ok(sorted),
    }
}

impl RuleDocument {
    fn rule(self, region: &str) -> Result<Rule, String> {
        // It stands in headers and in names of keys in Redis.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        if !(1..=64).contains(&self.id.len()) || !self.id.bytes().all(plain) {
            return Err("id: expected at most 64 letters, digits, _ and -".to_owned());
        }
        let given = self.methods.iter().flatten();
        if given
            .into_iter()
            .any(|name| name.bytes().any(|byte| byte.is_ascii_lowercase()))
        {
            return Err("methods: expected names such as POST".to_owned());
        }
        let of_region = if region == "eu" { self.eu } else { self.us };
        let own = || {
            Some(Quota {
                count: self.count?,
                interval_s: self.interval_s?,
            })
        };
        let quota = of_region
            .or_else(own)
            .ok_or_else(|| format!("expected {region}, or count and interval_s"))?;
        if quota.count == 0 {
            return Err("count: expected at least 1".to_owned());
        }
        if !(1..=MAX_INTERVAL_SECONDS).contains(&quota.interval_s) {
            return Err(format!("interval_s: expected 1 to {MAX_INTERVAL_SECONDS}"));
        }
        let identity: Vec<&str> = self.identity.iter().map(String::as_str).collect();
        let identity = match identity[..] {
            ["x-api-key"] => IdentityKind::Key,
            ["x-user-id", "ip"] => IdentityKind::User,
            ["ip"] => IdentityKind::Address,
            _ => return Err("identity: expected [x-api-key], [x-user-id, ip] or [ip]".to_owned()),
        };
        Ok(Rule {
            id: self.id,
            category: self.category,
            identity,
            count: quota.count,
            length: Duration::from_secs(quota.interval_s),
            methods: self.methods,
            condition: self.condition.condition()?,
        })
    }
}

impl ConditionDocument {
    fn condition(self) -> Result<Condition, String> {
        let mut all = Vec::new();
        if let Some(any) = self.any {
            let any: Result<Vec<Condition>, String> = any.into_iter().map(Self::condition).collect();
            all.push(Condition::Any(any?));
        }
        all.extend(self.method.map(Condition::Method));
        all.extend(self.path_is.map(Condition::Is));
        let prefix = self.path_prefix.map(|path| path.trim_end_matches('/').to_owned());
        all.extend(prefix.map(Condition::Prefix));
        all.extend(self.path_contains.map(Condition::Contains));
        all.extend(self.path_suffix.map(Condition::Suffix));
        if let Some(pattern) = self.path_regex {
            let pattern = Regex::new(&pattern).map_err(|error| format!("path_regex: {error}"))?;
            all.push(Condition::Matches(pattern));
        }
        match self.header_present.as_deref() {
            None => {}
            Some("x-api-key") => all.push(Condition::HasKey),
            Some("x-user-id") => all.push(Condition::HasUser),
            Some(_) => return Err("header_present: expected x-api-key or x-user-id".to_owned()),
        }
        match self.always {
            None => {}
            Some(true) => all.push(Condition::Always),
            Some(false) => return Err("always: expected true".to_owned()),
        }
        if all.is_empty() {
            return Err("match: it says nothing".to_owned());
        }
        Ok(Condition::All(all))
    }
}

impl Rule {
    fn counts(&self, sight: &RequestFacts<'_>) -> bool {
        let has_identity = match self.identity {
            IdentityKind::Key => sight.key,
            IdentityKind::User => sight.user,
            IdentityKind::Address => true,
        };
        has_identity
            && self
                .methods
                .as_ref()
                .is_none_or(|methods| methods.iter().any(|method| is(sight.method, method)))
            && self.condition.holds(sight)
    }
}

/// A handler of GET answers HEAD too.
fn is(method: &Method, name: &str) -> bool {
    method.as_str() == name || (*method == Method::HEAD && name == "GET")
}

impl Condition {
    fn holds(&self, sight: &RequestFacts<'_>) -> bool {
        match self {
            Self::Any(any) => any.iter().any(|condition| condition.holds(sight)),
            Self::All(all) => all.iter().all(|condition| condition.holds(sight)),
            Self::Method(name) => is(sight.method, name),
            Self::Is(own) => matches_any_prefix(sight.path, own, |path| path == own),
            Self::Prefix(own) => matches_any_prefix(sight.path, own, |path| {
                path.strip_prefix(own.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }),
            Self::Contains(part) => sight.path.contains(part.as_str()),
            Self::Suffix(end) => sight.path.ends_with(end.as_str()),
            Self::Matches(pattern) => pattern.is_match(sight.path),
            Self::HasKey => sight.key,
            Self::HasUser => sight.user,
            Self::Always => true,
        }
    }
}

/// Whether the path fits as it is, or without a prefix that the rule's own path does not have.
fn matches_any_prefix(path: &str, own: &str, fits: impl Fn(&str) -> bool) -> bool {
    let behind = |prefix: &&str| {
        let rest = path.strip_prefix(*prefix)?;
        (rest.starts_with('/') && below(own, prefix).is_none()).then_some(rest)
    };
    fits(path) || PREFIXES.iter().filter_map(behind).any(fits)
}

fn below<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(region: &str) -> Table {
        Table::load(region).unwrap()
    }

    fn found(table: &Table, method: &str, path: &str, key: bool, user: bool) -> String {
        let method: Method = method.parse().unwrap();
        let sight = RequestFacts {
            method: &method,
            path,
            key,
            user,
        };
        let index = table.find(&sight).expect("the last rule counts everything");
        table.rules[index].id.clone()
    }

    #[test]
    fn both_regions_have_the_29_rules_and_differ_in_three() {
        let (us, eu) = (table("us"), table("eu"));
        assert_eq!((us.rules.len(), eu.rules.len()), (29, 29));
        let differing: Vec<(&str, u32, u32)> = us
            .rules
            .iter()
            .zip(&eu.rules)
            .filter(|(us, eu)| (us.count, us.length) != (eu.count, eu.length))
            .map(|(us, eu)| (us.id.as_str(), us.count, eu.count))
            .collect();
        assert_eq!(
            differing,
            [
                ("commits_key", 10_000, 2_000),
                ("commits_user", 10_000, 2_000),
                ("runs_stats", 1, 20)
            ]
        );
    }

    #[test]
    fn each_rule_is_found_by_what_it_is_for() {
        let table = table("us");
        let run = "/runs/0a1B2c3d-0000-4000-8000-00000000000f";
        for (method, path, key, user, id) in [
            ("OPTIONS", "/runs", true, true, "options_info_metadata"),
            ("GET", "/info", true, false, "options_info_metadata"),
            ("GET", "/api/v1/info", false, false, "options_info_metadata"),
            ("POST", "/v1/metadata/submit", false, false, "options_info_metadata"),
            (
                "POST",
                "/api/v1/v1/metadata/submit",
                true,
                false,
                "options_info_metadata",
            ),
            ("POST", "/auth/session", true, false, "auth_key"),
            ("DELETE", "/auth/session", false, true, "auth_user"),
            ("POST", "/auth", false, false, "catch_all"),
            ("GET", "/authority", true, false, "default_key"),
            ("POST", "/v1/beacon", true, false, "beacon"),
            ("POST", "/api/v1/v1/beacon", false, false, "beacon"),
            ("GET", "/repos/a/b", true, false, "repos_key"),
            ("GET", "/api/v1/repos", false, true, "repos_user"),
            ("POST", "/runs/batch", true, false, "runs_batch"),
            ("POST", "/api/v1/runs/batch", true, false, "runs_batch"),
            ("POST", "/otel/v1/traces", true, false, "otel_traces"),
            ("POST", "/api/v1/otel/v1/traces", true, false, "otel_traces"),
            ("POST", "/otel/v1/logs", true, false, "otel_traces"),
            ("POST", "/api/v1/charts/section", true, false, "charts_key"),
            ("POST", "/charts", false, true, "charts_user"),
            ("GET", "/charts", true, false, "default_key"),
            ("POST", "/runs/multipart", true, false, "runs_multipart"),
            ("POST", "/runs/multipart", false, false, "catch_all"),
            ("POST", "/runs/query", true, true, "runs_query_key"),
            ("POST", "/api/v2/runs/query", true, false, "runs_query_key"),
            ("POST", "/v1/runs/query", false, true, "runs_query_user"),
            ("POST", "/generate", true, false, "generate_key"),
            ("GET", "/generate/x", false, true, "generate_user"),
            ("GET", "/commits/a/b/latest", true, false, "commits_key"),
            ("GET", "/api/v1/commits/a", false, true, "commits_user"),
            ("DELETE", "/sessions/x", true, false, "deletion_key"),
            ("DELETE", "/api/v1/sessions", false, true, "deletion_user"),
            ("POST", "/api/v1/runs/rules/x/trigger", true, false, "deletion_key"),
            ("GET", "/x/trigger", false, true, "deletion_user"),
            ("GET", "/sessions", true, false, "default_key"),
            ("POST", "/runs", true, false, "runs_post"),
            ("POST", "/api/v1/runs", true, false, "runs_post"),
            ("PATCH", run, true, false, "runs_patch"),
            ("PATCH", "/api/v1/runs/x", true, false, "runs_patch"),
            ("POST", "/feedback", true, false, "feedback_post"),
            ("GET", run, true, false, "run_lookup"),
            ("HEAD", run, true, false, "run_lookup"),
            (
                "GET",
                "/api/v1/runs/0a1b2c3d-0000-4000-8000-00000000000f",
                true,
                false,
                "run_lookup",
            ),
            (
                "GET",
                "/api/v2/runs/0a1b2c3d-0000-4000-8000-00000000000f",
                true,
                false,
                "default_key",
            ),
            ("GET", "/runs/not-an-id", true, false, "default_key"),
            ("GET", "/api/v1/examples", true, false, "examples_get"),
            ("GET", "/datasets/x/examples/y", true, false, "examples_get"),
            ("GET", "/v2/deployments", true, false, "default_key"),
            ("GET", "/v2/deployments", false, true, "default_user"),
            ("GET", "/public/download/x", true, true, "public_download"),
            ("POST", "/runs/stats", true, false, "runs_stats"),
            ("GET", "/api/v1/runs/stats", true, false, "runs_stats"),
            ("POST", "/runs/stats", false, true, "default_user"),
            ("GET", "/", false, false, "catch_all"),
        ] {
            assert_eq!(
                found(&table, method, path, key, user),
                id,
                "{method} {path} {key} {user}"
            );
        }
    }

    #[test]
    fn a_file_may_have_rules_of_its_own_and_is_told_what_is_wrong() {
        let rule = r#"{"rules": [{"id": "one", "match": {"path_prefix": "/"}, "identity": ["ip"], "count": 5, "interval_s": 1}]}"#;
        let table = Table::parse(rule, "own.json", None).unwrap();
        assert_eq!(
            (table.rules[0].count, table.rules[0].length),
            (5, Duration::from_secs(1))
        );
        assert_eq!(found(&table, "GET", "/anything", false, false), "one");
        let hosted = Table::parse(
            &HOSTED.replacen(r#""region": "us""#, r#""region": "eu""#, 1),
            "copy",
            None,
        )
        .unwrap();
        assert_eq!(
            hosted.rules.iter().find(|rule| rule.id == "runs_stats").unwrap().count,
            20
        );

        for (from, to, complaint) in [
            (r#""path_prefix""#, r#""path_prefixes""#, "unknown field"),
            (r#""match""#, r#""method": "POST", "match""#, "unknown field"),
            (r#""match""#, r#""methods": ["post"], "match""#, "one: methods"),
            (r#"["ip"]"#, r#"["ip", "x-api-key"]"#, "one: identity"),
            (r#""count": 5, "#, "", "one: expected us"),
            (r#""count": 5"#, r#""count": 0"#, "one: count"),
            (r#""interval_s": 1"#, r#""interval_s": 0"#, "one: interval_s"),
            (r#""id": "one""#, r#""id": "o\"ne""#, "id: expected"),
            (r#"{"path_prefix": "/"}"#, "{}", "one: match"),
        ] {
            let text = rule.replacen(from, to, 1);
            let error = Table::parse(&text, "own.json", None).unwrap_err().to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }
}
