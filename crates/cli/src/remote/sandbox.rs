//! `towpath sandbox`

mod copy;
mod exec;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::print;
use super::retry::{POLL_INTERVAL, retry_while_unavailable};
use crate::arguments::Output;
use crate::arguments::remote::{NewSandbox, SandboxCommand, SandboxStatus};

const PATH: &str = "/v2/sandboxes/boxes";
/// How long to wait for a start, as in the official clients.
const START_TIMEOUT: Duration = Duration::from_secs(120);

pub async fn run(client: &Client, command: SandboxCommand, output: Output) -> anyhow::Result<()> {
    match command {
        SandboxCommand::Ls { limit, status } => ls(client, limit, status, output).await,
        SandboxCommand::Show { sandbox } => {
            show(&find(client, &sandbox).await?, output);
            Ok(())
        }
        SandboxCommand::Create(new) => {
            let made = client.post(PATH, Some(&create_body(&new))).await?;
            match output {
                Output::Json => print::json(&made),
                // For `$(towpath sandbox create)`.
                Output::Table => println!("{}", print::text(&made["name"])),
            }
            Ok(())
        }
        SandboxCommand::Exec(command) => exec::run(client, command, output).await,
        SandboxCommand::Cp { from, to } => copy::run(client, from, to, output).await,
        SandboxCommand::Ps { sandbox } => ps(client, &sandbox, output).await,
        SandboxCommand::Logs {
            sandbox,
            command,
            follow,
        } => exec::logs(client, &sandbox, command, follow, output).await,
        SandboxCommand::Start { sandboxes, no_wait } => {
            for_each(&sandboxes, "started", output, async |name: &str| {
                client
                    .post(&format!("{}/start", path_of(name)), Some(&json!({})))
                    .await?;
                if !no_wait {
                    wait_ready(client, name).await?;
                }
                Ok(())
            })
            .await
        }
        SandboxCommand::Stop { sandboxes } => {
            for_each(&sandboxes, "stopped", output, async |name: &str| {
                client
                    .post(&format!("{}/stop", path_of(name)), Some(&json!({})))
                    .await?;
                Ok(())
            })
            .await
        }
        SandboxCommand::Rm { sandboxes } => {
            for_each(&sandboxes, "deleted", output, async |name: &str| {
                client.delete(&path_of(name), &[]).await?;
                Ok(())
            })
            .await
        }
    }
}

/// The address of a sandbox by its name or id.
fn path_of(name: &str) -> String {
    format!("{PATH}/{}", segment(name))
}

async fn find(client: &Client, name: &str) -> anyhow::Result<Value> {
    client.get(&path_of(name), &[]).await
}

/// The data plane of a sandbox. `dataplane_url` is not used: the key must only go to the configured server.
async fn data_path(client: &Client, name: &str) -> anyhow::Result<String> {
    let found = find(client, name).await?;
    match found["id"].as_str() {
        Some(id) => Ok(format!("/v2/sandboxes/dp/{}", segment(id))),
        None => bail!("the server answers a sandbox without its id"),
    }
}

/// Performs an action on each sandbox. A refusal does not stop it, but makes the command fail at the end.
async fn for_each(
    names: &[String],
    done: &str,
    output: Output,
    each: impl AsyncFn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut over, mut refused) = (Vec::new(), Vec::new());
    for name in names {
        match each(name).await {
            Ok(()) => over.push(name.as_str()),
            // The next request would fail in the same way.
            Err(error) if names.len() == 1 || error.is::<crate::exit::Unreachable>() => return Err(error),
            Err(error) => refused.push(json!({"sandbox": name, "reason": format!("{error:#}")})),
        }
    }
    match output {
        Output::Json => print::json(&json!({done: over, "refused": refused})),
        Output::Table => {
            for name in over {
                println!("{done} {name}");
            }
            for one in &refused {
                eprintln!("{}: {}", print::text(&one["sandbox"]), print::text(&one["reason"]));
            }
        }
    }
    match refused.len() {
        0 => Ok(()),
        count => bail!(
            "{} could not be {done}",
            print::counted(count as u64, "sandbox", "sandboxes")
        ),
    }
}

async fn wait_ready(client: &Client, name: &str) -> anyhow::Result<()> {
    let path = format!("{}/status", path_of(name));
    let began = Instant::now();
    loop {
        let answer = retry_while_unavailable(async || client.get(&path, &[]).await).await?;
        match answer["status"].as_str() {
            Some("ready") => return Ok(()),
            Some("failed") => {
                let why = answer["status_message"].as_str().unwrap_or("no reason given");
                bail!("the sandbox could not be started: {why}");
            }
            _ if began.elapsed() >= START_TIMEOUT => bail!("the sandbox is still being started"),
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

async fn ls(client: &Client, limit: u64, status: Option<SandboxStatus>, output: Output) -> anyhow::Result<()> {
    let mut query = vec![("limit", limit.to_string())];
    let status = status.map(|status| match status {
        SandboxStatus::Provisioning => "provisioning",
        SandboxStatus::Ready => "ready",
        SandboxStatus::Stopped => "stopped",
        SandboxStatus::Failed => "failed",
    });
    query.extend(status.map(|status| ("status", status.to_owned())));
    let answer = client.get(PATH, &query).await?;
    if output == Output::Json {
        print::json(&answer["sandboxes"]);
        return Ok(());
    }
    let rows = answer["sandboxes"].as_array().into_iter().flatten().map(|one| {
        [
            print::text(&one["name"]),
            print::text(&one["status"]),
            print::text(&one["template_name"]),
            print::text(&one["isolation"]),
            print::moment(&one["created_at"]),
            print::short(&one["status_message"]),
            print::text(&one["id"]),
        ]
    });
    let header = ["sandbox", "status", "made from", "isolation", "made", "why", "id"];
    print::table(header, rows, "there are no sandboxes in this workspace");
    Ok(())
}

fn show(sandbox: &Value, output: Output) {
    if output == Output::Json {
        print::json(sandbox);
        return;
    }
    let names = [
        "id",
        "name",
        "status",
        "status_message",
        "isolation",
        "template_name",
        "snapshot_id",
        "vcpus",
        "mem_bytes",
        "fs_capacity_bytes",
        "persistent",
        "idle_ttl_seconds",
        "ttl_seconds",
        "expires_at",
        "delete_after_stop_seconds",
        "stopped_at",
        "volumes",
        "labels",
        "env_vars",
        "run_config",
        "dataplane_url",
        "created_at",
        "updated_at",
    ];
    print::facts(sandbox, &names);
}

async fn ps(client: &Client, sandbox: &str, output: Output) -> anyhow::Result<()> {
    let path = format!("{}/commands", data_path(client, sandbox).await?);
    let answer = client.get(&path, &[]).await?;
    if output == Output::Json {
        print::json(&answer["commands"]);
        return Ok(());
    }
    let rows = answer["commands"].as_array().into_iter().flatten().map(|command| {
        [
            print::text(&command["command_id"]),
            print::text(&command["status"]),
            print::text(&command["exit_code"]),
            print::text(&command["pid"]),
            print::age(&command["age_seconds"]),
        ]
    });
    let header = ["command", "status", "exit code", "process", "age"];
    print::table(header, rows, "the sandbox has no commands");
    Ok(())
}

fn create_body(new: &NewSandbox) -> Value {
    let mut body = json!({"wait_for_ready": !new.no_wait});
    if !new.no_wait {
        // Less than the request timeout of this client.
        body["timeout"] = 100.into();
    }
    let texts = [
        ("name", &new.name),
        ("snapshot", &new.snapshot),
        ("template_name", &new.template),
    ];
    for (field, text) in texts {
        if let Some(text) = text {
            body[field] = text.as_str().into();
        }
    }
    let numbers = [
        ("vcpus", new.vcpus),
        ("mem_bytes", new.memory),
        ("fs_capacity_bytes", new.disk),
        ("idle_ttl_seconds", new.idle),
        ("ttl_seconds", new.ttl),
        ("delete_after_stop_seconds", new.delete_after_stop),
    ];
    for (field, number) in numbers {
        if let Some(number) = number {
            body[field] = number.into();
        }
    }
    for (field, pairs) in [("env_vars", &new.env), ("labels", &new.label)] {
        if !pairs.is_empty() {
            body[field] = json!(to_map(pairs));
        }
    }
    if !new.volume.is_empty() {
        let volumes = new
            .volume
            .iter()
            .map(|mount| json!({"volume": mount.volume, "mount_path": mount.path, "read_only": mount.read_only}));
        body["volumes"] = volumes.collect();
    }
    if !new.allow.is_empty() {
        body["proxy_config"] = json!({"access_control": {"allow_list": new.allow}});
    }
    if new.temporary {
        body["persistent"] = false.into();
    }
    body
}

fn to_map(pairs: &[(String, String)]) -> BTreeMap<&str, &str> {
    pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::remote::VolumeMount;

    fn nothing() -> NewSandbox {
        NewSandbox {
            name: None,
            snapshot: None,
            template: None,
            vcpus: None,
            memory: None,
            disk: None,
            env: Vec::new(),
            label: Vec::new(),
            volume: Vec::new(),
            allow: Vec::new(),
            idle: None,
            ttl: None,
            delete_after_stop: None,
            temporary: false,
            no_wait: false,
        }
    }

    #[test]
    fn what_is_not_given_is_not_sent() {
        assert_eq!(create_body(&nothing()), json!({"wait_for_ready": true, "timeout": 100}));
        let new = NewSandbox {
            name: Some("yard".to_owned()),
            snapshot: Some("base:2".to_owned()),
            memory: Some(1 << 30),
            idle: Some(0),
            env: vec![("A".to_owned(), "1".to_owned())],
            volume: vec![VolumeMount {
                volume: "v".to_owned(),
                path: "/data".to_owned(),
                read_only: true,
            }],
            allow: vec!["pypi.org".to_owned()],
            temporary: true,
            no_wait: true,
            ..nothing()
        };
        let expected = json!({
            "wait_for_ready": false, "name": "yard", "snapshot": "base:2", "mem_bytes": 1 << 30, "idle_ttl_seconds": 0,
            "env_vars": {"A": "1"}, "persistent": false,
            "volumes": [{"volume": "v", "mount_path": "/data", "read_only": true}],
            "proxy_config": {"access_control": {"allow_list": ["pypi.org"]}},
        });
        assert_eq!(create_body(&new), expected);
    }

    #[test]
    fn a_name_stays_in_its_segment() {
        assert_eq!(path_of("../a"), "/v2/sandboxes/boxes/..%2Fa");
    }

    #[tokio::test]
    async fn one_that_refuses_does_not_keep_the_others() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let asked = std::cell::RefCell::new(Vec::new());
        let done = for_each(&names, "deleted", Output::Json, async |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            if name == "a" {
                bail!("Sandbox 'a' not found");
            }
            Ok(())
        });
        let refused = done.await.unwrap_err();
        assert_eq!(refused.to_string(), "1 sandbox could not be deleted");
        assert_eq!(*asked.borrow(), ["a", "b", "c"]);
    }
}
