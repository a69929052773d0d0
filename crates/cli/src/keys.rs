//! `towpath keys`

use anyhow::{Context as _, anyhow};
use comfy_table::{Table, presets};
use serde_json::{Value, json};
use towpath_domain::{KeyId, OrganizationId, TenantId};
use towpath_store::access::{self, ApiKey, NewKey};
use towpath_store::{Store, Tx};

use crate::arguments::{Keys, KeysCommand, Output};
use crate::config::{Config, Mode};
use crate::exit::Usage;
use crate::storage::Storage;
use crate::telemetry;

/// Makes, lists or revokes keys, in the database itself.
///
/// # Errors
/// When the database cannot be opened (on SQLite: also while a server uses it), or there is no such key or workspace.
pub async fn run(command: Keys) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Api, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    let storage = Storage::open(&config.settings).await?;
    let done = match command.command {
        KeysCommand::Create {
            name,
            workspace,
            operator,
            output,
        } => create(&storage.store, &name, workspace, operator, output).await,
        KeysCommand::List { output } => list(&storage.store, output).await,
        KeysCommand::Revoke { key } => revoke(&storage.store, key).await,
    };
    storage.store.close().await;
    done
}

async fn create(
    store: &Store,
    name: &str,
    workspace: Option<TenantId>,
    operator: bool,
    output: Output,
) -> anyhow::Result<()> {
    let made = store
        .write(async |tx| {
            let (organization, tenant) = owner(tx, workspace).await?;
            // Whoever makes the first key runs the place.
            let operator = operator || (workspace.is_none() && !access::has_operator(tx).await?);
            let (key, secret) = access::create_key(
                tx,
                NewKey {
                    organization,
                    workspace,
                    name,
                    operator,
                },
            )
            .await?;
            Ok((key, secret, tenant))
        })
        .await;
    let (key, secret, tenant) = match made {
        Err(towpath_store::Error::NotFound) => return Err(Usage("there is no such workspace".to_owned()).into()),
        made => made.context("making a key")?,
    };
    match output {
        Output::Json => println!(
            "{}",
            json!({ "id": key.id, "name": key.name, "key": secret.reveal(), "tenant_id": tenant,
                    "organization_id": key.organization_id, "operator": key.operator })
        ),
        Output::Table => {
            println!("X-API-Key:   {}", secret.reveal());
            println!("X-Tenant-Id: {tenant}");
            if key.operator {
                println!("An operator's key: it also opens /internal and the dashboard, for all workspaces.");
            }
            println!("Keep the key now: only its hash is stored.");
        }
    }
    Ok(())
}

/// The organisation a new key belongs to and a workspace it opens: the one asked for, else the first there is, else
/// new ones.
async fn owner(tx: &mut Tx<'_>, wanted: Option<TenantId>) -> towpath_store::Result<(OrganizationId, TenantId)> {
    if let Some(tenant) = wanted {
        let workspace = access::workspace(tx, tenant)
            .await?
            .ok_or(towpath_store::Error::NotFound)?;
        return Ok((workspace.organization_id, tenant));
    }
    if let Some(first) = access::list_workspaces(tx, None).await?.into_iter().next() {
        return Ok((first.organization_id, first.id));
    }
    let organization = access::create_organization(tx, "default").await?;
    let workspace = access::create_workspace(tx, organization, "default").await?;
    Ok((organization, workspace.id))
}

async fn list(store: &Store, output: Output) -> anyhow::Result<()> {
    let keys = store.read(async |tx| all(tx).await).await.context("listing keys")?;
    match output {
        Output::Json => println!(
            "{}",
            serde_json::to_string_pretty(&keys.iter().map(entry).collect::<Vec<_>>())?
        ),
        Output::Table => {
            let mut table = Table::new();
            table.load_preset(presets::NOTHING).set_header([
                "id",
                "name",
                "begins with",
                "opens",
                "operator",
                "made",
                "revoked",
            ]);
            for key in &keys {
                let opens = key
                    .workspace_id
                    .map_or_else(|| "all workspaces".to_owned(), |id| id.to_string());
                let revoked = key.revoked_at.map(|at| at.to_string()).unwrap_or_default();
                table.add_row([
                    key.id.to_string(),
                    key.name.clone(),
                    key.prefix.clone(),
                    opens,
                    if key.operator { "yes" } else { "" }.to_owned(),
                    key.created_at.to_string(),
                    revoked,
                ]);
            }
            println!("{table}");
        }
    }
    Ok(())
}

async fn revoke(store: &Store, id: KeyId) -> anyhow::Result<()> {
    let keys = store
        .read(async |tx| all(tx).await)
        .await
        .context("looking for the key")?;
    let key = keys
        .into_iter()
        .find(|key| key.id == id)
        .ok_or_else(|| anyhow!("there is no key {id}"))?;
    store
        .write(async |tx| access::revoke_key(tx, key.organization_id, id).await)
        .await
        .context("revoking the key")?;
    println!("revoked {id}; running servers refuse it within seconds");
    Ok(())
}

async fn all(tx: &mut Tx<'_>) -> towpath_store::Result<Vec<ApiKey>> {
    let workspaces = access::list_workspaces(tx, None).await?;
    let mut organizations: Vec<OrganizationId> = workspaces.into_iter().map(|found| found.organization_id).collect();
    organizations.sort_unstable();
    organizations.dedup();
    let mut keys = Vec::new();
    for organization in organizations {
        keys.extend(access::list_keys(tx, organization).await?);
    }
    Ok(keys)
}

fn entry(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "organization_id": key.organization_id,
        "tenant_id": key.workspace_id,
        "operator": key.operator,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    })
}
