//! What a box is made with.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::name::{check_mount_path, check_text};
use super::quantity::{parse_bytes, parse_cpu_millis};
use crate::id::VolumeId;
use crate::rejection::Rejection;

/// Volumes of one box.
const MOST_VOLUMES: usize = 4;
/// Labels, and variables.
const MOST_ENTRIES: usize = 256;
/// Characters of a variable's value.
const LONGEST_VALUE: usize = 32 * 1024;

/// Who a box's commands run as, where, and with which variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// `root`, `user`, or a user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Variables of every command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
}

impl RunConfig {
    /// Checks each part.
    ///
    /// # Errors
    /// A part is not allowed; `field` names the whole.
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

fn check_variables(field: &str, variables: &BTreeMap<String, String>) -> Result<(), Rejection> {
    if variables.len() > MOST_ENTRIES {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {MOST_ENTRIES} variables"),
        ));
    }
    for (name, value) in variables {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_name = (1..=255).contains(&name.len())
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(inner);
        if !is_name {
            let text = "names of variables are letters, digits and '_', with no digit first";
            return Err(Rejection::invalid(field, text));
        }
        check_text(field, value, LONGEST_VALUE)?;
    }
    Ok(())
}

/// Checks labels.
///
/// # Errors
/// There are too many, or one is too long.
pub fn check_labels(field: &str, labels: &BTreeMap<String, String>) -> Result<(), Rejection> {
    if labels.len() > MOST_ENTRIES {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {MOST_ENTRIES} labels"),
        ));
    }
    for (name, value) in labels {
        check_text(field, name, 128)?;
        check_text(field, value, 1024)?;
    }
    Ok(())
}

/// Checks a time of a box's life in seconds.
///
/// # Errors
/// It is negative, longer than ten years, or no whole number of minutes.
pub fn check_ttl(field: &str, seconds: Option<i64>) -> Result<(), Rejection> {
    match seconds {
        None => Ok(()),
        Some(seconds) if (0..=315_360_000).contains(&seconds) && seconds % 60 == 0 => Ok(()),
        Some(_) => {
            let text = "expected a multiple of 60 seconds from 0, which switches it off, to 315360000";
            Err(Rejection::invalid(field, text))
        }
    }
}

/// What is kept of the request for a box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxConfig {
    /// The image of its template or of nothing; a snapshot brings its own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whole processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<i64>,
    /// Thousandths of a processor, in place of `vcpus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<i64>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_bytes: Option<i64>,
    /// Its own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_capacity_bytes: Option<i64>,
    /// How its commands run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config: Option<RunConfig>,
    /// Variables of every command, below those of `run_config`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether each stop throws its files away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_temporary: bool,
}

impl BoxConfig {
    /// Checks each part.
    ///
    /// # Errors
    /// A part is not allowed, or two do not go together.
    pub fn check(&self) -> Result<(), Rejection> {
        let within = |field: &str, value: Option<i64>, least: i64, most: i64| match value {
            Some(value) if !(least..=most).contains(&value) => {
                Err(Rejection::invalid(field, format!("expected {least} to {most}")))
            }
            _ => Ok(()),
        };
        within("vcpus", self.vcpus, 1, 1024)?;
        within("cpu_millicores", self.cpu_millicores, 1, 1_024_000)?;
        // Less does not hold the agent of the box and one command.
        within("mem_bytes", self.mem_bytes, 16 << 20, 1 << 50)?;
        within("fs_capacity_bytes", self.fs_capacity_bytes, 1 << 20, 1 << 50)?;
        if let Some(run_config) = &self.run_config {
            run_config.check("run_config")?;
        }
        check_variables("env_vars", &self.env_vars)?;
        check_labels("labels", &self.labels)
    }

    /// Processor time in thousandths of a processor.
    #[must_use]
    pub fn cpu_millis(&self) -> Option<i64> {
        self.cpu_millicores.or_else(|| self.vcpus.map(|vcpus| vcpus * 1000))
    }

    /// Variables of every command.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = self.env_vars.clone();
        let own = self.run_config.as_ref().and_then(|config| config.env_vars.clone());
        variables.extend(own.unwrap_or_default());
        variables
    }
}

/// A volume in a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The volume.
    pub volume: VolumeId,
    /// Where it is in the box.
    pub mount_path: String,
    /// Whether the box may not write to it.
    pub read_only: bool,
}

/// Checks where the volumes of one box or template are mounted.
///
/// # Errors
/// There are too many, a path is not allowed, or one lies below another.
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
                "two volumes cannot be mounted on one path, or one below another",
            ));
        }
        known.insert(path);
    }
    if known.len() > MOST_VOLUMES {
        return Err(Rejection::invalid(
            field,
            format!("expected at most {MOST_VOLUMES} volumes"),
        ));
    }
    Ok(())
}

/// A volume of a template, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMount {
    /// The volume.
    pub volume_name: String,
    /// Where it is in boxes of the template.
    pub mount_path: String,
}

/// What boxes of a template may use, as the request wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateResources {
    /// Processors: `500m`, `2`.
    #[serde(default = "default_cpu")]
    pub cpu: String,
    /// Memory: `512Mi`.
    #[serde(default = "default_memory")]
    pub memory: String,
    /// Files of the box: `1Gi`.
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
    /// The same for a box.
    ///
    /// # Errors
    /// An amount cannot be read.
    pub fn config(&self, image: &str) -> Result<BoxConfig, Rejection> {
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
        let config = TemplateResources::default().config("python:3.12").unwrap();
        assert_eq!((config.cpu_millis(), config.mem_bytes), (Some(500), Some(512 << 20)));
    }
}
