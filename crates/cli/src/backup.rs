//! `towpath backup` and `towpath restore`: everything an installation keeps, in one folder.
//!
//! ```text
//! DIR/
//!   backup.json      what this is: format, version, schema, time, the digest of the manifest
//!   manifest.jsonl   every file below, with its length and its digest
//!   towpath.db       SQLite: the database as it was at one moment
//!   towpath.dump     PostgreSQL: the same, as `pg_dump` writes it
//!   objects/         every unit, segment, attachment and archive that this database names
//!   agent.db         the agent server of `towpath dev`, where there is one
//!   deployments/     where this machine keeps deployments: `artifacts/` that are whole, `agents/` with their databases,
//!                    those of volumes with `placed.json` beside them
//!   encryption.key   where the folder has one, unless keys are left out
//!   api.key          where the folder has one, unless keys are left out
//! ```
//! Servers may go on working meanwhile. Objects are copied before the database and once more after it: what the copy
//! of the database names was there at its moment, so one of the two has seen it. That is looked at before the backup
//! counts as one; `backup.json` is written last.

mod deployments;
mod files;
mod keys;
mod manifest;
mod mark;
mod objects;
mod postgres;
mod restore;
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
pub use self::mark::expect_whole;
use self::objects::Copied;
pub use self::restore::restore;
use self::volumes::Apart;
pub use self::volumes::copy_data;
use crate::arguments::Backup;
use crate::config::{Config, Mode, Settings};
use crate::exit::Usage;

const ABOUT: &str = "backup.json";
const SQLITE: &str = "towpath.db";
const DUMP: &str = "towpath.dump";
const OBJECTS: &str = "objects";
const AGENT: &str = "agent.db";
const FORMAT: u32 = 3;
/// The format of the first release. Backups of formats before it have databases that this build refuses.
const FIRST_FORMAT: u32 = 3;

/// How often it is begun anew when an object was tidied away under it.
const TRIES: u32 = 3;

#[derive(Debug, Serialize, Deserialize)]
struct About {
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
    /// The digest of the manifest; backups of earlier builds have none.
    #[serde(default)]
    manifest: Option<String>,
    /// What the installation's encryption key opens, and no other; in hexadecimal digits.
    #[serde(default)]
    canary: Option<String>,
}

/// Which database, and where it is.
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

    /// What it says of the rest of the installation now.
    async fn contents(&self) -> towpath_store::Result<Contents> {
        match self {
            Self::Sqlite(file) => copies::contents_of_sqlite(file).await,
            Self::Postgres(uri) => copies::contents_of_postgres(uri).await,
        }
    }

    /// Copies it below `to` as it is at one moment; what the copy says.
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

/// Copies everything.
///
/// # Errors
/// When the folder exists, something cannot be read or written, another build made a database, the database of a deployment
/// is elsewhere, the engine that has it does not answer, or `pg_dump` is not there or fails.
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
    expect_whole(&settings.data_dir)?;
    let schema = database.schema().await.context("opening the database")?;
    schema.check()?;
    schemas::check_agents(&settings.data_dir).await?;
    if command.without_deployments {
        return begin(&config, &database, schema.applied, &command, &Apart::default()).await;
    }
    let placed = database.contents().await?.deployments;
    let apart = Apart::open(settings, &placed).await?;
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

/// Makes the folder and fills it.
async fn begin(
    config: &Config,
    database: &Database<'_>,
    migrations: Vec<i64>,
    command: &Backup,
    apart: &Apart,
) -> anyhow::Result<()> {
    let to = &command.to;
    match DirBuilder::new().mode(0o700).create(to) {
        Err(why) if why.kind() == ErrorKind::AlreadyExists => {
            bail!(Usage(format!(
                "{} is there already; name a folder that is not",
                to.display()
            )))
        }
        made => made.with_context(|| format!("folder {}", to.display()))?,
    }
    let filled = fill(config, database, migrations, command, apart).await;
    if filled.is_err() {
        // It was made a moment ago, and is worth nothing.
        let _ = std::fs::remove_dir_all(to);
    }
    filled
}

async fn fill(
    config: &Config,
    database: &Database<'_>,
    migrations: Vec<i64>,
    command: &Backup,
    apart: &Apart,
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
        // Those that were deleted meanwhile are not missed.
        let placed = database.contents().await?.deployments;
        let missing: Vec<DeploymentId> = missing.into_iter().filter(|id| placed.contains(id)).collect();
        apart.expect_none(&missing)?;
    }
    if !command.without_keys {
        keys::copy(&settings.data_dir, to)?;
    }
    let about = About {
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
    write_about(to, &about)?;
    tell(to, settings, copied, deployments, command);
    Ok(())
}

fn tell(to: &Path, settings: &Settings, copied: Copied, deployments: u64, command: &Backup) {
    println!(
        "backed up into {}: the database, {} objects of {} bytes, {deployments} deployments",
        to.display(),
        copied.files,
        copied.bytes
    );
    if command.without_deployments {
        println!("deployments are not in the backup: keep their databases with it");
    }
    if settings.encryption_key.is_some() {
        println!("the encryption key is given in the settings, and is not in the backup: keep it with it");
    } else if command.without_keys {
        println!("the encryption key is not in the backup: keep it elsewhere, nothing can be restored without it");
    }
}

fn write_about(to: &Path, about: &About) -> anyhow::Result<()> {
    let mut file = File::create_new(to.join(ABOUT))?;
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
