//! Git repositories, through the command-line program in a closed environment.
//!
//! The program gets only our configuration: no prompts, helpers, hooks, filters, proxies or submodules; only the
//! allowed transports; and only the addresses that [`Guard`] checked, so that a name cannot resolve differently after
//! the check. Configuration, including the token, is passed in the environment, never as arguments.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_util::sync::CancellationToken;
use towpath_domain::Secret;
use towpath_domain::git::{CommitSha, RepoRef, RepoUrl, TokenHost, Transport};
use towpath_outbound::{Guard, Scheme};

use crate::error::{Error, Result};
use crate::log::Log;
use crate::orphans::ROOT_MARK;
use crate::program::{Program, ProgramOutput};
use crate::root::Root;
use crate::tree::{self, Limits};

/// Attributes that override those of a tree: files are written as stored. Some attributes multiply their size (`ident`,
/// `working-tree-encoding`, `eol`), and load them into memory.
const AS_THEY_ARE: &str = "* -text -ident -filter !eol !working-tree-encoding\n";
/// A tree's attributes are still parsed, which takes many times their size.
const LARGEST_ATTRIBUTES: u64 = 4 << 20;

/// The minimum version. Older ones ignore `http.curloptResolve` silently and resolve a host again after the address
/// check; before 2.31, configuration is not read from the environment.
const OLDEST: (u32, u32) = (2, 37);

/// Whether the program with this version output restricts repositories to checked addresses.
pub fn check_version(said: &str) -> std::result::Result<(), String> {
    let (major, minor) = OLDEST;
    let said = said.trim();
    let mut numbers = said.strip_prefix("git version ").unwrap_or_default().split('.');
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (number(), number()) {
        (Some(has), Some(also)) if (has, also) >= OLDEST => Ok(()),
        (Some(_), Some(_)) => Err(format!(
            "this machine has {said}, which may connect to unchecked addresses; install {major}.{minor} or newer"
        )),
        _ => Err(format!(
            "cannot read the version of git on this machine ({said:?}); {major}.{minor} or newer is needed"
        )),
    }
}

/// What the operator says about repositories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Transports beside https.
    pub transports: Vec<Transport>,
    /// Judges addresses.
    pub guard: Guard,
    /// `PATH` of the program.
    pub path: String,
    /// What resolving or fetching may take.
    pub limit: Duration,
    /// What a tree may be.
    pub tree: Limits,
}

/// What opens private repositories of one host.
#[derive(Clone, Debug)]
pub struct Token {
    /// The password.
    pub secret: Secret,
    /// Where it may be sent.
    pub host: TokenHost,
}

/// A repository that may be asked.
#[derive(Clone, Debug)]
pub struct Repository<'a> {
    settings: &'a Settings,
    root: &'a Root,
    url: &'a RepoUrl,
    token: Option<&'a Token>,
}

impl<'a> Repository<'a> {
    /// The repository at `url`. `token` is sent as the password of an https request if `url` is at its host.
    pub fn new(settings: &'a Settings, root: &'a Root, url: &'a RepoUrl, token: Option<&'a Token>) -> Result<Self> {
        let transport = url.transport();
        if transport != Transport::Https && !settings.transports.contains(&transport) {
            return Err(Error::Refused(format!(
                "repo_url: {} repositories are not allowed here; an operator can allow them in deployments.git_transports",
                transport.scheme()
            )));
        }
        Ok(Self {
            settings,
            root,
            url,
            token,
        })
    }

    /// The commit a branch or tag is now.
    pub async fn resolve(&self, name: &RepoRef, cancel: &CancellationToken) -> Result<CommitSha> {
        let full = name.full();
        // An annotated tag is a separate object; the commit is at `^{}`.
        let peeled = format!("{full}^{{}}");
        let home = self.root.temporary()?;
        self.check_program(home.path(), cancel).await?;
        let ended = self
            .git(home.path())
            .await?
            .args(["ls-remote", "--exit-code", "--", self.url.as_str(), &full, &peeled])
            .read(cancel)
            .await?;
        match ended.code {
            Some(0) => {}
            Some(2) => {
                let kind = if name.is_tag() { "tag" } else { "branch" };
                return Err(Error::Refused(format!(
                    "repo_ref: the repository has no {kind} {:?}",
                    name.as_str()
                )));
            }
            _ => return Err(self.failed("asking the repository", &ended)),
        }
        let output = String::from_utf8_lossy(&ended.output);
        let of = |wanted: &str| {
            let mut lines = output.lines().filter_map(|line| line.split_once('\t'));
            lines.find(|(_, found)| *found == wanted).map(|(sha, _)| sha)
        };
        let sha = of(&peeled).or_else(|| of(&full));
        sha.and_then(|sha| CommitSha::parse(sha).ok()).ok_or_else(|| {
            Error::Refused(format!(
                "repo_ref: the repository did not report the commit of {:?}",
                name.as_str()
            ))
        })
    }

    /// Writes the tree of a commit into the folder `to`, which must not exist: it appears atomically.
    pub async fn fetch(
        &self,
        name: &RepoRef,
        sha: &CommitSha,
        to: &Path,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<()> {
        let work = self.root.temporary()?;
        self.check_program(work.path(), cancel).await?;
        let repository = work.path().join("repository");
        let files = work.path().join("source");
        std::fs::create_dir(&files).map_err(Error::io("folder for the source"))?;
        let inside = |program: Program| program.args(["-C".as_ref(), repository.as_os_str()]);

        let init = self
            .git(work.path())
            .await?
            .args(["init", "--quiet", "--template=", "--"])
            .args([&repository]);
        self.succeed("preparing the source", init.run(log, cancel).await?)?;
        let info = repository.join(".git/info");
        crate::root::make(&info)?;
        std::fs::write(info.join("attributes"), AS_THEY_ARE).map_err(Error::io("preparing the source"))?;
        let get = |what: String, program: Program| {
            inside(program)
                .args([
                    "fetch",
                    "--quiet",
                    "--depth=1",
                    "--no-tags",
                    "--no-recurse-submodules",
                    "--",
                ])
                .args([self.url.as_str(), &what])
                .with_size_limit([work.path()], self.settings.tree)
                .run(log, cancel)
        };
        let by_id = get(sha.to_string(), self.git(work.path()).await?).await?;
        if by_id.code != Some(0) {
            // Not every server hands out a commit by its id.
            let ended = get(name.full(), self.git(work.path()).await?).await?;
            self.succeed("fetching the source", ended)?;
            let head =
                inside(self.git(work.path()).await?).args(["rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"]);
            let head = self.succeed("fetching the source", head.read(cancel).await?)?;
            if String::from_utf8_lossy(&head.output).trim() != sha.as_str() {
                return Err(Error::Refused(format!(
                    "repo_ref: {:?} is no longer at commit {sha}, and the repository does not serve commits by SHA; \
                     create another revision",
                    name.as_str()
                )));
            }
        }
        let list =
            inside(self.git(work.path()).await?).args(["ls-tree", "-r", "-l", "-z", "--full-tree", sha.as_str()]);
        let list = self.succeed("reading the source", list.read(cancel).await?)?;
        self.weigh(&list.output, log)?;
        let read = inside(self.git(work.path()).await?).args(["read-tree", sha.as_str()]);
        self.succeed("reading the source", read.run(log, cancel).await?)?;
        let prefix = format!("--prefix={}/", files.display());
        let write =
            inside(self.git(work.path()).await?).args(["checkout-index", "--all", "--force", "--quiet", &prefix]);
        let write = write.with_size_limit([files.as_path()], self.settings.tree);
        self.succeed("writing the source", write.run(log, cancel).await?)?;

        let (limits, lines, to) = (self.settings.tree, log.clone(), to.to_owned());
        blocking(move || {
            tree::check(&files, limits, &lines)?;
            std::fs::rename(&files, &to).map_err(Error::io("moving the source into place"))?;
            drop(work);
            Ok(())
        })
        .await
    }

    /// Sums the output of `ls-tree` before anything is written: small packs can contain huge files.
    fn weigh(&self, list: &[u8], log: &Log) -> Result<()> {
        let limits = self.settings.tree;
        let (mut bytes, mut entries, mut attributes) = (0_u64, 0_u64, 0_u64);
        let mut folder = String::new();
        for entry in list.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            let entry = String::from_utf8_lossy(entry);
            let (about, path) = entry.split_once('\t').unwrap_or((&entry, ""));
            let mut about = about.split_ascii_whitespace();
            if about.next() == Some("160000") {
                log.warn(format!("the submodule {path} was skipped"));
            }
            let size: u64 = about.nth(2).and_then(|size| size.parse().ok()).unwrap_or(0);
            bytes = bytes.saturating_add(size);
            let (own, name) = path.rsplit_once('/').unwrap_or(("", path));
            // Files of a folder stand together, so that each is new once.
            entries += 1 + new_folders(&folder, own);
            own.clone_into(&mut folder);
            if name.eq_ignore_ascii_case(".gitattributes") {
                attributes = attributes.saturating_add(size);
            }
        }
        if attributes > LARGEST_ATTRIBUTES {
            return Err(Error::Refused(format!(
                "the source has more than {} MB of .gitattributes",
                LARGEST_ATTRIBUTES >> 20
            )));
        }
        if entries > limits.entries {
            return Err(Error::Refused(format!(
                "the source has more than {} files",
                limits.entries
            )));
        }
        if bytes > limits.bytes {
            return Err(Error::Refused(format!(
                "the source is larger than {} MB",
                limits.bytes >> 20
            )));
        }
        Ok(())
    }

    /// Checked each time: the program may be replaced while this process runs.
    async fn check_program(&self, home: &Path, cancel: &CancellationToken) -> Result<()> {
        let variables = [
            ("PATH", self.settings.path.clone()),
            ("HOME", home.display().to_string()),
            ("LC_ALL", "C.UTF-8".to_owned()),
            ("GIT_CONFIG_NOSYSTEM", "1".to_owned()),
            ("GIT_CONFIG_GLOBAL", "/dev/null".to_owned()),
            (ROOT_MARK, self.root.mark()),
        ];
        let program = Program::new("git", "git", self.settings.limit)
            .envs(variables)
            .within(home)
            .args(["version"]);
        let ended = self.succeed("asking git for its version", program.read(cancel).await?)?;
        check_version(&String::from_utf8_lossy(&ended.output)).map_err(Error::Refused)
    }

    /// The program with its environment. Addresses are checked again for each call.
    async fn git(&self, home: &Path) -> Result<Program> {
        let addresses = match self.url.transport() {
            Transport::File => Vec::new(),
            transport => {
                let scheme = if transport == Transport::Http {
                    Scheme::Http
                } else {
                    Scheme::Https
                };
                self.settings
                    .guard
                    .resolve(self.url.host(), self.url.port(), scheme)
                    .await
                    .map_err(|why| match why {
                        towpath_outbound::AddressRefusal::Unresolved { .. } => {
                            Error::Transient(format!("repo_url: {why}"))
                        }
                        why => Error::Refused(format!("repo_url: {why}")),
                    })?
            }
        };
        let mut allowed = vec!["https"];
        allowed.extend(self.settings.transports.iter().map(|transport| transport.scheme()));
        let variables = [
            ("PATH", self.settings.path.clone()),
            ("HOME", home.display().to_string()),
            ("LC_ALL", "C.UTF-8".to_owned()),
            ("GIT_TERMINAL_PROMPT", "0".to_owned()),
            ("GIT_ASKPASS", "false".to_owned()),
            ("SSH_ASKPASS", "false".to_owned()),
            ("GIT_CONFIG_NOSYSTEM", "1".to_owned()),
            ("GIT_CONFIG_SYSTEM", "/dev/null".to_owned()),
            ("GIT_CONFIG_GLOBAL", "/dev/null".to_owned()),
            ("GIT_ATTR_NOSYSTEM", "1".to_owned()),
            ("GIT_ALLOW_PROTOCOL", allowed.join(":")),
            ("GIT_PROTOCOL_FROM_USER", "0".to_owned()),
            ("GIT_NO_REPLACE_OBJECTS", "1".to_owned()),
            ("GIT_LFS_SKIP_SMUDGE", "1".to_owned()),
            ("GIT_SSH_COMMAND", ssh_command(&addresses, self.url.host())),
            (ROOT_MARK, self.root.mark()),
        ];
        let configuration = self.configuration(&addresses);
        let count = ("GIT_CONFIG_COUNT".to_owned(), configuration.len().to_string());
        let configuration = configuration.into_iter().enumerate().flat_map(|(n, (key, value))| {
            [
                (format!("GIT_CONFIG_KEY_{n}"), key),
                (format!("GIT_CONFIG_VALUE_{n}"), value),
            ]
        });
        Ok(Program::new("git", "git", self.settings.limit)
            .envs(variables)
            .envs([count])
            .envs(configuration)
            .within(home))
    }

    fn configuration(&self, addresses: &[SocketAddr]) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> = [
            ("core.hooksPath", "/dev/null"),
            ("core.fsmonitor", "false"),
            ("core.attributesFile", "/dev/null"),
            ("core.protectHFS", "true"),
            ("core.protectNTFS", "true"),
            ("credential.helper", ""),
            ("http.followRedirects", "false"),
            ("http.proxy", ""),
            ("http.lowSpeedLimit", "1000"),
            ("http.lowSpeedTime", "30"),
            ("submodule.recurse", "false"),
            ("fetch.recurseSubmodules", "false"),
            ("fetch.uriProtocols", ""),
            ("transfer.bundleURI", "false"),
            ("protocol.version", "2"),
            // Large objects are written as they come, and not held.
            ("fetch.unpackLimit", "1"),
            ("core.bigFileThreshold", "16m"),
            ("core.deltaBaseCacheLimit", "16m"),
            ("gc.auto", "0"),
            ("maintenance.auto", "false"),
            ("advice.graftFileDeprecated", "false"),
            // Repositories that the operator allows by `file` may belong to other users.
            ("safe.directory", "*"),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
        // A literal address is not resolved; it was checked as it is.
        if !addresses.is_empty() && self.url.host().parse::<IpAddr>().is_err() {
            let listed: Vec<String> = addresses
                .iter()
                .map(|address| match address {
                    SocketAddr::V4(address) => address.ip().to_string(),
                    SocketAddr::V6(address) => format!("[{}]", address.ip()),
                })
                .collect();
            let pinned = format!("{}:{}:{}", self.url.host(), self.url.port(), listed.join(","));
            all.push(("http.curloptResolve".to_owned(), pinned));
        }
        if let Some(token) = self.token.filter(|token| token.host.matches(self.url)) {
            let credentials = STANDARD.encode(format!("x-access-token:{}", token.secret.reveal()));
            // For this host only, whatever other hosts the program may contact.
            let key = format!("http.{}/.extraHeader", token.host);
            all.push((key, format!("Authorization: Basic {credentials}")));
        }
        all
    }

    fn succeed(&self, what: &str, ended: ProgramOutput) -> Result<ProgramOutput> {
        if ended.code == Some(0) {
            Ok(ended)
        } else {
            Err(self.failed(what, &ended))
        }
    }

    fn failed(&self, what: &str, ended: &ProgramOutput) -> Error {
        let mut said = ended.error.clone();
        if let Some(token) = self.token {
            said = said.replace(token.secret.reveal(), "***");
        }
        let text = format!(
            "{what} failed: {}",
            if said.is_empty() { "git printed nothing" } else { &said }
        );
        let passes = [
            "Could not resolve",
            "Connection refused",
            "Connection reset",
            "Connection timed out",
            "Failed to connect",
            "timed out",
            "early EOF",
            "The requested URL returned error: 5",
            "The requested URL returned error: 429",
            "remote end hung up",
        ];
        if passes.iter().any(|sign| said.contains(sign)) {
            Error::Transient(text)
        } else {
            Error::Refused(text)
        }
    }
}

/// How many folders of the second path are not in the first.
fn new_folders(last: &str, next: &str) -> u64 {
    if next.is_empty() {
        return 0;
    }
    let same = last
        .split('/')
        .zip(next.split('/'))
        .take_while(|(last, next)| last == next);
    (next.split('/').count() - same.count()) as u64
}

/// ssh without the user's configuration, to the checked address.
fn ssh_command(addresses: &[SocketAddr], host: &str) -> String {
    let pinned = addresses.first().map_or_else(String::new, |address| {
        format!(" -oHostName={} -oHostKeyAlias={host}", address.ip())
    });
    format!("ssh -F /dev/null -oBatchMode=yes -oStrictHostKeyChecking=yes -oProxyCommand=none{pinned}")
}

pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::Transient(format!("a file operation failed: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program would be told of a repository.
    fn told(url: &str) -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let settings = Settings {
            transports: vec![Transport::Http, Transport::Ssh],
            guard: Guard::new(towpath_outbound::Policy::default()),
            path: String::new(),
            limit: Duration::from_secs(1),
            tree: Limits::default(),
        };
        let token = Token {
            secret: Secret::new("canary"),
            host: TokenHost::of_api("https://git.example.org:8443/api/v3").unwrap(),
        };
        let url = RepoUrl::parse(url).unwrap();
        let repository = Repository::new(&settings, &root, &url, Some(&token)).unwrap();
        repository.configuration(&[])
    }

    #[test]
    fn programs_that_do_not_know_our_protections_are_refused() {
        for good in [
            "git version 2.37.0\n",
            "git version 2.47.3",
            "git version 3.0",
            "git version 2.39.5 (Apple Git-154)",
        ] {
            assert_eq!(check_version(good), Ok(()), "{good}");
        }
        for old in ["git version 2.36.6", "git version 1.99.0"] {
            let why = check_version(old).unwrap_err();
            assert!(why.contains(old) && why.contains("install 2.37"), "{why}");
        }
        for unknown in ["", "hub 2.40", "git version two"] {
            assert!(check_version(unknown).unwrap_err().contains("2.37"), "{unknown}");
        }
    }

    // The guard of the addresses needs a runtime.
    #[tokio::test]
    async fn a_token_is_for_its_host_alone() {
        // x-access-token:canary
        let header = "Authorization: Basic eC1hY2Nlc3MtdG9rZW46Y2FuYXJ5";
        let mine = told("https://git.example.org:8443/owner/repo");
        let headers: Vec<_> = mine
            .iter()
            .filter(|(key, _)| key.to_lowercase().contains("extraheader"))
            .collect();
        assert_eq!(headers.len(), 1, "{mine:?}");
        assert_eq!(headers[0].0, "http.https://git.example.org:8443/.extraHeader");
        assert_eq!(headers[0].1, header);
        for other in [
            "https://git.example.org/owner/repo",
            "http://git.example.org:8443/owner/repo",
            "https://evil.example:8443/owner/repo",
            "ssh://git@git.example.org/owner/repo",
        ] {
            let told = told(other);
            assert!(
                !told.iter().any(|(_, value)| value.contains("eC1hY2Nlc3M")),
                "{other}: {told:?}"
            );
        }
    }

    /// The program itself, asked which header it would send where.
    #[tokio::test]
    async fn the_program_sends_it_to_no_other_host() {
        let configuration = told("https://git.example.org:8443/owner/repo");
        let header = |url: &str| {
            let mut git = std::process::Command::new("git");
            git.args(["config", "--get-urlmatch", "http.extraHeader", url]);
            git.env("GIT_CONFIG_NOSYSTEM", "1")
                .env("GIT_CONFIG_GLOBAL", "/dev/null");
            git.env("GIT_CONFIG_COUNT", configuration.len().to_string());
            for (n, (key, value)) in configuration.iter().enumerate() {
                git.env(format!("GIT_CONFIG_KEY_{n}"), key);
                git.env(format!("GIT_CONFIG_VALUE_{n}"), value);
            }
            let answer = git.output().unwrap();
            String::from_utf8(answer.stdout).unwrap()
        };
        assert!(header("https://git.example.org:8443/owner/repo").starts_with("Authorization: Basic "));
        for other in [
            "https://evil.example/x",
            "http://git.example.org:8443/owner/repo",
            "https://git.example.org/x",
        ] {
            assert_eq!(header(other), "", "{other}");
        }
    }
}
