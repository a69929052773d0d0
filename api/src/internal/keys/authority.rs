//! Whose keys a caller looks after: an operator all, who administers an organisation or a workspace those of it.

use towpath_domain::{KeyId, OrganizationId, Scope, TenantId, Timestamp};
use towpath_store::access::{self, ApiKey, Principal};
use towpath_store::{self as store, Tx};

use super::wrong;
use crate::errors::ApiError;
use crate::scopes;

/// Keys that a caller administers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyAuthority {
    /// All keys.
    All,
    /// Keys of the organisation, except operator keys.
    Organization(OrganizationId),
    /// Keys of only these workspaces, except operator keys.
    Workspaces(Vec<TenantId>),
}

impl KeyAuthority {
    /// Of this caller; `operator` is what an operator needs for it.
    pub(crate) fn of(caller: &Principal, operator: Scope) -> Result<Self, ApiError> {
        if caller.scopes.allow(operator) {
            return Ok(Self::All);
        }
        if !scopes::administers(caller) {
            scopes::require(&caller.scopes, operator)?;
        }
        if caller.scopes.contains(Scope::OrgAdmin) && !caller.is_bound {
            return Ok(Self::Organization(caller.organization));
        }
        Ok(Self::Workspaces(caller.workspaces.clone()))
    }

    /// Keys, latest first.
    pub(crate) async fn list(
        &self,
        tx: &mut Tx<'_>,
        after: Option<(Timestamp, KeyId)>,
        limit: i64,
    ) -> store::Result<Vec<ApiKey>> {
        match self {
            Self::All => access::list_keys(tx, None, after, limit).await,
            Self::Organization(organization) => access::list_keys(tx, Some(*organization), after, limit).await,
            Self::Workspaces(workspaces) => access::list_keys_of_workspaces(tx, workspaces, after, limit).await,
        }
    }

    /// Rejects changes of keys that the caller does not administer. A key that the caller may not see counts as
    /// missing.
    pub(crate) fn check(&self, key: &ApiKey) -> Result<(), ApiError> {
        let is_seen = match self {
            Self::All => return Ok(()),
            Self::Organization(organization) => key.organization_id == *organization,
            Self::Workspaces(workspaces) => key.workspace_id.is_some_and(|tenant| workspaces.contains(&tenant)),
        };
        if !is_seen {
            return Err(ApiError::not_found("key"));
        }
        if key.operator || key.allowed().iter().any(Scope::is_operator_scope) {
            return Err(ApiError::forbidden("only operators can change an operator key"));
        }
        Ok(())
    }

    /// Rejects scopes that the caller cannot grant.
    pub(crate) fn check_scopes(&self, scopes: &[Scope], operator: bool) -> Result<(), ApiError> {
        let refused = |scope: Scope| match self {
            Self::All => false,
            Self::Organization(_) => scope.is_operator_scope(),
            Self::Workspaces(_) => scope.is_operator_scope() || scope == Scope::OrgAdmin,
        };
        let operator = operator.then_some(Scope::Operator);
        match scopes.iter().copied().chain(operator).find(|scope| refused(*scope)) {
            Some(scope) => {
                let text = format!("the API key cannot grant the scope {scope}");
                Err(ApiError::forbidden(text))
            }
            None => Ok(()),
        }
    }

    /// The workspace of a new key, if the caller administers it.
    pub(crate) fn workspace_of_new_key(
        &self,
        caller: &Principal,
        asked: Option<TenantId>,
    ) -> Result<Option<TenantId>, ApiError> {
        match (self, asked) {
            (Self::All | Self::Organization(_), asked) => Ok(asked),
            (Self::Workspaces(workspaces), Some(tenant)) if workspaces.contains(&tenant) => Ok(Some(tenant)),
            (Self::Workspaces(_), Some(_)) => Err(ApiError::not_found("workspace")),
            (Self::Workspaces(_), None) => match caller.workspaces[..] {
                [one] => Ok(Some(one)),
                _ => Err(wrong("tenant_id", "expected the workspace of the key".to_owned())),
            },
        }
    }

    /// Whether it has an organisation.
    pub(crate) fn covers(&self, organization: OrganizationId) -> bool {
        match self {
            Self::Organization(own) => *own == organization,
            Self::All | Self::Workspaces(_) => true,
        }
    }
}
