//! What a box may be asked to be.

use super::HOST_BASE;
use super::cgroups::Cgroups;
use crate::error::{Error, Result};
use crate::image::ImageReference;
use crate::spec::{BoxSpec, Limits};

const MAX_LAYERS: usize = 32;
const MAX_MOUNTS: usize = 32;
const MAX_VARIABLES: usize = 1000;
const MAX_VARIABLE_BYTES: usize = 128 << 10;
/// Folders that the box itself is made of.
const RESERVED_FOLDERS: [&str; 5] = ["/dev", "/proc", "/run/towpath", "/sys", "/usr"];

pub(super) fn check_spec(spec: &BoxSpec) -> Result<()> {
    let invalid = |text: &str| Err(Error::Invalid(text.to_owned()));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if spec.hostname.is_empty() || spec.hostname.len() > 63 || !spec.hostname.bytes().all(is_name) {
        return invalid("hostname must be 1 to 63 letters, digits, '-' and '.'");
    }
    let is_image = |name: &str| ImageReference::parse(name).is_ok_and(|image| image.is_exact());
    if spec.root.base != HOST_BASE && !is_image(&spec.root.base) {
        return invalid("root.base must be `host` or an image with a digest");
    }
    if spec.root.layers.len() > MAX_LAYERS {
        return invalid("root.layers may have at most 32 layers; capture from a sandbox with fewer");
    }
    if spec.mounts.len() > MAX_MOUNTS {
        return invalid("mounts may have at most 32 volumes");
    }
    for mount in &spec.mounts {
        let path = mount.path.as_str();
        let is_plain = path
            .split('/')
            .skip(1)
            .all(|part| !part.is_empty() && part != "." && part != "..");
        if !path.starts_with('/') || !is_plain || path.len() > 1000 || path.contains('\0') {
            return invalid("mounts.path must be an absolute path without '.', '..' and empty parts");
        }
        let is_below = |folder: &str| {
            let rest = path.strip_prefix(folder);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if RESERVED_FOLDERS.iter().any(|folder| is_below(folder)) || path == "/run" {
            return invalid("mounts.path must not be in /dev, /proc, /run/towpath, /sys or /usr");
        }
    }
    if spec.env.len() > MAX_VARIABLES
        || spec
            .env
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum::<usize>()
            > MAX_VARIABLE_BYTES
    {
        return invalid("env may have at most 1,000 variables and 128 KiB");
    }
    let is_variable =
        |name: &str, value: &str| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    if !spec.env.iter().all(|(name, value)| is_variable(name, value)) {
        return invalid("env must not have a name that is empty or contains '=', or a value that contains NUL");
    }
    Ok(())
}

/// Refuses limits that would not hold.
pub(super) fn check_limits(limits: &Limits, groups: &Cgroups) -> Result<()> {
    for (is_asked, can, what) in [
        (limits.memory_bytes.is_some(), groups.memory.is_some(), "memory_bytes"),
        (limits.cpu_millis.is_some(), groups.cpu.is_some(), "cpu_millis"),
        (limits.processes.is_some(), groups.processes.is_some(), "processes"),
        (limits.disk_bytes.is_some(), false, "disk_bytes"),
    ] {
        if is_asked && !can {
            return Err(Error::Unsupported(format!(
                "limits.{what} cannot be enforced on this machine by the driver namespace; omit it"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::spec::{VolumeMount, VolumeSource};

    #[test]
    fn a_volume_may_not_cover_what_a_box_is_made_of() {
        let mut spec = super::super::self_test_spec(Uuid::nil());
        for (path, is_allowed) in [
            ("/data", true),
            ("/home/user/data", true),
            ("/usrdata", true),
            ("/", false),
            ("data", false),
            ("/data/../proc", false),
            ("/data//x", false),
            ("/proc", false),
            ("/dev/shm", false),
            ("/run/towpath/agent", false),
        ] {
            spec.mounts = vec![VolumeMount {
                source: VolumeSource::Folder("/nonexistent".into()),
                path: path.to_owned(),
                read_only: false,
            }];
            assert_eq!(check_spec(&spec).is_ok(), is_allowed, "{path}");
        }
    }

    #[test]
    fn limits_that_would_not_hold_are_refused() {
        let limits = Limits {
            disk_bytes: Some(1),
            ..Limits::default()
        };
        let error = check_limits(&limits, &Cgroups::default()).unwrap_err().to_string();
        assert!(error.contains("limits.disk_bytes"), "{error}");
        check_limits(&Limits::default(), &Cgroups::default()).unwrap();
    }
}
