//! The first API key and its workspace.

use anyhow::bail;
use towpath_domain::{Secret, TenantId};
use towpath_store::access;
use towpath_store::{Error, Store};

use crate::config::Settings;
use crate::data_dir::DataDir;
use crate::exit::Usage;

/// A key, its workspace, and whether the operator already knows it.
#[derive(Debug)]
pub struct FirstKey {
    pub key: Secret,
    /// A workspace that the key opens.
    pub tenant: TenantId,
    /// Whether the key is in the data folder; a configured key is not.
    pub is_known: bool,
}

/// For `towpath dev`: the configured key, else the one in the data folder, which is created if it is missing or was
/// revoked.
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
            is_known: false,
        });
    }
    let Some(data) = data else {
        bail!(Usage(
            "on PostgreSQL, set TOWPATH_API_KEY to the first key and TOWPATH_TENANT_ID to its workspace".into()
        ));
    };
    if let Some(key) = data.api_key()? {
        match ensure(&key).await {
            Ok(_) => {
                return Ok(FirstKey {
                    key,
                    tenant,
                    is_known: true,
                });
            }
            Err(Error::Rejected(why)) => {
                tracing::info!(%why, "the key in the data folder is not valid; creating another");
            }
            Err(error) => return Err(error.into()),
        }
    }
    // The file is written first: after a crash between the two writes, the next start makes its key valid. The other
    // order would leave a key whose secret is lost.
    let key = Secret::new(access::new_key_secret());
    data.keep_api_key(&key)?;
    ensure(&key).await.map_err(refused)?;
    Ok(FirstKey {
        key,
        tenant,
        is_known: true,
    })
}

/// For `towpath serve`: the configured key and workspace, if any.
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
        // Several API processes that start together would each create a workspace.
        _ => bail!(Usage(
            "TOWPATH_API_KEY and TOWPATH_TENANT_ID belong together: set both or neither".into()
        )),
    }
}

/// For `towpath agent`: a workspace may come without a key, because callers may not need one.
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

/// A conflict of the configured key is wrong usage.
fn refused(error: Error) -> anyhow::Error {
    match error {
        Error::Rejected(rejection) => Usage(format!("{}: {}", rejection.field, rejection.message)).into(),
        error => error.into(),
    }
}
