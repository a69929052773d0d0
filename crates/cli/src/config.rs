//! Settings: the sources of values and their validation.
//!
//! A value comes from a flag, else the environment, else the configuration file, else its default. Unknown keys are
//! errors in the file and warnings in the environment; each names the nearest known key. Only this module reads the
//! environment.

mod environment;
mod file;
mod key;
mod keys;
mod kind;
mod mode;
mod nearest;
mod official;
mod settings;
mod test_switches;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use towpath_domain::Secret;
use towpath_queue::{DispatchMode, Windows};

pub use environment::read as read_environment;
pub use mode::{Flag, Mode};
pub use official::{refusal, warnings_of_file};
pub use settings::{AgentAuth, DeploymentBackend, HostSettings, LogFormat, SandboxMode, Settings, TlsFiles};
pub use test_switches::TestSwitches;
pub use values::{Origin, ResolvedSetting};

/// All sources of settings. Tests build it by hand; [`Inputs::from_process`] reads the real ones.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Decides a few defaults.
    pub mode: Mode,
    pub flags: Vec<Flag>,
    pub environment: Vec<(String, String)>,
    pub file: Option<PathBuf>,
}

impl Inputs {
    /// The environment of this process, and the file named by `--config`, else by `TOWPATH_CONFIG`, else `towpath.toml`
    /// in the current folder if it exists.
    pub fn from_process(mode: Mode, flags: Vec<Flag>, config: Option<PathBuf>) -> Self {
        let environment = environment::read();
        let named = || {
            environment
                .iter()
                .find(|(name, _)| name == environment::CONFIG)
                .map(|(_, file)| file.into())
        };
        let usual = || Some(PathBuf::from("towpath.toml")).filter(|file| file.is_file());
        let file = config.or_else(named).or_else(usual);
        Self {
            mode,
            flags,
            environment,
            file,
        }
    }

    /// Only defaults and flags: `towpath demo` uses it, so that nothing on the machine can change its behaviour.
    pub fn isolated(mode: Mode, flags: Vec<Flag>) -> Self {
        Self {
            mode,
            flags,
            environment: Vec::new(),
            file: None,
        }
    }
}

/// The settings of this process and the origin of each.
#[derive(Debug)]
pub struct Config {
    pub mode: Mode,
    pub settings: Settings,
    /// Value and origin of each key, in the order of [`keys::all`].
    pub resolved: Vec<ResolvedSetting>,
    pub warnings: Vec<String>,
    /// The environment, for variables that graphs name.
    pub environment: BTreeMap<String, Secret>,
    pub test_switches: TestSwitches,
    /// The usual AWS variables, for `s3://` objects and for destinations that may use them.
    pub aws: BTreeMap<String, Secret>,
}

impl Config {
    /// Reads and validates everything. Returns all problems at once.
    pub fn load(inputs: &Inputs) -> Result<Self, Problems> {
        let mut problems = environment::renamed(&inputs.environment);
        let (mut environment, mut warnings) = environment::layer(&inputs.environment);
        // Users of the official agent server may bring its variables along.
        if matches!(inputs.mode, Mode::Agent | Mode::Dev) {
            let set = inputs.environment.iter();
            warnings.extend(official::warnings(
                set.map(|(name, value)| (name.as_str(), value.as_str())),
            ));
        }
        let file = inputs
            .file
            .as_deref()
            .map(|path| file::layer(path, &mut problems))
            .unwrap_or_default();
        // Other programs may be why these are set: the configuration file takes precedence.
        if matches!(inputs.mode, Mode::Agent | Mode::Dev) {
            let (translated, untranslated) = official::settings(&inputs.environment);
            warnings.extend(untranslated);
            for (key, value) in translated.into_iter().filter(|(key, _)| !file.contains_key(key)) {
                environment.entry(key).or_insert(value);
            }
        }
        if inputs.mode == Mode::Agent && !file.contains_key("listen") {
            let (listen, wrong) = official::listen(&inputs.environment);
            warnings.extend(wrong);
            if let Some(listen) = listen {
                environment.entry("listen").or_insert(listen);
            }
        }
        let mut resolved = values::resolve(inputs.mode, &inputs.flags, &environment, &file);
        problems.extend(resolved.iter().filter_map(ResolvedSetting::problem));
        problems.extend(find_conflicts(&resolved));
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let mut settings = Settings::from_checked(&resolved);
        if inputs.mode == Mode::Worker {
            connect_many_slots(&mut settings, &mut resolved);
        }
        let aws = inputs
            .environment
            .iter()
            .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty());
        let aws = aws.map(|(name, value)| (name.clone(), Secret::new(value))).collect();
        let whole = inputs.environment.iter();
        let environment = whole.map(|(name, value)| (name.clone(), Secret::new(value))).collect();
        Ok(Self {
            environment,
            mode: inputs.mode,
            settings,
            resolved,
            warnings,
            test_switches: TestSwitches::read(&inputs.environment),
            aws,
        })
    }
}

impl Config {
    /// The configuration files that contributed values.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.resolved.iter().filter_map(|value| match &value.origin {
            Origin::File { path, .. } => Some(path.clone()),
            _ => None,
        })
    }
}

/// Conflicts between values that are valid on their own.
fn find_conflicts(resolved: &[ResolvedSetting]) -> Vec<String> {
    let text = |name: &str| {
        let value = resolved.iter().find(|value| value.key.name == name)?;
        value.text.as_deref()
    };
    let mut found = Vec::new();
    match (text("tls.cert"), text("tls.key")) {
        (Some(_), None) => found.push("tls.key: required with tls.cert".to_owned()),
        (None, Some(_)) => found.push("tls.cert: required with tls.key".to_owned()),
        _ => {}
    }
    let plain = text("tls.plain_listen").and_then(|address| address.parse::<SocketAddr>().ok());
    if let Some(address) = plain.filter(|address| !address.ip().is_loopback()) {
        found.push(format!(
            "tls.plain_listen: expected a loopback address such as 127.0.0.1:8403, got \"{address}\": its traffic \
             is not encrypted"
        ));
    }
    let number = |name: &str| text(name).and_then(|text| text.parse::<u32>().ok());
    if let (Some(_), Some(most)) = (text("redis_uri"), number("redis_connections")) {
        let dispatch = match text("queue.dispatch") {
            Some("directed") => DispatchMode::Directed,
            _ => DispatchMode::Scan,
        };
        let limits = ["requests_per_key", "requests_per_workspace", "requests_per_deployment"];
        let has_limits = text("limits.rules") != Some("off")
            || limits.iter().any(|limit| number(&format!("limits.{limit}")) != Some(0));
        let needed = dispatch.connections() + if has_limits { Windows::CONNECTIONS } else { 0 };
        if most < needed {
            found.push(format!(
                "redis_connections: expected at least {needed}, the connections that this process opens, got {most}; \
                 raise or unset it (REDIS_MAX_CONNECTIONS)"
            ));
        }
    }
    found
}

/// Number of slots up to which the default connections of a worker suffice.
const DEFAULT_POOL_SLOTS: usize = 72;
/// Connections of a worker with more slots.
const CONNECTIONS_FOR_MANY: u32 = 8;

/// Raises the connections of a worker with many slots, unless their number is set.
fn connect_many_slots(settings: &mut Settings, resolved: &mut [ResolvedSetting]) {
    let pools = towpath_workflows::registry().pools();
    let slots: usize = pools.iter().map(|pool| settings.slots_of(pool)).sum();
    let mut given = resolved.iter_mut();
    let connections = given.find(|value| value.key.name == "database_connections" && value.origin == Origin::Default);
    if let Some(value) = connections.filter(|_| slots > DEFAULT_POOL_SLOTS) {
        value.text = Some(CONNECTIONS_FOR_MANY.to_string());
        settings.database_connections = CONNECTIONS_FOR_MANY;
    }
}

/// Why the settings cannot be used, one sentence each.
#[derive(Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// Whether a variable of this name holds a secret of the server itself.
pub fn holds_secret(name: &str) -> bool {
    use kind::Kind;
    let secret = |kind: &Kind| matches!(kind, Kind::Uri(_) | Kind::ApiKey | Kind::EncryptionKey);
    keys::all().any(|key| secret(&key.kind) && key.environment.contains(&name))
}

#[cfg(test)]
mod tests;
