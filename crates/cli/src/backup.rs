//! `towpath backup` and `towpath restore`: the data folder of one machine.
//!
//! ```text
//! DIR/
//!   backup.json      what this is: format, version, schema, time
//!   towpath.db       the database as it was at one moment
//!   objects/         every unit and segment that this database names
//!   encryption.key   where the folder has one
//!   api.key          where the folder has one
//! ```
//! A server may go on working meanwhile. Objects are copied before the database and once more after it: what the copy
//! of the database names was there at its moment, so one of the two has seen it. That is looked at before the backup
//! counts as one; `backup.json` is written last.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use towpath_domain::{Clock, Timestamp};
use towpath_store::{Dialect, backup as copies};

use crate::arguments::{Backup, Restore};
use crate::config::{Config, Mode, Settings};
use crate::data_dir::DataDir;
use crate::exit::Usage;

const ABOUT: &str = "backup.json";
const DATABASE: &str = "towpath.db";
const OBJECTS: &str = "objects";
const KEYS: [&str; 2] = ["encryption.key", "api.key"];
const FORMAT: u32 = 1;

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
}

/// Copies the data folder.
///
/// # Errors
/// On PostgreSQL, which has its own tools; when the folder exists, or something cannot be read or written.
pub async fn create(command: Backup) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let settings = &config.settings;
    let database = database_file(settings)?;
    if !database.is_file() {
        bail!(Usage(format!(
            "there is no database {}; name its folder with --data-dir",
            database.display()
        )));
    }
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
    let objects = objects_folder(settings)?;
    let mut copied = Copied::default();
    for attempt in 1.. {
        if let Some(from) = &objects {
            copied = copy_tree(from, &to.join(OBJECTS))?;
        }
        let copy = to.join(DATABASE);
        copies::copy_sqlite(&database, &copy).await?;
        let Some(from) = &objects else { break };
        copied = copy_tree(from, &to.join(OBJECTS))?;
        let needed = copies::needed_objects(&copy).await?;
        let missing = needed
            .iter()
            .filter(|path| !to.join(OBJECTS).join(path).is_file())
            .count();
        if missing == 0 {
            break;
        }
        if attempt == TRIES {
            bail!(
                "{missing} objects that the database names are not in {}",
                from.display()
            );
        }
        std::fs::remove_file(&copy)?;
    }
    for name in KEYS {
        copy_key(&settings.data_dir.join(name), &to.join(name))?;
    }
    let about = About {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at: Clock::system().now(),
        migrations: copies::known_migrations(Dialect::Sqlite),
        objects: copied.files,
        bytes: copied.bytes,
    };
    let mut file = File::create_new(to.join(ABOUT))?;
    file.write_all(serde_json::to_string_pretty(&about)?.as_bytes())?;
    file.sync_all()?;
    File::open(to)?.sync_all()?;
    println!(
        "backed up into {}: the database and {} objects, {} bytes",
        to.display(),
        copied.files,
        copied.bytes
    );
    if objects.is_none() {
        println!(
            "objects lie in {}, and stay there: back that up by its own means",
            settings.objects
        );
    }
    if settings.encryption_key.is_some() {
        println!("the encryption key is given in the settings, and is not in the backup");
    }
    Ok(())
}

/// Makes a data folder from a backup.
///
/// # Errors
/// When the folder has a database already, or the backup is not whole or made by a newer version.
pub async fn restore(command: Restore) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let settings = &config.settings;
    let from = &command.from;
    let about = read_about(from)?;
    let known = copies::known_migrations(Dialect::Sqlite);
    if about.format != FORMAT || about.migrations.iter().any(|version| !known.contains(version)) {
        bail!(
            "the backup was made by towpath {}, which is newer than this one ({})",
            about.version,
            env!("CARGO_PKG_VERSION")
        );
    }
    let database = database_file(settings)?;
    if database.exists() {
        bail!(Usage(format!(
            "{} is there already; restore into an empty folder",
            database.display()
        )));
    }
    let needed = copies::needed_objects(&from.join(DATABASE)).await?;
    let objects = objects_folder(settings)?;
    if objects.is_some() {
        let missing = needed
            .iter()
            .filter(|path| !from.join(OBJECTS).join(path).is_file())
            .count();
        if missing > 0 {
            bail!("the backup is not whole: {missing} objects that its database names are missing");
        }
    }
    // Nobody may begin to use it before it is whole.
    let _held = DataDir::open(&settings.data_dir)?;
    if let Some(to) = &objects {
        copy_tree(&from.join(OBJECTS), to)?;
    }
    for name in KEYS {
        copy_key(&from.join(name), &settings.data_dir.join(name))?;
    }
    // Last: with it the folder is one.
    let draft = database.with_extension("restoring");
    copy_file(&from.join(DATABASE), &draft)?;
    std::fs::rename(&draft, &database).with_context(|| format!("file {}", database.display()))?;
    File::open(database.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    println!(
        "restored into {} what was there at {}: the database and {} objects",
        settings.data_dir.display(),
        about.created_at,
        needed.len()
    );
    Ok(())
}

fn read_about(from: &Path) -> anyhow::Result<About> {
    let file = from.join(ABOUT);
    let text = std::fs::read_to_string(&file)
        .map_err(|_| Usage(format!("{} is no whole backup: there is no {ABOUT}", from.display())))?;
    serde_json::from_str(&text).with_context(|| format!("file {}", file.display()))
}

fn database_file(settings: &Settings) -> anyhow::Result<PathBuf> {
    let uri = settings.database_uri.reveal();
    let Some(path) = uri.strip_prefix("sqlite://") else {
        bail!(Usage(
            "the database is a PostgreSQL: back it up with pg_dump (or the snapshots of whoever runs it) and the \
             bucket of objects by its own means, the database first, and keep the encryption key with them"
                .into()
        ));
    };
    Ok(path.split('?').next().unwrap_or_default().into())
}

/// The folder of objects; `None` where they lie in a bucket.
fn objects_folder(settings: &Settings) -> anyhow::Result<Option<PathBuf>> {
    let url: url::Url = settings.objects.parse().context("objects")?;
    if url.scheme() != "file" {
        return Ok(None);
    }
    let path = url
        .to_file_path()
        .map_err(|()| Usage("objects: expected file:///folder".to_owned()))?;
    Ok(Some(path))
}

#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    files: u64,
    bytes: u64,
}

/// Copies what is not there yet in the same length, and counts all there is then. A file that vanishes meanwhile was
/// tidied away.
fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<Copied> {
    let mut copied = Copied::default();
    let entries = match std::fs::read_dir(from) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(copied),
        Err(why) => return Err(why).with_context(|| format!("folder {}", from.display())),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(to)
        .with_context(|| format!("folder {}", to.display()))?;
    for entry in entries {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let inner = copy_tree(&source, &target)?;
            copied.files += inner.files;
            copied.bytes += inner.bytes;
        } else if kind.is_file() {
            let length = match entry.metadata() {
                Ok(about) => about.len(),
                Err(why) if why.kind() == ErrorKind::NotFound => continue,
                Err(why) => return Err(why).with_context(|| format!("file {}", source.display())),
            };
            if std::fs::metadata(&target).is_ok_and(|there| there.len() == length) || copy_file(&source, &target)? {
                copied.files += 1;
                copied.bytes += length;
            }
        }
    }
    Ok(copied)
}

/// Copies a file onto the disk; false where there is none.
fn copy_file(from: &Path, to: &Path) -> anyhow::Result<bool> {
    match std::fs::copy(from, to) {
        Ok(_) => {
            let synced = File::open(to).and_then(|file| file.sync_all());
            synced.with_context(|| format!("file {}", to.display()))?;
            Ok(true)
        }
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why).with_context(|| format!("copying {} to {}", from.display(), to.display())),
    }
}

fn copy_key(from: &Path, to: &Path) -> anyhow::Result<()> {
    if copy_file(from, to)? {
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}
