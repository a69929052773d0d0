//! An installation out of a backup. What the backup has is compared with its manifest before anything is made; a restore
//! that was interrupted can be repeated.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, bail};
use towpath_store::backup as copies;
use towpath_store::{Dialect, Options, Store, keepers, migrations, placements};
use towpath_traces::objects::Objects;

use super::mark::{self, Attempt, Mark};
use super::volumes::Target;
use super::{
    ABOUT, AGENT, About, DUMP, Database, FIRST_FORMAT, FORMAT, OBJECTS, SQLITE, deployments, files, keys, manifest,
    objects, open_objects, postgres, schemas,
};
use crate::arguments::Restore;
use crate::config::{Config, Mode, Settings};
use crate::data_dir::DataDir;
use crate::exit::Usage;

/// Makes an installation from a backup.
///
/// # Errors
/// When there is a database already, the backup is not whole, of another kind of database, or made by a build from before
/// the first release or a newer one, there is no encryption key for it, or the engine that deployments go into does not
/// answer.
pub async fn restore(command: Restore) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let settings = &config.settings;
    let from = &command.from;
    let about = read_about(from)?;
    let database = Database::of(settings);
    expect_readable(from, &about, database.dialect())?;
    expect_dialect(from, database.dialect())?;
    let mut volumes = Target::open(settings, from, about.created_at).await?;
    let restored = put_back(&config, &about, &database, from, &mut volumes).await;
    volumes.close().await;
    restored?;
    println!(
        "restored what was there at {}: the database, {} objects, all that it names among them, {} deployments",
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
            "deployments are not in the backup: put their databases back before a server starts; without its own none \
             starts, unless towpath deployments accept-database lets it begin with an empty one"
        );
    }
    Ok(())
}

async fn put_back(
    config: &Config,
    about: &About,
    database: &Database<'_>,
    from: &Path,
    volumes: &mut Target,
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
        // Of an earlier build: the database alone says what has to be there.
        None if database.dialect() == Dialect::Sqlite => {
            let contents = copies::contents_of_sqlite(&from.join(SQLITE)).await?;
            whole(objects::missing(&kept, &contents.objects).await?)?;
        }
        None => {}
    }
    // Nobody may begin to use it before it is whole.
    let _held = DataDir::open(data)?;
    begun.mark.set(data)?;
    let to = open_objects(config)?;
    objects::copy_all(&kept, &to).await?;
    keys::copy(from, data)?;
    files::copy_file(&from.join(AGENT), &data.join(AGENT))?;
    deployments::restore(from, data, sealer.as_ref(), &volumes.ids)?;
    volumes.fill(from).await?;
    // Last: with it the installation is one.
    match database {
        Database::Sqlite(file) => put(&from.join(SQLITE), file)?,
        Database::Postgres(uri) if !begun.is_loaded => postgres::load(uri, &from.join(DUMP)).await?,
        Database::Postgres(_) => {}
    }
    let store = Store::open(settings.database_uri.reveal(), Options::default())
        .await
        .context("opening the database")?;
    store.migrate().await.context("migrating the database")?;
    let contents = store.read(async |tx| copies::contents(tx).await).await?;
    // Whoever kept deployments when the backup was made does it in another database.
    store.write(async |tx| keepers::forget(tx).await).await?;
    if !about.without_deployments {
        // All databases are there. Between folders and volumes their ids change: the next start records the new ones.
        store.write(async |tx| placements::accept_databases(tx).await).await?;
    }
    store.close().await;
    whole(objects::missing(&to, &contents.objects).await?)?;
    mark::clear(data)?;
    Ok(())
}

/// A restore that may go on.
struct Begun {
    mark: Mark,
    is_repeated: bool,
    /// Whether the PostgreSQL database is loaded: in one transaction, so all of it or nothing is there.
    is_loaded: bool,
}

/// # Errors
/// When there is another installation already.
async fn begin(about: &About, database: &Database<'_>, settings: &Settings, from: &Path) -> anyhow::Result<Begun> {
    let data = &settings.data_dir;
    let (name, schema) = match database {
        Database::Sqlite(file) => (file.display().to_string(), None),
        Database::Postgres(_) => {
            let schema = database.schema().await.context("opening the database")?;
            (schema.database.clone(), Some(schema))
        }
    };
    let mark = Mark {
        backup: about.created_at,
        database: name,
    };
    keys::expect_same(from, data)?;
    let attempt = mark.attempt(data)?;
    if attempt == Attempt::First {
        match (database, &schema) {
            (Database::Sqlite(file), _) => expect_absent(file)?,
            (Database::Postgres(_), Some(schema)) => postgres::expect_empty(schema)?,
            (Database::Postgres(_), None) => {}
        }
        if from.join(AGENT).is_file() {
            expect_absent(&data.join(AGENT))?;
        }
        if deployments::is_there(from)? && deployments::is_there(data)? {
            bail!(Usage(format!(
                "there are deployments in {} already; restore into an empty folder",
                data.display()
            )));
        }
    }
    Ok(Begun {
        mark,
        is_repeated: attempt == Attempt::Repeated,
        is_loaded: schema.is_some_and(|schema| !schema.applied.is_empty()),
    })
}

fn expect_absent(file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!(Usage(format!(
            "{} is there already; restore into an empty folder",
            file.display()
        )));
    }
    Ok(())
}

/// Puts a database in its place, whole.
fn put(from: &Path, file: &Path) -> anyhow::Result<()> {
    let draft = file.with_extension("restoring");
    files::copy_file(from, &draft)?;
    // An earlier attempt may have left these, of a database that is replaced.
    for suffix in ["-wal", "-shm"] {
        let mut beside = file.as_os_str().to_owned();
        beside.push(suffix);
        files::remove(Path::new(&beside))?;
    }
    std::fs::rename(&draft, file).with_context(|| format!("file {}", file.display()))?;
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

fn whole(missing: usize) -> anyhow::Result<()> {
    if missing > 0 {
        bail!("the backup is not whole: {missing} objects that its database names are missing");
    }
    Ok(())
}

/// # Errors
/// When the backup is of the other kind of database, or its database is missing.
fn expect_dialect(from: &Path, dialect: Dialect) -> anyhow::Result<()> {
    let (own, other, hint) = match dialect {
        Dialect::Sqlite => (
            SQLITE,
            DUMP,
            "PostgreSQL: give the address of an empty one as DATABASE_URI",
        ),
        Dialect::Postgres => (DUMP, SQLITE, "SQLite: leave DATABASE_URI out"),
    };
    if from.join(own).is_file() {
        return Ok(());
    }
    if from.join(other).is_file() {
        bail!(Usage(format!("the backup is of a {hint}")));
    }
    bail!("the backup is not whole: its database is missing");
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
