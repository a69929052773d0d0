//! Restores an installation from a backup. The backup is verified against its manifest first. An interrupted restore
//! can be repeated.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, bail};
use towpath_store::backup as copies;
use towpath_store::sandboxes::nodes;
use towpath_store::{Dialect, Options, Store, deployment_keepers, migrations, placements};
use towpath_traces::objects::Objects;

use super::names::AGENT;
use super::restore_marker::{self, RestoreAttempt, RestoreMarker};
use super::volumes::VolumeTarget;
use super::{
    BackupInfo, DUMP, Database, FIRST_FORMAT, FORMAT, INFO_FILE, OBJECTS, SQLITE, deployments, files, keys, manifest,
    objects, open_objects, postgres, schemas,
};
use crate::arguments::Restore;
use crate::config::{Config, Mode, Settings};
use crate::data_dir::DataDir;
use crate::exit::Usage;

pub async fn restore(command: Restore) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let settings = &config.settings;
    let from = &command.from;
    let about = read_info(from)?;
    let database = Database::of(settings);
    expect_readable(from, &about, database.dialect())?;
    expect_dialect(from, database.dialect())?;
    let mut volumes = VolumeTarget::open(settings, from, about.created_at).await?;
    let restored = restore_all(&config, &about, &database, from, &mut volumes).await;
    volumes.close().await;
    restored?;
    println!(
        "restored the state of {}: the database, {} objects, {} deployments",
        about.created_at, about.objects, about.deployments
    );
    if !volumes.ids.is_empty() {
        println!(
            "the databases of {} deployments are in volumes of the Docker engine at {}",
            volumes.ids.len(),
            settings.deployments.docker.host
        );
    }
    if about.without_deployments {
        println!(
            "deployments are not in the backup: put their databases back before a server starts; a deployment without \
             its database does not start unless towpath deployments accept-database lets it use an empty one"
        );
    }
    Ok(())
}

async fn restore_all(
    config: &Config,
    about: &BackupInfo,
    database: &Database<'_>,
    from: &Path,
    volumes: &mut VolumeTarget,
) -> anyhow::Result<()> {
    let settings = &config.settings;
    let data = &settings.data_dir;
    let begun = begin(about, database, settings, from).await?;
    volumes.expect_free(begun.is_repeated).await?;
    if database.dialect() == Dialect::Sqlite {
        migrations::of_sqlite(&from.join(SQLITE)).await?.check()?;
    }
    schemas::check_agents(from).await?;
    let sealer = keys::sealer(settings, from, about.canary.as_deref())?;
    let kept = Objects::folder(&from.join(OBJECTS))?;
    match &about.manifest {
        Some(digest) => manifest::verify(from, digest)?,
        // A backup of an earlier build: only the database names the objects.
        None if database.dialect() == Dialect::Sqlite => {
            let contents = copies::contents_of_sqlite(&from.join(SQLITE)).await?;
            check_complete(objects::missing(&kept, &contents.objects).await?)?;
        }
        None => {}
    }
    // The lock keeps servers out until the restore is complete.
    let _held = DataDir::open(data)?;
    begun.mark.set(data)?;
    let to = open_objects(config)?;
    objects::copy_all(&kept, &to).await?;
    keys::copy(from, data)?;
    files::copy_file(&from.join(AGENT), &data.join(AGENT))?;
    deployments::restore(from, data, sealer.as_ref(), &volumes.ids)?;
    volumes.fill(from).await?;
    // The database comes last: its presence makes the installation complete.
    match database {
        Database::Sqlite(file) => move_into_place(&from.join(SQLITE), file)?,
        Database::Postgres(uri) if !begun.is_loaded => postgres::load(uri, &from.join(DUMP)).await?,
        Database::Postgres(_) => {}
    }
    let store = Store::open(settings.database_uri.reveal(), Options::default())
        .await
        .context("opening the database")?;
    store.migrate().await.context("migrating the database")?;
    let contents = store.read(async |tx| copies::contents(tx).await).await?;
    // Leases at the time of the backup belong to another database.
    let forgotten = store.write(async |tx| {
        deployment_keepers::forget(tx).await?;
        nodes::forget(tx).await
    });
    forgotten.await?;
    if !about.without_deployments {
        // All databases are present. The ids of folders and volumes differ from those recorded; the next start records
        // the new ones.
        store.write(async |tx| placements::accept_databases(tx).await).await?;
    }
    store.close().await;
    check_complete(objects::missing(&to, &contents.objects).await?)?;
    restore_marker::clear(data)?;
    Ok(())
}

/// A restore that may continue.
struct RestoreState {
    mark: RestoreMarker,
    is_repeated: bool,
    /// Whether the PostgreSQL database is loaded, which happens in one transaction.
    is_loaded: bool,
}

/// Fails when there is another installation already.
async fn begin(
    about: &BackupInfo,
    database: &Database<'_>,
    settings: &Settings,
    from: &Path,
) -> anyhow::Result<RestoreState> {
    let data = &settings.data_dir;
    let (name, schema) = match database {
        Database::Sqlite(file) => (file.display().to_string(), None),
        Database::Postgres(_) => {
            let schema = database.schema().await.context("opening the database")?;
            (schema.database.clone(), Some(schema))
        }
    };
    let mark = RestoreMarker {
        backup: about.created_at,
        database: name,
    };
    keys::check_same_keys(from, data)?;
    let attempt = mark.attempt(data)?;
    if attempt == RestoreAttempt::First {
        match (database, &schema) {
            (Database::Sqlite(file), _) => expect_absent(file)?,
            (Database::Postgres(_), Some(schema)) => postgres::expect_empty(schema)?,
            (Database::Postgres(_), None) => {}
        }
        if from.join(AGENT).is_file() {
            expect_absent(&data.join(AGENT))?;
        }
        if deployments::has_deployments(from)? && deployments::has_deployments(data)? {
            bail!(Usage(format!(
                "{} already contains deployments; restore into an empty folder",
                data.display()
            )));
        }
    }
    Ok(RestoreState {
        mark,
        is_repeated: attempt == RestoreAttempt::Repeated,
        is_loaded: schema.is_some_and(|schema| !schema.applied.is_empty()),
    })
}

fn expect_absent(file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!(Usage(format!(
            "{} exists already; restore into an empty folder",
            file.display()
        )));
    }
    Ok(())
}

/// Moves a complete database into place.
fn move_into_place(from: &Path, file: &Path) -> anyhow::Result<()> {
    let draft = file.with_extension("restoring");
    files::copy_file(from, &draft)?;
    // An earlier attempt may have left these files of a replaced database.
    for suffix in ["-wal", "-shm"] {
        let mut beside = file.as_os_str().to_owned();
        beside.push(suffix);
        files::remove(Path::new(&beside))?;
    }
    std::fs::rename(&draft, file).with_context(|| format!("file {}", file.display()))?;
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

fn check_complete(missing: usize) -> anyhow::Result<()> {
    if missing > 0 {
        bail!("the backup is incomplete: {missing} objects that its database names are missing");
    }
    Ok(())
}

/// Fails when the backup is of the other kind of database, or its database is missing.
fn expect_dialect(from: &Path, dialect: Dialect) -> anyhow::Result<()> {
    let (own, other, hint) = match dialect {
        Dialect::Sqlite => (
            SQLITE,
            DUMP,
            "PostgreSQL: set DATABASE_URI to the address of an empty database",
        ),
        Dialect::Postgres => (DUMP, SQLITE, "SQLite: leave DATABASE_URI unset"),
    };
    if from.join(own).is_file() {
        return Ok(());
    }
    if from.join(other).is_file() {
        bail!(Usage(format!("the backup is of a different database, {hint}")));
    }
    bail!("the backup is incomplete: its database is missing");
}

/// Fails when the build that made the backup is from before the first release, or newer than this one.
fn expect_readable(from: &Path, about: &BackupInfo, dialect: Dialect) -> anyhow::Result<()> {
    if about.format < FIRST_FORMAT {
        bail!(
            "the backup {} of {} was made by an older build of towpath, before the first release, and this build \
             cannot read its data: start with a new data folder or an empty database, and keep the backup together \
             with the build that made it; that build can still restore it and export its traces",
            from.display(),
            about.created_at
        );
    }
    if about.format > FORMAT
        || !about
            .migrations
            .iter()
            .all(|version| migrations::is_known_version(dialect, *version))
    {
        bail!(
            "the backup {} was made by towpath {}, which is newer than this one ({}); restore it with that version or \
             a newer one",
            from.display(),
            about.version,
            env!("CARGO_PKG_VERSION")
        );
    }
    Ok(())
}

fn read_info(from: &Path) -> anyhow::Result<BackupInfo> {
    let file = from.join(INFO_FILE);
    let text = std::fs::read_to_string(&file).map_err(|_| {
        Usage(format!(
            "{} is not a complete backup: {INFO_FILE} is missing",
            from.display()
        ))
    })?;
    serde_json::from_str(&text).with_context(|| format!("file {}", file.display()))
}
