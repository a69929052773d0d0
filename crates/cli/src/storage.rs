//! Opening what is kept: the data folder, the database, the key that seals.

use anyhow::Context as _;
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
    /// When another process uses the data folder, or the database cannot be opened or migrated.
    pub async fn open(settings: &Settings) -> anyhow::Result<Self> {
        let uri = settings.database_uri.reveal();
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

/// What seals stored credentials: the key that was given, else the one in the data folder's key file.
///
/// # Errors
/// When the key file cannot be read or made.
pub fn sealer(settings: &Settings, dialect: Dialect) -> anyhow::Result<Sealer> {
    let keys = match &settings.encryption_key {
        Some(keys) => Keys::parse(keys.reveal()).context("encryption_key")?,
        None => {
            let file = settings.data_dir.join("encryption.key");
            if dialect == Dialect::Postgres {
                tracing::warn!(
                    key.file = %file.display(),
                    "sealing with this machine's key file; processes elsewhere cannot open what it seals \
                     unless all are given one key as TOWPATH_ENCRYPTION_KEY"
                );
            }
            Keys::open_or_create(&file)?
        }
    };
    Ok(Sealer::new(keys))
}
