//! Sandboxes: the list, and one sandbox with commands, live output, files and snapshots. These pages neither start a
//! sandbox nor keep it from stopping as idle.

mod contents;

use std::collections::HashMap;
use std::time::Duration;

use askama::Template;
use axum::extract::{Path, Query, State};
use http::StatusCode;
use serde::Deserialize;
use towpath_domain::sandbox::{BoxConfig, BoxStatus, ProxyConfig, SnapshotStatus};
use towpath_domain::{BoxId, Timestamp};
use towpath_sandbox::{Capabilities, Error};
use towpath_store as store;
use towpath_store::sandboxes::boxes::{self, BoxVolume, SandboxBox};
use towpath_store::sandboxes::network::{self, BoxNetwork};
use towpath_store::sandboxes::nodes::{self, Node, NodeState};
use towpath_store::sandboxes::snapshots::{self, Snapshot};
use towpath_workflows::sandbox_host::isolation_name;
use towpath_workflows::{delete_box, start_box, stop_box};
use uuid::Uuid;

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use super::sandbox_nodes::NodeRow;
use crate::app::App;
use crate::auth::Operator;
use crate::errors::ApiError;
use crate::extract::Form;
use crate::platform::sandboxes::capture;
use crate::platform::sandboxes::readiness::{require_node, require_node_of};
use contents::{Contents, DetailQuery, load_contents};

const PATH: &str = "/ui/sandboxes";
const PAGE_SIZE: i64 = 50;
/// Snapshots of a sandbox that are listed.
const MAX_SNAPSHOTS: i64 = 20;

/// Position of the page.
#[derive(Deserialize)]
pub(super) struct PageQuery {
    before: Option<BoxId>,
}

#[derive(Template)]
#[template(path = "ui/sandboxes.html")]
struct List {
    machine: Option<MachineStatus>,
    /// If there are several, or one that needs attention.
    nodes: Vec<NodeRow>,
    rows: Vec<Row>,
    next: Option<String>,
}

/// Isolation of the sandboxes of this process.
struct MachineStatus {
    tone: &'static str,
    text: String,
}

impl MachineStatus {
    fn new(found: Result<&Capabilities, Error>, driver: &str) -> Self {
        match found {
            Ok(found) => Self {
                tone: if found.missing.is_empty() { "good" } else { "wait" },
                text: format!(
                    "Sandboxes of this machine are isolated by {} (driver {driver}). {}",
                    isolation_name(found.isolation),
                    found.missing.join("; ")
                ),
            },
            Err(why) => Self {
                tone: "bad",
                text: format!("Sandboxes cannot be started on this machine: {why}"),
            },
        }
    }
}

struct Row {
    id: String,
    name: String,
    status: &'static str,
    tone: &'static str,
    in_pool: bool,
    why: String,
    of: String,
    isolation: String,
    node: String,
    tenant: String,
    tenant_short: String,
    used: String,
    used_age: String,
    made: String,
    age: String,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(page): Query<PageQuery>) -> PageResult {
    let read = app.store.read(async |tx| {
        let found = boxes::list_all(tx, page.before, PAGE_SIZE).await?;
        Ok((found, nodes::list(tx).await?))
    });
    let (found, nodes) = read.await?;
    let names: HashMap<Uuid, String> = nodes.iter().map(|node| (node.id, node.name.clone())).collect();
    let now = app.clock.now();
    let next = found
        .last()
        .filter(|_| found.len() as i64 == PAGE_SIZE)
        .map(|last| last.id.to_string());
    let machine = match &app.sandbox_host {
        Some(held) => Some(MachineStatus::new(held.capabilities().await, held.driver.name())),
        None => None,
    };
    let list = List {
        machine,
        nodes: node_rows(nodes, now),
        rows: found.into_iter().map(|row| list_row(row, &names, now)).collect(),
        next,
    };
    Ok(asked.page("Sandboxes", PATH, &list))
}

fn node_rows(nodes: Vec<Node>, now: Timestamp) -> Vec<NodeRow> {
    if let [only] = nodes.as_slice()
        && only.state() == NodeState::Active
    {
        return Vec::new();
    }
    nodes.into_iter().map(|node| NodeRow::new(node, now)).collect()
}

fn list_row(row: SandboxBox, names: &HashMap<Uuid, String>, now: Timestamp) -> Row {
    let node = row
        .host_id
        .map(|id| names.get(&id).cloned().unwrap_or_else(|| "removed".to_owned()));
    Row {
        node: node.unwrap_or_default(),
        id: row.id.to_string(),
        status: row.status.as_str(),
        tone: tone(row.status),
        in_pool: row.pool_id.is_some(),
        why: row.status_message.unwrap_or_default(),
        of: row.template_name,
        isolation: row.isolation.unwrap_or_default(),
        tenant: row.tenant_id.to_string(),
        tenant_short: formatting::short(&row.tenant_id),
        used: formatting::moment(row.active_at),
        used_age: formatting::relative(row.active_at, now),
        made: formatting::moment(row.created_at),
        age: formatting::relative(row.created_at, now),
        name: row.name,
    }
}

const fn tone(status: BoxStatus) -> &'static str {
    match status {
        BoxStatus::Provisioning => "busy",
        BoxStatus::Ready => "good",
        BoxStatus::Failed => "bad",
        BoxStatus::Stopped | BoxStatus::Deleting => "",
    }
}

#[derive(Default, Template)]
#[template(path = "ui/sandbox.html")]
struct Detail {
    id: String,
    name: String,
    status: &'static str,
    tone: &'static str,
    why: String,
    may_start: bool,
    may_stop: bool,
    may_keep: bool,
    facts: Vec<(&'static str, String)>,
    volumes: Vec<Volume>,
    snapshots: Vec<SnapshotRow>,
    /// Set if the sandbox is running.
    inside: Option<Contents>,
    /// Why `inside` is missing.
    trouble: Option<String>,
    /// From the query.
    path: String,
    command: String,
}

struct Volume {
    name: String,
    path: String,
    how: &'static str,
}

/// A snapshot of the sandbox.
struct SnapshotRow {
    id: String,
    name: String,
    status: &'static str,
    tone: &'static str,
    why: String,
    bytes: String,
    made: String,
    age: String,
}

pub(super) async fn detail(
    State(app): State<App>,
    asked: PageRequest,
    Path(id): Path<String>,
    Query(what): Query<DetailQuery>,
) -> PageResult {
    let row = find_box(&app, &id).await?;
    let (tenant, id) = (row.tenant_id, row.id);
    let read = app.store.read(async |tx| {
        let mounted = boxes::volumes_of(tx, &[id]).await?;
        let kept = snapshots::of_box(tx, tenant, id, MAX_SNAPSHOTS).await?;
        let node = match row.host_id {
            Some(node) => nodes::find(tx, node).await?,
            None => None,
        };
        Ok((mounted, kept, network::find(tx, tenant, id).await?, node))
    });
    let (mounted, kept, network, node) = read.await?;
    let (inside, trouble) = load_contents(&app, &row, &what).await;
    let mut detail = Detail {
        inside,
        trouble,
        path: what.path,
        command: what.command,
        ..detail_page(&row, &row.config()?, mounted, kept, app.clock.now())
    };
    if let Some(node) = node {
        detail
            .facts
            .push(("Node", format!("{}, {}", node.name, node.state().as_str())));
    }
    let config = network.as_ref().map(BoxNetwork::config).transpose()?;
    detail
        .facts
        .push(("Network", network_text(&config.unwrap_or_default())));
    if let Some(network) = network {
        let bytes = [network.sent_bytes, network.received_bytes].map(formatting::bytes);
        detail.facts.push(("Sent and received", bytes.join(", ")));
    }
    Ok(asked.page("Sandbox", PATH, &detail))
}

/// What a sandbox may call, in a line.
fn network_text(config: &ProxyConfig) -> String {
    let access = config.access_control.clone().unwrap_or_default();
    let of_rules = config.rules.iter().filter(|rule| rule.enabled);
    let (text, hosts): (_, Vec<String>) = if !access.allow_list.is_empty() {
        ("open for", access.allow_list)
    } else if !access.deny_list.is_empty() {
        ("open, except for", access.deny_list)
    } else {
        ("open for", of_rules.flat_map(|rule| rule.match_hosts.clone()).collect())
    };
    match hosts.as_slice() {
        [] => "closed".to_owned(),
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{text} {first}, {second}, {third} and {} more", rest.len())
        }
        hosts => format!("{text} {}", hosts.join(", ")),
    }
}

fn detail_page(
    row: &SandboxBox,
    config: &BoxConfig,
    mounted: Vec<BoxVolume>,
    kept: Vec<Snapshot>,
    now: Timestamp,
) -> Detail {
    let seconds = |seconds: i64| match u64::try_from(seconds) {
        Ok(0) | Err(_) => "never".to_owned(),
        Ok(seconds) => formatting::span(Duration::from_secs(seconds)),
    };
    let facts = [
        ("Isolation", row.isolation.clone()),
        (
            "Source",
            Some(row.template_name.clone()).filter(|name| !name.is_empty()),
        ),
        ("Memory", config.mem_bytes.map(formatting::bytes)),
        (
            "Processors",
            config
                .cpu_millis()
                .map(|millis| format!("{:.2}", millis as f64 / 1000.0)),
        ),
        ("Disk", config.fs_capacity_bytes.map(formatting::bytes)),
        (
            "Files",
            Some(
                if config.is_temporary {
                    "deleted at each stop"
                } else {
                    "kept"
                }
                .to_owned(),
            ),
        ),
        ("Stops when idle for", Some(seconds(row.idle_ttl_seconds))),
        ("Deleted after", Some(seconds(row.ttl_seconds))),
        ("Deleted when stopped for", Some(seconds(row.delete_after_stop_seconds))),
        ("Used", Some(formatting::relative(row.active_at, now))),
        ("Made", Some(formatting::moment(row.created_at))),
        ("Life", Some(row.generation.to_string())),
        ("In a pool", row.pool_id.map(|_| "yes".to_owned())),
        ("Created by key", Some(row.created_by.clone())),
        ("Workspace", Some(row.tenant_id.to_string())),
    ];
    let facts = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let volumes = mounted.into_iter().map(|volume| Volume {
        name: volume.volume_name,
        path: volume.mount_path,
        how: if volume.read_only {
            "read-only"
        } else {
            "read and write"
        },
    });
    Detail {
        id: row.id.to_string(),
        name: row.name.clone(),
        status: row.status.as_str(),
        tone: tone(row.status),
        why: row.status_message.clone().unwrap_or_default(),
        may_start: row.status.may_start(),
        may_stop: row.status.is_live(),
        may_keep: matches!(row.status, BoxStatus::Ready | BoxStatus::Stopped),
        facts: facts.collect(),
        volumes: volumes.collect(),
        snapshots: kept.into_iter().map(|snapshot| snapshot_line(snapshot, now)).collect(),
        ..Detail::default()
    }
}

fn snapshot_line(snapshot: Snapshot, now: Timestamp) -> SnapshotRow {
    SnapshotRow {
        id: snapshot.id.to_string(),
        status: snapshot.status.as_str(),
        tone: match snapshot.status {
            SnapshotStatus::Ready => "good",
            SnapshotStatus::Failed => "bad",
            SnapshotStatus::Building => "busy",
            SnapshotStatus::Deleting => "",
        },
        why: snapshot.status_message.unwrap_or_default(),
        bytes: snapshot.fs_used_bytes.map(formatting::bytes).unwrap_or_default(),
        made: formatting::moment(snapshot.created_at),
        age: formatting::relative(snapshot.created_at, now),
        name: snapshot.name,
    }
}

async fn find_box(app: &App, id: &str) -> Result<SandboxBox, PageError> {
    let missing = || PageError::from(ApiError::not_found("sandbox"));
    let id: BoxId = id.parse().map_err(|_| missing())?;
    match app
        .store
        .read(async |tx| boxes::get_in_any_workspace(tx, id).await)
        .await
    {
        Err(store::Error::NotFound) => Err(missing()),
        found => Ok(found?),
    }
}

pub(super) async fn act(State(app): State<App>, Path((id, action)): Path<(String, String)>) -> PageResult {
    let row = find_box(&app, &id).await?;
    let (tenant, id) = (row.tenant_id, row.id);
    match action.as_str() {
        "start" => {
            require_node_of(&app, &row).await?;
            app.store
                .write(async |tx| start_box::restart(tx, tenant, id).await)
                .await?;
        }
        "stop" => {
            require_node(&app).await?;
            if row.status.is_live() {
                app.store
                    .write(async |tx| stop_box::start(tx, tenant, id, row.generation).await)
                    .await?;
            }
        }
        "delete" => {
            app.store
                .write(async |tx| delete_box::delete(tx, tenant, id).await)
                .await?;
            return Ok(back(PATH));
        }
        _ => return Err(ApiError::not_found("action").into()),
    }
    Ok(back(&format!("{PATH}/{id}")))
}

/// The form that saves a snapshot.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SnapshotForm {
    name: String,
}

pub(super) async fn save_snapshot(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(id): Path<String>,
    Form(form): Form<SnapshotForm>,
) -> PageResult {
    let row = find_box(&app, &id).await?;
    let kept = capture::capture_as(&app, caller.key, &row, form.name.trim()).await;
    kept.map_err(|refused| match refused.status() {
        // The page shows the message only.
        StatusCode::UNPROCESSABLE_ENTITY => ApiError::new(refused.status(), refused.plain()),
        _ => refused,
    })?;
    Ok(back(&format!("{PATH}/{}", row.id)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use towpath_domain::sandbox::StoredProxy;
    use towpath_sandbox::CommandStatus;

    use super::contents::{FileRow, FileView, OutputView, command_row};
    use super::*;

    #[test]
    fn a_network_is_told_in_a_line() {
        for (config, expected) in [
            (json!({}), "closed"),
            (json!({"access_control": {"allow_list": ["a", "b"]}}), "open for a, b"),
            (
                json!({"access_control": {"deny_list": ["a", "b", "c", "d", "e"]}}),
                "open, except for a, b, c and 2 more",
            ),
        ] {
            let (config, _) = ProxyConfig::parse(&config, &StoredProxy::default()).unwrap();
            assert_eq!(network_text(&config), expected);
        }
    }

    #[test]
    fn what_a_sandbox_says_is_text_on_its_page() {
        let hostile = "<script>alert(1)</script>";
        let detail = Detail {
            id: "0199a5c4-0000-7000-8000-000000000001".to_owned(),
            status: "ready",
            may_stop: true,
            inside: Some(Contents {
                commands: vec![command_row(
                    &CommandStatus {
                        command_id: "c1".to_owned(),
                        pid: 7,
                        exit_code: Some(3),
                        age_seconds: 61,
                    },
                    Some("c1"),
                )],
                said: Some(OutputView {
                    id: "c1".to_owned(),
                    is_cut: false,
                    stdout: hostile.to_owned(),
                    stderr: hostile.to_owned(),
                }),
                files: Some(FileView {
                    path: "/home/user".to_owned(),
                    above: Some("/home".to_owned()),
                    is_dir: true,
                    is_cut: false,
                    bytes: String::new(),
                    text: None,
                    entries: vec![FileRow {
                        name: hostile.to_owned(),
                        path: format!("/home/user/{hostile}"),
                        is_dir: false,
                        bytes: "1 B".to_owned(),
                        changed: String::new(),
                        age: String::new(),
                    }],
                }),
                unread: None,
            }),
            ..Detail::default()
        };
        let page = detail.render().unwrap();
        assert!(!page.contains("<script>"), "{page}");
        assert_eq!(page.matches("alert(1)").count(), 3, "{page}");
        assert!(page.contains("exit 3") && page.contains("1 min 1 s ago"), "{page}");
        assert!(page.contains("/stop\"") && !page.contains("/start\""), "{page}");
    }

    #[test]
    fn the_list_says_what_the_machine_lacks() {
        let machine = MachineStatus::new(Err(Error::Unsupported("no user namespaces".to_owned())), "namespace");
        assert_eq!(machine.tone, "bad");
        let list = List {
            machine: Some(machine),
            nodes: Vec::new(),
            rows: Vec::new(),
            next: None,
        };
        let page = list.render().unwrap();
        assert!(
            page.contains("no user namespaces") && page.contains("No sandboxes yet"),
            "{page}"
        );
    }
}
