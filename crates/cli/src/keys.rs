//! `towpath keys`: asks a server, or the database itself where none is there to be asked. So the first key of an
//! installation can be made, and one when every operator's key is lost.

mod database;
mod server;

use serde_json::{Value, json};

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
            let url = format!("http://{}", settings.listen);
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

async fn perform(place: &Place, command: &Keys) -> anyhow::Result<()> {
    match &command.command {
        KeysCommand::Create {
            name,
            workspace,
            operator,
        } => {
            let made = match place {
                Place::Server(server) => server.create(name, *workspace, *operator).await?,
                Place::Database(storage) => database::create(&storage.store, name, *workspace, *operator).await?,
            };
            show_made(&made, command.output);
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
            "organization_id": made["organization_id"], "operator": made["operator"],
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
            print::moment(&key["created_at"]),
            print::moment(&key["revoked_at"]),
        ]
    });
    let header = ["key", "name", "begins with", "opens", "operator", "made", "revoked"];
    print::table(header, rows, "there are no keys; make one with: towpath keys create");
}
