//! `towpath keys`: uses a server, or the database itself if no server runs. So it can create the first key of an
//! installation, and a new operator key if all are lost.

mod database;
mod request;
mod server;

use serde_json::{Value, json};
use towpath_domain::Scope;

use self::request::KeyRequest;
use crate::arguments::{Keys, KeysCommand, Output};
use crate::config::{Config, Mode};
use crate::data_dir;
use crate::remote::print;
use crate::storage::Storage;
use crate::telemetry;

enum KeyBackend {
    Server(Box<server::Server>),
    Database(Box<Storage>),
}

pub async fn run(command: Keys) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Api, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    let settings = &config.settings;
    let in_use = settings.database_uri.reveal().starts_with("sqlite:") && data_dir::is_used(&settings.data_dir);
    let place = match &command.server {
        Some(url) => KeyBackend::Server(Box::new(server::Server::new(url.clone(), &command, settings)?)),
        None if in_use => {
            let url = settings.local_url();
            eprintln!(
                "{} is in use: asking {url} (another one: --server)",
                settings.data_dir.display()
            );
            KeyBackend::Server(Box::new(server::Server::new(url, &command, settings)?))
        }
        None => KeyBackend::Database(Box::new(Storage::open(settings).await?)),
    };
    let done = perform(&place, &command).await;
    if let KeyBackend::Database(storage) = place {
        storage.store.close().await;
    }
    done
}

async fn perform(place: &KeyBackend, command: &Keys) -> anyhow::Result<()> {
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
            let new = KeyRequest {
                name,
                workspace: *workspace,
                operator: *operator,
                scopes: &scopes,
                expires_in_days: *expires_in_days,
            };
            let made = match place {
                KeyBackend::Server(server) => server.create(&new).await?,
                KeyBackend::Database(storage) => database::create(&storage.store, &new).await?,
            };
            show_made(&made, command.output);
        }
        KeysCommand::Rotate { key, overlap_hours } => {
            let rotated = match place {
                KeyBackend::Server(server) => server.rotate(*key, *overlap_hours).await?,
                KeyBackend::Database(storage) => database::rotate(&storage.store, *key, *overlap_hours).await?,
            };
            show_made(&rotated, command.output);
            if command.output == Output::Table {
                println!("The old secret works for {overlap_hours} h more.");
            }
        }
        KeysCommand::Reseal => {
            let started = match place {
                KeyBackend::Server(server) => server.reseal().await?,
                KeyBackend::Database(storage) => database::reseal(&storage.store).await?,
            };
            match command.output {
                Output::Json => print::json(&started),
                Output::Table => {
                    let job = print::text(&started["job_id"]);
                    println!("a job reseals the secrets; follow it with: towpath jobs show {job}");
                }
            }
        }
        KeysCommand::List => {
            let keys = match place {
                KeyBackend::Server(server) => server.list().await?,
                KeyBackend::Database(storage) => database::list(&storage.store).await?,
            };
            show_list(keys, command.output);
        }
        KeysCommand::Revoke { key } => {
            let revoked = match place {
                KeyBackend::Server(server) => server.revoke(*key).await?,
                KeyBackend::Database(storage) => database::revoke(&storage.store, *key).await?,
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
                println!("This is an operator key: it also opens /internal and the dashboard, for all workspaces.");
            }
            println!("Save the key now: only its hash is stored.");
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
    print::table(header, rows, "there are no keys; create one with: towpath keys create");
}

fn scopes(list: &Value) -> String {
    let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.collect::<Vec<_>>().join(" ")
}
