//! Scopes: what an API key may do. They restrict a key within its workspaces; they never grant access to another
//! workspace.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::DeploymentId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Send traces and feedback; create projects and feedback links.
    TracesWrite,
    /// Read traces, projects and feedback.
    TracesRead,
    /// Bulk exports and their destinations.
    Exports,
    /// Call every deployment that the key's organisation may call.
    AgentsInvoke,
    /// Call this deployment.
    AgentsInvokeOf(DeploymentId),
    /// Deployments and their revisions.
    Deployments,
    Sandboxes,
    /// Credentials and settings of a workspace, and the deletion of its projects.
    WorkspaceAdmin,
    /// The organisation: includes `workspace:admin` for each of its workspaces.
    OrgAdmin,
    /// Read access to the operator's views.
    OperatorRead,
    /// The operator's actions; includes `operator:read`.
    Operator,
}

/// Scopes without a parameter.
const NAMES: [(&str, Scope); 10] = [
    ("traces:write", Scope::TracesWrite),
    ("traces:read", Scope::TracesRead),
    ("exports", Scope::Exports),
    ("agents:invoke", Scope::AgentsInvoke),
    ("deployments", Scope::Deployments),
    ("sandboxes", Scope::Sandboxes),
    ("workspace:admin", Scope::WorkspaceAdmin),
    ("org:admin", Scope::OrgAdmin),
    ("operator:read", Scope::OperatorRead),
    ("operator", Scope::Operator),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown scope; use traces:write, traces:read, exports, agents:invoke, agents:invoke:<deployment id>, deployments, \
     sandboxes, workspace:admin, org:admin, operator:read or operator"
)]
pub struct UnknownScope;

impl Scope {
    /// Whether this scope grants `needed`.
    #[must_use]
    pub fn includes(self, needed: Self) -> bool {
        self == needed
            || matches!(
                (self, needed),
                (Self::AgentsInvoke, Self::AgentsInvokeOf(_))
                    | (Self::OrgAdmin, Self::WorkspaceAdmin)
                    | (Self::Operator, Self::OperatorRead)
            )
    }

    #[must_use]
    pub const fn is_operator_scope(self) -> bool {
        matches!(self, Self::OperatorRead | Self::Operator)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::AgentsInvokeOf(deployment) = self {
            return write!(f, "agents:invoke:{deployment}");
        }
        let name = NAMES.iter().find(|(_, scope)| scope == self).map(|(name, _)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        if let Some(deployment) = text.strip_prefix("agents:invoke:") {
            return deployment.parse().map(Self::AgentsInvokeOf).map_err(|_| UnknownScope);
        }
        let named = NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, scope)| *scope).ok_or(UnknownScope)
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    #[must_use]
    pub fn all() -> Self {
        NAMES.iter().map(|(_, scope)| *scope).collect()
    }

    /// Every scope except those of operators; the scopes of keys from before scopes were introduced.
    #[must_use]
    pub fn of_workspaces() -> Self {
        let scopes = NAMES.iter().map(|(_, scope)| *scope);
        scopes.filter(|scope| !scope.is_operator_scope()).collect()
    }

    /// Parses the text of [`Scopes`]. An unknown name grants nothing in this version.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        text.split_whitespace().filter_map(|name| name.parse().ok()).collect()
    }

    /// Whether they grant `needed`.
    #[must_use]
    pub fn allow(&self, needed: Scope) -> bool {
        self.0.iter().any(|scope| scope.includes(needed))
    }

    pub fn iter(&self) -> impl Iterator<Item = Scope> + '_ {
        self.0.iter().copied()
    }

    /// Whether this exact scope is included; one that includes it does not count.
    #[must_use]
    pub fn contains(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, scope) in self.0.iter().enumerate() {
            if nth > 0 {
                f.write_str(" ")?;
            }
            scope.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        let deployment = DeploymentId::new();
        let every: Scopes = NAMES
            .iter()
            .map(|(_, scope)| *scope)
            .chain([Scope::AgentsInvokeOf(deployment)])
            .collect();
        assert_eq!(Scopes::parse(&every.to_string()), every);
        for wrong in ["", "traces", "agents:invoke:", "agents:invoke:x", "OPERATOR"] {
            assert_eq!(wrong.parse::<Scope>(), Err(UnknownScope), "{wrong}");
        }
        assert!(Scopes::parse("from:a:later:version").is_empty());
    }

    #[test]
    fn a_scope_includes_only_what_is_stated() {
        let deployment = DeploymentId::new();
        let of = |scope: Scope| -> Scopes { [scope].into_iter().collect() };
        let only = of(Scope::AgentsInvokeOf(deployment));
        assert!(only.allow(Scope::AgentsInvokeOf(deployment)));
        assert!(!only.allow(Scope::AgentsInvokeOf(DeploymentId::new())));
        assert!(!only.allow(Scope::AgentsInvoke));
        assert!(of(Scope::AgentsInvoke).allow(Scope::AgentsInvokeOf(deployment)));
        assert!(!of(Scope::AgentsInvoke).contains(Scope::AgentsInvokeOf(deployment)));
        assert!(of(Scope::OrgAdmin).allow(Scope::WorkspaceAdmin));
        assert!(!of(Scope::OperatorRead).allow(Scope::Operator));
        for (_, scope) in NAMES {
            assert!(Scopes::all().allow(scope));
            assert_eq!(
                Scopes::of_workspaces().allow(scope),
                !scope.is_operator_scope(),
                "{scope}"
            );
        }
    }
}
