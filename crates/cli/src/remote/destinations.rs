//! `towpath destinations`

use std::io::Read as _;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::client::Client;
use super::print;
use crate::arguments::Output;
use crate::arguments::remote::{CredentialsFrom, DestinationType, DestinationsCommand, NewDestination};
use crate::config::{Inputs, Mode};
use crate::exit::Usage;

const PATH: &str = "/api/v1/bulk-exports/destinations";

pub async fn run(client: &Client, command: DestinationsCommand, output: Output) -> anyhow::Result<()> {
    let answer = match command {
        DestinationsCommand::Ls => client.get(PATH, &[]).await?,
        DestinationsCommand::Show { destination } => client.get(&format!("{PATH}/{destination}"), &[]).await?,
        DestinationsCommand::Create(new) => client.post(PATH, Some(&body(&new)?)).await?,
        DestinationsCommand::Delete { destination } => {
            client.delete(&format!("{PATH}/{destination}"), &[]).await?;
            match output {
                Output::Json => print::json(&json!({"id": destination, "deleted": true})),
                Output::Table => println!("destination {destination} is deleted"),
            }
            return Ok(());
        }
    };
    match (output, &answer) {
        (Output::Json, answer) => print::json(answer),
        (Output::Table, Value::Array(all)) => table(all.iter()),
        (Output::Table, one) => {
            let names = [
                "id",
                "display_name",
                "destination_type",
                "config",
                "credentials_keys",
                "created_at",
                "updated_at",
            ];
            print::facts(one, &names);
        }
    }
    Ok(())
}

fn body(new: &NewDestination) -> anyhow::Result<Value> {
    let mut config = json!({ "prefix": new.prefix });
    for (name, value) in [
        ("bucket_name", &new.bucket),
        ("region", &new.region),
        ("endpoint_url", &new.endpoint),
    ] {
        if let Some(value) = value {
            config[name] = value.clone().into();
        }
    }
    if new.path_style {
        config["config_kwargs_s3"] = json!({"addressing_style": "path"});
    }
    let kind = match new.kind {
        DestinationType::S3 => "s3",
        DestinationType::File => "file",
    };
    let mut body = json!({"destination_type": kind, "display_name": new.name, "config": config});
    match new.credentials {
        CredentialsFrom::Server => {}
        CredentialsFrom::Environment => body["credentials"] = of_environment()?,
        CredentialsFrom::Stdin => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            // The input is not shown, because it may contain the secret.
            body["credentials"] = serde_json::from_str(&text).map_err(|_| {
                Usage("standard input: expected JSON with access_key_id and secret_access_key".to_owned())
            })?;
        }
    }
    Ok(body)
}

fn of_environment() -> anyhow::Result<Value> {
    let inputs = Inputs::from_process(Mode::Api, Vec::new(), None);
    let find = |wanted: &str| {
        let found = inputs
            .environment
            .iter()
            .find(|(name, value)| name == wanted && !value.is_empty());
        found.map(|(_, value)| value.clone())
    };
    let needed = |name: &str| find(name).ok_or_else(|| Usage(format!("environment variable {name} is not set")));
    let mut credentials = json!({
        "access_key_id": needed("AWS_ACCESS_KEY_ID")?,
        "secret_access_key": needed("AWS_SECRET_ACCESS_KEY")?,
    });
    if let Some(token) = find("AWS_SESSION_TOKEN") {
        credentials["session_token"] = token.into();
    }
    Ok(credentials)
}

fn table<'a>(destinations: impl IntoIterator<Item = &'a Value>) {
    let rows = destinations.into_iter().map(|destination| {
        let config = &destination["config"];
        [
            print::text(&destination["id"]),
            print::text(&destination["display_name"]),
            print::text(&destination["destination_type"]),
            print::text(&config["bucket_name"]),
            print::text(&config["prefix"]),
            print::text(&config["endpoint_url"]),
            print::text(&destination["credentials_keys"]),
        ]
    });
    let header = [
        "destination",
        "name",
        "type",
        "bucket",
        "prefix",
        "endpoint",
        "credentials",
    ];
    print::table(header, rows, "there are no destinations in this workspace");
}
