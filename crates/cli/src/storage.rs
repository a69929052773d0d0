//! Opens the storage: the data folder, the database and the encryption key.

use std::path::Path;

use anyhow::{Context as _, bail};
use towpath_store::sealed::{self, KeyStatus};
use towpath_store::sealing::{Keys, Sealer};
use towpath_store::{Dialect, Options, Store};

use crate::backup::restore_marker::check_no_restore;
use crate::config::Settings;
use crate::data_dir::DataDir;

/// Storage that commands share.
pub struct Storage {
    /// The database, with a current schema.
    pub store: Store,
    /// Held on SQLite, which allows one process only; processes of a cluster may share a folder.
    pub data: Option<DataDir>,
    /// The database of an agent server in the same process, if any.
    pub agents: Option<Store>,
}

impl Storage {
    /// Opens the database and migrates its schema.
    pub async fn open(settings: &Settings) -> anyhow::Result<Self> {
        let uri = settings.database_uri.reveal();
        check_no_restore(&settings.data_dir)?;
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

/// The sealer of stored credentials: the configured key, else that of the key file in the data folder. A key file is
/// only created if nothing is sealed yet, because a new key could not open existing secrets.
pub async fn sealer(settings: &Settings, store: &Store) -> anyhow::Result<Sealer> {
    let file = settings.data_dir.join("encryption.key");
    let keys = match &settings.encryption_key {
        Some(keys) => Keys::parse(keys.reveal()).context("encryption_key")?,
        None => {
            if store.dialect() == Dialect::Postgres {
                tracing::warn!(
                    key.file = %file.display(),
                    "sealing with the key file of this machine; processes on other machines cannot open these secrets \
                     unless all have the same TOWPATH_ENCRYPTION_KEY"
                );
            }
            key_file(&file, store).await?
        }
    };
    let sealer = Sealer::new(keys);
    let compared = store.write(async |tx| sealed::ensure(tx, &sealer).await).await;
    match compared.context("comparing the encryption key")? {
        KeyStatus::Known => Ok(sealer),
        KeyStatus::Unknown { key } => bail!(unknown_key_message(&key, &sealer, settings)),
    }
}

/// The key of the key file. The file is created for an installation without sealed secrets.
async fn key_file(file: &Path, store: &Store) -> anyhow::Result<Keys> {
    if let Some(keys) = Keys::open(file)? {
        return Ok(keys);
    }
    let needed = store.read(async |tx| sealed::needed_key(tx).await).await;
    if let Some(key) = needed.context("looking for the encryption key")? {
        // Another process may have created the file and the canary meanwhile, the file first.
        if let Some(keys) = Keys::open(file)? {
            return Ok(keys);
        }
        bail!(
            "{} is missing, and the database contains secrets that are sealed under the encryption key {key}; restore \
             the file or set TOWPATH_ENCRYPTION_KEY to that key",
            file.display()
        );
    }
    Ok(Keys::open_or_create(file)?)
}

/// The error when the configured keys do not open secrets that the key with the id `key` has sealed.
pub fn unknown_key_message(key: &str, sealer: &Sealer, settings: &Settings) -> String {
    let (origin, place) = match &settings.encryption_key {
        Some(_) => ("encryption_key".to_owned(), "in encryption_key".to_owned()),
        None => {
            let file = settings.data_dir.join("encryption.key").display().to_string();
            (file.clone(), format!("in {file}, or as TOWPATH_ENCRYPTION_KEY"))
        }
    };
    format!(
        "{origin} holds the encryption key {}, and the database contains secrets that are sealed under the key {key}; \
         add that key {place}, after the new one if you are replacing it",
        sealer.key_ids().join(", ")
    )
}
