//! Validation of sources: address and ref of a git repository, paths inside a tree, commands.
//!
//! All of these are passed to other programs. The rules are strict allow lists, so that no value can be taken for an
//! option, a transport helper, a second line, or a path out of the tree. Refusals are texts that follow the field's
//! name: `must …`.

mod token_host;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use token_host::TokenHost;

/// Length limit of an address, ref, path or command, in bytes.
const LONGEST: usize = 1024;

/// How a repository is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Always allowed.
    Https,
    /// Only if the operator allows it.
    Http,
    /// Only if the operator allows it.
    Ssh,
    /// Only if the operator allows it: it reads this machine's disk.
    File,
}

impl Transport {
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::File => "file",
        }
    }
}

/// The address of a git repository: `https://host[:port]/path`, likewise `http`, `ssh` (with a user) and `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoUrl {
    text: String,
    transport: Transport,
    host: String,
    port: u16,
}

impl RepoUrl {
    /// # Errors
    /// What is wrong, as `must …`.
    pub fn parse(text: &str) -> Result<Self, String> {
        bounded(text)?;
        let (transport, rest) = [Transport::Https, Transport::Http, Transport::Ssh, Transport::File]
            .into_iter()
            .find_map(|transport| {
                let rest = text.strip_prefix(transport.scheme())?.strip_prefix("://")?;
                Some((transport, rest))
            })
            .ok_or("must be an address such as https://host/owner/repository")?;
        let (authority, path) = rest.split_at(rest.find('/').ok_or("must name a repository after the host")?);
        check_path(path)?;
        let authority = match authority.split_once('@') {
            None => authority,
            Some((user, authority)) if transport == Transport::Ssh && is_word(user) => authority,
            Some(_) => return Err("must not contain a user or password; use an integration to provide a token".into()),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !authority.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port != 0 && authority.len() > 1);
                (host, port.ok_or("must have a port between 1 and 65535")?)
            }
            _ => (
                authority,
                match transport {
                    Transport::Https => 443,
                    Transport::Http => 80,
                    Transport::Ssh => 22,
                    Transport::File => 0,
                },
            ),
        };
        match transport {
            Transport::File if !authority.is_empty() => {
                return Err("must be file:///path for a repository on this machine".into());
            }
            Transport::File => {}
            _ => check_host(host)?,
        }
        Ok(Self {
            text: text.to_owned(),
            transport,
            host: host.trim_matches(['[', ']']).to_ascii_lowercase(),
            port,
        })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// Without brackets; empty for `file`.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// 0 for `file`.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

/// The bare name of a branch, or a tag as `refs/tags/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoRef(String);

impl RepoRef {
    /// # Errors
    /// What is wrong, as `must …`.
    pub fn parse(text: &str) -> Result<Self, String> {
        bounded(text)?;
        let name = match text.strip_prefix("refs/") {
            None => text,
            Some(rest) => rest
                .strip_prefix("tags/")
                .ok_or("must be the bare name of a branch, or refs/tags/<tag>")?,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._/-+=#%,".contains(c);
        let fits = name.chars().all(|c| plain(c) || (!c.is_ascii() && c.is_alphanumeric()))
            && !name.contains("..")
            && name.split('/').all(|part| {
                !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with('.') && !part.ends_with(".lock")
            });
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err("must be a valid git ref name: letters, digits and . _ / - + = # % ,".into())
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn is_tag(&self) -> bool {
        self.0.starts_with("refs/tags/")
    }

    #[must_use]
    pub fn full(&self) -> String {
        if self.is_tag() {
            self.0.clone()
        } else {
            format!("refs/heads/{}", self.0)
        }
    }
}

/// The SHA of a commit: 40 hexadecimal digits, or 64 for SHA-256 repositories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommitSha(String);

impl CommitSha {
    pub fn parse(text: &str) -> Result<Self, String> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if matches!(text.len(), 40 | 64) && text.bytes().all(hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err("must be the full SHA of a commit".into())
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CommitSha {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<CommitSha> for String {
    fn from(sha: CommitSha) -> Self {
        sha.0
    }
}

impl fmt::Display for CommitSha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A path of a file inside a source tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePath(String);

impl TreePath {
    /// # Errors
    /// What is wrong, as `must …`.
    pub fn parse(text: &str) -> Result<Self, String> {
        bounded(text)?;
        let text = text.strip_prefix("./").unwrap_or(text);
        if text.starts_with('/') || text.contains('\\') || text.contains(':') {
            return Err("must be a path inside the repository".into());
        }
        let fits = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.starts_with('-');
        if !text.split('/').all(fits) || text.split('/').any(|part| part.eq_ignore_ascii_case(".git")) {
            return Err("must be a path inside the repository, without `..`".into());
        }
        Ok(Self(text.to_owned()))
    }

    /// Relative to the root of the tree.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A command of plain words. It does not run in a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainCommand(Vec<String>);

impl PlainCommand {
    /// # Errors
    /// What is wrong, as `must …`.
    pub fn parse(text: &str) -> Result<Self, String> {
        bounded(text)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || " ._/:=@,+-".contains(c);
        if !text.chars().all(plain) {
            return Err(
                "must be one command of plain words; it does not run in a shell, so it takes no quotes or \
                        metacharacters such as ; & | < > $ ` ( ) * ? ~"
                    .into(),
            );
        }
        let words: Vec<String> = text
            .split(' ')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        match words.first() {
            None => Err("must name a program".into()),
            Some(program) if program.starts_with('-') || program.contains('=') => {
                Err("must begin with the name of a program".into())
            }
            Some(_) => Ok(Self(words)),
        }
    }

    /// The program and its arguments.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for PlainCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// Rules for all of these: not empty, not too long, no control characters, no surrounding spaces, not like an option.
fn bounded(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("must not be empty".into());
    }
    if text.len() > LONGEST {
        return Err(format!("must have at most {LONGEST} bytes"));
    }
    // Format and separator characters look like others, or are invisible.
    let invisible = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if text.chars().any(invisible) || text.trim() != text {
        return Err("must have no control characters and no leading or trailing spaces".into());
    }
    if text.starts_with('-') {
        return Err("must not begin with a dash".into());
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// A name, an IPv4 address, or an IPv6 address in brackets.
fn check_host(host: &str) -> Result<(), String> {
    let fits = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(is_word) && !host.contains('_'),
    };
    if fits { Ok(()) } else { Err("must name a host".into()) }
}

fn check_path(path: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._~/+@-".contains(c);
    if !path.chars().all(plain) {
        return Err("must have only letters, digits and . _ ~ / + @ - after the host".into());
    }
    let mut parts = path[1..].trim_end_matches('/').split('/');
    if parts.all(|part| !part.is_empty() && part != "." && part != ".." && !part.starts_with('-')) {
        Ok(())
    } else {
        Err("must name a repository after the host, without empty parts or `..`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn honest_sources_are_read() {
        for (text, host, port) in [
            ("https://github.com/owner/repo", "github.com", 443),
            ("https://github.com/owner/repo.git", "github.com", 443),
            ("https://Git.Example.org:8443/a/b/c", "git.example.org", 8443),
            ("https://[2001:db8::1]:8443/a", "2001:db8::1", 8443),
            ("http://127.0.0.1:3000/x/y", "127.0.0.1", 3000),
            ("ssh://git@host/x/y.git", "host", 22),
            ("file:///srv/git/repo", "", 0),
        ] {
            let url = RepoUrl::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!((url.host(), url.port()), (host, port), "{text}");
        }
        for text in ["main", "feature/x-1", "refs/tags/v1.0", "dependabot/npm/a+b", "größe"] {
            RepoRef::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        }
        assert_eq!(RepoRef::parse("main").unwrap().full(), "refs/heads/main");
        assert_eq!(
            TreePath::parse("./apps/a/langgraph.json").unwrap().as_str(),
            "apps/a/langgraph.json"
        );
        assert_eq!(
            PlainCommand::parse("npm  ci --ignore-scripts").unwrap().words(),
            ["npm", "ci", "--ignore-scripts"]
        );
    }

    #[test]
    fn addresses_that_lead_elsewhere_are_refused() {
        for text in [
            "",
            "-",
            "--upload-pack=touch /tmp/x",
            "--config=core.sshCommand=x",
            "ext::sh -c whoami",
            "ext::sh%20-c%20whoami",
            "fd::17/x",
            "transport::https://host/x",
            "git://host/x",
            "ftp://host/x",
            "gopher://host/x",
            "javascript://host/x",
            "host:path/repo",
            "git@host:owner/repo",
            "/srv/git/repo",
            "../repo",
            "https://",
            "https:///owner/repo",
            "https://host",
            "https://host/",
            "https://-oProxyCommand=x/y",
            "ssh://-oProxyCommand=touch/y",
            "ssh://git@-oProxyCommand=touch/y",
            "ssh://-x@host/y",
            "https://user:password@host/x",
            "https://token@host/x",
            "https://host@other@third/x",
            "https://host:0/x",
            "https://host:99999/x",
            "https://host:/x",
            "https://host:22:33/x",
            "https://host/x?y=z",
            "https://host/x#y",
            "https://host/x\ny",
            "https://host/x\0y",
            "https://host/x y",
            " https://host/x",
            "https://host/../x",
            "https://host/x/%2e%2e/y",
            "https://host/%00",
            "https://host//x",
            "https://host/-x/y",
            "https://host\\@other/x",
            "https://ho\u{202e}st/x",
            "https://host。com/x",
            "file://host/srv/x",
            "file:///",
            "file:///srv/../etc",
            "HTTPS://host/x",
            "https://host/`id`",
            "https://host/$(id)",
            "https://host/x;id",
        ] {
            assert!(RepoUrl::parse(text).is_err(), "{text:?} was accepted");
        }
        assert!(RepoUrl::parse(&format!("https://host/{}", "a".repeat(2000))).is_err());
    }

    #[test]
    fn refs_that_mean_something_else_are_refused() {
        for text in [
            "",
            "-",
            "--upload-pack=x",
            "-u",
            "main..dev",
            "main^",
            "main~1",
            "main:x",
            "+main",
            "main x",
            "main\n",
            "@{u}",
            "a@{1}",
            "refs/heads/main",
            "refs/remotes/x",
            "refs/tags/",
            "refs/tags/-x",
            "a//b",
            "/a",
            "a/",
            ".a",
            "a/.b",
            "a.lock",
            "a/b.lock/c",
            "a.",
            "*",
            "a?",
            "a[b]",
            "a\\b",
            "a\0b",
            "$(id)",
            "`id`",
            "a;b",
            "HEAD\t",
        ] {
            if text == "+main" {
                // A plus is allowed in branch names; in front of a refspec it would force the update. Git gets the full
                // ref, `refs/heads/+main`.
                assert_eq!(RepoRef::parse(text).unwrap().full(), "refs/heads/+main");
                continue;
            }
            assert!(RepoRef::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn paths_and_commands_stay_where_they_belong() {
        for text in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/./b",
            "a\\b",
            "C:/x",
            "-x",
            "a/-x",
            ".git/config",
            "a/.GIT/config",
            "a\0",
            "a\n",
            "./",
            " a",
        ] {
            assert!(TreePath::parse(text).is_err(), "{text:?} was accepted");
        }
        for text in [
            "",
            "npm ci; id",
            "npm ci && id",
            "a | b",
            "a > b",
            "a < b",
            "$(id)",
            "`id`",
            "a $HOME",
            "a \"b\"",
            "a 'b'",
            "a\nb",
            "a * b",
            "~/x",
            "a (b)",
            "-x",
            "A=b npm",
            "a \\ b",
            "a ! b",
            "a # b",
            "a {b}",
            "a ? b",
            "a % b",
        ] {
            assert!(PlainCommand::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
