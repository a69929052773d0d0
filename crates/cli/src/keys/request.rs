//! What a new key is asked for with.

use towpath_domain::{Scope, TenantId};

/// A key to create.
pub struct KeyRequest<'a> {
    pub name: &'a str,
    pub workspace: Option<TenantId>,
    pub operator: bool,
    /// Empty: no limit.
    pub scopes: &'a [Scope],
    pub expires_in_days: Option<u32>,
}
