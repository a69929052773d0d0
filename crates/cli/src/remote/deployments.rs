//! `towpath deployments`

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};
use uuid::Uuid;

use super::client::Client;
use super::print;
use super::retry::{POLL_INTERVAL, retry_while_unavailable};
use super::revisions;
use crate::arguments::Output;
use crate::arguments::remote::{
    DeploymentKind, DeploymentUpdate, DeploymentsCommand, Level, LogOptions, NewDeployment,
};
use crate::exit::Usage;

pub(super) const PATH: &str = "/v2/deployments";

pub async fn run(client: &Client, command: DeploymentsCommand, output: Output) -> anyhow::Result<()> {
    match command {
        DeploymentsCommand::Ls { limit } => {
            let answer = client.get(PATH, &[("limit", limit.to_string())]).await?;
            match output {
                Output::Json => print::json(&answer["resources"]),
                Output::Table => table(answer["resources"].as_array().into_iter().flatten()),
            }
        }
        DeploymentsCommand::Show { deployment } => show(&find(client, &deployment).await?, output),
        DeploymentsCommand::Create(new) => {
            let made = client.post(PATH, Some(&body(&new)?)).await?;
            wait_and_show(client, &made, new.wait, output).await?;
        }
        DeploymentsCommand::Update(update) => change(client, update, output).await?,
        DeploymentsCommand::Delete {
            deployment,
            with_project,
            wait,
        } => {
            let id = id(client, &deployment).await?;
            let query = [("delete_tracing_project", with_project.to_string())];
            client.delete(&format!("{PATH}/{id}"), &query).await?;
            if wait {
                wait_until_deleted(client, &id).await?;
            }
            match output {
                Output::Json => print::json(&json!({"id": id, "gone": wait})),
                Output::Table if wait => println!("deployment {id} is deleted"),
                Output::Table => println!("deployment {id} is being deleted"),
            }
        }
        DeploymentsCommand::AcceptDatabase { deployment } => {
            // An operator need not have access to its workspace.
            let id = match deployment.parse::<Uuid>() {
                Ok(id) => id.to_string(),
                Err(_) => id(client, &deployment).await?,
            };
            let path = format!("/internal/deployments/{id}/accept-database");
            let placement = client.post(&path, None).await?;
            match output {
                Output::Json => print::json(&placement),
                Output::Table => {
                    println!("deployment {id} may start on the existing database; the next attempt is within a minute");
                }
            }
        }
        DeploymentsCommand::Logs { deployment, lines } => {
            let id = id(client, &deployment).await?;
            // It writes lines as long as it exists.
            logs(
                client,
                &format!("/v1/projects/{id}/deploy_logs"),
                &lines,
                output,
                async || Ok(false),
            )
            .await?;
        }
    }
    Ok(())
}

/// Finds a deployment by its id or name.
pub(super) async fn find(client: &Client, given: &str) -> anyhow::Result<Value> {
    if given.parse::<Uuid>().is_ok() {
        return client.get(&format!("{PATH}/{given}"), &[]).await;
    }
    let found = client.get(PATH, &[("name", given.to_owned())]).await?;
    match &found["resources"][0] {
        Value::Null => Err(anyhow!("there is no deployment of that name in this workspace")),
        deployment => Ok(deployment.clone()),
    }
}

pub(super) async fn id(client: &Client, given: &str) -> anyhow::Result<String> {
    Ok(print::text(&find(client, given).await?["id"]))
}

fn body(new: &NewDeployment) -> anyhow::Result<Value> {
    let secrets = new
        .secrets
        .as_deref()
        .map(secrets)
        .transpose()?
        .unwrap_or_else(|| json!([]));
    if let Some(image) = &new.image {
        return Ok(json!({
            "name": new.name, "source": "external_docker", "secrets": secrets, "source_config": {},
            "source_revision_config": {"image_uri": image},
        }));
    }
    let kind = new.kind.map(|kind| match kind {
        DeploymentKind::Dev => "dev",
        DeploymentKind::Prod => "prod",
    });
    Ok(json!({
        "name": new.name, "source": "github", "secrets": secrets,
        "source_config": {
            "repo_url": new.repo, "integration_id": new.integration, "build_on_push": new.build_on_push,
            "deployment_type": kind,
        },
        "source_revision_config": {"repo_ref": new.repo_ref, "graph_config_path": new.graph_config},
    }))
}

/// Reads lines `NAME=VALUE`. Errors name the line number only, because the line may contain the secret.
fn secrets(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut secrets = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=') else {
            return Err(Usage(format!("{}, line {}: expected NAME=VALUE", file.display(), index + 1)).into());
        };
        let value = value.trim();
        let quoted = |mark: char| value.strip_prefix(mark)?.strip_suffix(mark);
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
        secrets.push(json!({"name": name.trim(), "value": value}));
    }
    Ok(secrets.into())
}

async fn change(client: &Client, update: DeploymentUpdate, output: Output) -> anyhow::Result<()> {
    let id = id(client, &update.deployment).await?;
    let mut body = json!({});
    for (name, value) in [
        ("repo_ref", update.repo_ref),
        ("graph_config_path", update.graph_config),
        ("image_uri", update.image),
    ] {
        if let Some(value) = value {
            body["source_revision_config"][name] = value.into();
        }
    }
    if let Some(build_on_push) = update.build_on_push {
        body["source_config"]["build_on_push"] = build_on_push.into();
    }
    if let Some(file) = &update.secrets {
        body["secrets"] = secrets(file)?;
    }
    let makes_revision = body.get("source_revision_config").is_some() || body.get("secrets").is_some();
    if body == json!({}) && !update.rebuild {
        return Err(Usage("nothing to change: use one of --ref, --image, --secrets, --rebuild …".to_owned()).into());
    }
    let mut changed = client.patch(&format!("{PATH}/{id}"), &body).await?;
    if update.rebuild && !makes_revision {
        client.post(&format!("{PATH}/{id}/revisions"), None).await?;
        changed = client.get(&format!("{PATH}/{id}"), &[]).await?;
    }
    wait_and_show(
        client,
        &changed,
        update.wait && (makes_revision || update.rebuild),
        output,
    )
    .await
}

/// Shows a deployment, with `wait` after its newest revision has ended.
pub(super) async fn wait_and_show(client: &Client, changed: &Value, wait: bool, output: Output) -> anyhow::Result<()> {
    let id = print::text(&changed["id"]);
    if !wait {
        show(changed, output);
        return Ok(());
    }
    let revision = print::text(&changed["latest_revision_id"]);
    let ended = revisions::wait(client, &id, &revision).await?;
    let path = format!("{PATH}/{id}");
    show(
        &retry_while_unavailable(async || client.get(&path, &[]).await).await?,
        output,
    );
    match ended["status"].as_str() {
        Some("DEPLOYED") => Ok(()),
        status => bail!(
            "the revision ended {}{}",
            status.unwrap_or("otherwise"),
            ended["error"]
                .as_str()
                .map(|why| format!(": {why}"))
                .unwrap_or_default()
        ),
    }
}

async fn wait_until_deleted(client: &Client, id: &str) -> anyhow::Result<()> {
    loop {
        let query = [("deployment_ids", id.to_owned())];
        let left = retry_while_unavailable(async || client.get(PATH, &query).await).await?;
        if left["resources"].as_array().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Prints the latest lines, and new ones until `ended` returns true.
pub(super) async fn logs(
    client: &Client,
    path: &str,
    lines: &LogOptions,
    output: Output,
    ended: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut wanted = json!({"order": "desc", "limit": lines.limit});
    if let Some(level) = lines.level {
        wanted["level"] = match level {
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
        }
        .into();
    }
    let answer = client.post(path, Some(&wanted)).await?;
    let mut latest = answer["logs"].as_array().cloned().unwrap_or_default();
    latest.reverse();
    let mut seen = latest.last().map(|line| print::text(&line["id"]));
    print_lines(&latest, output);
    wanted["order"] = "asc".into();
    wanted["limit"] = 1000.into();
    if !lines.follow {
        return Ok(());
    }
    loop {
        // Checked before the read, so that lines written just before the end are read too.
        let over = ended().await?;
        wanted["offset"] = seen.clone().into();
        let answer = retry_while_unavailable(async || client.post(path, Some(&wanted)).await).await?;
        let more = answer["logs"].as_array().map(Vec::as_slice).unwrap_or_default();
        print_lines(more, output);
        seen = answer["next_offset"].as_str().map(str::to_owned).or(seen);
        if over && more.is_empty() {
            return Ok(());
        }
        if more.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// One line each, in JSON too.
fn print_lines(lines: &[Value], output: Output) {
    for line in lines {
        match output {
            Output::Json => println!("{line}"),
            Output::Table => {
                let at = line["timestamp"]
                    .as_i64()
                    .and_then(chrono::DateTime::from_timestamp_millis);
                let at = at
                    .map(|at| at.format("%Y-%m-%d %H:%M:%S").to_string())
                    .unwrap_or_default();
                println!(
                    "{at} {:7} {}",
                    print::text(&line["level"]),
                    print::text(&line["message"])
                );
            }
        }
    }
}

fn show(deployment: &Value, output: Output) {
    if output == Output::Json {
        print::json(deployment);
        return;
    }
    let names = [
        "id",
        "name",
        "status",
        "source",
        "source_config",
        "source_revision_config",
        "secrets",
        "latest_revision_id",
        "active_revision_id",
        "agent_server",
        "restarts",
        "tracing_project_id",
        "created_at",
        "updated_at",
    ];
    let mut shown = deployment.clone();
    for part in ["source_config", "source_revision_config"] {
        if let Some(fields) = shown[part].as_object_mut() {
            // Sizes are for programs; null values are left out.
            fields.retain(|name, value| !value.is_null() && name != "resource_spec" && name != "langgraph_config_path");
        }
    }
    let placement = &deployment["placement"];
    let state = print::text(&placement["state"]);
    shown["agent_server"] = match placement["error"].as_str() {
        Some(why) => format!("{state}: {why}").into(),
        None => state.into(),
    };
    shown["restarts"] = placement["restarts"].clone();
    let names_of_secrets = deployment["secrets"].as_array().into_iter().flatten();
    shown["secrets"] = names_of_secrets.map(|secret| secret["name"].clone()).collect();
    print::facts(&shown, &names);
}

fn table<'a>(deployments: impl IntoIterator<Item = &'a Value>) {
    let rows = deployments.into_iter().map(|deployment| {
        [
            print::text(&deployment["id"]),
            print::text(&deployment["name"]),
            print::text(&deployment["status"]),
            print::text(&deployment["source"]),
            print::text(&deployment["active_revision_id"]),
            print::text(&deployment["placement"]["state"]),
            print::text(&deployment["source_config"]["custom_url"]),
            print::moment(&deployment["created_at"]),
        ]
    });
    let header = [
        "deployment",
        "name",
        "status",
        "source",
        "active revision",
        "agent server",
        "address",
        "made",
    ];
    print::table(header, rows, "there are no deployments in this workspace");
}
