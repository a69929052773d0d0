//! The project that an address names.

use towpath_domain::{ProjectId, TenantId};
use towpath_store::projects::{Project, overview};

use crate::app::App;
use crate::errors::ApiError;
use crate::ui::page::PageError;

/// The project of an address. Its id is only unique within a workspace, so links name the workspace. Without one, the
/// id must be unique.
pub(super) async fn find_project(app: &App, id: &str, workspace: &str) -> Result<Project, PageError> {
    let missing = || PageError::from(ApiError::not_found("project"));
    let id: ProjectId = id.parse().map_err(|_| missing())?;
    let workspace = (!workspace.is_empty()).then(|| workspace.parse::<TenantId>());
    let workspace = workspace.transpose().map_err(|_| missing())?;
    let mut found = app
        .store
        .read(async |tx| overview::any(tx, id, workspace).await)
        .await?;
    let project = found.pop().ok_or_else(missing)?;
    if found.is_empty() {
        return Ok(project);
    }
    let text = "several workspaces have a project with this id; open it from the list of projects";
    Err(ApiError::bad_request(text).into())
}
