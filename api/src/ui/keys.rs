//! Keys: list, create, rotate, revoke.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use towpath_domain::{KeyId, Scope, Scopes, TenantId, Timestamp};
use towpath_store::access::{self, ApiKey, Workspace};

use super::formatting;
use super::page::{PageError, PageRequest, PageResult, back};
use crate::app::App;
use crate::auth::Operator;
use crate::errors::ApiError;
use crate::extract::Form;
use crate::internal::keys::{self, IssuedKey, KeyAuthority, KeyRequest};
use crate::internal::{cursor_of, read_cursor};

const PATH: &str = "/ui/keys";
const LIMIT: i64 = 100;

/// Position of the page.
#[derive(Deserialize)]
pub(super) struct PageQuery {
    before: Option<String>,
}

#[derive(Template)]
#[template(path = "ui/keys.html")]
struct List {
    rows: Vec<Row>,
    next: Option<String>,
    /// Scopes that the caller may grant.
    scopes: Vec<String>,
    workspaces: Vec<Choice>,
    /// Whether the caller may create keys for all workspaces.
    wide: bool,
}

struct Choice {
    id: String,
    name: String,
}

struct Row {
    id: String,
    name: String,
    prefix: String,
    opens: String,
    tenant: String,
    scopes: String,
    made: String,
    age: String,
    used: String,
    expires: String,
    state: &'static str,
    tone: &'static str,
    is_valid: bool,
    /// Whether it is the key of this session.
    is_own: bool,
}

/// A key with its secret, shown once.
#[derive(Template)]
#[template(path = "ui/key_made.html")]
struct IssuedSecret {
    name: String,
    secret: String,
    scopes: String,
    workspaces: Vec<String>,
    /// Hours for which the previous secret keeps working after a rotation.
    overlap: Option<i64>,
}

/// The keys that the caller administers. The page does not refresh itself, since it has a form.
pub(super) async fn page(
    State(app): State<App>,
    Operator(caller): Operator,
    asked: PageRequest,
    Query(page): Query<PageQuery>,
) -> PageResult {
    let reach = KeyAuthority::of(&caller, Scope::OperatorRead)?;
    let after = page.before.as_deref().map(read_cursor).transpose()?;
    let (found, workspaces) = app
        .store
        .read(async |tx| {
            let found = reach.list(tx, after, LIMIT).await?;
            let of = match &reach {
                KeyAuthority::All => None,
                KeyAuthority::Organization(_) | KeyAuthority::Workspaces(_) => Some(caller.organization),
            };
            Ok((found, access::list_workspaces(tx, of).await?))
        })
        .await?;
    let now = app.clock.now();
    let next = found
        .last()
        .filter(|_| found.len() as i64 == LIMIT)
        .map(|last| cursor_of(last.created_at, last.id));
    let rows = found.into_iter().map(|key| row(&key, &workspaces, caller.key, now));
    let giveable = |scope: &Scope| reach.check_scopes(&[*scope], false).is_ok();
    let is_open = |workspace: &Workspace| match &reach {
        KeyAuthority::All | KeyAuthority::Organization(_) => true,
        KeyAuthority::Workspaces(own) => own.contains(&workspace.id),
    };
    let list = List {
        rows: rows.collect(),
        next,
        scopes: Scopes::all()
            .iter()
            .filter(giveable)
            .map(|scope| scope.to_string())
            .collect(),
        wide: !matches!(reach, KeyAuthority::Workspaces(_)),
        workspaces: workspaces
            .iter()
            .filter(|workspace| is_open(workspace))
            .map(|workspace| Choice {
                id: workspace.id.to_string(),
                name: workspace.name.clone(),
            })
            .collect(),
    };
    Ok(asked.still("Keys", PATH, &list))
}

fn row(key: &ApiKey, workspaces: &[Workspace], own: KeyId, now: Timestamp) -> Row {
    let is_over = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
    let (state, tone) = match () {
        () if key.revoked_at.is_some() => ("revoked", ""),
        () if is_over(key.expires_at) => ("expired", "wait"),
        () => ("valid", "good"),
    };
    let named = key.workspace_id.map(|tenant| {
        let found = workspaces.iter().find(|workspace| workspace.id == tenant);
        found.map_or_else(|| formatting::short(&tenant), |workspace| workspace.name.clone())
    });
    let moment = |at: Option<Timestamp>, without: &str| {
        at.map_or_else(|| without.to_owned(), |at| formatting::relative(at, now))
    };
    Row {
        id: key.id.to_string(),
        name: key.name.clone(),
        prefix: key.prefix.clone(),
        opens: named.unwrap_or_else(|| "all workspaces".to_owned()),
        tenant: key.workspace_id.map(|tenant| tenant.to_string()).unwrap_or_default(),
        scopes: key.allowed().to_string(),
        made: formatting::moment(key.created_at),
        age: formatting::relative(key.created_at, now),
        used: moment(key.last_used_at, "never"),
        expires: moment(key.expires_at, "never"),
        state,
        tone,
        is_valid: state == "valid",
        is_own: key.id == own,
    }
}

/// Creates a key. Form fields that are not declared here are names of scopes.
pub(super) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    asked: PageRequest,
    Form(form): Form<BTreeMap<String, String>>,
) -> PageResult {
    let request = request(&form)?;
    let made = keys::create_key(&app, &caller, &request).await?;
    Ok(asked.still("New key", PATH, &issued_secret(made, None)))
}

fn request(form: &BTreeMap<String, String>) -> Result<KeyRequest, ApiError> {
    let field = |name: &str| {
        form.get(name)
            .map(String::as_str)
            .map(str::trim)
            .filter(|text| !text.is_empty())
    };
    let wrong = |name: &str, why: &str| ApiError::bad_request(format!("{name}: {why}"));
    let tenant_id: Option<TenantId> = field("workspace")
        .map(|text| text.parse().map_err(|_| wrong("workspace", "expected a UUID")))
        .transpose()?;
    let expires_in_days: Option<i64> = field("expires_in_days")
        .map(|text| {
            text.parse()
                .map_err(|_| wrong("expires_in_days", "expected a number of days"))
        })
        .transpose()?;
    let deployment: Option<Scope> = field("deployment")
        .map(|text| format!("agents:invoke:{text}").parse())
        .transpose()
        .map_err(|_| wrong("deployment", "expected a UUID"))?;
    let mut scopes = Vec::new();
    for name in form.keys() {
        if !["name", "workspace", "expires_in_days", "deployment"].contains(&name.as_str()) {
            let scope: Scope = name.parse().map_err(|_| wrong(name.as_str(), "unknown field"))?;
            scopes.push(scope);
        }
    }
    scopes.extend(deployment);
    Ok(KeyRequest {
        name: form.get("name").cloned().unwrap_or_default(),
        tenant_id,
        operator: false,
        scopes: (!scopes.is_empty()).then_some(scopes),
        expires_in_days,
    })
}

fn issued_secret((key, secret, workspaces): IssuedKey, overlap: Option<i64>) -> IssuedSecret {
    IssuedSecret {
        scopes: key.allowed().to_string(),
        name: key.name,
        secret: secret.reveal().to_owned(),
        workspaces: workspaces.iter().map(ToString::to_string).collect(),
        overlap,
    }
}

#[derive(Deserialize)]
pub(super) struct KeyActionForm {
    overlap_hours: Option<i64>,
}

pub(super) async fn act(
    State(app): State<App>,
    Operator(caller): Operator,
    asked: PageRequest,
    Path((key, action)): Path<(String, String)>,
    Form(change): Form<KeyActionForm>,
) -> Result<Response, PageError> {
    let id: KeyId = key.parse().map_err(|_| ApiError::not_found("key"))?;
    match action.as_str() {
        "revoke" => {
            keys::revoke_key(&app, &caller, id).await?;
            Ok(back(PATH))
        }
        "rotate" => {
            let hours = change.overlap_hours.unwrap_or(keys::OVERLAP_HOURS.0);
            let rotated = keys::rotate_key(&app, &caller, id, Some(hours)).await?;
            Ok(asked.still("New secret", PATH, &issued_secret(rotated, Some(hours))))
        }
        _ => Err(ApiError::new(StatusCode::NOT_FOUND, "unknown action").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_none_of_ours_are_scopes() {
        let form = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            pairs.collect()
        };
        let all = form(&[
            ("name", "ci"),
            ("workspace", ""),
            ("expires_in_days", "90"),
            ("deployment", ""),
            ("traces:read", "on"),
            ("exports", "on"),
        ]);
        let read = request(&all).unwrap();
        assert_eq!(read.scopes, Some(vec![Scope::Exports, Scope::TracesRead]));
        assert_eq!((read.tenant_id, read.expires_in_days), (None, Some(90)));
        assert_eq!(request(&form(&[("name", "all")])).unwrap().scopes, None);
        for (name, value) in [
            ("workspace", "mine"),
            ("expires_in_days", "soon"),
            ("deployment", "agent"),
            ("everything", "on"),
        ] {
            let refused = request(&form(&[(name, value)])).unwrap_err();
            assert!(refused.text().starts_with(name), "{}", refused.text());
        }
    }
}
