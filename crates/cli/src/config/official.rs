//! Variables of the official agent server. Users who bring them along must learn which of them have no effect here.
//! `docs/agent-server.md` lists the same variables; a test compares them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use towpath_domain::Secret;

use super::keys;
use super::values::{Layer, Origin, Value};

/// Effect of a variable on this server.
enum Effect {
    /// As on the official server.
    Same,
    /// That of a setting: the value is translated, if it can be.
    Setting(&'static str, fn(&str) -> Option<&'static str>),
    /// Part of the setting `listen`, if nothing else sets it.
    Address,
    /// Part of the graph file, if there is no file.
    GraphFile,
    /// None, and none is needed.
    Unnecessary,
    /// None: the text names the alternative.
    None(&'static str),
    /// The server does not start with it, because it would not give the requested protection. The first value is the
    /// one that requests nothing.
    Refused(&'static str, &'static str),
}

/// Variables that are not other names of a setting.
const VARIABLES: &[(&str, Effect)] = &[
    ("LANGSMITH_TRACING", Effect::Same),
    ("LANGSMITH_TRACING_V2", Effect::Same),
    ("LANGCHAIN_TRACING_V2", Effect::Same),
    ("LANGSMITH_ENDPOINT", Effect::Same),
    ("LANGCHAIN_ENDPOINT", Effect::Same),
    ("LANGSMITH_API_KEY", Effect::Same),
    ("LANGCHAIN_API_KEY", Effect::Same),
    ("LANGSMITH_PROJECT", Effect::Same),
    ("LANGCHAIN_PROJECT", Effect::Same),
    ("LANGSMITH_WORKSPACE_ID", Effect::Same),
    ("LANGSMITH_TENANT_ID", Effect::Same),
    ("LANGSMITH_HOST_PROJECT_ID", Effect::Same),
    ("LANGSMITH_HOST_REVISION_ID", Effect::Same),
    ("LANGSMITH_LANGGRAPH_API_REVISION", Effect::Same),
    ("LANGGRAPH_CLOUD_LICENSE_KEY", Effect::Unnecessary),
    ("LANGGRAPH_AES_KEY", Effect::Refused("", ENCRYPTION)),
    ("LANGGRAPH_AES_JSON_KEYS", Effect::Refused("", ENCRYPTION)),
    (
        "LANGGRAPH_AUTH_TYPE",
        Effect::Refused(
            "noop",
            "callers need keys of this server (agent.auth), or the auth of the graph file (auth.path); unset the variable",
        ),
    ),
    (
        "LANGSMITH_AUTH_ENDPOINT",
        Effect::None("callers need keys of this server"),
    ),
    (
        "LANGSMITH_AUTH_VERIFY_TENANT_ID",
        Effect::None("callers need keys of this server"),
    ),
    ("REDIS_CLUSTER", Effect::None("name one Redis in REDIS_URI")),
    ("REDIS_CONNECT_TIMEOUT", Effect::None("the server chooses it")),
    ("REDIS_HEALTH_CHECK_INTERVAL", Effect::None("the server chooses it")),
    (
        "REDIS_TLS_CA_CERT",
        Effect::None("add it to the trusted certificates of the machine, or name it in SSL_CERT_FILE"),
    ),
    ("MAX_STREAM_CHUNK_SIZE_BYTES", Effect::None("events are not split")),
    ("CORS_CONFIG", Effect::Same),
    (PORT, Effect::Address),
    (HOST, Effect::Address),
    ("BG_JOB_ISOLATED_LOOPS", Effect::Setting("agent.isolation", isolation)),
    ("FF_CRONS_ENABLED", Effect::None("crons always run")),
    ("FF_USE_REDIS_QUEUE", Effect::None("jobs are in the database")),
    (
        "FF_V2_EVENT_STREAMING",
        Effect::None("set http.disable_event_streaming in the graph file"),
    ),
    ("FF_ASYNC_PUBLISH_QUEUE", Effect::None("the server chooses it")),
    ("CRON_SCHEDULER_SLEEP_TIME", Effect::None("the server chooses it")),
    ("CRON_SCHEDULER_BATCH_SIZE", Effect::None("the server chooses it")),
    ("STATS_INTERVAL_SECS", Effect::None("the metrics have these figures")),
    ("LOG_LEVEL", Effect::Setting("log.filter", log_filter)),
    ("LOG_JSON", Effect::Setting("log.format", log_format)),
    ("DISPATCH_MODE", Effect::None("start roles with --role")),
    ("LANGGRAPH_RUNNER_BIND", Effect::None("start roles with --role")),
    ("LANGSERVE_GRAPHS", Effect::GraphFile),
    ("LANGGRAPH_CONFIG", Effect::None(FILE)),
    ("LANGGRAPH_HTTP", Effect::GraphFile),
    ("LANGGRAPH_STORE", Effect::GraphFile),
    ("LANGGRAPH_CHECKPOINTER", Effect::GraphFile),
    ("LANGGRAPH_AUTH", Effect::GraphFile),
    ("LANGGRAPH_ENCRYPTION", Effect::GraphFile),
    ("LANGGRAPH_WEBHOOKS", Effect::GraphFile),
    ("LANGGRAPH_THREAD_TTL", Effect::GraphFile),
    ("LANGGRAPH_PRIORITY", Effect::GraphFile),
    ("LANGGRAPH_UI", Effect::None("pages of the author are not served")),
];

const PORT: &str = "PORT";
const HOST: &str = "LANGGRAPH_SERVER_HOST";
/// The address of an agent server, of which the variables replace a part each.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8123);

fn isolation(text: &str) -> Option<&'static str> {
    switch(text).map(|isolated| if isolated { "process" } else { "shared" })
}

fn log_filter(text: &str) -> Option<&'static str> {
    match text.to_ascii_uppercase().as_str() {
        "DEBUG" => Some("debug,apalis_core=warn,sqlx=warn"),
        "INFO" => Some("info,apalis_core=warn,sqlx=warn"),
        "WARNING" | "WARN" => Some("warn"),
        "ERROR" | "CRITICAL" => Some("error"),
        _ => None,
    }
}

fn log_format(text: &str) -> Option<&'static str> {
    switch(text).map(|json| if json { "json" } else { "text" })
}

fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Settings of variables whose values are written otherwise here, and a warning for each value without a translation.
pub fn settings(environment: &[(String, String)]) -> (Layer, Vec<String>) {
    let (mut layer, mut warnings) = (Layer::new(), Vec::new());
    for (name, effect) in VARIABLES {
        let Effect::Setting(key, translate) = effect else {
            continue;
        };
        let set = environment.iter().find(|(set, value)| set == name && !value.is_empty());
        let Some((_, value)) = set else { continue };
        match translate(value) {
            Some(text) => {
                let value = Value {
                    text: text.to_owned(),
                    origin: Origin::Environment((*name).to_owned()),
                };
                layer.insert(*key, value);
            }
            None => warnings.push(format!(
                "environment variable {name} has no effect: its value is not one of the official server; set {key}"
            )),
        }
    }
    (layer, warnings)
}

/// The value of `listen` by the variables for it, and a warning for each that is no part of an address.
pub fn listen(environment: &[(String, String)]) -> (Option<Value>, Vec<String>) {
    let value = |name: &str| environment.iter().find(|(set, value)| set == name && !value.is_empty());
    let (mut address, mut source, mut warnings) = (ADDRESS, None, Vec::new());
    for name in [HOST, PORT] {
        let Some((_, text)) = value(name) else { continue };
        let is_read = match name {
            HOST => text.parse().map(|host: IpAddr| address.set_ip(host)).is_ok(),
            _ => text.parse().map(|port: u16| address.set_port(port)).is_ok(),
        };
        if is_read {
            source = Some(name);
        } else {
            warnings.push(format!(
                "environment variable {name} has no effect: {text:?} is no part of an address such as {ADDRESS}; set listen"
            ));
        }
    }
    let listen = source.map(|name| Value {
        text: address.to_string(),
        origin: Origin::Environment(name.to_owned()),
    });
    (listen, warnings)
}

const ENCRYPTION: &str = "this server does not encrypt checkpoints; encrypt the disk of its database instead and \
                          unset the variable, or keep using the official server for these threads";
const FILE: &str = "set it in the graph file that --config names";

/// Warnings about the variables of a process.
pub fn warnings<'e>(environment: impl Iterator<Item = (&'e str, &'e str)>) -> Vec<String> {
    let set = environment.filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, _)| {
        let (name, effect) = VARIABLES.iter().find(|(known, _)| *known == name)?;
        match effect {
            Effect::None(instead) => Some(format!(
                "environment variable {name} has no effect on this server: {instead}"
            )),
            Effect::Same
            | Effect::Setting(..)
            | Effect::Address
            | Effect::GraphFile
            | Effect::Unnecessary
            | Effect::Refused(..) => None,
        }
    })
    .collect()
}

/// Warnings about variables that a graph file passes to its graphs: they do not configure the server.
pub fn warnings_of_file<'e>(environment: impl Iterator<Item = (&'e str, &'e str)>) -> Vec<String> {
    let set: Vec<(&str, &str)> = environment.collect();
    let mut found = warnings(set.iter().copied());
    let is_setting = |name: &str| keys::all().any(|key| key.environment_names().any(|known| known == name));
    let is_translated = |name: &str| {
        let effect = VARIABLES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, effect)| effect);
        matches!(effect, Some(Effect::Setting(..) | Effect::Address | Effect::GraphFile))
    };
    let settings = set.iter().filter(|(name, _)| is_setting(name) || is_translated(name));
    found.extend(settings.map(|(name, _)| {
        format!("env of the graph file: {name} has no effect on the server; set it in the environment of the process")
    }));
    found
}

/// Why the server does not start with this value of a variable, if it does not.
pub fn refusal(find: impl Fn(&str) -> Option<Secret>) -> Option<String> {
    VARIABLES.iter().find_map(|(name, effect)| {
        let Effect::Refused(nothing, why) = effect else {
            return None;
        };
        let value = find(name)?;
        let asks = !value.reveal().is_empty() && value.reveal() != *nothing;
        asks.then(|| format!("{name}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_without_effect_are_said() {
        let set = [
            ("REDIS_CLUSTER", "true"),
            ("STATS_INTERVAL_SECS", ""),
            ("LANGSMITH_PROJECT", "p"),
            ("HOME", "/"),
        ];
        let found = warnings(set.into_iter());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("REDIS_CLUSTER") && found[0].contains("REDIS_URI"),
            "{found:?}"
        );
        let found = warnings_of_file([("N_JOBS_PER_WORKER", "5"), ("MINE", "x")].into_iter());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("N_JOBS_PER_WORKER"), "{found:?}");
    }

    #[test]
    fn values_of_the_official_server_are_translated() {
        let settings = |pairs: &[(&str, &str)]| {
            let owned = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let (layer, warnings) = settings(&owned.collect::<Vec<_>>());
            let texts: Vec<_> = layer.into_iter().map(|(key, value)| (key, value.text)).collect();
            (texts, warnings)
        };
        let text = |key: &'static str, text: &str| (key, text.to_owned());
        let (found, warnings) = settings(&[
            ("BG_JOB_ISOLATED_LOOPS", "True"),
            ("LOG_JSON", "false"),
            ("LOG_LEVEL", "WARNING"),
        ]);
        let expected = [
            text("agent.isolation", "process"),
            text("log.filter", "warn"),
            text("log.format", "text"),
        ];
        assert_eq!((found.as_slice(), warnings.len()), (&expected[..], 0));
        let (found, warnings) = settings(&[("LOG_LEVEL", "loud"), ("LOG_JSON", "")]);
        assert!(found.is_empty() && warnings.len() == 1, "{warnings:?}");
        assert!(warnings[0].contains("LOG_LEVEL") && warnings[0].contains("log.filter"));
        // Every translation is a value of its setting.
        for (name, effect) in VARIABLES {
            let Effect::Setting(key, translate) = effect else {
                continue;
            };
            let key = keys::all().find(|known| known.name == *key).unwrap();
            for value in ["true", "false", "debug", "INFO", "warning", "ERROR", "Critical"] {
                let translated = translate(value);
                let wrong = translated.and_then(|text| key.kind.validation_error(text));
                assert_eq!(wrong, None, "{name}={value}");
            }
        }
    }

    #[test]
    fn what_would_protect_is_refused() {
        let refused = |name: &'static str, value: &'static str| {
            refusal(|asked| (asked == name).then(|| Secret::new(value))).is_some()
        };
        assert!(refused("LANGGRAPH_AES_KEY", "0123456789abcdef"));
        assert!(refused("LANGGRAPH_AES_JSON_KEYS", "{}"));
        assert!(refused("LANGGRAPH_AUTH_TYPE", "langsmith"));
        assert!(!refused("LANGGRAPH_AUTH_TYPE", "noop") && !refused("LANGGRAPH_AES_KEY", ""));
    }

    #[test]
    fn the_reference_lists_every_variable() {
        let reference = include_str!("../../../../docs/agent-server.md");
        let (_, section) = reference.split_once("\n## Variables of the official server\n").unwrap();
        let section = section.split("\n## ").next().unwrap_or_default();
        let listed: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let known: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, known);
        for (name, effect) in VARIABLES {
            let row = section.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let says = |begin: &str| row.unwrap_or_default().contains(begin);
            assert_eq!(says("| no effect: "), matches!(effect, Effect::None(_)), "{name}");
            assert_eq!(says("| refused"), matches!(effect, Effect::Refused(..)), "{name}");
        }
    }
}
