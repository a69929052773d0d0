//! `towpath traces quarantine`

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use towpath_domain::{QuarantineId, TenantId};

use super::client::Client;
use super::print;
use crate::arguments::Output;
use crate::arguments::remote::{EntrySelection, QuarantineCommand};

const PATH: &str = "/internal/quarantine";

pub async fn run(
    client: &Client,
    command: QuarantineCommand,
    tenant: Option<TenantId>,
    output: Output,
) -> anyhow::Result<()> {
    match command {
        QuarantineCommand::Ls { limit } => {
            let of = tenant.map(|tenant| ("tenant", tenant.to_string()));
            let entries = client.list(PATH, &Vec::from_iter(of), limit).await?;
            match output {
                Output::Json => print::json(&Value::Array(entries)),
                Output::Table => table(&entries),
            }
        }
        QuarantineCommand::Show { entry, body, frame } => {
            let shown = client.get(&format!("{PATH}/{entry}"), &[]).await?;
            match output {
                Output::Json => print::json(&shown),
                Output::Table => show(shown),
            }
            if let Some(file) = body {
                let bytes = client
                    .download(&format!("{PATH}/{entry}/body"), &[("frame", frame.to_string())])
                    .await?;
                write(&file, &bytes)?;
                if output == Output::Table {
                    println!("\nwrote {} bytes to {}", bytes.len(), file.display());
                }
            }
        }
        QuarantineCommand::Retry(chosen) => act(client, "retry", chosen, tenant, output).await?,
        QuarantineCommand::Drop { chosen, yes: _ } => act(client, "drop", chosen, tenant, output).await?,
    }
    Ok(())
}

/// Applies an action to many entries. Fails if a named entry refuses it.
async fn act(
    client: &Client,
    action: &str,
    chosen: EntrySelection,
    tenant: Option<TenantId>,
    output: Output,
) -> anyhow::Result<()> {
    let (mut done, mut items) = (0, 0);
    let mut refused: Vec<Value> = Vec::new();
    let mut add = |mut outcome: Value| -> Option<String> {
        done += outcome["done"].as_u64().unwrap_or(0);
        items += outcome["items"].as_u64().unwrap_or(0);
        if let Value::Array(some) = outcome["refused"].take() {
            refused.extend(some);
        }
        outcome["next_cursor"].as_str().map(str::to_owned)
    };
    let path = format!("{PATH}/bulk");
    if chosen.all {
        let mut body = json!({"action": action, "all": true, "tenant": tenant});
        while let Some(cursor) = add(client.post(&path, Some(&body)).await?) {
            body["cursor"] = cursor.into();
        }
    } else {
        for some in chosen.entries.chunks(1000) {
            let ids: Vec<String> = some.iter().map(QuarantineId::to_string).collect();
            add(client.post(&path, Some(&json!({"action": action, "ids": ids}))).await?);
        }
    }
    match output {
        Output::Json => print::json(&json!({"done": done, "items": items, "refused": refused})),
        Output::Table => {
            let did = if action == "retry" { "folded again" } else { "dropped" };
            let entries = print::counted(done, "entry", "entries");
            println!(
                "{did}: {entries} with {}",
                print::counted(items, "operation", "operations")
            );
            for entry in &refused {
                println!(
                    "refused: {}: {}",
                    print::text(&entry["id"]),
                    print::text(&entry["reason"])
                );
            }
        }
    }
    if !chosen.all && !refused.is_empty() {
        bail!("{} of {} entries refused", refused.len(), chosen.entries.len());
    }
    Ok(())
}

fn table(entries: &[Value]) {
    let rows = entries.iter().map(|entry| {
        [
            print::text(&entry["id"]),
            print::text(&entry["tenant_id"]),
            print::text(&entry["kind"]),
            print::text(&entry["items"]),
            print::text(&entry["bytes"]),
            print::moment(&entry["accepted_at"]),
            print::moment(&entry["created_at"]),
            print::short(&entry["reason"]),
        ]
    });
    let header = [
        "entry",
        "workspace",
        "kind",
        "operations",
        "bytes",
        "accepted",
        "here since",
        "reason",
    ];
    print::table(header, rows, "the quarantine is empty");
}

fn show(mut entry: Value) {
    if entry["projects"].is_null() {
        entry["projects"] = "any in the workspace".into();
    }
    let names = [
        "id",
        "tenant_id",
        "kind",
        "reason",
        "items",
        "bytes",
        "decoded_bytes",
        "projects",
        "names",
        "first_start",
        "last_start",
        "accepted_at",
        "created_at",
        "path",
        "byte_offset",
        "object",
    ];
    print::facts(&entry, &names);
    let frames = entry["frames"].as_array().map(Vec::as_slice).unwrap_or_default();
    if frames.is_empty() {
        return;
    }
    println!("\nframes");
    let rows = frames.iter().map(|frame| {
        [
            print::text(&frame["number"]),
            print::text(&frame["route"]),
            print::text(&frame["content_type"]),
            print::text(&frame["encoding"]),
            print::text(&frame["items"]),
            print::text(&frame["body_bytes"]),
            print::moment(&frame["received_at"]),
            print::short(&frame["damage"]),
        ]
    });
    let header = [
        "frame",
        "route",
        "content type",
        "encoding",
        "operations",
        "body bytes",
        "received",
        "damage",
    ];
    print::table(header, rows, "");
}

/// Only its owner can read the file, because it contains user data.
fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(file)?;
        file.write_all(bytes)
    };
    write().with_context(|| format!("file {}", file.display()))
}
