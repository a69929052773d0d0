//! `towpath revisions`

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::client::Client;
use super::deployments::{self, PATH};
use super::print;
use super::retry::{POLL_INTERVAL, retry_while_unavailable};
use crate::arguments::Output;
use crate::arguments::remote::RevisionsCommand;

pub async fn run(client: &Client, command: RevisionsCommand, output: Output) -> anyhow::Result<()> {
    match command {
        RevisionsCommand::Ls { deployment, limit } => {
            let id = deployments::id(client, &deployment).await?;
            let path = format!("{PATH}/{id}/revisions");
            let answer = client.get(&path, &[("limit", limit.to_string())]).await?;
            match output {
                Output::Json => print::json(&answer["resources"]),
                Output::Table => table(answer["resources"].as_array().into_iter().flatten()),
            }
        }
        RevisionsCommand::Show { deployment, revision } => {
            let id = deployments::id(client, &deployment).await?;
            show(
                &client.get(&format!("{PATH}/{id}/revisions/{revision}"), &[]).await?,
                output,
            );
        }
        RevisionsCommand::Redeploy {
            deployment,
            revision,
            wait,
        } => {
            let id = deployments::id(client, &deployment).await?;
            let path = format!("{PATH}/{id}/revisions/{revision}/redeploy");
            let changed = client.post(&path, None).await?;
            deployments::wait_and_show(client, &changed, wait, output).await?;
        }
        RevisionsCommand::Interrupt { deployment, revision } => {
            let id = deployments::id(client, &deployment).await?;
            let path = format!("{PATH}/{id}/revisions/{revision}/interrupt");
            show(&client.post(&path, None).await?, output);
        }
        RevisionsCommand::Logs {
            deployment,
            revision,
            deploy,
            lines,
        } => {
            let found = deployments::find(client, &deployment).await?;
            let id = print::text(&found["id"]);
            let revision = revision.map_or_else(|| print::text(&found["latest_revision_id"]), |id| id.to_string());
            let kind = if deploy { "deploy_logs" } else { "build_logs" };
            let path = format!("/v1/projects/{id}/revisions/{revision}/{kind}");
            let ended = async || {
                // The build log ends with the revision at the latest; the deploy log continues.
                let path = format!("{PATH}/{id}/revisions/{revision}");
                let now = retry_while_unavailable(async || client.get(&path, &[]).await).await?;
                Ok(is_over(&now) && !(deploy && now["status"] == "DEPLOYED"))
            };
            deployments::logs(client, &path, &lines, output, ended).await?;
        }
    }
    Ok(())
}

/// Whether the revision has reached its final state.
fn is_over(revision: &Value) -> bool {
    !revision["finished_at"].is_null()
}

/// Shows the status of a revision until it ends. Uses standard error, because standard output may be piped.
pub(super) async fn wait(client: &Client, deployment: &str, revision: &str) -> anyhow::Result<Value> {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{spinner} {msg}  {elapsed}").expect("the template is fixed and valid");
    let bar = ProgressBar::with_draw_target(None, target).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(120));
    let path = format!("{PATH}/{deployment}/revisions/{revision}");
    loop {
        let now = retry_while_unavailable(async || client.get(&path, &[]).await).await?;
        let status = print::text(&now["status"]).to_lowercase().replace('_', " ");
        bar.set_message(format!("revision {revision}: {status}"));
        if is_over(&now) {
            bar.finish_and_clear();
            return Ok(now);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn show(revision: &Value, output: Output) {
    if output == Output::Json {
        print::json(revision);
        return;
    }
    let names = [
        "id",
        "deployment_id",
        "status",
        "source",
        "source_revision_config",
        "redeploy_of",
        "created_at",
        "finished_at",
        "error",
    ];
    let mut shown = revision.clone();
    if let Some(fields) = shown["source_revision_config"].as_object_mut() {
        fields.retain(|name, value| !value.is_null() && name != "langgraph_config_path");
    }
    print::facts(&shown, &names);
}

fn table<'a>(revisions: impl IntoIterator<Item = &'a Value>) {
    let rows = revisions.into_iter().map(|revision| {
        let made_from = &revision["source_revision_config"];
        let what = ["repo_commit_sha", "image_uri", "source_tarball_path", "repo_ref"];
        let what = what.iter().map(|name| &made_from[*name]).find(|value| !value.is_null());
        [
            print::text(&revision["id"]),
            print::text(&revision["status"]),
            what.map(print::short).unwrap_or_default(),
            print::moment(&revision["created_at"]),
            print::moment(&revision["finished_at"]),
            print::short(&revision["error"]),
        ]
    });
    let header = ["revision", "status", "made from", "recorded", "ended", "error"];
    print::table(header, rows, "the deployment has no revisions");
}
