//! Rules for requests on deployments, and which changes create a revision.

use super::{
    BUILT_IN_LISTENER, DeploymentType, EnvSecret, ListenerConfig, ResourceSpec, RevisionConfig, Source, SourceConfig,
    check_secrets,
};
use crate::git::{PlainCommand, RepoRef, RepoUrl, TreePath};
use crate::{IntegrationId, ListenerId, Patch, Rejection, Scope};

const LONGEST_NAME: usize = 255;
const LONGEST_IMAGE: usize = 1_024;
const LONGEST_URL: usize = 2_048;
const MOST_KEY_SCOPES: usize = 100;

/// A request for a new deployment.
#[derive(Clone, Debug)]
pub struct DeploymentRequest {
    /// Also the name of its tracing project.
    pub name: String,
    pub source: Source,
    pub config: SourceConfig,
    /// Configuration of the first revision.
    pub revision: RevisionConfig,
    pub secrets: Vec<EnvSecret>,
}

/// A revision to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionRequest {
    pub source: Source,
    pub config: RevisionConfig,
}

impl RevisionRequest {
    /// Whether there is nothing to deploy yet: the client uploads the content later.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.config.is_empty()
    }
}

impl DeploymentRequest {
    /// Validates the request and returns the first revision.
    pub fn admit(&mut self) -> Result<RevisionRequest, Rejection> {
        check_name(&self.name)?;
        if self.source == Source::Github {
            // Read-only: answers carry the gateway's address.
            self.config.custom_url = None;
        }
        check_config(self.source, &self.config)?;
        if self.source == Source::Github && self.config.repo_url.is_none() {
            return Err(required("source_config.repo_url", self.source));
        }
        let revision = RevisionRequest {
            source: self.source,
            config: self.revision.clone(),
        };
        check_revision(&revision, &self.config)?;
        check_secrets(&self.secrets)?;
        Ok(revision)
    }
}

/// The fields of a [`SourceConfig`] in a PATCH.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigChange {
    pub integration_id: Option<IntegrationId>,
    pub repo_url: Option<String>,
    pub deployment_type: Option<DeploymentType>,
    pub build_on_push: Patch<bool>,
    pub custom_url: Patch<String>,
    pub resource_spec: Option<ResourceSpec>,
    pub listener_id: Option<ListenerId>,
    pub listener_config: Option<ListenerConfig>,
    pub install_command: Patch<String>,
    pub build_command: Patch<String>,
    pub key_scopes: Patch<Vec<Scope>>,
    pub own_auth: Patch<bool>,
}

/// A change of a deployment. Absent and null differ only where null clears a value.
#[derive(Clone, Debug, Default)]
pub struct DeploymentChange {
    /// Immutable.
    pub name: Option<String>,
    /// Immutable.
    pub source: Option<Source>,
    pub config: ConfigChange,
    /// A non-null field creates a revision.
    pub revision: RevisionConfig,
    /// Replaces the list and creates a revision.
    pub secrets: Option<Vec<EnvSecret>>,
    /// The source of this revision, for deployments whose content the client uploads.
    pub revision_source: Option<Source>,
}

/// The current state of the deployment to change.
#[derive(Clone, Copy, Debug)]
pub struct CurrentDeployment<'a> {
    pub name: &'a str,
    pub source: Source,
    pub config: &'a SourceConfig,
    pub latest_source: Source,
    pub latest: &'a RevisionConfig,
}

/// When a change of a deployment creates a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionPolicy {
    /// If the change affects what is built or run.
    IfRequired,
    /// Even if it changes nothing.
    Always,
}

impl DeploymentChange {
    /// Whether it creates a revision, even if it changes nothing.
    #[must_use]
    pub fn makes_revision(&self) -> bool {
        !self.revision.is_empty()
            || self.secrets.is_some()
            || self.config.resource_spec.is_some()
            // The key belongs to the revision.
            || self.config.key_scopes != Patch::Absent
    }

    /// Validates the change; returns the new configuration and the revision it creates, if any.
    pub fn admit(
        &self,
        standing: CurrentDeployment<'_>,
        policy: RevisionPolicy,
    ) -> Result<(SourceConfig, Option<RevisionRequest>), Rejection> {
        immutable("name", standing.name, self.name.as_deref())?;
        immutable("source", &standing.source, self.source.as_ref())?;
        let config = self.config.apply_to(standing.source, standing.config)?;
        check_config(standing.source, &config)?;
        let revision = self.revision(standing)?;
        check_revision(&revision, &config)?;
        if let Some(secrets) = &self.secrets {
            check_secrets(secrets)?;
        }
        let makes_revision = policy == RevisionPolicy::Always || self.makes_revision();
        Ok((config, makes_revision.then_some(revision)))
    }

    fn revision(&self, standing: CurrentDeployment<'_>) -> Result<RevisionRequest, Rejection> {
        let source = self.revision_source.unwrap_or(standing.latest_source);
        let fits = source == standing.source || (source.is_internal() && standing.source.is_internal());
        if !fits {
            let text = format!(
                "revision_source cannot be {} of a deployment whose source is {}",
                source.as_str(),
                standing.source.as_str()
            );
            return Err(Rejection::rule("revision_source", text));
        }
        // The configuration of an archive does not apply to an image.
        let before = if source == standing.latest_source {
            standing.latest.clone()
        } else {
            RevisionConfig::default()
        };
        Ok(RevisionRequest {
            source,
            config: before.with(RevisionConfig {
                repo_commit_sha: None,
                ..self.revision.clone()
            }),
        })
    }
}

impl ConfigChange {
    fn apply_to(&self, source: Source, before: &SourceConfig) -> Result<SourceConfig, Rejection> {
        let fixed = |name: &str| format!("source_config.{name}");
        let of = |value: Option<IntegrationId>| value.map(|id| id.to_string());
        immutable_text(
            &fixed("integration_id"),
            of(before.integration_id).as_deref(),
            of(self.integration_id).as_deref(),
        )?;
        immutable_text(&fixed("repo_url"), before.repo_url.as_deref(), self.repo_url.as_deref())?;
        immutable_text(
            &fixed("deployment_type"),
            before.deployment_type.map(DeploymentType::as_str),
            self.deployment_type.map(DeploymentType::as_str),
        )?;
        // A request without a listener gets the built-in one, so naming it is no change.
        let listener = |id: Option<ListenerId>| id.filter(|id| *id != BUILT_IN_LISTENER).map(|id| id.to_string());
        if self.listener_id.is_some() && listener(self.listener_id) != listener(before.listener_id) {
            return Err(changed(&fixed("listener_id")));
        }
        let namespace =
            |config: &Option<ListenerConfig>| config.as_ref().and_then(|config| config.k8s_namespace.clone());
        immutable_text(
            &fixed("listener_config.k8s_namespace"),
            namespace(&before.listener_config).as_deref(),
            namespace(&self.listener_config).as_deref(),
        )?;
        let mut after = before.clone();
        set(&mut after.build_on_push, &self.build_on_push);
        if source != Source::Github {
            set(&mut after.custom_url, &self.custom_url);
        }
        set(&mut after.install_command, &self.install_command);
        set(&mut after.build_command, &self.build_command);
        set(&mut after.key_scopes, &self.key_scopes);
        set(&mut after.own_auth, &self.own_auth);
        if let Some(spec) = &self.resource_spec {
            after.resource_spec = Some(spec.clone());
        }
        Ok(after)
    }
}

fn set<T: Clone>(field: &mut Option<T>, change: &Patch<T>) {
    match change {
        Patch::Absent => {}
        Patch::Null => *field = None,
        Patch::Value(value) => *field = Some(value.clone()),
    }
}

fn changed(field: &str) -> Rejection {
    Rejection::rule(
        field,
        format!("{field} cannot be changed after the deployment was created"),
    )
}

fn immutable<T: PartialEq + ?Sized>(field: &str, before: &T, sent: Option<&T>) -> Result<(), Rejection> {
    match sent {
        Some(sent) if sent != before => Err(changed(field)),
        _ => Ok(()),
    }
}

fn immutable_text(field: &str, before: Option<&str>, sent: Option<&str>) -> Result<(), Rejection> {
    match sent {
        Some(sent) if Some(sent) != before => Err(changed(field)),
        _ => Ok(()),
    }
}

pub fn check_name(name: &str) -> Result<(), Rejection> {
    let fits = !name.is_empty() && name.chars().count() <= LONGEST_NAME && name.trim() == name;
    if !fits || name.chars().any(char::is_control) {
        let text =
            format!("expected 1 to {LONGEST_NAME} characters, no leading or trailing spaces, no control characters");
        return Err(Rejection::invalid("name", text));
    }
    Ok(())
}

fn required(field: &str, source: Source) -> Rejection {
    Rejection::rule(field, format!("{field} is required when source is {}", source.as_str()))
}

fn foreign(field: &str, source: Source) -> Rejection {
    Rejection::rule(
        field,
        format!("{field} must be null when source is {}", source.as_str()),
    )
}

fn check_config(source: Source, config: &SourceConfig) -> Result<(), Rejection> {
    use Source as S;
    let given = [
        ("integration_id", config.integration_id.is_some(), &[S::Github][..]),
        ("repo_url", config.repo_url.is_some(), &[S::Github]),
        (
            "deployment_type",
            config.deployment_type.is_some(),
            &[S::Github, S::InternalDocker, S::InternalSource],
        ),
        ("build_on_push", config.build_on_push.is_some(), &[S::Github]),
        ("custom_url", config.custom_url.is_some(), &[S::ExternalDocker]),
        (
            "resource_spec",
            config.resource_spec.is_some(),
            &[S::ExternalDocker, S::InternalDocker, S::InternalSource],
        ),
        ("listener_id", config.listener_id.is_some(), &[S::ExternalDocker]),
        (
            "listener_config",
            config.listener_config.is_some(),
            &[S::ExternalDocker],
        ),
        (
            "install_command",
            config.install_command.is_some(),
            &[S::Github, S::InternalDocker, S::InternalSource],
        ),
        (
            "build_command",
            config.build_command.is_some(),
            &[S::Github, S::InternalDocker, S::InternalSource],
        ),
    ];
    for (name, is_given, sources) in given {
        if is_given && !sources.contains(&source) {
            return Err(foreign(&format!("source_config.{name}"), source));
        }
    }
    if let Some(url) = &config.repo_url {
        RepoUrl::parse(url).map_err(|why| Rejection::invalid("source_config.repo_url", why))?;
    }
    if let Some(url) = &config.custom_url {
        check_url(url).map_err(|why| Rejection::invalid("source_config.custom_url", why))?;
    }
    for (name, command) in [
        ("install_command", &config.install_command),
        ("build_command", &config.build_command),
    ] {
        if let Some(command) = command {
            let field = format!("source_config.{name}");
            PlainCommand::parse(command).map_err(|why| Rejection::rule(field, why))?;
        }
    }
    if let Some(spec) = &config.resource_spec {
        spec.check("source_config.resource_spec", config.deployment_type)?;
    }
    check_key_scopes(config.key_scopes.as_deref().unwrap_or_default())
}

fn check_key_scopes(scopes: &[Scope]) -> Result<(), Rejection> {
    let fits = |scope: &Scope| {
        matches!(
            scope,
            Scope::TracesWrite | Scope::TracesRead | Scope::Sandboxes | Scope::AgentsInvoke | Scope::AgentsInvokeOf(_)
        )
    };
    match scopes.iter().find(|scope| !fits(scope)) {
        Some(scope) => {
            let text = format!(
                "source_config.key_scopes cannot contain {scope}: the key of a deployment supports traces:read, sandboxes, \
                 agents:invoke and agents:invoke:<deployment id>"
            );
            Err(Rejection::rule("source_config.key_scopes", text))
        }
        None if scopes.len() > MOST_KEY_SCOPES => {
            let text = format!("expected at most {MOST_KEY_SCOPES} scopes");
            Err(Rejection::invalid("source_config.key_scopes", text))
        }
        None => Ok(()),
    }
}

/// Checks the configuration of a revision, also against that of the deployment.
fn check_revision(revision: &RevisionRequest, deployment: &SourceConfig) -> Result<(), Rejection> {
    let RevisionRequest { source, config } = revision;
    let at = |name: &str| format!("source_revision_config.{name}");
    let given = [
        ("repo_ref", &config.repo_ref, *source == Source::Github),
        ("graph_config_path", &config.graph_config_path, source.is_built()),
        ("image_uri", &config.image_uri, !source.is_built()),
        (
            "source_tarball_path",
            &config.source_tarball_path,
            *source == Source::InternalSource,
        ),
    ];
    for (name, value, belongs) in given {
        match value {
            Some(_) if !belongs => return Err(foreign(&at(name), *source)),
            None if belongs && !(source.is_internal() && config.is_empty()) => {
                return Err(required(&at(name), *source));
            }
            _ => {}
        }
    }
    if let Some(name) = &config.repo_ref {
        RepoRef::parse(name).map_err(|why| Rejection::invalid(at("repo_ref"), why))?;
    }
    if let Some(path) = &config.graph_config_path {
        TreePath::parse(path).map_err(|why| Rejection::invalid(at("graph_config_path"), why))?;
    }
    if let Some(image) = &config.image_uri {
        check_image(image).map_err(|why| Rejection::invalid(at("image_uri"), why))?;
    }
    if deployment.build_on_push == Some(true) && config.is_tag() {
        return Err(Rejection::rule(
            "source_config.build_on_push",
            "source_config.build_on_push cannot be true when source_revision_config.repo_ref is a tag (refs/tags/…)",
        ));
    }
    Ok(())
}

/// Checks the syntax `[host[:port]/]path[:tag][@digest]`; the registry checks the rest.
fn check_image(image: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte);
    let begins = image.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins || !image.bytes().all(allowed) || image.len() > LONGEST_IMAGE || image.contains("://") {
        return Err("must be the reference of an image, such as registry.example/team/agent:1.2".into());
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let fits = |rest: &str| {
        let host = rest.split('/').next().unwrap_or_default();
        !host.is_empty() && !host.contains('@') && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    if !rest.is_some_and(fits) || url.len() > LONGEST_URL || url.contains(['?', '#']) {
        return Err("must be an http or https address without user name, query or fragment".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
