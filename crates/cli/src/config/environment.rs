//! The environment as a source of settings.

use super::key::Key;
use super::keys;
use super::nearest::nearest;
use super::values::{Layer, Origin, Value};

/// Names the configuration file.
pub const CONFIG: &str = "TOWPATH_CONFIG";
/// Names the server that commands talk to; the command line itself reads it.
pub const SERVER: &str = "TOWPATH_SERVER";
/// Names the failpoint at which the process dies in a test.
pub const FAILPOINT: &str = "TOWPATH_FAILPOINT";
/// Names the file with the offset of the clock in a test, in milliseconds.
pub const CLOCK_OFFSET_FILE: &str = "TOWPATH_CLOCK_OFFSET_FILE";

/// The environment of this process, without entries that are not UTF-8: no setting can be one.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub fn read() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Settings of the environment, and a warning for each unknown name that looks like a setting.
///
/// Not an error: a container platform may add names of its own that begin with the service's name.
pub fn layer(environment: &[(String, String)]) -> (Layer, Vec<String>) {
    let mut layer = Layer::new();
    for key in keys::all() {
        // Shells and compose files express "not set" as an empty variable.
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

/// A problem for each variable of a setting that was renamed.
pub fn renamed(environment: &[(String, String)]) -> Vec<String> {
    let variable = |setting: &str| format!("TOWPATH_{}", setting.replace('.', "_").to_uppercase());
    let pairs = keys::RENAMED.map(|(old, new)| (variable(old), variable(new)));
    let set = environment.iter().filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, _)| pairs.iter().find(|(old, _)| old == name))
        .map(|(old, new)| format!("environment variable {old} is now {new}: rename it"))
        .collect()
}

/// Kubernetes adds such names to every container in the namespace of a service called `towpath…`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}
