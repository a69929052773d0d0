//! Settings: where each value comes from and what it must look like.
//!
//! A value is taken from a flag, else the environment, else the configuration file, else its default. Keys that do
//! not exist are errors in the file and warnings in the environment, each with the nearest key that does. This
//! module is the only place of the project that reads the environment.

mod environment;
mod file;
mod key;
mod keys;
mod kind;
mod official;
mod settings;
mod switches;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use towpath_domain::Secret;

pub use environment::read as read_environment;
pub use official::{refusal, warnings_of_file};
pub use settings::{AgentAuth, DeploymentBackend, HostSettings, LogFormat, Settings, TlsFiles};
pub use switches::Switches;
pub use values::{Origin, Resolved};

/// Which command the settings are for; a few defaults differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `towpath dev` and `towpath demo`: everything in one process on this machine.
    Dev,
    /// `towpath serve` with the API among its roles.
    Api,
    /// `towpath serve --role worker`, perhaps with the scheduler.
    Worker,
    /// `towpath serve --role scheduler`.
    Scheduler,
    /// `towpath agent`.
    Agent,
}

/// A value given on the command line.
#[derive(Clone, Debug)]
pub struct Flag {
    /// The key it sets.
    pub key: &'static str,
    /// As it is written on the command line.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// Everything settings are made from. Tests fill it by hand; [`Inputs::of_process`] takes the real ones.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Decides a few defaults.
    pub mode: Mode,
    /// From the command line.
    pub flags: Vec<Flag>,
    /// The environment.
    pub environment: Vec<(String, String)>,
    /// The configuration file, where one is read.
    pub file: Option<PathBuf>,
}

impl Inputs {
    /// The environment of this process, and the file named by `--config`, else by `TOWPATH_CONFIG`, else
    /// `towpath.toml` in the current folder where there is one.
    pub fn of_process(mode: Mode, flags: Vec<Flag>, config: Option<PathBuf>) -> Self {
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

    /// Defaults and flags alone: what `towpath demo` runs with, so that nothing on the machine can change it.
    pub fn closed(mode: Mode, flags: Vec<Flag>) -> Self {
        Self {
            mode,
            flags,
            environment: Vec::new(),
            file: None,
        }
    }
}

/// The settings of this process and the story of each.
#[derive(Debug)]
pub struct Config {
    /// Which command they are for.
    pub mode: Mode,
    /// Ready to use.
    pub settings: Settings,
    /// Each key's value and origin, in the order of [`KEYS`].
    pub resolved: Vec<Resolved>,
    /// What looks wrong but stops nothing.
    pub warnings: Vec<String>,
    /// The environment, for what graphs name of it.
    pub environment: BTreeMap<String, Secret>,
    /// What a test asks of this process.
    pub switches: Switches,
    /// The usual AWS variables, for `s3://` objects and for destinations that may use them.
    pub aws: BTreeMap<String, Secret>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// All problems at once: unknown keys, values of the wrong kind, a file that cannot be read.
    pub fn load(inputs: &Inputs) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let (environment, mut warnings) = environment::layer(&inputs.environment);
        // Where an agent server is: the official one's users bring its variables along.
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
        let mut resolved = values::resolve(inputs, &environment, &file);
        problems.extend(resolved.iter().filter_map(Resolved::problem));
        problems.extend(misfits(&resolved));
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
            switches: Switches::read(&inputs.environment),
            aws,
        })
    }
}

impl Config {
    /// The files that say something.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.resolved.iter().filter_map(|value| match &value.origin {
            Origin::File { path, .. } => Some(path.clone()),
            _ => None,
        })
    }
}

/// What is wrong with values that are well by themselves.
fn misfits(resolved: &[Resolved]) -> Vec<String> {
    let text = |name: &str| {
        let value = resolved.iter().find(|value| value.key.name == name)?;
        value.text.as_deref()
    };
    let mut found = Vec::new();
    match (text("tls.cert"), text("tls.key")) {
        (Some(_), None) => found.push("tls.key: tls.cert is set, and has no key without it".to_owned()),
        (None, Some(_)) => found.push("tls.cert: tls.key is set, and has no certificate without it".to_owned()),
        _ => {}
    }
    let plain = text("tls.plain_listen").and_then(|address| address.parse::<SocketAddr>().ok());
    if let Some(address) = plain.filter(|address| !address.ip().is_loopback()) {
        found.push(format!(
            "tls.plain_listen: expected an address of loopback such as 127.0.0.1:8403, got \"{address}\": what passes \
             there is not protected"
        ));
    }
    found
}

/// Jobs at a time that the usual connections of a worker are enough for…
const FEW_SLOTS: usize = 64;
/// … and the connections of one that performs more.
const CONNECTIONS_FOR_MANY: u32 = 8;

/// More connections for a worker that performs many jobs at a time, unless their number was given.
fn connect_many_slots(settings: &mut Settings, resolved: &mut [Resolved]) {
    let pools = towpath_workflows::registry().pools();
    let slots: usize = pools.iter().map(|pool| settings.slots_of(pool)).sum();
    let mut given = resolved.iter_mut();
    let connections = given.find(|value| value.key.name == "database_connections" && value.origin == Origin::Default);
    if let Some(value) = connections.filter(|_| slots > FEW_SLOTS) {
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

/// The name in `known` that `wrong` was probably meant to be.
fn nearest<'n>(wrong: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    known
        .map(|name| (strsim::normalized_damerau_levenshtein(wrong, name), name))
        .filter(|(likeness, _)| *likeness > 0.6)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests;
