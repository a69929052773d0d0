//! `towpath keys`: asks a server, or the database itself where none is there to be asked. So the first key of an
//! installation can be made, and one when every operator's key is lost.

mod database;
mod server;

use serde_json::{Value, json};
use towpath_domain::{Scope, TenantId};

use crate::arguments::{Keys, KeysCommand, Output};
use crate::config::{Config, Mode};
use crate::data_dir;
use crate::remote::print;
use crate::storage::Storage;
use crate::telemetry;

/// Where keys are looked after.
enum Place {
    Server(server::Server),
    Database(Box<Storage>),
}

/// Makes, lists or revokes keys.
///
/// # Errors
/// When the server or the database cannot be reached or refuses, or there is no such key or workspace.
pub async fn run(command: Keys) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Api, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    let settings = &config.settings;
    let in_use = settings.database_uri.reveal().starts_with("sqlite:") && data_dir::is_used(&settings.data_dir);
    let place = match &command.server {
        Some(url) => Place::Server(server::Server::new(url.clone(), &command, settings)?),
        None if in_use => {
            let url = settings.local_url();
            eprintln!(
                "{} is in use: asking {url} (another one: --server)",
                settings.data_dir.display()
            );
            Place::Server(server::Server::new(url, &command, settings)?)
        }
        None => Place::Database(Box::new(Storage::open(settings).await?)),
    };
    let done = perform(&place, &command).await;
    if let Place::Database(storage) = place {
        storage.store.close().await;
    }
    done
}

/// A key to be made.
struct New<'a> {
    name: &'a str,
    workspace: Option<TenantId>,
    operator: bool,
    /// None of them: no limit.
    scopes: &'a [Scope],
    expires_in_days: Option<u32>,
}

async fn perform(place: &Place, command: &Keys) -> anyhow::Result<()> {
    match &command.command {
        KeysCommand::Create {
            name,
            workspace,
            operator,
            scope,
            deployment,
            expires_in_days,
        } => {
            let of_deployment = deployment.map(Scope::AgentsInvokeOf);
            let scopes: Vec<Scope> = scope.iter().copied().chain(of_deployment).collect();
            let new = New {
                name,
                workspace: *workspace,
                operator: *operator,
                scopes: &scopes,
                expires_in_days: *expires_in_days,
            };
            let made = match place {
                Place::Server(server) => server.create(&new).await?,
                Place::Database(storage) => database::create(&storage.store, &new).await?,
            };
            show_made(&made, command.output);
        }
        KeysCommand::Rotate { key, overlap_hours } => {
            let rotated = match place {
                Place::Server(server) => server.rotate(*key, *overlap_hours).await?,
                Place::Database(storage) => database::rotate(&storage.store, *key, *overlap_hours).await?,
            };
            show_made(&rotated, command.output);
            if command.output == Output::Table {
                println!("The secret before works for {overlap_hours} h more.");
            }
        }
        KeysCommand::Reseal => {
            let started = match place {
                Place::Server(server) => server.reseal().await?,
                Place::Database(storage) => database::reseal(&storage.store).await?,
            };
            match command.output {
                Output::Json => print::json(&started),
                Output::Table => {
                    let job = print::text(&started["job_id"]);
                    println!("a job seals the secrets anew; follow it with: towpath jobs show {job}");
                }
            }
        }
        KeysCommand::List => {
            let keys = match place {
                Place::Server(server) => server.list().await?,
                Place::Database(storage) => database::list(&storage.store).await?,
            };
            show_list(keys, command.output);
        }
        KeysCommand::Revoke { key } => {
            let revoked = match place {
                Place::Server(server) => server.revoke(*key).await?,
                Place::Database(storage) => database::revoke(&storage.store, *key).await?,
            };
            match command.output {
                Output::Json => print::json(&revoked),
                Output::Table => println!("revoked {key}; running servers refuse it within five seconds"),
            }
        }
    }
    Ok(())
}

fn show_made(made: &Value, output: Output) {
    let tenant = print::text(&made["workspaces"][0]);
    match output {
        Output::Json => print::json(&json!({
            "id": made["id"], "name": made["name"], "key": made["key"], "tenant_id": tenant,
            "organization_id": made["organization_id"], "operator": made["operator"], "scopes": made["scopes"],
            "expires_at": made["expires_at"],
        })),
        Output::Table => {
            println!("X-API-Key:   {}", print::text(&made["key"]));
            println!("X-Tenant-Id: {tenant}");
            if made["operator"] == true {
                println!("An operator's key: it also opens /internal and the dashboard, for all workspaces.");
            }
            println!("Keep the key now: only its hash is stored.");
        }
    }
}

fn show_list(keys: Vec<Value>, output: Output) {
    if output == Output::Json {
        return print::json(&Value::Array(keys));
    }
    let rows = keys.iter().map(|key| {
        [
            print::text(&key["id"]),
            print::text(&key["name"]),
            print::text(&key["prefix"]),
            match &key["tenant_id"] {
                Value::Null => "all workspaces".to_owned(),
                tenant => print::text(tenant),
            },
            if key["operator"] == true { "yes" } else { "" }.to_owned(),
            scopes(&key["scopes"]),
            print::moment(&key["created_at"]),
            print::moment(&key["last_used_at"]),
            print::moment(&key["expires_at"]),
            print::moment(&key["revoked_at"]),
        ]
    });
    let header = [
        "key",
        "name",
        "begins with",
        "opens",
        "operator",
        "scopes",
        "made",
        "last used",
        "expires",
        "revoked",
    ];
    print::table(header, rows, "there are no keys; make one with: towpath keys create");
}

fn scopes(list: &Value) -> String {
    let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.collect::<Vec<_>>().join(" ")
}
