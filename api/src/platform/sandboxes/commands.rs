//! Commands of sandboxes and the end of their output. These routes neither start a sandbox, keep it from stopping as
//! idle, nor attach to commands.

use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use towpath_domain::BoxId;
use towpath_sandbox::{CommandStatus, Error, OutputTail};

use super::exec::check_command_id;
use super::readiness::{get_box, none_if_stopped, running_agent};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};

/// Default and maximum size of each output.
const MAX_OUTPUT_BYTES: i64 = 65_536;

/// A command of a sandbox.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxCommandStatus)]
pub struct CommandInfo {
    command_id: String,
    /// Process id in the sandbox.
    pid: i32,
    /// `running` or `exited`.
    #[schema(value_type = String, example = "running")]
    status: &'static str,
    exit_code: Option<i32>,
    /// Seconds since the start.
    age_seconds: u64,
}

impl From<CommandStatus> for CommandInfo {
    fn from(command: CommandStatus) -> Self {
        Self {
            status: if command.exit_code.is_some() {
                "exited"
            } else {
                "running"
            },
            command_id: command.command_id,
            pid: command.pid,
            exit_code: command.exit_code,
            age_seconds: command.age_seconds,
        }
    }
}

/// Commands of a sandbox.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxCommandList)]
pub struct CommandList {
    /// Latest first.
    commands: Vec<CommandInfo>,
}

/// List the commands of a sandbox: running ones, and those that ended less than their `ttl_seconds` ago. A sandbox that is
/// not running has none and is not started.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/commands", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "Commands, the latest first", body = CommandList),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn list(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
) -> Result<Json<CommandList>, ApiError> {
    let row = get_box(&app, tenant.id, id).await?;
    let commands = match running_agent(&app, &row).await? {
        Some(agent) => none_if_stopped(&app, id, agent.commands().await)?.unwrap_or_default(),
        None => Vec::new(),
    };
    Ok(Json(CommandList {
        commands: latest_first(commands).into_iter().map(CommandInfo::from).collect(),
    }))
}

/// Latest first: ids of official clients are ordered by time.
pub(crate) fn latest_first(mut commands: Vec<CommandStatus>) -> Vec<CommandStatus> {
    commands.sort_by(|a, b| {
        let by_age = a.age_seconds.cmp(&b.age_seconds);
        by_age.then_with(|| b.command_id.cmp(&a.command_id))
    });
    commands
}

/// The end of the output of a command.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxCommandOutput)]
pub struct CommandOutput {
    command_id: String,
    /// Bytes of standard output before `stdout`.
    stdout_offset: u64,
    stdout: String,
    /// Bytes of standard error before `stderr`.
    stderr_offset: u64,
    stderr: String,
    /// Set after the command has ended and its output is complete.
    exit_code: Option<i32>,
    /// Whether it was killed after its `timeout_seconds`.
    timed_out: bool,
}

/// Read the end of the output of a command, without attaching to it.
#[utoipa::path(get, path = "/v2/sandboxes/dp/{box_id}/commands/{command_id}/output", tag = "sandbox-dataplane",
    params(("box_id" = Uuid, Path, description = "The sandbox"),
           ("command_id" = String, Path, description = "The command"),
           ("limit" = Option<i64>, Query, description = "Maximum bytes of each output, 1 to 65536")),
    responses((status = 200, description = "The end of its output", body = CommandOutput),
              (status = 404, description = "No such sandbox in this workspace, or `CommandNotFound`"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn output(
    State(app): State<App>,
    tenant: Tenant,
    Path((id, command_id)): Path<(BoxId, String)>,
    pairs: Pairs,
) -> Result<Json<CommandOutput>, ApiError> {
    let row = get_box(&app, tenant.id, id).await?;
    let command_id = check_command_id(command_id)?;
    let most = pairs.number("limit", 1..=MAX_OUTPUT_BYTES)?.unwrap_or(MAX_OUTPUT_BYTES);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let missing = |text: String| ApiError::with_name(StatusCode::NOT_FOUND, "CommandNotFound", text);
    let tail = match running_agent(&app, &row).await? {
        Some(agent) => match agent.tail(&command_id, most).await {
            Err(Error::NotFound(text)) => return Err(missing(text)),
            tail => none_if_stopped(&app, id, tail)?,
        },
        None => None,
    };
    let Some(tail) = tail else {
        return Err(missing("the sandbox is not running, so it has no commands".to_owned()));
    };
    Ok(Json(CommandOutput::from_tail(command_id, tail)))
}

impl CommandOutput {
    fn from_tail(command_id: String, tail: OutputTail) -> Self {
        Self {
            command_id,
            stdout_offset: tail.stdout_offset,
            stdout: tail.stdout,
            stderr_offset: tail.stderr_offset,
            stderr: tail.stderr,
            exit_code: tail.exit_code,
            timed_out: tail.timed_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_the_order_of_their_starts() {
        let command = |id: &str, age_seconds, exit_code| CommandStatus {
            command_id: id.to_owned(),
            pid: 2,
            exit_code,
            age_seconds,
        };
        let given = vec![command("a", 9, Some(0)), command("b", 1, None), command("c", 1, None)];
        let sorted: Vec<CommandInfo> = latest_first(given).into_iter().map(CommandInfo::from).collect();
        let shown: Vec<_> = sorted
            .iter()
            .map(|known| (known.command_id.as_str(), known.status))
            .collect();
        assert_eq!(shown, [("c", "running"), ("b", "running"), ("a", "exited")]);
    }
}
