//! Scopes: what an API key may do. They limit a key within the workspaces it opens; they never open another one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::DeploymentId;

/// One thing that a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Send traces and feedback, make projects and feedback links.
    TracesWrite,
    /// Read traces, projects and feedback.
    TracesRead,
    /// Bulk exports and their destinations.
    Exports,
    /// Call every deployment that the key's organisation opens to it.
    AgentsInvoke,
    /// Call this deployment.
    AgentsInvokeOf(DeploymentId),
    /// Deployments and their revisions.
    Deployments,
    /// Sandboxes.
    Sandboxes,
    /// Credentials and settings of a workspace, and removing its projects.
    WorkspaceAdmin,
    /// The organisation: includes `workspace:admin` for each of its workspaces.
    OrgAdmin,
    /// See what operators see.
    OperatorRead,
    /// Do what operators do: includes `operator:read`.
    Operator,
}

/// Those without a parameter.
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

/// A text that names no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such scope: use traces:write, traces:read, exports, agents:invoke, agents:invoke:<deployment id>, deployments, \
     sandboxes, workspace:admin, org:admin, operator:read or operator"
)]
pub struct UnknownScope;

impl Scope {
    /// Whether this scope alone is enough for what needs `needed`.
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

    /// Whether it is about all organisations.
    #[must_use]
    pub const fn is_of_operators(self) -> bool {
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

/// Scopes of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Every scope.
    #[must_use]
    pub fn every() -> Self {
        NAMES.iter().map(|(_, scope)| *scope).collect()
    }

    /// Every scope but those of operators: what keys could do before there were scopes.
    #[must_use]
    pub fn of_workspaces() -> Self {
        let scopes = NAMES.iter().map(|(_, scope)| *scope);
        scopes.filter(|scope| !scope.is_of_operators()).collect()
    }

    /// Reads what [`Scopes`] was written as. A name that this version does not know allows nothing here.
    #[must_use]
    pub fn read(text: &str) -> Self {
        text.split_whitespace().filter_map(|name| name.parse().ok()).collect()
    }

    /// Whether they allow what needs `needed`.
    #[must_use]
    pub fn allow(&self, needed: Scope) -> bool {
        self.0.iter().any(|scope| scope.includes(needed))
    }

    /// In their order.
    pub fn iter(&self) -> impl Iterator<Item = Scope> + '_ {
        self.0.iter().copied()
    }

    /// Whether this very one is among them, and not only one that includes it.
    #[must_use]
    pub fn contains(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// Whether there is none.
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
        assert_eq!(Scopes::read(&every.to_string()), every);
        for wrong in ["", "traces", "agents:invoke:", "agents:invoke:x", "OPERATOR"] {
            assert_eq!(wrong.parse::<Scope>(), Err(UnknownScope), "{wrong}");
        }
        assert!(Scopes::read("from:a:later:version").is_empty());
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
            assert!(Scopes::every().allow(scope));
            assert_eq!(
                Scopes::of_workspaces().allow(scope),
                !scope.is_of_operators(),
                "{scope}"
            );
        }
    }
}
