//! The environment as a source of settings.

use super::key::Key;
use super::keys;
use super::nearest;
use super::values::{Layer, Origin, Value};

/// Names the configuration file.
pub const CONFIG: &str = "TOWPATH_CONFIG";
/// Names the server that commands talk to; the command line itself reads it.
pub const SERVER: &str = "TOWPATH_SERVER";
/// Names the point at which a test wants the process to die.
pub const FAILPOINT: &str = "TOWPATH_FAILPOINT";
/// Names the file in which a test says by how many milliseconds the clock is to be ahead.
pub const CLOCK_OFFSET_FILE: &str = "TOWPATH_CLOCK_OFFSET_FILE";

/// The environment of this process. Entries that are not UTF-8 are left out: no setting of ours can be one.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub fn read() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The settings the environment holds, and a warning for each name that looks like one and is not.
///
/// A warning and no error: a container platform may add names of its own that begin with the service's name.
pub fn layer(environment: &[(String, String)]) -> (Layer, Vec<String>) {
    let mut layer = Layer::new();
    for key in keys::all() {
        // An empty variable is how shells and compose files say "not set".
        let found = key.environment_names().find_map(|name| {
            let set = |(set, value): &&(String, String)| *set == name && !value.is_empty();
            environment
                .iter()
                .find(set)
                .map(|(_, value)| (name.clone(), value.clone()))
        });
        if let Some((name, text)) = found {
            layer.insert(
                key.name,
                Value {
                    text,
                    origin: Origin::Environment(name),
                },
            );
        }
    }
    let known: Vec<String> = keys::all()
        .flat_map(Key::environment_names)
        .chain([CONFIG, FAILPOINT, CLOCK_OFFSET_FILE, SERVER].map(str::to_owned))
        .collect();
    let ours = |name: &str| name.starts_with("TOWPATH_") && !name.starts_with("TOWPATH_TEST_");
    let warnings = environment
        .iter()
        .map(|(name, _)| name)
        .filter(|name| ours(name) && !known.contains(name) && !is_service_link(name))
        .map(|name| match nearest(name, known.iter().map(String::as_str)) {
            Some(near) => format!("environment variable {name} is not a setting; did you mean {near}?"),
            None => format!("environment variable {name} is not a setting"),
        })
        .collect();
    (layer, warnings)
}

/// Kubernetes adds such names to every container that runs beside a service called `towpath…`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}
