use super::*;
use crate::{RejectionKind, Secret};

fn github() -> DeploymentRequest {
    DeploymentRequest {
        name: "agent".into(),
        source: Source::Github,
        config: SourceConfig {
            repo_url: Some("https://github.com/a/b".into()),
            ..SourceConfig::default()
        },
        revision: RevisionConfig {
            repo_ref: Some("main".into()),
            graph_config_path: Some("langgraph.json".into()),
            ..RevisionConfig::default()
        },
        secrets: Vec::new(),
    }
}

fn image() -> DeploymentRequest {
    DeploymentRequest {
        name: "agent".into(),
        source: Source::ExternalDocker,
        config: SourceConfig::default(),
        revision: RevisionConfig {
            image_uri: Some("registry.example:5000/a/b:1@sha256:00".into()),
            ..RevisionConfig::default()
        },
        secrets: Vec::new(),
    }
}

fn refused(mut request: DeploymentRequest, change: impl FnOnce(&mut DeploymentRequest)) -> (RejectionKind, String) {
    change(&mut request);
    let rejection = request.admit().unwrap_err();
    (rejection.kind, rejection.field)
}

#[test]
fn sources_have_their_fields() {
    assert!(github().admit().is_ok());
    assert!(image().admit().is_ok());
    let rule = |field: &str| (RejectionKind::Rule, field.to_owned());
    let invalid = |field: &str| (RejectionKind::Invalid, field.to_owned());
    assert_eq!(
        refused(github(), |r| r.config.repo_url = None),
        rule("source_config.repo_url")
    );
    assert_eq!(
        refused(github(), |r| r.revision.repo_ref = None),
        rule("source_revision_config.repo_ref")
    );
    assert_eq!(
        refused(github(), |r| r.revision.graph_config_path = None),
        rule("source_revision_config.graph_config_path")
    );
    assert_eq!(
        refused(github(), |r| r.revision.image_uri = Some("a".into())),
        rule("source_revision_config.image_uri")
    );
    assert_eq!(
        refused(github(), |r| r.config.resource_spec = Some(ResourceSpec::default())),
        rule("source_config.resource_spec")
    );
    assert_eq!(
        refused(github(), |r| r.config.listener_id = Some(BUILT_IN_LISTENER)),
        rule("source_config.listener_id")
    );
    assert_eq!(
        refused(github(), |r| {
            r.config.build_on_push = Some(true);
            r.revision.repo_ref = Some("refs/tags/v1".into());
        }),
        rule("source_config.build_on_push")
    );
    assert_eq!(
        refused(github(), |r| r.config.install_command = Some("npm ci; rm -rf x".into())),
        rule("source_config.install_command")
    );
    assert_eq!(
        refused(github(), |r| r.config.repo_url = Some("ext::sh".into())),
        invalid("source_config.repo_url")
    );
    assert_eq!(
        refused(github(), |r| r.revision.graph_config_path = Some("../x.json".into())),
        invalid("source_revision_config.graph_config_path")
    );
    assert_eq!(refused(github(), |r| r.name = " a".into()), invalid("name"));
    assert_eq!(
        refused(image(), |r| r.revision.image_uri = None),
        rule("source_revision_config.image_uri")
    );
    assert_eq!(
        refused(image(), |r| r.revision.repo_ref = Some("main".into())),
        rule("source_revision_config.repo_ref")
    );
    assert_eq!(
        refused(image(), |r| r.config.deployment_type = Some(DeploymentType::Prod)),
        rule("source_config.deployment_type")
    );
    assert_eq!(
        refused(image(), |r| r.config.build_command = Some("npm run build".into())),
        rule("source_config.build_command")
    );
    assert_eq!(
        refused(image(), |r| r.revision.image_uri = Some("https://a/b".into())),
        invalid("source_revision_config.image_uri")
    );
    assert_eq!(
        refused(image(), |r| r.config.custom_url = Some("ftp://a".into())),
        invalid("source_config.custom_url")
    );
}

#[test]
fn a_read_only_address_is_ignored_and_a_tag_is_fine_alone() {
    let mut request = github();
    request.config.custom_url = Some("https://elsewhere.example".into());
    request.config.build_on_push = Some(false);
    request.revision.repo_ref = Some("refs/tags/v1".into());
    request.admit().unwrap();
    assert_eq!(request.config.custom_url, None);
}

#[test]
fn internal_content_comes_later() {
    for source in [Source::InternalDocker, Source::InternalSource] {
        let mut request = DeploymentRequest {
            source,
            revision: RevisionConfig::default(),
            config: SourceConfig {
                deployment_type: Some(DeploymentType::DevZero),
                ..SourceConfig::default()
            },
            ..image()
        };
        assert!(request.admit().unwrap().is_empty());
    }
}

fn standing<'a>(request: &'a DeploymentRequest, latest: &'a RevisionConfig) -> CurrentDeployment<'a> {
    CurrentDeployment {
        name: &request.name,
        source: request.source,
        config: &request.config,
        latest_source: request.source,
        latest,
    }
}

#[test]
fn what_is_so_already_may_be_said_again() {
    let request = github();
    let change = DeploymentChange {
        name: Some("agent".into()),
        source: Some(Source::Github),
        config: ConfigChange {
            repo_url: request.config.repo_url.clone(),
            build_on_push: Patch::Value(true),
            ..ConfigChange::default()
        },
        ..DeploymentChange::default()
    };
    let (after, revision) = change
        .admit(standing(&request, &request.revision), RevisionPolicy::IfRequired)
        .unwrap();
    assert_eq!(after.build_on_push, Some(true));
    assert_eq!(revision, None);
    let field = |change: DeploymentChange| {
        change
            .admit(standing(&request, &request.revision), RevisionPolicy::IfRequired)
            .unwrap_err()
            .field
    };
    let other = |config: ConfigChange| DeploymentChange {
        config,
        ..DeploymentChange::default()
    };
    assert_eq!(
        field(DeploymentChange {
            name: Some("b".into()),
            ..DeploymentChange::default()
        }),
        "name"
    );
    assert_eq!(
        field(DeploymentChange {
            source: Some(Source::ExternalDocker),
            ..DeploymentChange::default()
        }),
        "source"
    );
    assert_eq!(
        field(other(ConfigChange {
            repo_url: Some("https://github.com/a/c".into()),
            ..ConfigChange::default()
        })),
        "source_config.repo_url"
    );
    assert_eq!(
        field(other(ConfigChange {
            deployment_type: Some(DeploymentType::Prod),
            ..ConfigChange::default()
        })),
        "source_config.deployment_type"
    );
}

#[test]
fn what_makes_a_revision() {
    let request = image();
    let made = |change: DeploymentChange| {
        change
            .admit(standing(&request, &request.revision), RevisionPolicy::IfRequired)
            .unwrap()
            .1
    };
    assert_eq!(made(DeploymentChange::default()), None);
    let secrets = DeploymentChange {
        secrets: Some(vec![EnvSecret {
            name: "A".into(),
            value: Secret::new("a"),
        }]),
        ..DeploymentChange::default()
    };
    assert_eq!(made(secrets).unwrap().config, request.revision);
    let spec = DeploymentChange {
        config: ConfigChange {
            resource_spec: Some(ResourceSpec::default()),
            ..ConfigChange::default()
        },
        ..DeploymentChange::default()
    };
    assert!(made(spec).is_some());
    let scopes = DeploymentChange {
        config: ConfigChange {
            key_scopes: Patch::Value(vec![Scope::TracesRead]),
            ..ConfigChange::default()
        },
        ..DeploymentChange::default()
    };
    assert!(made(scopes).is_some());
    let equal = DeploymentChange {
        revision: request.revision.clone(),
        ..DeploymentChange::default()
    };
    assert!(made(equal).is_some());
    let cleared = DeploymentChange {
        config: ConfigChange {
            custom_url: Patch::Null,
            ..ConfigChange::default()
        },
        ..DeploymentChange::default()
    };
    assert_eq!(made(cleared), None);
}

#[test]
fn an_internal_deployment_may_change_how_it_is_brought() {
    let request = DeploymentRequest {
        source: Source::InternalDocker,
        ..image()
    };
    let change = DeploymentChange {
        revision_source: Some(Source::InternalSource),
        revision: RevisionConfig {
            source_tarball_path: Some("sources/a".into()),
            graph_config_path: Some("langgraph.json".into()),
            ..RevisionConfig::default()
        },
        ..DeploymentChange::default()
    };
    let (_, revision) = change
        .admit(standing(&request, &request.revision), RevisionPolicy::IfRequired)
        .unwrap();
    let revision = revision.unwrap();
    assert_eq!(revision.source, Source::InternalSource);
    assert_eq!(revision.config.image_uri, None);
    let refused = DeploymentChange {
        revision_source: Some(Source::Github),
        ..change.clone()
    };
    let refused = refused
        .admit(standing(&request, &request.revision), RevisionPolicy::IfRequired)
        .unwrap_err();
    assert_eq!(refused.field, "revision_source");
    let without = DeploymentChange {
        revision_source: None,
        ..change
    };
    let field = without
        .admit(standing(&request, &request.revision), RevisionPolicy::IfRequired)
        .unwrap_err()
        .field;
    assert_eq!(field, "source_revision_config.graph_config_path");
}

#[test]
fn the_key_of_a_deployment_has_no_scope_of_people() {
    let with = |scopes: &[Scope]| {
        let mut request = image();
        request.config.key_scopes = Some(scopes.to_vec());
        request.admit().map(drop)
    };
    let one = Scope::AgentsInvokeOf(crate::DeploymentId::new());
    assert!(with(&[]).is_ok());
    assert!(with(&[Scope::TracesRead, Scope::Sandboxes, Scope::AgentsInvoke, one]).is_ok());
    for scope in [
        Scope::Exports,
        Scope::Deployments,
        Scope::WorkspaceAdmin,
        Scope::OrgAdmin,
        Scope::OperatorRead,
        Scope::Operator,
    ] {
        let rejection = with(&[Scope::TracesRead, scope]).unwrap_err();
        assert_eq!(rejection.field, "source_config.key_scopes", "{scope}");
    }
    assert!(with(&[one; 101]).is_err());
}
