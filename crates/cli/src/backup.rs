//! `towpath backup` and `towpath restore`: everything an installation keeps, in one folder.
//!
//! ```text
//! DIR/
//!   backup.json      what this is: format, version, schema, time, the digest of the manifest
//!   manifest.jsonl   every file below, with its length and its digest
//!   towpath.db       SQLite: a consistent copy of the database
//!   towpath.dump     PostgreSQL: the same, as `pg_dump` writes it
//!   objects/         every WAL segment, trace segment, attachment and archive that this database names
//!   agent.db         the agent server of `towpath dev`, if there is one
//!   deployments/     deployments of this machine: complete `artifacts/`, `agents/` with their databases,
//!                    those from volumes with `placed.json`
//!   encryption.key   if the folder has one, unless keys are left out
//!   api.key          if the folder has one, unless keys are left out
//! ```
//! Servers may keep running. Objects are copied before the database and again after it: each object that the copy of
//! the database names existed at that time, so one of the two passes has copied it. A check confirms this before
//! `backup.json`, the last file, is written.

mod deployments;
mod files;
mod keys;
mod manifest;
mod names;
mod objects;
mod postgres;
mod restore;
pub mod restore_marker;
mod schemas;
mod volumes;

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use towpath_domain::{Clock, DeploymentId, Timestamp};
use towpath_store::backup::{self as copies, Contents};
use towpath_store::{Dialect, migrations};
use towpath_traces::objects::Objects;

use self::keys::PlatformKeys;
use self::names::AGENT;
use self::objects::ObjectTotals;
pub use self::restore::restore;
use self::restore_marker::check_no_restore;
use self::volumes::VolumeSource;
pub use self::volumes::copy_data;
use crate::arguments::Backup;
use crate::config::{Config, Mode, Settings};
use crate::exit::Usage;

const INFO_FILE: &str = "backup.json";
const SQLITE: &str = "towpath.db";
const DUMP: &str = "towpath.dump";
const OBJECTS: &str = "objects";
const FORMAT: u32 = 3;
/// The format of the first release. This build refuses databases from older backups.
const FIRST_FORMAT: u32 = 3;

/// Attempts when an object is deleted during the copy.
const TRIES: u32 = 3;

#[derive(Debug, Serialize, Deserialize)]
struct BackupInfo {
    format: u32,
    version: String,
    created_at: Timestamp,
    migrations: Vec<i64>,
    objects: u64,
    bytes: u64,
    #[serde(default)]
    deployments: u64,
    /// Whether deployments that run elsewhere were left out.
    #[serde(default)]
    without_deployments: bool,
    /// The digest of the manifest; absent in backups of earlier builds.
    #[serde(default)]
    manifest: Option<String>,
    /// Canary that only the encryption key of this installation opens, in hexadecimal digits.
    #[serde(default)]
    canary: Option<String>,
}

enum Database<'a> {
    Sqlite(PathBuf),
    Postgres(&'a str),
}

impl<'a> Database<'a> {
    fn of(settings: &'a Settings) -> Self {
        let uri = settings.database_uri.reveal();
        match uri.strip_prefix("sqlite://") {
            Some(path) => Self::Sqlite(path.split('?').next().unwrap_or_default().into()),
            None => Self::Postgres(uri),
        }
    }

    const fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
        }
    }

    async fn schema(&self) -> towpath_store::Result<migrations::Schema> {
        match self {
            Self::Sqlite(file) => migrations::of_sqlite(file).await,
            Self::Postgres(uri) => migrations::of_postgres(uri).await,
        }
    }

    async fn contents(&self) -> towpath_store::Result<Contents> {
        match self {
            Self::Sqlite(file) => copies::contents_of_sqlite(file).await,
            Self::Postgres(uri) => copies::contents_of_postgres(uri).await,
        }
    }

    /// Copies it below `to` as a consistent snapshot. Returns the contents of the copy.
    async fn copy(&self, to: &Path) -> anyhow::Result<Contents> {
        match self {
            Self::Sqlite(file) => {
                let copy = to.join(SQLITE);
                files::remove(&copy)?;
                copies::copy_sqlite(file, &copy).await?;
                Ok(copies::contents_of_sqlite(&copy).await?)
            }
            Self::Postgres(uri) => postgres::dump(uri, &to.join(DUMP)).await,
        }
    }
}

pub async fn create(command: Backup) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let settings = &config.settings;
    let database = Database::of(settings);
    if let Database::Sqlite(file) = &database
        && !file.is_file()
    {
        bail!(Usage(format!(
            "there is no database {}; name its folder with --data-dir",
            file.display()
        )));
    }
    check_no_restore(&settings.data_dir)?;
    let schema = database.schema().await.context("opening the database")?;
    schema.check()?;
    schemas::check_agents(&settings.data_dir).await?;
    if command.without_deployments {
        return begin(&config, &database, schema.applied, &command, &VolumeSource::default()).await;
    }
    let placed = database.contents().await?.deployments;
    let apart = VolumeSource::open(settings, &placed).await?;
    let made = async {
        let elsewhere = apart.find(&placed).await?;
        let mut missing = deployments::without_database(&settings.data_dir, &placed)?;
        missing.retain(|id| !elsewhere.contains(id));
        apart.expect_none(&missing)?;
        begin(&config, &database, schema.applied, &command, &apart).await
    }
    .await;
    apart.close().await;
    made
}

/// Creates and fills the folder.
async fn begin(
    config: &Config,
    database: &Database<'_>,
    migrations: Vec<i64>,
    command: &Backup,
    apart: &VolumeSource,
) -> anyhow::Result<()> {
    let to = &command.to;
    let parents = missing_parents(to);
    if let Some(parent) = parents.first() {
        files::make(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(to) {
        Err(why) if why.kind() == ErrorKind::AlreadyExists => {
            bail!(Usage(format!(
                "{} exists already; name a folder that does not exist",
                to.display()
            )))
        }
        made => made.with_context(|| format!("folder {}", to.display()))?,
    }
    let filled = fill(config, database, migrations, command, apart).await;
    if filled.is_err() {
        // It was just created and is incomplete.
        let _ = std::fs::remove_dir_all(to);
        for parent in parents {
            // Not if something else is in it meanwhile.
            let _ = std::fs::remove_dir(parent);
        }
    }
    filled
}

/// The folders above `folder` that do not exist, the innermost first.
fn missing_parents(folder: &Path) -> Vec<&Path> {
    let parents = folder.ancestors().skip(1);
    parents
        .take_while(|parent| !parent.as_os_str().is_empty() && !parent.exists())
        .collect()
}

async fn fill(
    config: &Config,
    database: &Database<'_>,
    migrations: Vec<i64>,
    command: &Backup,
    apart: &VolumeSource,
) -> anyhow::Result<()> {
    let (settings, to) = (&config.settings, command.to.as_path());
    let from = open_objects(config)?;
    let kept = Objects::folder(&to.join(OBJECTS))?;
    let mut attempt = 1;
    let contents = loop {
        objects::copy_all(&from, &kept).await?;
        let contents = database.copy(to).await?;
        let missing = objects::copy_named(&from, &kept, &contents.objects).await?;
        if missing == 0 {
            break contents;
        }
        if attempt == TRIES {
            bail!(
                "{missing} objects that the database names are not in {}",
                settings.objects
            );
        }
        attempt += 1;
    };
    let copied = objects::count(&kept).await?;
    let agent = settings.data_dir.join(AGENT);
    if agent.is_file() {
        copies::copy_sqlite(&agent, &to.join(AGENT)).await?;
    }
    let mut deployments = 0;
    if !command.without_deployments {
        let keys = PlatformKeys::of(settings, command.without_keys)?;
        let elsewhere: BTreeSet<DeploymentId> = apart.find(&contents.deployments).await?;
        deployments = deployments::copy(&settings.data_dir, to, &keys, &elsewhere).await?;
        deployments += apart.copy(&elsewhere, to).await?;
        let missing = deployments::without_database(to, &contents.deployments)?;
        // Deployments that were deleted meanwhile are not missing.
        let placed = database.contents().await?.deployments;
        let missing: Vec<DeploymentId> = missing.into_iter().filter(|id| placed.contains(id)).collect();
        apart.expect_none(&missing)?;
    }
    if !command.without_keys {
        keys::copy(&settings.data_dir, to)?;
    }
    let about = BackupInfo {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at: Clock::system().now(),
        migrations,
        objects: copied.files,
        bytes: copied.bytes,
        deployments,
        without_deployments: command.without_deployments,
        manifest: Some(manifest::write(to)?),
        canary: contents.canary.map(hex::encode),
    };
    write_info(to, &about)?;
    tell(to, settings, copied, deployments, command);
    Ok(())
}

fn tell(to: &Path, settings: &Settings, copied: ObjectTotals, deployments: u64, command: &Backup) {
    println!(
        "backed up into {}: the database, {} objects of {} bytes, {deployments} deployments",
        to.display(),
        copied.files,
        copied.bytes
    );
    if command.without_deployments {
        println!("deployments are not in the backup: keep their databases together with it");
    }
    if settings.encryption_key.is_some() {
        println!(
            "the encryption key comes from the settings and is not in the backup: keep it together with the backup"
        );
    } else if command.without_keys {
        println!("the encryption key is not in the backup: keep it elsewhere; nothing can be restored without it");
    }
}

fn write_info(to: &Path, about: &BackupInfo) -> anyhow::Result<()> {
    let mut file = File::create_new(to.join(INFO_FILE))?;
    file.write_all(serde_json::to_string_pretty(about)?.as_bytes())?;
    file.sync_all()?;
    File::open(to)?.sync_all()?;
    Ok(())
}

fn open_objects(config: &Config) -> anyhow::Result<Objects> {
    let aws = config
        .aws
        .iter()
        .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
        .collect();
    Objects::open(&config.settings.objects, &aws).context("objects")
}
