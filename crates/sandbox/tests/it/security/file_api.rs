//! File operations of clients, which the agent performs as the user of the box.

use towpath_sandbox::{BoxAgent, ByteRange, Error, ExecRequest, GlobRequest, GrepRequest, Page};

use super::case::{HostFacts, Tally, error_kind, result_kind};
use crate::fixture::{prints, request};

const MANY: usize = 10_000;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub enum FileCall {
    Stat,
    Download,
    Range(ByteRange),
    Upload,
    List,
    Glob(&'static str),
    Grep(&'static str),
}

use FileCall::{Download, Glob, Grep, List, Range, Stat, Upload};

#[derive(Clone, Copy, Debug)]
pub struct FileCase {
    pub name: &'static str,
    /// What a command of the same user does before, in a folder of the user's own, `@OWN@`.
    setup: &'static str,
    call: FileCall,
    path: &'static str,
    as_user: &'static str,
    as_root: &'static str,
}

const fn case(
    name: &'static str,
    setup: &'static str,
    call: FileCall,
    path: &'static str,
    seen: &'static str,
) -> FileCase {
    FileCase {
        name,
        setup,
        call,
        path,
        as_user: seen,
        as_root: seen,
    }
}

impl FileCase {
    const fn as_root(self, seen: &'static str) -> Self {
        Self { as_root: seen, ..self }
    }
}

/// Files that root of the box makes first.
pub const SETUP_OF_ROOT: &str =
    "umask 077; echo secret > /var/lib/kept; mkdir /var/lib/closed; touch /var/lib/closed/x";

pub const FILE_CASES: &[FileCase] = &[
    // Ways out.
    case(
        "file of the host by `..`",
        "",
        Download,
        "../../../../../..@SECRET@",
        "NotFound",
    ),
    case(
        "file of the host by a root of /proc",
        "",
        Download,
        "/proc/self/root@SECRET@",
        "NotFound",
    ),
    case(
        "link to a file of the host",
        "ln -s @SECRET@ absolute",
        Download,
        "@OWN@/absolute",
        "NotFound",
    ),
    case(
        "relative link to a file of the host",
        "ln -s ../../../../..@SECRET@ relative",
        Download,
        "@OWN@/relative",
        "NotFound",
    ),
    case(
        "link into the root of the agent",
        "ln -s /proc/1/root@SECRET@ agent-root",
        Download,
        "@OWN@/agent-root",
        "NotFound",
    )
    .as_root("Denied"),
    case(
        "link to the environment of the agent",
        "ln -s /proc/1/environ agent-environment",
        Download,
        "@OWN@/agent-environment",
        "NotFound",
    )
    .as_root("Denied"),
    case("upload of a program of the host", "", Upload, "/usr/x", "Denied"),
    case(
        "upload of the agent's program",
        "",
        Upload,
        "/run/towpath/agent",
        "Denied",
    ),
    case(
        "upload of a setting of the kernel",
        "",
        Upload,
        "/proc/sys/kernel/core_pattern",
        "NotFound|Denied",
    ),
    case("upload over a mount point", "", Upload, "/data", "IsDirectory"),
    case("upload into a read-only volume", "", Upload, "/kept/x", "Denied"),
    // Rights.
    case("download of a file of root", "", Download, "/var/lib/kept", "Denied").as_root("7 bytes"),
    case("upload of a file of root", "", Upload, "/var/lib/kept", "Denied").as_root("mode 600"),
    case("list of a folder of root", "", List, "/var/lib/closed", "Denied").as_root("1 found"),
    case(
        "set-user-id bit after an upload",
        "cp /usr/bin/id id; chmod 4755 id",
        Upload,
        "@OWN@/id",
        "mode 755",
    ),
    // What is no regular file.
    case(
        "link to itself",
        "ln -s itself itself",
        Download,
        "@OWN@/itself",
        "Agent",
    ),
    case("download of a pipe", "mkfifo pipe", Download, "@OWN@/pipe", "Invalid"),
    case(
        "upload of a pipe",
        "mkfifo pipe-to-write",
        Upload,
        "@OWN@/pipe-to-write",
        "Invalid",
    ),
    case(
        "download of a socket",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
        Download,
        "@OWN@/socket",
        "Agent",
    ),
    case("download of a device", "", Download, "/dev/zero", "Invalid"),
    case("upload of a device", "", Upload, "/dev/null", "Invalid"),
    case("download of a directory", "", Download, "@OWN@", "IsDirectory"),
    case("upload of a directory", "", Upload, "@OWN@", "IsDirectory"),
    case(
        "upload of a path that ends with a slash",
        "",
        Upload,
        "@OWN@/new/",
        "IsDirectory",
    ),
    case("file as a directory", "", Download, "/etc/passwd/x", "NotFound"),
    // Names.
    case("NUL in a path", "", Stat, "a\0b", "Invalid"),
    case("path of 5,000 characters", "", Stat, "@LONG@", "Invalid"),
    case("path of 200,000 characters", "", Stat, "@HUGE@", "Invalid"),
    case(
        "name without UTF-8",
        "mkdir odd; touch odd/$(printf '\\377')",
        List,
        "@OWN@/odd",
        "1 found",
    ),
    // Ranges.
    case(
        "range behind the end",
        "",
        Range(ByteRange::From(u64::MAX, None)),
        "/etc/hosts",
        "Range",
    ),
    case(
        "range backwards",
        "",
        Range(ByteRange::From(2, Some(1))),
        "/etc/hosts",
        "Range",
    ),
    case(
        "range to the largest number",
        "printf abc > abc",
        Range(ByteRange::From(0, Some(u64::MAX))),
        "@OWN@/abc",
        "3 bytes",
    ),
    case(
        "range of the largest length",
        "printf abc > def",
        Range(ByteRange::Last(u64::MAX)),
        "@OWN@/def",
        "3 bytes",
    ),
    case(
        "end of a sparse file of 1 TiB",
        "truncate -s 1T sparse",
        Range(ByteRange::Last(5)),
        "@OWN@/sparse",
        "5 bytes",
    ),
    // Searches.
    case(
        "glob along a link to its folder",
        "mkdir loop; ln -s . loop/again; touch loop/x",
        Glob("**/x"),
        "@OWN@/loop",
        "1 found",
    ),
    case(
        "glob along a link to the root",
        "mkdir out; ln -s / out/root",
        Glob("**/passwd"),
        "@OWN@/out",
        "0 found",
    ),
    case(
        "glob with many stars",
        "mkdir stars; touch stars/$(head -c 200 /dev/zero | tr '\\0' a)",
        Glob("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b"),
        "@OWN@/stars",
        "0 found",
    ),
    case(
        "glob with nested braces",
        "",
        Glob("{{{{{{{{{{a}}}}}}}}}}"),
        "@OWN@",
        "Invalid",
    ),
    case("glob with an open bracket", "", Glob("[a"), "@OWN@", "Invalid"),
    case(
        "glob in 20,000 files",
        "mkdir many; cd many; seq 20000 | xargs touch",
        Glob("*"),
        "@OWN@/many",
        "10000 found, truncated",
    ),
    case(
        "grep in a line of 50 MB",
        "(printf needle; head -c 50000000 /dev/zero | tr '\\0' a) > line",
        Grep("needle"),
        "@OWN@/line",
        "1 found",
    ),
    case(
        "grep in a folder with a pipe",
        "mkdir pipes; mkfifo pipes/pipe",
        Grep("needle"),
        "@OWN@/pipes",
        "0 found",
    ),
];

/// Performs every case as every user, and looks for `secret`, a path of the host, in errors.
pub async fn perform(agent: &BoxAgent, users: &[&str], facts: &HostFacts, host_path: &str, tally: &mut Tally) {
    for case in FILE_CASES {
        for user in users {
            let own = format!("/tmp/files-{user}");
            let setup = format!("mkdir -p @OWN@ && cd @OWN@ && {{ :; {}\n}}", case.setup);
            let setup = ExecRequest {
                user: Some((*user).to_owned()),
                timeout_seconds: 300,
                ..request(&facts.fill(&setup).replace("@OWN@", &own))
            };
            prints(agent, &setup).await;
            let path = facts.fill(case.path).replace("@OWN@", &own);
            let expected = if *user == "root" { case.as_root } else { case.as_user };
            let seen = match answer(&agent.clone().with_user(user), case.call, &path).await {
                Ok(seen) => seen,
                // The client named the path itself in some of them.
                Err(error) if !path.contains(host_path) && error.to_string().contains(host_path) => error.to_string(),
                Err(error) => error_kind(&error).to_owned(),
            };
            tally.compare(case.name, user, expected, &seen);
        }
        tally.count(None);
    }
}

async fn answer(agent: &BoxAgent, call: FileCall, path: &str) -> Result<String, Error> {
    let range = match call {
        Range(range) => Some(range),
        _ => None,
    };
    Ok(match call {
        Stat => format!("mode {:o}", agent.stat(path).await?.mode),
        Download | Range(_) => {
            let file = agent.download(path, range).await?;
            format!("{} bytes", file.read_to_end().await?.len())
        }
        Upload => format!("mode {:o}", agent.upload(path, &mut b"x".as_slice()).await?.mode),
        List => count(&agent.list(path, MANY).await?),
        Glob(pattern) => {
            let search = GlobRequest {
                pattern: pattern.to_owned(),
                path: path.to_owned(),
                limit: MANY,
            };
            count(&agent.glob(&search).await?)
        }
        Grep(pattern) => {
            let search = GrepRequest {
                pattern: pattern.to_owned(),
                path: path.to_owned(),
                glob: None,
                limit: MANY,
            };
            count(&agent.grep(&search).await?)
        }
    })
}

fn count<T>(page: &Page<T>) -> String {
    let found = page.matches.len();
    if page.truncated {
        format!("{found} found, truncated")
    } else {
        format!("{found} found")
    }
}

/// A folder on the way of an upload becomes a link to one of root, again and again.
pub async fn swap_a_link(agent: &BoxAgent, tally: &mut Tally) {
    let swap = request(
        "mkdir -p /tmp/swap && cd /tmp/swap && echo ready && \
         while :; do ln -sfn /etc folder; rm -f folder; mkdir folder; rm -r folder; done 2> /dev/null",
    );
    let mut swapping = agent.execute(&swap).await.unwrap();
    swapping.events.next().await.unwrap();
    for _ in 0..100 {
        // Whether it succeeds depends on the moment.
        let _ = agent.upload("/tmp/swap/folder/uploaded", &mut b"x".as_slice()).await;
    }
    agent.kill(&swap.command_id).await.unwrap();
    tally.settle(SWAP, "NotFound", result_kind(&agent.stat("/etc/uploaded").await));
}

pub const SWAP: &str = "upload through a link that is swapped meanwhile";
