//! Keys: who holds which, and what each may do. They are made, rotated and revoked here, too.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use towpath_domain::{KeyId, Scope, Scopes, TenantId, Timestamp};
use towpath_store::access::{self, ApiKey, Workspace};

use super::{Asked, Shown, Trouble, back, show};
use crate::app::App;
use crate::auth::Operator;
use crate::errors::ApiError;
use crate::extract::Form;
use crate::internal::keys::{self, KeyRequest, Reach, WithSecret};
use crate::internal::{cursor_of, read_cursor};

const HERE: &str = "/ui/keys";
const LIMIT: i64 = 100;

/// Which page of the list.
#[derive(Deserialize)]
pub(super) struct Before {
    before: Option<String>,
}

#[derive(Template)]
#[template(path = "ui/keys.html")]
struct List {
    rows: Vec<Row>,
    next: Option<String>,
    /// What the caller may give.
    scopes: Vec<String>,
    workspaces: Vec<Choice>,
    /// Whether keys of all workspaces can be made.
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
    /// Whether it is the one of this session.
    is_own: bool,
}

/// A key with its secret, shown once.
#[derive(Template)]
#[template(path = "ui/key_made.html")]
struct Made {
    name: String,
    secret: String,
    scopes: String,
    workspaces: Vec<String>,
    /// For a key that was rotated: so many hours the secret before goes on working.
    overlap: Option<i64>,
}

/// The page of all keys that the caller looks after. It does not renew itself: somebody may be filling in its form.
pub(super) async fn page(
    State(app): State<App>,
    Operator(caller): Operator,
    asked: Asked,
    Query(page): Query<Before>,
) -> Shown {
    let reach = Reach::of(&caller, Scope::OperatorRead)?;
    let after = page.before.as_deref().map(read_cursor).transpose()?;
    let (found, workspaces) = app
        .store
        .read(async |tx| {
            let found = reach.list(tx, after, LIMIT).await?;
            let of = match &reach {
                Reach::All => None,
                Reach::Organization(_) | Reach::Workspaces(_) => Some(caller.organization),
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
        Reach::All | Reach::Organization(_) => true,
        Reach::Workspaces(own) => own.contains(&workspace.id),
    };
    let list = List {
        rows: rows.collect(),
        next,
        scopes: Scopes::every()
            .iter()
            .filter(giveable)
            .map(|scope| scope.to_string())
            .collect(),
        wide: !matches!(reach, Reach::Workspaces(_)),
        workspaces: workspaces
            .iter()
            .filter(|workspace| is_open(workspace))
            .map(|workspace| Choice {
                id: workspace.id.to_string(),
                name: workspace.name.clone(),
            })
            .collect(),
    };
    Ok(asked.still("Keys", HERE, &list))
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
        found.map_or_else(|| show::short(&tenant), |workspace| workspace.name.clone())
    });
    let moment =
        |at: Option<Timestamp>, without: &str| at.map_or_else(|| without.to_owned(), |at| show::relative(at, now));
    Row {
        id: key.id.to_string(),
        name: key.name.clone(),
        prefix: key.prefix.clone(),
        opens: named.unwrap_or_else(|| "all workspaces".to_owned()),
        tenant: key.workspace_id.map(|tenant| tenant.to_string()).unwrap_or_default(),
        scopes: key.allowed().to_string(),
        made: show::moment(key.created_at),
        age: show::relative(key.created_at, now),
        used: moment(key.last_used_at, "never"),
        expires: moment(key.expires_at, "never"),
        state,
        tone,
        is_valid: state == "valid",
        is_own: key.id == own,
    }
}

/// Makes a key. Besides those named here, the names of the form's fields are scopes.
pub(super) async fn create(
    State(app): State<App>,
    Operator(caller): Operator,
    asked: Asked,
    Form(form): Form<BTreeMap<String, String>>,
) -> Shown {
    let request = request(&form)?;
    let made = keys::make(&app, &caller, &request).await?;
    Ok(asked.still("New key", HERE, &told(made, None)))
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
            let scope: Scope = name
                .parse()
                .map_err(|_| wrong(name.as_str(), "there is no such field"))?;
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

fn told((key, secret, workspaces): WithSecret, overlap: Option<i64>) -> Made {
    Made {
        scopes: key.allowed().to_string(),
        name: key.name,
        secret: secret.reveal().to_owned(),
        workspaces: workspaces.iter().map(ToString::to_string).collect(),
        overlap,
    }
}

/// What a form about a key sends.
#[derive(Deserialize)]
pub(super) struct Change {
    overlap_hours: Option<i64>,
}

/// Rotates or revokes a key.
pub(super) async fn act(
    State(app): State<App>,
    Operator(caller): Operator,
    asked: Asked,
    Path((key, action)): Path<(String, String)>,
    Form(change): Form<Change>,
) -> Result<Response, Trouble> {
    let id: KeyId = key.parse().map_err(|_| ApiError::not_found("key"))?;
    match action.as_str() {
        "revoke" => {
            keys::take(&app, &caller, id).await?;
            Ok(back(HERE))
        }
        "rotate" => {
            let hours = change.overlap_hours.unwrap_or(keys::OVERLAP_HOURS.0);
            let rotated = keys::renew(&app, &caller, id, Some(hours)).await?;
            Ok(asked.still("New secret", HERE, &told(rotated, Some(hours))))
        }
        _ => Err(ApiError::new(StatusCode::NOT_FOUND, "there is no such action").into()),
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
