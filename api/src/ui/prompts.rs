//! Prompts and their commits.

use std::collections::HashMap;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Redirect;
use serde::Deserialize;
use serde_json::Value;
use towpath_domain::TenantId;
use towpath_store as store;
use towpath_store::prompts::{self, commits, tags};

use super::{PageError, PageRequest, PageResult, formatting};
use crate::app::App;
use crate::errors::ApiError;

const PATH: &str = "/ui/prompts";
/// Prompts of a page.
const PAGE_SIZE: i64 = 100;
/// Commits of a page.
const COMMITS_PER_PAGE: i64 = 50;
/// Characters of a manifest that are shown.
const MAX_SHOWN: usize = 100_000;
/// Digits of a hash that clients print.
const SHORT_HASH: usize = 8;

/// Filter of the list.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ListQuery {
    name: String,
    offset: i64,
}

#[derive(Template)]
#[template(path = "ui/prompts.html")]
struct List {
    name: String,
    rows: Vec<Line>,
    next: Option<i64>,
}

struct Line {
    id: String,
    workspace: String,
    name: String,
    is_archived: bool,
    commits: String,
    age: String,
    changed: String,
}

pub(super) async fn list(State(app): State<App>, asked: PageRequest, Query(query): Query<ListQuery>) -> PageResult {
    let offset = query.offset.clamp(0, 1_000_000);
    let read = app
        .store
        .read(async |tx| prompts::overview(tx, &query.name, PAGE_SIZE + 1, offset).await);
    let mut found = read.await?;
    let next = (found.len() as i64 > PAGE_SIZE).then_some(offset + PAGE_SIZE);
    found.truncate(PAGE_SIZE as usize);
    let now = app.clock.now();
    let rows = found.into_iter().map(|row| Line {
        id: row.id.to_string(),
        workspace: row.tenant_id.to_string(),
        name: row.name,
        is_archived: row.is_archived,
        commits: formatting::count(row.commit_count),
        age: formatting::relative(row.updated_at, now),
        changed: formatting::moment(row.updated_at),
    });
    let content = List {
        rows: rows.collect(),
        name: query.name,
        next,
    };
    Ok(asked.still("Prompts", PATH, &content))
}

/// Selection on the page of a prompt.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct DetailQuery {
    /// A hash, the beginning of one, a tag, or nothing for the newest commit.
    commit: String,
    offset: i64,
}

#[derive(Template)]
#[template(path = "ui/prompt.html")]
struct Detail {
    workspace: String,
    name: String,
    description: String,
    readme: String,
    labels: Vec<String>,
    is_archived: bool,
    commit_count: String,
    likes: String,
    commits: Vec<CommitLine>,
    /// The selected commit; none of a prompt without commits.
    commit: Option<SelectedCommit>,
    next: Option<i64>,
}

struct CommitLine {
    hash: String,
    short: String,
    description: String,
    tags: Vec<String>,
    age: String,
    created: String,
    chosen: bool,
}

struct SelectedCommit {
    hash: String,
    parent: Option<String>,
    manifest: String,
    is_cut: bool,
}

/// A manifest for reading, and whether it is only its beginning.
fn readable(manifest: String) -> (String, bool) {
    let indented = serde_json::from_str::<Value>(&manifest)
        .ok()
        .and_then(|manifest| serde_json::to_string_pretty(&manifest).ok());
    let text = indented.unwrap_or(manifest);
    match text.char_indices().nth(MAX_SHOWN) {
        None => (text, false),
        Some((end, _)) => (text[..end].to_owned(), true),
    }
}

pub(super) async fn detail(
    State(app): State<App>,
    asked: PageRequest,
    Path((workspace, name)): Path<(String, String)>,
    Query(query): Query<DetailQuery>,
) -> PageResult {
    let missing = || PageError::from(ApiError::not_found("prompt"));
    let tenant: TenantId = workspace.parse().map_err(|_| missing())?;
    let offset = query.offset.clamp(0, 1_000_000_000);
    let read = app.store.read(async |tx| {
        let prompt = prompts::get(tx, tenant, &name).await?;
        let listed = commits::list(tx, &prompt, COMMITS_PER_PAGE + 1, offset).await?;
        let tags = tags::list(tx, &prompt, None).await?;
        let selected = if prompt.commit_count == 0 && query.commit.is_empty() {
            None
        } else {
            let commit = commits::resolve(tx, &prompt, &query.commit).await?;
            let manifest = commits::manifest(tx, &commit).await?;
            Some((commit, manifest))
        };
        Ok((prompt, listed, tags, selected))
    });
    let (prompt, mut listed, tags, selected) = read.await.map_err(|error| match error {
        store::Error::NotFound => ApiError::not_found("prompt or commit"),
        error => error.into(),
    })?;
    let next = (listed.len() as i64 > COMMITS_PER_PAGE).then_some(offset + COMMITS_PER_PAGE);
    listed.truncate(COMMITS_PER_PAGE as usize);
    let mut names: HashMap<String, Vec<String>> = HashMap::new();
    for tag in tags {
        names.entry(tag.commit_hash).or_default().push(tag.name);
    }
    let now = app.clock.now();
    let chosen = selected.as_ref().map(|(commit, _)| commit.seq);
    let commits = listed.into_iter().map(|row| CommitLine {
        short: row.hash[..SHORT_HASH.min(row.hash.len())].to_owned(),
        description: row.description.unwrap_or_default(),
        tags: names.remove(&row.hash).unwrap_or_default(),
        age: formatting::relative(row.created_at, now),
        created: formatting::moment(row.created_at),
        chosen: chosen == Some(row.seq),
        hash: row.hash,
    });
    let commit = selected.map(|(commit, manifest)| {
        let (manifest, is_cut) = readable(manifest);
        SelectedCommit {
            hash: commit.hash,
            parent: commit.parent_hash,
            manifest,
            is_cut,
        }
    });
    let content = Detail {
        workspace: tenant.to_string(),
        labels: prompt.labels()?,
        description: prompt.description.unwrap_or_default(),
        readme: prompt.readme.unwrap_or_default(),
        is_archived: prompt.is_archived,
        commit_count: formatting::count(prompt.commit_count),
        likes: formatting::count(prompt.like_count),
        commits: commits.collect(),
        commit,
        name: prompt.name,
        next,
    };
    Ok(asked.still("Prompts", PATH, &content))
}

/// Parameters that official clients append to the address of a prompt.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ClientQuery {
    /// Id of the workspace: official clients know it as their organization's.
    #[serde(rename = "organizationId")]
    organization_id: String,
}

/// Where the address of a prompt leads that official clients print.
fn page_of(name: &str, commit: &str, query: &ClientQuery) -> Redirect {
    let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let Ok(workspace) = query.organization_id.parse::<TenantId>() else {
        return Redirect::to(&format!("{PATH}?name={}", encoded(name)));
    };
    let commit = if commit == towpath_domain::prompt::LATEST {
        ""
    } else {
        commit
    };
    Redirect::to(&format!(
        "{PATH}/{workspace}/{}?commit={}",
        encoded(name),
        encoded(commit)
    ))
}

pub(super) async fn from_client(Path(name): Path<String>, Query(query): Query<ClientQuery>) -> Redirect {
    page_of(&name, "", &query)
}

pub(super) async fn commit_from_client(
    Path((name, commit)): Path<(String, String)>,
    Query(query): Query<ClientQuery>,
) -> Redirect {
    page_of(&name, &commit, &query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_cut_between_letters() {
        assert_eq!(
            readable(r#"{"a":1}"#.to_owned()),
            ("{\n  \"a\": 1\n}".to_owned(), false)
        );
        assert_eq!(readable(r#"{"a":1e400}"#.to_owned()).0, r#"{"a":1e400}"#);
        let (text, is_cut) = readable("é".repeat(MAX_SHOWN + 1));
        assert!(is_cut && text.chars().count() == MAX_SHOWN);
    }
}
