//! Generates the Dockerfile of a source tree from its graph configuration.

use std::path::Path;

use serde_json::Value;
use towpath_domain::git::{PlainCommand, TreePath};

use super::reference;
use crate::artifact::{BuiltArtifact, Origin};
use crate::error::{Error, Result};

/// Where the tree is in an image.
pub(super) const SOURCE: &str = "/deps/source";
/// Where `towpath` is in an image.
pub(super) const PROGRAM: &str = "/usr/local/bin/towpath";
/// An empty settings file for the agent server, so that it does not read one of the tree.
pub(super) const SETTINGS: &str = "/opt/towpath/settings.toml";
/// Where its database is in the container.
pub(super) const DATA: &str = "/data";
/// The mount point of the platform's own program in agent servers: images of older platforms start with the newest
/// program, which supports the newest database schema.
pub(super) const MOUNTED: &str = "/opt/towpath/program";
/// Environments of Python, made with the image.
const HOSTS: &str = "/opt/towpath/hosts";
/// `HOME` of environments: downloaded interpreters are in it.
const HOME: &str = "/opt/towpath/home";
/// Who agent servers of these images run as.
pub(super) const USER: &str = "10001:10001";
/// Default `python_version`: that of the reference CLI.
const PYTHON: &str = "3.11";
/// Stands for the version in the base image's name.
pub(super) const VERSION: &str = "{python_version}";

/// What a Dockerfile is made from, beside the configuration.
pub(super) struct Parts<'a> {
    /// The configuration file in the tree.
    pub(super) config: &'a TreePath,
    /// Run at the top of the tree.
    pub(super) install: Option<&'a str>,
    /// Run in the configuration file's folder.
    pub(super) build: Option<&'a str>,
    /// The operator's base image.
    pub(super) base: &'a str,
    /// The image that holds `towpath`.
    pub(super) program: &'a str,
    /// Names of build arguments.
    pub(super) arguments: Vec<&'a str>,
}

/// Generates the Dockerfile. `dockerfile_lines` are copied verbatim: their author builds the image.
pub(super) fn write(config: &Value, parts: &Parts<'_>) -> Result<String> {
    let mut lines = vec![format!("FROM {}", base(config, parts.base)?)];
    lines.extend(parts.arguments.iter().map(|name| format!("ARG {name}")));
    lines.extend(own_lines(config)?);
    let program = parts.program;
    lines.push(format!("COPY --from={program} /towpath {PROGRAM}"));
    lines.push(format!("COPY --from={program} /settings.toml {SETTINGS}"));
    lines.push(format!("ENV TOWPATH_AGENT_HOSTS_DIR={HOSTS}"));
    lines.push(format!("COPY --from={program} --chown={USER} /empty {HOSTS}"));
    lines.push(format!("COPY --from={program} --chown={USER} /empty {HOME}"));
    lines.push(format!("COPY --chown={USER} source {SOURCE}"));
    lines.push(format!("WORKDIR {SOURCE}"));
    lines.extend(
        parts
            .install
            .map(|command| run("install_command", command))
            .transpose()?,
    );
    let folder = folder(parts.config)?;
    lines.push(format!("WORKDIR {folder}"));
    lines.extend(parts.build.map(|command| run("build_command", command)).transpose()?);
    let prepare = [
        PROGRAM,
        "agent",
        "--prepare",
        // With what the package manager says.
        "--log",
        "info,towpath_runtime::hosted=debug",
        "--settings",
        SETTINGS,
        "--config",
        &format!("{SOURCE}/{}", parts.config.as_str()),
    ];
    lines.push(format!("USER {USER}"));
    lines.push(format!("ENV HOME={HOME}"));
    lines.push(format!("RUN {}", Value::from(prepare.to_vec())));
    Ok(lines.join("\n") + "\n")
}

fn base(config: &Value, default: &str) -> Result<String> {
    let version = match config.get("python_version") {
        None | Some(Value::Null) => PYTHON,
        Some(Value::String(version)) if is_version(version) => version,
        Some(_) => return Err(refused("python_version must be a version such as \"3.12\"")),
    };
    match config.get("base_image") {
        None | Some(Value::Null) => Ok(default.replace(VERSION, version)),
        Some(Value::String(image)) if is_reference(image) => {
            reference::check_local(image).map_err(|why| refused(&format!("base_image {why}")))?;
            Ok(image.clone())
        }
        Some(_) => Err(refused("base_image must be the name of an image")),
    }
}

fn own_lines(config: &Value) -> Result<Vec<String>> {
    let lines = match config.get("dockerfile_lines") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(lines)) => lines,
        Some(_) => return Err(refused("dockerfile_lines must be a list of strings")),
    };
    let line = |line: &Value| line.as_str().map(str::to_owned);
    let lines: Option<Vec<String>> = lines.iter().map(line).collect();
    let lines = lines.ok_or_else(|| refused("dockerfile_lines must be a list of strings"))?;
    reference::check_lines(&lines).map_err(|why| refused(&format!("dockerfile_lines {why}")))?;
    Ok(lines)
}

/// The folder of the configuration file in the image. `WORKDIR` expands variables and quotes, so such characters are
/// refused.
fn folder(config: &TreePath) -> Result<String> {
    let folder = Path::new(config.as_str()).parent().map(Path::to_string_lossy);
    let folder = folder.unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/@+-".contains(c);
    if !folder.chars().all(plain) {
        return Err(Error::Refused(
            "graph_config_path: in an image its folder must consist of letters, digits, . _ @ + and -".to_owned(),
        ));
    }
    Ok(if folder.is_empty() {
        SOURCE.to_owned()
    } else {
        format!("{SOURCE}/{folder}")
    })
}

/// Without a shell, as everywhere.
fn run(field: &str, command: &str) -> Result<String> {
    let command = PlainCommand::parse(command).map_err(|why| Error::Refused(format!("{field} {why}")))?;
    Ok(format!("RUN {}", Value::from(command.words().to_vec())))
}

fn is_version(text: &str) -> bool {
    !text.is_empty()
        && text
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_reference(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte))
}

fn refused(text: &str) -> Error {
    Error::Refused(format!("graph configuration: {text}"))
}

/// The command that overrides the image's own: `towpath` itself in images built here.
pub(super) fn command(built: &BuiltArtifact, standby: bool) -> Option<Vec<String>> {
    if matches!(built.plan.origin, Origin::Image { .. }) {
        return None;
    }
    let config = format!("{SOURCE}/{}", built.plan.config);
    let program = format!("{MOUNTED}/towpath");
    let settings = format!("{MOUNTED}/settings.toml");
    let words = [
        program.as_str(),
        "agent",
        "--config",
        &config,
        "--data-dir",
        DATA,
        "--settings",
        &settings,
        "--tell-listening",
    ];
    let words = words.into_iter().chain(standby.then_some("--standby"));
    Some(words.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dockerfile(config: &Value, path: &str, install: Option<&str>) -> Result<String> {
        let parts = Parts {
            config: &TreePath::parse(path).unwrap(),
            install,
            build: install.map(|_| "npm run build"),
            base: "python:{python_version}-slim",
            program: "towpath-program:1",
            arguments: vec!["HTTP_PROXY"],
        };
        write(config, &parts)
    }

    #[test]
    fn it_says_what_the_configuration_says() {
        let config = json!({
            "python_version": "3.12",
            "dockerfile_lines": ["RUN apt-get update", "ENV A=1"],
        });
        let text = dockerfile(&config, "apps/one/langgraph.json", Some("npm ci --omit=dev")).unwrap();
        let expected = [
            "FROM python:3.12-slim",
            "ARG HTTP_PROXY",
            "RUN apt-get update",
            "ENV A=1",
            "COPY --from=towpath-program:1 /towpath /usr/local/bin/towpath",
            "COPY --from=towpath-program:1 /settings.toml /opt/towpath/settings.toml",
            "ENV TOWPATH_AGENT_HOSTS_DIR=/opt/towpath/hosts",
            "COPY --from=towpath-program:1 --chown=10001:10001 /empty /opt/towpath/hosts",
            "COPY --from=towpath-program:1 --chown=10001:10001 /empty /opt/towpath/home",
            "COPY --chown=10001:10001 source /deps/source",
            "WORKDIR /deps/source",
            r#"RUN ["npm","ci","--omit=dev"]"#,
            "WORKDIR /deps/source/apps/one",
            r#"RUN ["npm","run","build"]"#,
            "USER 10001:10001",
            "ENV HOME=/opt/towpath/home",
            concat!(
                r#"RUN ["/usr/local/bin/towpath","agent","--prepare","--log","info,towpath_runtime::hosted=debug","#,
                r#""--settings","/opt/towpath/settings.toml","--config","/deps/source/apps/one/langgraph.json"]"#
            ),
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let plain = dockerfile(&json!({}), "langgraph.json", None).unwrap();
        assert!(plain.starts_with("FROM python:3.11-slim\n"), "{plain}");
        let own = dockerfile(
            &json!({"base_image": "registry.example/base:1"}),
            "langgraph.json",
            None,
        )
        .unwrap();
        assert!(own.starts_with("FROM registry.example/base:1\n"), "{own}");
    }

    #[test]
    fn values_do_not_add_lines() {
        for (config, path) in [
            (json!({"base_image": "a\nRUN evil"}), "langgraph.json"),
            (json!({"base_image": "a AS b"}), "langgraph.json"),
            (json!({"base_image": "--platform=x"}), "langgraph.json"),
            (json!({"base_image": 1}), "langgraph.json"),
            (json!({"python_version": "3.12\nRUN evil"}), "langgraph.json"),
            (json!({"python_version": "3..1"}), "langgraph.json"),
            (json!({"dockerfile_lines": "RUN x"}), "langgraph.json"),
            (json!({"dockerfile_lines": [1]}), "langgraph.json"),
            (json!({"base_image": "towpath-0123456789ab:00ff"}), "langgraph.json"),
            (json!({"base_image": "sha256:00ff"}), "langgraph.json"),
            (
                json!({"dockerfile_lines": ["COPY --from=towpath-0123456789ab:00ff / /"]}),
                "langgraph.json",
            ),
            (json!({}), "a b/langgraph.json"),
            (json!({}), "$HOME/langgraph.json"),
        ] {
            let refused = dockerfile(&config, path, None);
            assert!(
                matches!(refused, Err(Error::Refused(_))),
                "{config} {path}: {refused:?}"
            );
        }
        assert!(dockerfile(&json!({}), "langgraph.json", Some("npm ci; evil")).is_err());
    }
}
