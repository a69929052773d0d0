//! `towpath backup` and `towpath restore`: everything an installation keeps, in one folder.
//!
//! ```text
//! DIR/
//!   backup.json      what this is: format, version, schema, time
//!   towpath.db       SQLite: the database as it was at one moment
//!   towpath.dump     PostgreSQL: the same, as `pg_dump` writes it
//!   objects/         every unit, segment, attachment and archive that this database names
//!   agent.db         the agent server of `towpath dev`, where there is one
//!   deployments/     where this machine keeps deployments: `artifacts/` that are whole, `agents/` with their databases
//!   encryption.key   where the folder has one
//!   api.key          where the folder has one
//! ```
//! Servers may go on working meanwhile. Objects are copied before the database and once more after it: what the copy
//! of the database names was there at its moment, so one of the two has seen it. That is looked at before the backup
//! counts as one; `backup.json` is written last.

mod deployments;
mod files;
mod objects;
mod postgres;
mod schemas;

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use towpath_domain::{Clock, Timestamp};
use towpath_store::{Dialect, Options, Store, backup as copies, migrations};
use towpath_traces::objects::Objects;

use self::objects::Copied;
use crate::arguments::{Backup, Restore};
use crate::config::{Config, Mode, Settings};
use crate::data_dir::DataDir;
use crate::exit::Usage;

const ABOUT: &str = "backup.json";
const SQLITE: &str = "towpath.db";
const DUMP: &str = "towpath.dump";
const OBJECTS: &str = "objects";
const AGENT: &str = "agent.db";
const KEYS: [&str; 2] = ["encryption.key", "api.key"];
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

    /// Copies it below `to` as it is at one moment; the objects that the copy names.
    async fn copy(&self, to: &Path) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Sqlite(file) => {
                let copy = to.join(SQLITE);
                files::remove(&copy)?;
                copies::copy_sqlite(file, &copy).await?;
                Ok(copies::needed_objects(&copy).await?)
            }
            Self::Postgres(uri) => postgres::dump(uri, &to.join(DUMP)).await,
        }
    }
}

/// Copies everything.
///
/// # Errors
/// When the folder exists, something cannot be read or written, another build made a database, or `pg_dump` is not there
/// or fails.
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
    let schema = database.schema().await.context("opening the database")?;
    schema.check()?;
    schemas::check_agents(&settings.data_dir).await?;
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
    let filled = fill(&config, &database, schema.applied, to).await;
    if filled.is_err() {
        // It was made a moment ago, and is worth nothing.
        let _ = std::fs::remove_dir_all(to);
    }
    filled
}

async fn fill(config: &Config, database: &Database<'_>, migrations: Vec<i64>, to: &Path) -> anyhow::Result<()> {
    let settings = &config.settings;
    let from = open_objects(config)?;
    let kept = Objects::folder(&to.join(OBJECTS))?;
    for attempt in 1.. {
        objects::copy_all(&from, &kept).await?;
        let named = database.copy(to).await?;
        let missing = objects::copy_named(&from, &kept, &named).await?;
        if missing == 0 {
            break;
        }
        if attempt == TRIES {
            bail!(
                "{missing} objects that the database names are not in {}",
                settings.objects
            );
        }
    }
    let copied = objects::count(&kept).await?;
    let agent = settings.data_dir.join(AGENT);
    if agent.is_file() {
        copies::copy_sqlite(&agent, &to.join(AGENT)).await?;
    }
    let deployments = deployments::copy(&settings.data_dir, to).await?;
    for name in KEYS {
        files::copy_key(&settings.data_dir.join(name), &to.join(name))?;
    }
    write_about(to, migrations, copied, deployments)?;
    println!(
        "backed up into {}: the database, {} objects of {} bytes, {deployments} deployments",
        to.display(),
        copied.files,
        copied.bytes
    );
    if settings.encryption_key.is_some() {
        println!("the encryption key is given in the settings, and is not in the backup: keep it with it");
    }
    Ok(())
}

fn write_about(to: &Path, migrations: Vec<i64>, copied: Copied, deployments: u64) -> anyhow::Result<()> {
    let about = About {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at: Clock::system().now(),
        migrations,
        objects: copied.files,
        bytes: copied.bytes,
        deployments,
    };
    let mut file = File::create_new(to.join(ABOUT))?;
    file.write_all(serde_json::to_string_pretty(&about)?.as_bytes())?;
    file.sync_all()?;
    File::open(to)?.sync_all()?;
    Ok(())
}

/// Makes an installation from a backup.
///
/// # Errors
/// When there is a database already, or the backup is not whole, of another kind of database, or made by a build from
/// before the first release or a newer one.
pub async fn restore(command: Restore) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let settings = &config.settings;
    let from = &command.from;
    let about = read_about(from)?;
    let database = Database::of(settings);
    expect_readable(from, &about, database.dialect())?;
    let (file, other) = match database.dialect() {
        Dialect::Sqlite => (SQLITE, "PostgreSQL: give the address of an empty one as DATABASE_URI"),
        Dialect::Postgres => (DUMP, "SQLite: leave DATABASE_URI out"),
    };
    if !from.join(file).is_file() {
        bail!(Usage(format!("the backup is of a {other}")));
    }
    let kept = Objects::folder(&from.join(OBJECTS))?;
    match &database {
        Database::Sqlite(file) => {
            if file.exists() {
                bail!(Usage(format!(
                    "{} is there already; restore into an empty folder",
                    file.display()
                )));
            }
            let copy = from.join(SQLITE);
            migrations::of_sqlite(&copy).await?.check()?;
            let named = copies::needed_objects(&copy).await?;
            whole(objects::missing(&kept, &named).await?)?;
        }
        Database::Postgres(uri) => postgres::expect_empty(uri).await?,
    }
    schemas::check_agents(from).await?;
    // Nobody may begin to use it before it is whole.
    let _held = DataDir::open(&settings.data_dir)?;
    let to = open_objects(&config)?;
    objects::copy_all(&kept, &to).await?;
    for name in KEYS {
        files::copy_key(&from.join(name), &settings.data_dir.join(name))?;
    }
    files::copy_file(&from.join(AGENT), &settings.data_dir.join(AGENT))?;
    deployments::restore(from, &settings.data_dir)?;
    // Last: with it the installation is one.
    let named = match &database {
        Database::Sqlite(file) => {
            let draft = file.with_extension("restoring");
            files::copy_file(&from.join(SQLITE), &draft)?;
            std::fs::rename(&draft, file).with_context(|| format!("file {}", file.display()))?;
            File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            copies::needed_objects(&from.join(SQLITE)).await?
        }
        Database::Postgres(uri) => {
            postgres::load(uri, &from.join(DUMP)).await?;
            let store = Store::open(uri, Options::default())
                .await
                .context("opening the database")?;
            migrations::schema(&store).await?.check()?;
            let named = store.read(async |tx| copies::named_objects(tx).await).await?;
            store.close().await;
            named
        }
    };
    whole(objects::missing(&to, &named).await?)?;
    println!(
        "restored what was there at {}: the database, {} objects, all that it names among them, {} deployments",
        about.created_at, about.objects, about.deployments
    );
    Ok(())
}

fn whole(missing: usize) -> anyhow::Result<()> {
    if missing > 0 {
        bail!("the backup is not whole: {missing} objects that its database names are missing");
    }
    Ok(())
}

/// # Errors
/// When the build that made the backup is from before the first release, or newer than this one.
fn expect_readable(from: &Path, about: &About, dialect: Dialect) -> anyhow::Result<()> {
    if about.format < FIRST_FORMAT {
        bail!(
            "the backup {} of {} was made by an older build of towpath, from before the first release, and its data cannot \
             be carried over: start with a new data folder or an empty database, and keep the backup, with the build that \
             made it, until nothing in it is needed; that build can still restore it and export its traces",
            from.display(),
            about.created_at
        );
    }
    if about.format > FORMAT
        || !about
            .migrations
            .iter()
            .all(|version| migrations::knows(dialect, *version))
    {
        bail!(
            "the backup {} was made by towpath {}, which is newer than this one ({}); restore it with that version or a \
             newer one",
            from.display(),
            about.version,
            env!("CARGO_PKG_VERSION")
        );
    }
    Ok(())
}

fn read_about(from: &Path) -> anyhow::Result<About> {
    let file = from.join(ABOUT);
    let text = std::fs::read_to_string(&file)
        .map_err(|_| Usage(format!("{} is no whole backup: there is no {ABOUT}", from.display())))?;
    serde_json::from_str(&text).with_context(|| format!("file {}", file.display()))
}

fn open_objects(config: &Config) -> anyhow::Result<Objects> {
    let aws = config
        .aws
        .iter()
        .map(|(name, value)| (name.clone(), value.reveal().to_owned()))
        .collect();
    Objects::open(&config.settings.objects, &aws).context("objects")
}
