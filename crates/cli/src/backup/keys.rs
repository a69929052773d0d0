//! Keys of an installation in its backup. The encryption key opens every sealed value, so it can be left out; the
//! backup alone then opens nothing.

use std::path::Path;

use anyhow::{Context as _, bail};
use towpath_domain::TenantId;
use towpath_store::sealed::{self, KeyStatus};
use towpath_store::sealing::{Keys, SealContext, Sealer};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::files;
use crate::config::Settings;
use crate::exit::Usage;
use crate::storage;

const ENCRYPTION: &str = "encryption.key";
/// Files of the data folder that hold keys.
const FILES: [&str; 2] = [ENCRYPTION, "api.key"];
/// The key that a deployment sends its traces with.
pub(super) const PLATFORM: &str = "platform.key";
/// The same, sealed.
pub(super) const SEALED: &str = "platform.key.sealed";

/// How a backup holds the keys of deployments.
#[derive(Debug)]
pub(super) enum PlatformKeys {
    /// Plain, because the backup also has the encryption key.
    Plain,
    /// Sealed under the encryption key, which is kept elsewhere.
    Sealed(Sealer),
    /// Left out: there is no key to seal them with.
    Absent,
}

impl PlatformKeys {
    pub(super) fn of(settings: &Settings, without_keys: bool) -> anyhow::Result<Self> {
        let keys = match &settings.encryption_key {
            Some(keys) => Keys::parse(keys.reveal()).context("encryption_key")?,
            None if !without_keys => return Ok(Self::Plain),
            None => match Keys::open(&settings.data_dir.join(ENCRYPTION))? {
                Some(keys) => keys,
                None => return Ok(Self::Absent),
            },
        };
        Ok(Self::Sealed(Sealer::new(keys)))
    }

    /// Copies the key of a deployment into its folder in the backup.
    pub(super) fn copy(&self, from: &Path, folder: &Path) -> anyhow::Result<()> {
        match self {
            Self::Plain => files::copy_key(from, &folder.join(PLATFORM)),
            Self::Absent => Ok(()),
            Self::Sealed(sealer) => {
                let Some(text) = files::ignore_missing(std::fs::read(from), from)? else {
                    return Ok(());
                };
                let sealed = sealer.seal(place(folder), &Zeroizing::new(text));
                files::write_key(&folder.join(SEALED), &sealed)
            }
        }
    }
}

/// Opens the sealed key of a deployment in its restored folder.
pub(super) fn open_platform_key(sealer: Option<&Sealer>, folder: &Path) -> anyhow::Result<()> {
    let file = folder.join(SEALED);
    let Some(sealed) = files::ignore_missing(std::fs::read(&file), &file)? else {
        return Ok(());
    };
    let Some(sealer) = sealer else {
        bail!("{} is sealed, and there is no encryption key", file.display());
    };
    let text = sealer.open(place(folder), &sealed);
    let text = text.with_context(|| format!("file {}", file.display()))?;
    files::write_key(&folder.join(PLATFORM), &text)?;
    files::remove(&file)
}

fn place(folder: &Path) -> SealContext<'static> {
    let name = folder.file_name().and_then(|name| name.to_str());
    SealContext {
        tenant: TenantId::nil(),
        table: "backup",
        column: "platform_key",
        row: name.and_then(|name| name.parse().ok()).unwrap_or(Uuid::nil()),
    }
}

pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    for name in FILES {
        files::copy_key(&from.join(name), &to.join(name))?;
    }
    Ok(())
}

/// Fails when a key of the backup would take the place of another one.
pub(super) fn check_same_keys(from: &Path, data: &Path) -> anyhow::Result<()> {
    for name in FILES {
        let (kept, there) = (from.join(name), data.join(name));
        let kept = files::ignore_missing(std::fs::read(&kept), &kept)?.map(Zeroizing::new);
        let found = files::ignore_missing(std::fs::read(&there), &there)?.map(Zeroizing::new);
        if let (Some(kept), Some(found)) = (kept, found)
            && kept.trim_ascii() != found.trim_ascii()
        {
            bail!(Usage(format!(
                "{} exists already and holds another key than the backup; move it away first, and keep it: nothing \
                 else opens what it has sealed",
                there.display()
            )));
        }
    }
    Ok(())
}

/// The sealer of the restored installation; `None` if neither the settings nor the backup have a key.
pub(super) fn sealer(settings: &Settings, from: &Path, canary: Option<&str>) -> anyhow::Result<Option<Sealer>> {
    let sealer = find(settings, from)?.map(Sealer::new);
    let Some(canary) = canary else {
        return Ok(sealer);
    };
    let canary = hex::decode(canary).context("canary")?;
    let Some(sealer) = sealer else {
        bail!(
            "the backup has no encryption key, and its database holds secrets that are sealed under one; set it as \
             TOWPATH_ENCRYPTION_KEY, or put its file at {}",
            settings.data_dir.join(ENCRYPTION).display()
        );
    };
    match sealed::key_status(&sealer, &canary) {
        KeyStatus::Known => Ok(Some(sealer)),
        KeyStatus::Unknown { key } => bail!(storage::unknown_key_message(&key, &sealer, settings)),
    }
}

fn find(settings: &Settings, from: &Path) -> anyhow::Result<Option<Keys>> {
    if let Some(keys) = &settings.encryption_key {
        return Ok(Some(Keys::parse(keys.reveal()).context("encryption_key")?));
    }
    let file = from.join(ENCRYPTION);
    // The mode may have changed in transit; the restored file gets the right one.
    match files::ignore_missing(std::fs::read_to_string(&file), &file)?.map(Zeroizing::new) {
        Some(text) => {
            let keys = Keys::parse(text.trim());
            Ok(Some(keys.with_context(|| format!("file {}", file.display()))?))
        }
        None => Ok(Keys::open(&settings.data_dir.join(ENCRYPTION))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployments_key_is_sealed_where_the_encryption_key_is_elsewhere() {
        let whole = tempfile::tempdir().unwrap();
        let name = "018f0000-0000-7000-8000-000000000001";
        let (from, to) = (whole.path().join("from"), whole.path().join(name));
        std::fs::write(&from, "lsv2_secret").unwrap();
        std::fs::create_dir(&to).unwrap();
        let sealer = Sealer::new(Keys::parse(&"ab".repeat(32)).unwrap());
        PlatformKeys::Sealed(sealer.clone()).copy(&from, &to).unwrap();
        let sealed = std::fs::read(to.join(SEALED)).unwrap();
        assert!(!to.join(PLATFORM).exists());
        assert!(!String::from_utf8_lossy(&sealed).contains("lsv2_secret"));
        assert!(open_platform_key(None, &to).is_err());
        open_platform_key(Some(&sealer), &to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join(PLATFORM)).unwrap(), "lsv2_secret");
        assert!(!to.join(SEALED).exists());
        PlatformKeys::Absent.copy(&from, whole.path()).unwrap();
        assert!(!whole.path().join(PLATFORM).exists() && !whole.path().join(SEALED).exists());
    }

    #[test]
    fn no_key_takes_the_place_of_another_one() {
        let (from, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("api.key"), "one\n").unwrap();
        check_same_keys(from.path(), data.path()).unwrap();
        std::fs::write(data.path().join("api.key"), "one").unwrap();
        check_same_keys(from.path(), data.path()).unwrap();
        std::fs::write(data.path().join("api.key"), "two").unwrap();
        let refused = check_same_keys(from.path(), data.path()).unwrap_err();
        assert!(
            refused.is::<Usage>() && !refused.to_string().contains("two"),
            "{refused}"
        );
    }
}
