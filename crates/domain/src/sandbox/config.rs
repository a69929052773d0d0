//! The configuration of a sandbox.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::name::{check_mount_path, check_text};
use super::quantity::{parse_bytes, parse_cpu_millis};
use crate::id::VolumeId;
use crate::rejection::Rejection;

const MAX_VOLUMES: usize = 4;
/// Limit for labels and for variables.
const MAX_ENTRIES: usize = 256;
/// In characters.
const MAX_VALUE_LENGTH: usize = 32 * 1024;

/// User, working directory and environment of a sandbox's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// `root`, `user`, or a user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// An absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Environment of every command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
}

impl RunConfig {
    pub fn check(&self, field: &str) -> Result<(), Rejection> {
        if let Some(user) = &self.user {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
            if user.is_empty() || user.len() > 64 || !user.bytes().all(plain) {
                let text = "expected the name or the id of a user";
                return Err(Rejection::invalid(format!("{field}.user"), text));
            }
        }
        if let Some(folder) = &self.work_dir
            && (!folder.starts_with('/') || folder.len() > 1024 || folder.contains('\0'))
        {
            return Err(Rejection::invalid(
                format!("{field}.work_dir"),
                "expected an absolute path",
            ));
        }
        match &self.env_vars {
            None => Ok(()),
            Some(variables) => check_variables(&format!("{field}.env_vars"), variables),
        }
    }
}

pub(super) fn check_variables(field: &str, variables: &BTreeMap<String, String>) -> Result<(), Rejection> {
    if variables.len() > MAX_ENTRIES {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {MAX_ENTRIES} variables"),
        ));
    }
    for (name, value) in variables {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_name = (1..=255).contains(&name.len())
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(inner);
        if !is_name {
            let text = "names of variables consist of letters, digits and '_' and do not begin with a digit";
            return Err(Rejection::invalid(field, text));
        }
        check_text(field, value, MAX_VALUE_LENGTH)?;
    }
    Ok(())
}

pub fn check_labels(field: &str, labels: &BTreeMap<String, String>) -> Result<(), Rejection> {
    if labels.len() > MAX_ENTRIES {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {MAX_ENTRIES} labels"),
        ));
    }
    for (name, value) in labels {
        check_text(field, name, 128)?;
        check_text(field, value, 1024)?;
    }
    Ok(())
}

/// Checks a lifetime in seconds.
pub fn check_ttl(field: &str, seconds: Option<i64>) -> Result<(), Rejection> {
    match seconds {
        None => Ok(()),
        Some(seconds) if (0..=315_360_000).contains(&seconds) && seconds % 60 == 0 => Ok(()),
        Some(_) => {
            let text = "expected a multiple of 60 from 0 to 315360000 seconds; 0 disables it";
            Err(Rejection::invalid(field, text))
        }
    }
}

/// The stored part of a request for a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxConfig {
    /// The image of its template, if any; a snapshot has its own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<i64>,
    /// Thousandths of a processor, instead of `vcpus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_bytes: Option<i64>,
    /// Size of its file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_capacity_bytes: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config: Option<RunConfig>,
    /// Environment of every command; `run_config` takes precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether its files are discarded when it stops.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_temporary: bool,
}

impl BoxConfig {
    pub fn check(&self) -> Result<(), Rejection> {
        let within = |field: &str, value: Option<i64>, least: i64, most: i64| match value {
            Some(value) if !(least..=most).contains(&value) => {
                Err(Rejection::invalid(field, format!("expected {least} to {most}")))
            }
            _ => Ok(()),
        };
        within("vcpus", self.vcpus, 1, 1024)?;
        within("cpu_millicores", self.cpu_millicores, 1, 1_024_000)?;
        // Less is not enough for the agent of the sandbox and one command.
        within("mem_bytes", self.mem_bytes, 16 << 20, 1 << 50)?;
        within("fs_capacity_bytes", self.fs_capacity_bytes, 1 << 20, 1 << 50)?;
        if let Some(run_config) = &self.run_config {
            run_config.check("run_config")?;
        }
        check_variables("env_vars", &self.env_vars)?;
        check_labels("labels", &self.labels)
    }

    #[must_use]
    pub fn cpu_millis(&self) -> Option<i64> {
        self.cpu_millicores.or_else(|| self.vcpus.map(|vcpus| vcpus * 1000))
    }

    /// Environment of every command.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = self.env_vars.clone();
        let own = self.run_config.as_ref().and_then(|config| config.env_vars.clone());
        variables.extend(own.unwrap_or_default());
        variables
    }
}

/// A volume mounted in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub volume: VolumeId,
    pub mount_path: String,
    pub read_only: bool,
}

/// Checks the mount paths of a sandbox or template.
pub fn check_attachments<'a>(field: &str, paths: impl IntoIterator<Item = &'a str>) -> Result<(), Rejection> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for path in paths {
        check_mount_path(&format!("{field}.mount_path"), path)?;
        let overlaps = |other: &&str| {
            let (short, long) = if other.len() < path.len() {
                (*other, path)
            } else {
                (path, *other)
            };
            short == long || long.strip_prefix(short).is_some_and(|rest| rest.starts_with('/'))
        };
        if known.iter().any(overlaps) {
            return Err(Rejection::rule(
                field,
                "volumes cannot share a mount path or be mounted below each other",
            ));
        }
        known.insert(path);
    }
    if known.len() > MAX_VOLUMES {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {MAX_VOLUMES} volumes"),
        ));
    }
    Ok(())
}

/// A volume of a template, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMount {
    pub volume_name: String,
    pub mount_path: String,
}

/// Resources of sandboxes of a template, as written in the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateResources {
    /// For example `500m` or `2`.
    #[serde(default = "default_cpu")]
    pub cpu: String,
    /// For example `512Mi`.
    #[serde(default = "default_memory")]
    pub memory: String,
    /// Size of the file system, for example `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
}

fn default_cpu() -> String {
    "500m".to_owned()
}

fn default_memory() -> String {
    "512Mi".to_owned()
}

impl Default for TemplateResources {
    fn default() -> Self {
        Self {
            cpu: default_cpu(),
            memory: default_memory(),
            storage: None,
        }
    }
}

impl TemplateResources {
    pub fn to_box_config(&self, image: &str) -> Result<BoxConfig, Rejection> {
        let bytes = |field: &str, text: &str| {
            let text_error = "expected an amount of bytes such as 512Mi or 1Gi";
            parse_bytes(text).ok_or_else(|| Rejection::invalid(format!("resources.{field}"), text_error))
        };
        let cpu = parse_cpu_millis(&self.cpu)
            .ok_or_else(|| Rejection::invalid("resources.cpu", "expected processors such as 500m or 2"))?;
        let config = BoxConfig {
            image: Some(image.to_owned()),
            cpu_millicores: Some(cpu),
            mem_bytes: Some(bytes("memory", &self.memory)?),
            fs_capacity_bytes: self.storage.as_deref().map(|text| bytes("storage", text)).transpose()?,
            ..BoxConfig::default()
        };
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_minutes() {
        for seconds in [None, Some(0), Some(60), Some(1_209_600)] {
            assert!(check_ttl("idle_ttl_seconds", seconds).is_ok(), "{seconds:?}");
        }
        for seconds in [-60, 1, 61, i64::MAX] {
            assert!(check_ttl("idle_ttl_seconds", Some(seconds)).is_err(), "{seconds}");
        }
    }

    #[test]
    fn volumes_do_not_overlap() {
        assert!(check_attachments("volumes", ["/a", "/ab", "/b/c"]).is_ok());
        for paths in [vec!["/a", "/a"], vec!["/a", "/a/b"], vec!["/a/b", "/a"]] {
            assert!(check_attachments("volumes", paths.clone()).is_err(), "{paths:?}");
        }
        assert!(check_attachments("volumes", ["/a", "/b", "/c", "/d", "/e"]).is_err());
    }

    #[test]
    fn variables_have_names_that_shells_take() {
        let of = |name: &str| RunConfig {
            env_vars: Some(BTreeMap::from([(name.to_owned(), "x".to_owned())])),
            ..RunConfig::default()
        };
        assert!(of("A_1").check("run_config").is_ok());
        for name in ["", "1A", "A-B", "A=B"] {
            assert!(of(name).check("run_config").is_err(), "{name}");
        }
    }

    #[test]
    fn a_template_has_the_clients_defaults() {
        let config = TemplateResources::default().to_box_config("python:3.12").unwrap();
        assert_eq!((config.cpu_millis(), config.mem_bytes), (Some(500), Some(512 << 20)));
    }
}
