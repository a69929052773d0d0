//! Push webhooks of a repository's host.

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushEvent {
    /// The bare name of the branch.
    pub branch: String,
    /// The new head of the branch.
    pub commit: String,
    /// The repository, by every address in the message.
    pub repo_keys: Vec<String>,
}

impl PushEvent {
    /// Reads GitHub's message. `None` for tags and for created or deleted branches: only pushes to an existing branch
    /// create a revision.
    #[must_use]
    pub fn from_github(message: &Value) -> Option<Self> {
        let flag = |name: &str| message[name].as_bool().unwrap_or(false);
        if flag("created") || flag("deleted") {
            return None;
        }
        let branch = message["ref"].as_str()?.strip_prefix("refs/heads/")?;
        let addresses = ["clone_url", "html_url", "ssh_url", "git_url", "url"];
        let mut repo_keys: Vec<_> = addresses
            .into_iter()
            .filter_map(|name| repo_key(message["repository"][name].as_str()?))
            .collect();
        repo_keys.sort();
        repo_keys.dedup();
        Some(Self {
            branch: branch.to_owned(),
            commit: message["after"].as_str()?.to_owned(),
            repo_keys,
        })
    }
}

/// The canonical form of a repository's address: `host/owner/name` in lower case, without scheme, user, port and
/// `.git`.
#[must_use]
pub fn repo_key(url: &str) -> Option<String> {
    let (host, path) = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?,
        // `git@host:owner/name`
        None => url.split_once(':')?,
    };
    let host = host.rsplit('@').next().unwrap_or(host);
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    (!path.is_empty()).then(|| format!("{host}/{path}").to_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_one_repository_are_one() {
        for url in [
            "https://github.com/Acme/Agent",
            "https://github.com/acme/agent.git",
            "https://user:word@github.com:443/acme/agent/",
            "git@github.com:acme/agent.git",
            "ssh://git@github.com/acme/agent.git",
            "git://github.com/acme/agent.git",
        ] {
            assert_eq!(repo_key(url).as_deref(), Some("github.com/acme/agent"), "{url}");
        }
        assert_eq!(repo_key("file:///srv/agent.git").as_deref(), Some("/srv/agent"));
        assert_eq!(repo_key("https://github.com/"), None);
        assert_eq!(repo_key("nonsense"), None);
    }

    #[test]
    fn only_pushes_to_existing_branches_count() {
        let message = |name: &str, created: bool, deleted: bool| {
            json!({"ref": name, "after": "abc", "created": created, "deleted": deleted,
                   "repository": {"clone_url": "https://github.com/a/b.git", "html_url": "https://github.com/a/b"}})
        };
        let push = PushEvent::from_github(&message("refs/heads/feature/x", false, false)).unwrap();
        assert_eq!((push.branch.as_str(), push.commit.as_str()), ("feature/x", "abc"));
        assert_eq!(push.repo_keys, ["github.com/a/b"]);
        assert_eq!(PushEvent::from_github(&message("refs/heads/main", true, false)), None);
        assert_eq!(PushEvent::from_github(&message("refs/heads/main", false, true)), None);
        assert_eq!(PushEvent::from_github(&message("refs/tags/v1", false, false)), None);
        assert_eq!(PushEvent::from_github(&json!({"zen": "x"})), None);
    }
}
