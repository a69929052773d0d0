//! Which images users may name.
//!
//! An engine resolves any of its images by name or id prefix, regardless of the owner. Images built here contain the
//! sources of deployments, so users may name neither these nor ids.

use towpath_domain::registry;
use towpath_outbound::{Guard, Scheme};

use crate::error::{Error, Result};

/// Ports of a registry that says none.
const PORT: u16 = 443;
/// The name prefix of images built here; twelve hexadecimal digits follow.
const OWN: &str = "towpath-";

const OWN_IMAGE: &str = "must not name an image that the platform built";

/// Refuses references to images that exist only at the engine: images of other deployments, and ids. The text follows
/// the field's name.
pub(super) fn check_local(image: &str) -> std::result::Result<(), String> {
    // Docker Hub may be written in full or omitted.
    let hub = ["docker.io/", "index.docker.io/"].iter();
    let name = hub.filter_map(|hub| image.strip_prefix(hub)).next().unwrap_or(image);
    let name = name.strip_prefix("library/").unwrap_or(name);
    let repository = name.split(['@', ':']).next().unwrap_or(name);
    let mark = repository.strip_prefix(OWN).and_then(|rest| rest.get(..12));
    if mark.is_some_and(is_hex) {
        return Err(OWN_IMAGE.to_owned());
    }
    // `sha256:…` reads like a repository with a tag.
    if repository == "sha256" || (is_hex(name) && name.len() > 1) {
        return Err("must name an image, not an image id".to_owned());
    }
    Ok(())
}

/// The same for every image that lines of a Dockerfile name.
pub(super) fn check_lines(lines: &[String]) -> std::result::Result<(), String> {
    // The engine ignores these, also within a continued line.
    let kept = || {
        let physical = lines.iter().flat_map(|line| line.lines());
        physical.filter(|line| !line.trim_start().starts_with('#'))
    };
    // Such a name must not occur in a Dockerfile, regardless of continuations and separators.
    let bare: String = kept().flat_map(str::chars).filter(|char| !is_dressing(*char)).collect();
    let mut own = bare.match_indices(OWN);
    if own.any(|(at, _)| {
        bare.get(at + OWN.len()..)
            .is_some_and(|rest| rest.get(..12).is_some_and(is_hex))
    }) {
        return Err(OWN_IMAGE.to_owned());
    }
    // Ids are too short to be told from other words, so only image positions are checked. Whether a line continues
    // depends on the engine: both readings must be harmless.
    let mut joined = String::new();
    for line in kept() {
        match line.trim_end().strip_suffix('\\') {
            Some(begun) => joined.push_str(begun),
            None => {
                joined.push_str(line);
                joined.push('\n');
            }
        }
    }
    joined.lines().chain(kept()).try_for_each(check_line)
}

fn check_line(line: &str) -> std::result::Result<(), String> {
    let bare = |word: &str| -> String { word.chars().filter(|char| !is_dressing(*char)).collect() };
    let check = |image: &str| {
        if image.contains('$') {
            return Err("must name an image in full, without variables".to_owned());
        }
        check_local(image)
    };
    let mut words = line.split_whitespace().map(bare);
    let is_stage = words.next().is_some_and(|word| word.eq_ignore_ascii_case("FROM"));
    let words: Vec<String> = words.collect();
    if is_stage && let Some(image) = words.iter().find(|word| !word.starts_with("--")) {
        check(image)?;
    }
    for word in words {
        if ["--from=", "--mount="].iter().any(|flag| word.starts_with(flag))
            && let Some((_, image)) = word.split_once("from=")
        {
            check(image.split(',').next().unwrap_or(image))?;
        }
    }
    Ok(())
}

/// What an engine's parser may take off a word.
fn is_dressing(char: char) -> bool {
    char.is_whitespace() || ['\\', '`', '"', '\'', '[', ']'].contains(&char)
}

/// Checks the registry of an image like any user-supplied address. Docker Hub and the platform's own registry are
/// allowed.
pub(super) async fn check_registry(image: &str, own: &[String], guard: &Guard) -> Result<()> {
    if !registry::names_registry(image) {
        return Ok(());
    }
    let host = image.split('/').next().unwrap_or_default();
    if host == registry::DOCKER_HUB || own.iter().any(|own| own == host) {
        return Ok(());
    }
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => {
            let port = port.parse().map_err(|_| {
                Error::Refused(format!(
                    "image_uri: the registry {host} has no port number after the colon"
                ))
            })?;
            (name, port)
        }
        None => (host, PORT),
    };
    let judged = guard.resolve(name, port, Scheme::Https).await;
    judged.map(drop).map_err(|why| match why {
        towpath_outbound::AddressRefusal::Unresolved { .. } => Error::Transient(format!("image_uri: {why}")),
        why => Error::Refused(format!("image_uri: {why}")),
    })
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_outbound::Policy;

    #[test]
    fn images_that_the_platform_made_are_nobodys_to_name() {
        for image in [
            "towpath-0123456789ab:00ff",
            "towpath-0123456789ab-program:00ff",
            "docker.io/library/towpath-0123456789ab:00ff",
            "index.docker.io/library/towpath-0123456789ab:00ff",
            "sha256:00ff",
            "00ffab",
        ] {
            assert!(check_local(image).is_err(), "{image}");
        }
        for image in [
            "python:3.12-slim",
            "towpath-agent:1",
            "registry.example/towpath-x:1",
            "node",
            "a@sha256:00",
        ] {
            assert_eq!(check_local(image), Ok(()), "{image}");
        }
    }

    #[test]
    fn lines_of_a_dockerfile_name_none_of_them() {
        let refused = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            check_lines(&lines).is_err()
        };
        assert!(refused(&["FROM towpath-0123456789ab:00ff AS other"]));
        assert!(refused(&["from --platform=linux/amd64 00ffab"]));
        assert!(refused(&["COPY --from=towpath-0123456789ab:00ff /deps /stolen"]));
        assert!(refused(&["COPY --from=towpath-01234\\", "56789ab:00ff /deps /stolen"]));
        assert!(refused(&["RUN --mount=type=bind,from=sha256:00ff cp -r / /x"]));
        // Continued over a comment, after a space, in quotes, and not continued at all.
        assert!(refused(&[
            "COPY --from=\\",
            "# x",
            "towpath-0123456789ab:00ff /deps /stolen"
        ]));
        assert!(refused(&["COPY --from=\\ ", "towpath-0123456789ab:00ff /deps /stolen"]));
        assert!(refused(&["COPY --from=tow\"path\"-012345\\6789ab:00ff /deps /stolen"]));
        assert!(refused(&["RUN echo a\\\\", "FROM towpath-0123456789ab:00ff"]));
        assert!(refused(&["COPY --from=\\", "# x", "00ffab /deps /stolen"]));
        assert!(refused(&["RUN echo a\\\\", "FROM 00ffab"]));
        assert!(refused(&["ARG other=00ffab", "COPY --from=$other /deps /stolen"]));
        assert!(!refused(&[
            "RUN x --filter=\"from=$day\"",
            "RUN curl http://x/?from=00ff"
        ]));
        assert!(!refused(&[
            "FROM node:22 AS build",
            "COPY --from=build /a /b",
            "COPY --from=0 /a /b",
            "RUN x"
        ]));
    }

    #[tokio::test]
    async fn registries_are_called_as_other_addresses_of_users() {
        let guard = Guard::new(Policy::default());
        let own = ["127.0.0.1:8400".to_owned()];
        for image in ["169.254.169.254/a:1", "127.0.0.1:5000/a:1", "localhost:5000/a:1"] {
            let judged = check_registry(image, &own, &guard).await;
            assert!(matches!(judged, Err(Error::Refused(_))), "{image}: {judged:?}");
        }
        for image in ["127.0.0.1:8400/images/x:1", "agent:1", "docker.io/a/b:1"] {
            assert!(check_registry(image, &own, &guard).await.is_ok(), "{image}");
        }
    }
}
