//! Opening what is kept: the data folder, the database, the key that seals.

use std::path::Path;

use anyhow::{Context as _, bail};
use towpath_store::sealed::{self, Standing};
use towpath_store::sealing::{Keys, Sealer};
use towpath_store::{Dialect, Options, Store};

use crate::config::Settings;
use crate::data_dir::DataDir;

/// What every command that touches stored data begins with.
pub struct Storage {
    /// The database, its schema up to date.
    pub store: Store,
    /// Held on SQLite, where one process is all there may be; processes of a cluster may share a folder.
    pub data: Option<DataDir>,
    /// The database of the agent server in the same process, where there is one.
    pub agents: Option<Store>,
}

impl Storage {
    /// Opens the database and brings its schema up to date.
    ///
    /// # Errors
    /// When another process uses the data folder, a restore into it has not ended, or the database cannot be opened or
    /// migrated.
    pub async fn open(settings: &Settings) -> anyhow::Result<Self> {
        let uri = settings.database_uri.reveal();
        crate::backup::expect_whole(&settings.data_dir)?;
        let data = uri
            .starts_with("sqlite:")
            .then(|| DataDir::open(&settings.data_dir))
            .transpose()?;
        let options = Options {
            connections: settings.database_connections,
            lease: settings.lease,
            ..Options::default()
        };
        let store = Store::open(uri, options).await.context("opening the database")?;
        store.migrate().await.context("migrating the database")?;
        Ok(Self {
            store,
            data,
            agents: None,
        })
    }
}

/// What seals stored credentials: the key that was given, else the one in the data folder's key file. A key file is made
/// where nothing was sealed yet, and nowhere else: what another key has sealed would never be opened again.
///
/// # Errors
/// When the key file cannot be read or made, or the database is sealed under another key.
pub async fn sealer(settings: &Settings, store: &Store) -> anyhow::Result<Sealer> {
    let file = settings.data_dir.join("encryption.key");
    let keys = match &settings.encryption_key {
        Some(keys) => Keys::parse(keys.reveal()).context("encryption_key")?,
        None => {
            if store.dialect() == Dialect::Postgres {
                tracing::warn!(
                    key.file = %file.display(),
                    "sealing with this machine's key file; processes elsewhere cannot open what it seals \
                     unless all are given one key as TOWPATH_ENCRYPTION_KEY"
                );
            }
            key_file(&file, store).await?
        }
    };
    let sealer = Sealer::new(keys);
    let compared = store.write(async |tx| sealed::ensure(tx, &sealer).await).await;
    match compared.context("comparing the encryption key")? {
        Standing::Known => Ok(sealer),
        Standing::Unknown { key } => bail!(unknown(&key, &sealer, settings)),
    }
}

/// The key of the key file, which is made for an installation that has sealed nothing.
async fn key_file(file: &Path, store: &Store) -> anyhow::Result<Keys> {
    if let Some(keys) = Keys::open(file)? {
        return Ok(keys);
    }
    let needed = store.read(async |tx| sealed::needed_key(tx).await).await;
    if let Some(key) = needed.context("looking for the encryption key")? {
        // Another process of this folder may have made both since: the file first.
        if let Some(keys) = Keys::open(file)? {
            return Ok(keys);
        }
        bail!(
            "{} is not there, and the database holds secrets that are sealed under the encryption key {key}; put the file \
             back, or give that key as TOWPATH_ENCRYPTION_KEY",
            file.display()
        );
    }
    Ok(Keys::open_or_create(file)?)
}

/// What is wrong with keys that do not open what the key with the id `key` has sealed.
pub fn unknown(key: &str, sealer: &Sealer, settings: &Settings) -> String {
    let (origin, place) = match &settings.encryption_key {
        Some(_) => ("encryption_key".to_owned(), "in encryption_key".to_owned()),
        None => {
            let file = settings.data_dir.join("encryption.key").display().to_string();
            (file.clone(), format!("in {file}, or as TOWPATH_ENCRYPTION_KEY"))
        }
    };
    format!(
        "{origin} holds the encryption key {}, and the database holds secrets that are sealed under the key {key}; give \
         that key {place}, behind a new one where it is being replaced",
        sealer.key_ids().join(", ")
    )
}
