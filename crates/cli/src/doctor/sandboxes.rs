//! Whether this machine can start sandboxes, how it isolates them, and what it lacks.

use towpath_sandbox::{Capabilities, Error, Isolation};
use towpath_workflows::sandbox_host::isolation_name;

use super::findings::{Findings, Verdict};
use crate::config::{SandboxMode, Settings};

const CHECK: &str = "sandboxes";

/// Starts a sandbox in a temporary folder.
pub(super) async fn check(settings: &Settings, findings: &mut Findings) {
    let switch = settings.sandboxes.enabled;
    if switch == SandboxMode::Off {
        return findings.add(CHECK, Verdict::Ok, "sandboxes.enabled is off: this process runs none");
    }
    if !settings.data_dir.is_dir() {
        let text = "the trial needs the data folder, which does not exist yet";
        return findings.add(CHECK, Verdict::Skipped, text);
    }
    match start_trial(settings).await {
        Ok(found) => {
            let (verdict, text) = verdict_of(&found, settings.sandboxes.host.min_isolation);
            findings.add(CHECK, verdict, text);
        }
        // They were not requested explicitly.
        Err(why) if switch == SandboxMode::Auto => findings.add(CHECK, Verdict::Warning, why),
        Err(why) => findings.add(CHECK, Verdict::Failed, why),
    }
}

#[cfg(target_os = "linux")]
async fn start_trial(settings: &Settings) -> Result<DriverTrial, String> {
    use towpath_sandbox::{Driver as _, NamespaceDriver};

    let folder = tempfile::Builder::new()
        .prefix("doctor-")
        .tempdir_in(&settings.data_dir);
    let folder = folder.map_err(|why| format!("creating a folder for the trial: {why}"))?;
    let driver = NamespaceDriver::new(towpath_sandbox::NamespaceSettings {
        root: folder.path().to_owned(),
        program: crate::wiring::program().map_err(|why| format!("{why:#}"))?,
        first_user: settings.sandboxes.first_user_id,
        images: towpath_sandbox::ImageSettings::default(),
    });
    let driver = driver.map_err(|why| message(&why))?;
    let capabilities = driver.capabilities().await.map_err(|why| message(&why))?;
    Ok(DriverTrial {
        driver: driver.name(),
        capabilities,
    })
}

#[cfg(not(target_os = "linux"))]
async fn start_trial(_settings: &Settings) -> Result<DriverTrial, String> {
    Err("sandboxes need Linux".to_owned())
}

/// The result of the trial.
struct DriverTrial {
    driver: &'static str,
    capabilities: Capabilities,
}

fn message(error: &Error) -> String {
    match error {
        Error::Io { what, source } => format!("{what}: {source}"),
        error => error.to_string(),
    }
}

fn verdict_of(found: &DriverTrial, least: Isolation) -> (Verdict, String) {
    let DriverTrial { driver, capabilities } = found;
    let isolation = isolation_name(capabilities.isolation);
    if capabilities.isolation < least {
        let text = format!(
            "sandboxes.min_isolation is {}, and the driver {driver} isolates by {isolation}: no sandbox is started",
            isolation_name(least)
        );
        return (Verdict::Failed, text);
    }
    let limits = [
        ("memory", capabilities.can_limit_memory),
        ("processors", capabilities.can_limit_cpu),
        ("processes", capabilities.can_limit_processes),
        ("disk", capabilities.can_limit_disk),
    ];
    let names_of = |is_there: bool| {
        let names = limits.iter().filter(|(_, enforced)| *enforced == is_there);
        names.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    let mut text = format!("sandboxes can be started, with isolation {isolation} (driver {driver})");
    let (enforced, missing) = (names_of(true), names_of(false));
    if !enforced.is_empty() {
        text = format!("{text}; limits on {enforced} are enforced");
    }
    if !missing.is_empty() {
        text = format!("{text}; limits on {missing} are not");
    }
    for lack in &capabilities.missing {
        text = format!("{text}; {lack}");
    }
    // No driver can limit the disk.
    let limits_all = capabilities.can_limit_memory && capabilities.can_limit_cpu && capabilities.can_limit_processes;
    let verdict = if limits_all { Verdict::Ok } else { Verdict::Warning };
    (verdict, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(limits: bool) -> DriverTrial {
        DriverTrial {
            driver: "namespace",
            capabilities: Capabilities {
                isolation: Isolation::Namespace,
                can_limit_memory: limits,
                can_limit_cpu: limits,
                can_limit_processes: limits,
                can_limit_disk: false,
                can_freeze: true,
                can_suspend: false,
                can_mount_images: false,
                missing: vec!["no control groups".to_owned()],
            },
        }
    }

    #[test]
    fn missing_features_are_reported() {
        let (verdict, text) = verdict_of(&found(true), Isolation::Namespace);
        assert_eq!(verdict, Verdict::Ok);
        assert!(
            text.contains("limits on memory, processors, processes are enforced"),
            "{text}"
        );
        assert!(text.contains("limits on disk are not; no control groups"), "{text}");
        let (verdict, text) = verdict_of(&found(false), Isolation::Namespace);
        assert_eq!(verdict, Verdict::Warning);
        assert!(!text.contains("are enforced"), "{text}");
    }

    #[test]
    fn weaker_isolation_is_a_failure() {
        let (verdict, text) = verdict_of(&found(true), Isolation::Gvisor);
        assert_eq!(verdict, Verdict::Failed);
        assert!(text.contains("min_isolation is gvisor"), "{text}");
    }
}
