//! Commands in sandboxes: the request, and a response at the end of the command.

use std::collections::BTreeMap;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_domain::sandbox::RunConfig;
use towpath_domain::{BoxId, Rejection};
use towpath_sandbox::{ExecEvent, ExecEvents, ExecRequest, PtySize};
use uuid::Uuid;

use super::model::RunConfigBody;
use super::readiness::ensure_running;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Path, whole};
use crate::metric;

/// Maximum length of a command.
const MAX_COMMAND_CHARS: usize = 512 * 1024;
/// Maximum size of each output in a response.
const MAX_OUTPUT_BYTES: usize = 8 << 20;
/// Maximum timeout of a command in seconds.
const MAX_TIMEOUT_SECONDS: i64 = 7 * 24 * 60 * 60;

/// A command, as all transports send it.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = SandboxCommand)]
pub struct ExecuteCommand {
    /// Shell command.
    #[serde(default)]
    command: String,
    /// Id of the command: a second request with it attaches to the first.
    #[serde(default)]
    #[schema(max_length = 128)]
    command_id: Option<String>,
    #[serde(default)]
    #[schema(default = "/bin/bash")]
    shell: Option<String>,
    /// The command is killed after this many seconds; 0 means never.
    #[serde(default, deserialize_with = "whole")]
    timeout_seconds: Option<i64>,
    /// Alias of `timeout_seconds` for older clients.
    #[serde(default, deserialize_with = "whole")]
    timeout: Option<i64>,
    /// The command is killed after this many seconds without a client; 0 or less means never.
    #[serde(default, deserialize_with = "whole")]
    idle_timeout_seconds: Option<i64>,
    /// How long output is stored after the end; less than 0 means as long as the sandbox runs.
    #[serde(default, deserialize_with = "whole")]
    ttl_seconds: Option<i64>,
    #[serde(default)]
    kill_on_disconnect: Option<bool>,
    #[serde(default)]
    close_stdin: Option<bool>,
    /// True, or an object with `rows` and `cols`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pty: Option<Value>,
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    run_config: Option<RunConfigBody>,
}

/// Defaults that depend on the transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandDefaults {
    /// Whether standard input is empty.
    pub close_stdin: bool,
    /// Whether the command ends with its last client.
    pub kill_on_disconnect: bool,
}

impl ExecuteCommand {
    pub(super) fn admit(self, usual: CommandDefaults) -> Result<ExecRequest, Rejection> {
        if self.command.is_empty() || self.command.len() > MAX_COMMAND_CHARS || self.command.contains('\0') {
            let text = format!("expected 1 to {MAX_COMMAND_CHARS} bytes and no NUL");
            return Err(Rejection::invalid("command", text));
        }
        let command_id = match self.command_id {
            Some(id) => check_command_id(id)?,
            None => Uuid::now_v7().simple().to_string(),
        };
        let shell = self.shell.unwrap_or_else(|| "/bin/bash".to_owned());
        if shell.is_empty() || shell.len() > 1024 || shell.contains('\0') {
            return Err(Rejection::invalid("shell", "expected the path of a shell"));
        }
        if self.run_config.is_some() && (self.env.is_some() || self.cwd.is_some()) {
            return Err(Rejection::rule("run_config", "send either run_config or env and cwd"));
        }
        let run = match self.run_config {
            Some(config) => RunConfig::from(config),
            // A relative folder starts in the sandbox's own working directory.
            None => RunConfig {
                env_vars: self.env,
                ..RunConfig::default()
            },
        };
        run.check("run_config")?;
        let cwd = run.work_dir.or(self.cwd);
        if cwd
            .as_deref()
            .is_some_and(|folder| folder.len() > 1024 || folder.contains('\0'))
        {
            return Err(Rejection::invalid("cwd", "expected a folder"));
        }
        Ok(ExecRequest {
            command_id,
            command: self.command,
            shell,
            user: run.user,
            cwd,
            env: run.env_vars.unwrap_or_default(),
            timeout_seconds: parse_seconds("timeout_seconds", self.timeout_seconds.or(self.timeout), 60)?,
            idle_timeout_seconds: parse_seconds("idle_timeout_seconds", self.idle_timeout_seconds, 300)?,
            ttl_seconds: self.ttl_seconds.unwrap_or(600).clamp(-1, MAX_TIMEOUT_SECONDS),
            kill_on_disconnect: self.kill_on_disconnect.unwrap_or(usual.kill_on_disconnect),
            close_stdin: self.close_stdin.unwrap_or(usual.close_stdin),
            pty: parse_pty(self.pty.as_ref())?,
        })
    }
}

pub(super) fn check_command_id(id: String) -> Result<String, Rejection> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=128).contains(&id.len()) && id.bytes().all(plain) {
        Ok(id)
    } else {
        Err(Rejection::invalid(
            "command_id",
            "expected 1 to 128 letters, digits, '-' and '_'",
        ))
    }
}

fn parse_seconds(field: &str, sent: Option<i64>, usual: u64) -> Result<u64, Rejection> {
    match sent {
        None => Ok(usual),
        // Some clients send a negative number for "never".
        Some(seconds) if seconds <= 0 => Ok(0),
        Some(seconds) if seconds <= MAX_TIMEOUT_SECONDS => Ok(seconds.unsigned_abs()),
        Some(_) => Err(Rejection::invalid(
            field,
            format!("expected at most {MAX_TIMEOUT_SECONDS} seconds"),
        )),
    }
}

fn parse_pty(sent: Option<&Value>) -> Result<Option<PtySize>, Rejection> {
    match sent {
        None | Some(Value::Null | Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(PtySize::default())),
        Some(Value::Object(size)) => {
            let side = |name: &str, usual: u16| match size.get(name) {
                None | Some(Value::Null) => Ok(usual),
                Some(value) => {
                    let side = value.as_u64().and_then(|side| u16::try_from(side).ok());
                    side.filter(|side| (1..=1000).contains(side))
                        .ok_or_else(|| Rejection::invalid(format!("pty.{name}"), "expected 1 to 1000"))
                }
            };
            let usual = PtySize::default();
            Ok(Some(PtySize {
                rows: side("rows", usual.rows)?,
                cols: side("cols", usual.cols)?,
            }))
        }
        Some(_) => Err(Rejection::invalid(
            "pty",
            "expected true, or an object with rows and cols",
        )),
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SandboxCommandResult)]
pub struct CommandResult {
    stdout: String,
    stderr: String,
    exit_code: i32,
    /// Whether output beyond 8 MiB is missing.
    truncated: bool,
}

/// Run a command and return its result. It is killed if the caller disconnects.
#[utoipa::path(post, path = "/v2/sandboxes/dp/{box_id}/execute", tag = "sandbox-dataplane", request_body = ExecuteCommand,
    params(("box_id" = Uuid, Path, description = "The sandbox")),
    responses((status = 200, description = "The result", body = CommandResult),
              (status = 404, description = "No such sandbox in this workspace"),
              (status = 408, description = "It was killed after its `timeout`"),
              (status = 501, description = "Sandboxes are not enabled in this process"),
              (status = 502, description = "The sandbox returned an invalid response"), ApiError))]
pub async fn execute(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<BoxId>,
    Json(command): Json<ExecuteCommand>,
) -> Result<Json<CommandResult>, ApiError> {
    let usual = CommandDefaults {
        close_stdin: true,
        kill_on_disconnect: true,
    };
    let request = command.admit(usual)?;
    let awake = ensure_running(&app, tenant.id, id).await?;
    let started = awake.agent.execute(&request).await;
    let mut execution = started.map_err(|error| awake.agent_error(id, &error))?;
    count_command("http");
    let collected = collect_output(&mut execution.events).await;
    let (result, timed_out) = collected.map_err(|error| awake.agent_error(id, &error))?;
    if timed_out {
        let text = format!("the command was killed after {} seconds", request.timeout_seconds);
        return Err(ApiError::with_name(StatusCode::REQUEST_TIMEOUT, "CommandError", text));
    }
    Ok(Json(result))
}

/// Counts a started or attached command.
pub(super) fn count_command(transport: &'static str) {
    metrics::counter!(metric::BOX_COMMANDS, "transport" => transport).increment(1);
}

async fn collect_output(events: &mut ExecEvents) -> Result<(CommandResult, bool), towpath_sandbox::Error> {
    let (mut stdout, mut stderr): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    let mut truncated = false;
    loop {
        let (into, data) = match events.next().await? {
            Some(ExecEvent::Stdout { data, .. }) => (&mut stdout, data),
            Some(ExecEvent::Stderr { data, .. }) => (&mut stderr, data),
            Some(ExecEvent::Exit { exit_code, timed_out }) => {
                let result = CommandResult {
                    stdout: String::from_utf8_lossy(&stdout).into_owned(),
                    stderr: String::from_utf8_lossy(&stderr).into_owned(),
                    exit_code,
                    truncated,
                };
                return Ok((result, timed_out));
            }
            None => {
                let text = "the command ended without its exit code".to_owned();
                return Err(towpath_sandbox::Error::Agent(text));
            }
        };
        let room = MAX_OUTPUT_BYTES - into.len();
        truncated |= data.len() > room;
        into.extend_from_slice(&data[..data.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const USUAL: CommandDefaults = CommandDefaults {
        close_stdin: false,
        kill_on_disconnect: false,
    };

    fn admit(command: Value) -> Result<ExecRequest, Rejection> {
        serde_json::from_value::<ExecuteCommand>(command).unwrap().admit(USUAL)
    }

    #[test]
    fn what_clients_leave_out_has_their_defaults() {
        let request = admit(json!({"command": "ls"})).unwrap();
        assert_eq!(
            (
                request.timeout_seconds,
                request.idle_timeout_seconds,
                request.ttl_seconds
            ),
            (60, 300, 600)
        );
        assert_eq!(request.shell, "/bin/bash");
        assert_eq!(request.pty, None);
        let never =
            admit(json!({"command": "ls", "timeout_seconds": 0, "idle_timeout_seconds": -1, "ttl_seconds": -1}));
        let never = never.unwrap();
        assert_eq!(
            (never.timeout_seconds, never.idle_timeout_seconds, never.ttl_seconds),
            (0, 0, -1)
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_field() {
        for (command, field) in [
            (json!({"command": ""}), "command"),
            (json!({"command": "a", "command_id": "a b"}), "command_id"),
            (
                json!({"command": "a", "cwd": "/", "run_config": {"user": "root"}}),
                "run_config",
            ),
            (json!({"command": "a", "pty": {"rows": 0}}), "pty.rows"),
            (json!({"command": "a", "pty": 1}), "pty"),
            (
                json!({"command": "a", "timeout_seconds": 1_000_000_000}),
                "timeout_seconds",
            ),
            (json!({"command": "a", "env": {"A=B": "c"}}), "run_config.env_vars"),
        ] {
            assert_eq!(admit(command).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_terminal_has_a_size() {
        let request = admit(json!({"command": "a", "pty": {"rows": 40}})).unwrap();
        assert_eq!(request.pty, Some(PtySize { rows: 40, cols: 80 }));
        let request = admit(json!({"command": "a", "pty": true})).unwrap();
        assert_eq!(request.pty, Some(PtySize::default()));
    }
}
