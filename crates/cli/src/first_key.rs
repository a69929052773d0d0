//! The first API key and its workspace, so that nobody has to read a banner to get in.

use anyhow::bail;
use towpath_domain::{Secret, TenantId};
use towpath_store::access;
use towpath_store::{Error, Store};

use crate::config::Settings;
use crate::data_dir::DataDir;
use crate::exit::Usage;

/// A key, what it opens, and whether somebody knows it already.
#[derive(Debug)]
pub struct FirstKey {
    /// The key.
    pub key: Secret,
    /// A workspace it opens.
    pub tenant: TenantId,
    /// Whether it lies in the data folder; the operator's own key does not.
    pub kept: bool,
}

/// For `towpath dev`: the operator's key where one is given, else the one in the data folder, made where it is missing
/// or was revoked.
///
/// # Errors
/// When the operator's key and workspace do not go together, or the folder or the database cannot be written.
pub async fn of_dev(store: &Store, settings: &Settings, data: Option<&DataDir>) -> anyhow::Result<FirstKey> {
    let first = store
        .read(async |tx| access::list_workspaces(tx, None).await)
        .await?
        .into_iter()
        .next();
    let tenant = settings
        .tenant_id
        .or(first.map(|workspace| workspace.id))
        .unwrap_or_else(TenantId::new);
    let ensure = async |key: &Secret| {
        store
            .write(async |tx| access::ensure_first(tx, key, tenant).await)
            .await
    };
    if let Some(key) = &settings.api_key {
        ensure(key).await.map_err(refused)?;
        return Ok(FirstKey {
            key: key.clone(),
            tenant,
            kept: false,
        });
    }
    let Some(data) = data else {
        bail!(Usage(
            "on PostgreSQL give the first key as TOWPATH_API_KEY, with its workspace as TOWPATH_TENANT_ID".into()
        ));
    };
    if let Some(key) = data.api_key()? {
        match ensure(&key).await {
            Ok(_) => {
                return Ok(FirstKey {
                    key,
                    tenant,
                    kept: true,
                });
            }
            Err(Error::Rejected(why)) => {
                tracing::info!(%why, "the key in the data folder is of no use; making another");
            }
            Err(error) => return Err(error.into()),
        }
    }
    // Kept before it is stored: a crash between the two leaves a key that the next start makes valid, while the other
    // order would leave one that nobody knows.
    let key = Secret::new(access::new_key_secret());
    data.keep_api_key(&key)?;
    ensure(&key).await.map_err(refused)?;
    Ok(FirstKey {
        key,
        tenant,
        kept: true,
    })
}

/// For `towpath serve`: the operator's pair, where it is given.
///
/// # Errors
/// When only one of the two is given, or they do not go together.
pub async fn of_serve(store: &Store, settings: &Settings) -> anyhow::Result<()> {
    match (&settings.api_key, settings.tenant_id) {
        (None, None) => Ok(()),
        (Some(key), Some(tenant)) => {
            store
                .write(async |tx| access::ensure_first(tx, key, tenant).await)
                .await
                .map_err(refused)?;
            Ok(())
        }
        // Several API processes that start together would each make a workspace of their own.
        _ => bail!(Usage(
            "TOWPATH_API_KEY and TOWPATH_TENANT_ID belong together: give both or none".into()
        )),
    }
}

/// For `towpath agent`: a workspace may come without a key, because callers may not need one.
///
/// # Errors
/// As [`of_serve`], but for a workspace alone.
pub async fn of_agent(store: &Store, settings: &Settings) -> anyhow::Result<()> {
    match (&settings.api_key, settings.tenant_id) {
        (None, Some(tenant)) => {
            store
                .write(async |tx| access::ensure_workspace(tx, tenant).await)
                .await?;
            Ok(())
        }
        _ => of_serve(store, settings).await,
    }
}

/// What the operator gave does not fit: wrong usage, not a failure.
fn refused(error: Error) -> anyhow::Error {
    match error {
        Error::Rejected(rejection) => Usage(format!("{}: {}", rejection.field, rejection.message)).into(),
        error => error.into(),
    }
}
