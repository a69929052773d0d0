//! Quarantine: accepted trace data that could not be flushed.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use towpath_domain::{QuarantineId, TenantId, Timestamp};
use towpath_store::quarantine::{self, Cursor, Entry, Kind, Usage};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, TRACES, back};
use crate::app::App;
use crate::errors::ApiError;
use crate::internal::quarantine as internal;

const PATH: &str = "/ui/quarantine";
const LIMIT: i64 = 50;

/// Filter and position of the page.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListEntries {
    tenant: String,
    of: Option<TenantId>,
    since: Option<i64>,
    after: Option<QuarantineId>,
}

impl ListEntries {
    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor {
            tenant_id: self.of?,
            created_at: Timestamp::from_micros(self.since?),
            id: self.after?,
        })
    }
}

#[derive(Template)]
#[template(path = "ui/quarantine.html")]
struct List {
    /// The workspace, if only one is shown.
    tenant: Option<String>,
    entries: String,
    items: String,
    bytes: String,
    workspaces: usize,
    rows: Vec<Row>,
    next: Option<String>,
}

struct Row {
    id: String,
    short: String,
    tenant: String,
    tenant_short: String,
    kind: &'static str,
    tone: &'static str,
    reason: String,
    items: String,
    bytes: String,
    accepted: String,
    accepted_age: String,
    since: String,
    age: String,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(which): Query<ListEntries>) -> PageResult {
    let tenant: Option<TenantId> = match which.tenant.as_str() {
        "" => None,
        text => Some(
            text.parse()
                .map_err(|_| PageError::from(ApiError::not_found("workspace")))?,
        ),
    };
    let after = which.cursor();
    let found = app.store.read(async |tx| {
        Ok((
            quarantine::list_after(tx, tenant, after, LIMIT + 1).await?,
            quarantine::usage(tx).await?,
        ))
    });
    let (mut found, mut usage) = found.await?;
    usage.retain(|usage| tenant.is_none_or(|tenant| usage.tenant_id == tenant));
    let more = found.len() as i64 > LIMIT;
    found.truncate(LIMIT as usize);
    let next = found.last().filter(|_| more).map(|last| {
        let (of, since, after) = (last.tenant_id, last.created_at.micros(), last.id);
        format!("{PATH}?tenant={}&of={of}&since={since}&after={after}", which.tenant)
    });
    let now = app.clock.now();
    let sum = |of: fn(&Usage) -> i64| usage.iter().map(of).sum::<i64>();
    let page = List {
        tenant: tenant.map(|tenant| tenant.to_string()),
        entries: formatting::count(sum(|usage| usage.entries)),
        items: formatting::count(sum(|usage| usage.items)),
        bytes: formatting::bytes(sum(|usage| usage.bytes)),
        workspaces: usage.len(),
        rows: found.into_iter().map(|entry| row(entry, now)).collect(),
        next,
    };
    Ok(asked.page("Quarantine", TRACES, &page))
}

fn row(entry: Entry, now: Timestamp) -> Row {
    Row {
        id: entry.id.to_string(),
        short: formatting::short(&entry.id),
        tenant: entry.tenant_id.to_string(),
        tenant_short: formatting::short(&entry.tenant_id),
        kind: entry.kind.as_str(),
        tone: tone(entry.kind),
        reason: entry.reason,
        items: formatting::count(entry.items),
        bytes: formatting::bytes(entry.bytes),
        accepted: formatting::moment(entry.accepted_at),
        accepted_age: formatting::relative(entry.accepted_at, now),
        since: formatting::moment(entry.created_at),
        age: formatting::relative(entry.created_at, now),
    }
}

#[derive(Template)]
#[template(path = "ui/quarantined.html")]
struct Detail {
    row: Row,
    path: String,
    first_byte: i64,
    end_byte: i64,
    decoded: Option<String>,
    projects: String,
    starts: String,
    names: String,
    object: &'static str,
    frames: Vec<FrameRow>,
}

struct FrameRow {
    number: usize,
    route: String,
    content_type: String,
    encoding: String,
    items: String,
    size: String,
    received: String,
    damage: Option<String>,
}

pub(super) async fn detail(State(app): State<App>, asked: PageRequest, Path(id): Path<String>) -> PageResult {
    let entry = internal::find(&app, parse(&id)?).await?;
    let contents = internal::contents(&app, &entry).await;
    let projects: Option<Vec<String>> = entry
        .projects
        .as_deref()
        .map(serde_json::from_str)
        .transpose()
        .map_err(|_| towpath_store::Error::corrupt("quarantine", "projects", entry.id))?;
    let frames = contents.frames.into_iter().map(|frame| FrameRow {
        number: frame.number,
        route: frame.route.unwrap_or_default(),
        content_type: frame.content_type.unwrap_or_default(),
        encoding: frame
            .encoding
            .and_then(|encoding| serde_json::to_value(encoding).ok()?.as_str().map(str::to_owned))
            .unwrap_or_default(),
        items: frame
            .items
            .map(|items| formatting::count(items.into()))
            .unwrap_or_default(),
        size: frame
            .body_bytes
            .map(|bytes| formatting::bytes(i64::try_from(bytes).unwrap_or(i64::MAX)))
            .unwrap_or_default(),
        received: frame.received_at.map(formatting::moment).unwrap_or_default(),
        damage: frame.damage,
    });
    let page = Detail {
        path: entry.path.clone(),
        first_byte: entry.byte_offset,
        end_byte: entry.byte_offset.saturating_add(entry.bytes),
        decoded: (entry.decoded_bytes > 0).then(|| formatting::bytes(entry.decoded_bytes)),
        projects: projects.map_or_else(|| "any in the workspace".to_owned(), |projects| projects.join(", ")),
        starts: match (entry.first_start, entry.last_start) {
            (Some(first), Some(last)) => format!("{} – {}", formatting::moment(first), formatting::moment(last)),
            _ => "unknown".to_owned(),
        },
        names: entry.names.clone(),
        object: match contents.object {
            "present" => "there",
            "absent" => "not in the object store",
            _ => "unknown: the object store is unavailable",
        },
        frames: frames.collect(),
        row: row(entry, app.clock.now()),
    };
    Ok(asked.page("Quarantine", TRACES, &page))
}

/// Retries or deletes an entry.
pub(super) async fn act(
    State(app): State<App>,
    Path((id, action)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let id = parse(&id)?;
    match action.as_str() {
        "retry" => internal::retry_entry(&app, id).await?,
        "drop" => internal::drop_entry(&app, id).await?,
        _ => return Err(missing()),
    };
    Ok(back(PATH))
}

/// Banner about quarantined data on pages of traces.
pub(super) struct Banner {
    /// How much is not shown.
    pub(super) text: String,
    /// Address of the list.
    pub(super) address: String,
}

impl Banner {
    /// `None` if nothing is in quarantine.
    pub(super) fn of(usage: &[Usage]) -> Option<Self> {
        let items: i64 = usage.iter().map(|usage| usage.items).sum();
        let of = match usage.iter().filter(|usage| usage.entries > 0).count() {
            0 => return None,
            1 => String::new(),
            workspaces => format!(" of {workspaces} workspaces"),
        };
        let text = match items {
            1 => format!("1 operation{of} is in quarantine and not shown."),
            items => format!(
                "{} operations{of} are in quarantine and not shown.",
                formatting::count(items)
            ),
        };
        let address = match usage {
            [only] => format!("{PATH}?tenant={}", only.tenant_id),
            _ => PATH.to_owned(),
        };
        Some(Self { text, address })
    }
}

const fn tone(kind: Kind) -> &'static str {
    match kind {
        Kind::Damaged | Kind::Rejected => "bad",
        Kind::Missing => "wait",
    }
}

fn parse(id: &str) -> Result<QuarantineId, PageError> {
    id.parse().map_err(|_| missing())
}

fn missing() -> PageError {
    ApiError::not_found("quarantine entry").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banner_counts_what_is_not_shown() {
        let usage = |items| Usage {
            tenant_id: TenantId::nil(),
            entries: i64::from(items > 0),
            items,
            bytes: 1,
        };
        let text = |usage: &[Usage]| Banner::of(usage).map(|banner| banner.text);
        assert_eq!(text(&[]), None);
        assert_eq!(text(&[usage(0)]), None);
        assert_eq!(
            text(&[usage(1)]).unwrap(),
            "1 operation is in quarantine and not shown."
        );
        assert_eq!(
            text(&[usage(1000), usage(2)]).unwrap(),
            "1\u{202f}002 operations of 2 workspaces are in quarantine and not shown."
        );
    }
}
