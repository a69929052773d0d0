//! The command line of `towpath sandbox`.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use towpath_domain::sandbox::parse_bytes;

use super::ServerOptions;
use crate::arguments::output::Output;

/// `towpath sandbox`
#[derive(Debug, Args)]
pub struct Sandbox {
    #[command(flatten)]
    pub server: ServerOptions,
    /// The same as --output json.
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,
    /// What to do [default: ls]
    #[command(subcommand)]
    pub command: Option<SandboxCommand>,
}

impl Sandbox {
    /// How results are printed.
    pub fn output(&self) -> Output {
        if self.json { Output::Json } else { self.server.output }
    }
}

/// What `towpath sandbox` does.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// List sandboxes, the newest first.
    Ls {
        /// At most so many.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
        /// Only those with this status.
        #[arg(long, value_enum)]
        status: Option<SandboxStatus>,
    },
    /// Show a sandbox.
    Show {
        /// Its name or id.
        sandbox: String,
    },
    /// Create a sandbox, and wait until it is ready.
    Create(NewSandbox),
    /// Run a command, with standard input and output; the exit code is that of the command.
    Exec(Exec),
    /// Copy a file into or out of a sandbox; one of the two is SANDBOX:PATH.
    Cp {
        /// A file, SANDBOX:PATH, or - for standard input. A relative path starts in the home folder.
        #[arg(value_parser = copy_path)]
        from: CopyPath,
        /// A file, SANDBOX:PATH, or - for standard output. A path that ends with / is a folder.
        #[arg(value_parser = copy_path)]
        to: CopyPath,
    },
    /// List the running and the recently ended commands of a sandbox.
    Ps {
        /// Name or id of the sandbox.
        sandbox: String,
    },
    /// Show the end of the output of a command.
    Logs {
        /// Name or id of the sandbox.
        sandbox: String,
        /// The command, as ps shows it [default: the latest]
        command: Option<String>,
        /// Show new output until the command ends, and exit with its exit code.
        #[arg(short, long)]
        follow: bool,
    },
    /// Start stopped sandboxes, and wait until they are ready.
    Start {
        /// Names or ids.
        #[arg(required = true)]
        sandboxes: Vec<String>,
        /// Do not wait.
        #[arg(long)]
        no_wait: bool,
    },
    /// Stop sandboxes. Their commands end; their files stay.
    Stop {
        /// Names or ids.
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Delete sandboxes with their files. Volumes and snapshots stay.
    Rm {
        /// Names or ids.
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
}

impl Default for SandboxCommand {
    fn default() -> Self {
        Self::Ls {
            limit: 50,
            status: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxStatus {
    Provisioning,
    Ready,
    Stopped,
    Failed,
}

/// Options of a new sandbox.
#[derive(Debug, Args)]
pub struct NewSandbox {
    /// Its name [default: a generated one]
    pub name: Option<String>,
    /// Id, name or name:tag of the snapshot to start from [default: the programs of the server's machine]
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "template")]
    pub snapshot: Option<String>,
    /// The template to start from.
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Whole processors.
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=1024))]
    pub vcpus: Option<i64>,
    /// Memory, as in 512Mi or 2Gi.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<i64>,
    /// Disk space for its own files, as in 4Gi.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub disk: Option<i64>,
    /// Environment variable of all commands; can be repeated.
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Label; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub label: Vec<(String, String)>,
    /// Volume and its mount path; can be repeated.
    #[arg(long, value_name = "VOLUME:PATH[:ro]", value_parser = mount)]
    pub volume: Vec<VolumeMount>,
    /// Host that it may call, as in pypi.org, *.example.com or example.com:8443; can be repeated [default: none]
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// Stop it after this idle time, a multiple of 60; 0 is never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub idle: Option<i64>,
    /// Delete it after this time, a multiple of 60; 0 is never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub ttl: Option<i64>,
    /// Delete it after this time as stopped, a multiple of 60; 0 is never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub delete_after_stop: Option<i64>,
    /// Delete its files at each stop.
    #[arg(long)]
    pub temporary: bool,
    /// Do not wait until it is ready.
    #[arg(long)]
    pub no_wait: bool,
}

/// Options of a command.
#[derive(Debug, Args)]
pub struct Exec {
    /// Name or id of the sandbox. A stopped sandbox is started.
    pub sandbox: String,
    /// One argument is a shell command line; several are a program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<String>,
    /// Working directory.
    #[arg(short = 'w', long, value_name = "FOLDER")]
    pub cwd: Option<String>,
    /// Environment variable; can be repeated.
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// User: root, user, or a user id.
    #[arg(short, long)]
    pub user: Option<String>,
    /// Shell [default: /bin/bash, else /bin/sh]
    #[arg(long, value_name = "PATH")]
    pub shell: Option<String>,
    /// Kill the command after this time; 0 is never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub timeout: u32,
    /// Do not pass on standard input.
    #[arg(short, long)]
    pub no_stdin: bool,
    /// Print the id of the command and exit; logs shows its output.
    #[arg(short, long)]
    pub detach: bool,
}

/// A volume in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMount {
    /// Its name or id.
    pub volume: String,
    /// Where it is.
    pub path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
}

/// Source or target of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyPath {
    /// A local file.
    Local(PathBuf),
    /// Standard input or output.
    Stdio,
    /// A file in a sandbox.
    Remote {
        /// Name or id of the sandbox.
        sandbox: String,
        /// The file; empty is the home of its user.
        path: String,
    },
}

fn bytes(text: &str) -> Result<i64, String> {
    let parsed = parse_bytes(text).filter(|bytes| *bytes > 0);
    parsed.ok_or_else(|| "expected a size such as 512Mi or 2Gi".to_owned())
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn mount(text: &str) -> Result<VolumeMount, String> {
    let wrong = || "expected VOLUME:PATH or VOLUME:PATH:ro, with an absolute path".to_owned();
    let (volume, path) = text.split_once(':').ok_or_else(wrong)?;
    let (path, read_only) = match path.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (path.strip_suffix(":rw").unwrap_or(path), false),
    };
    if volume.is_empty() || !path.starts_with('/') {
        return Err(wrong());
    }
    Ok(VolumeMount {
        volume: volume.to_owned(),
        path: path.to_owned(),
        read_only,
    })
}

fn copy_path(text: &str) -> Result<CopyPath, Infallible> {
    Ok(match text.split_once(':') {
        _ if text == "-" => CopyPath::Stdio,
        // A local file with a colon in its name is written ./a:b.
        Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => CopyPath::Remote {
            sandbox: sandbox.to_owned(),
            path: path.to_owned(),
        },
        _ => CopyPath::Local(text.into()),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parsed(line: &[&str]) -> SandboxCommand {
        let line = ["towpath", "sandbox"].iter().chain(line);
        let Command::Sandbox(sandbox) = Arguments::try_parse_from(line).unwrap().command else {
            panic!("it is another command")
        };
        sandbox.command.unwrap_or_default()
    }

    fn refused(line: &[&str]) -> String {
        let line = ["towpath", "sandbox"].iter().chain(line);
        Arguments::try_parse_from(line).unwrap_err().to_string()
    }

    #[test]
    fn what_follows_the_sandbox_is_the_command() {
        let SandboxCommand::Exec(exec) = parsed(&["exec", "--env", "A=b=c", "yard", "ls", "-la", "--json"]) else {
            panic!("it is another command")
        };
        assert_eq!((exec.sandbox.as_str(), exec.timeout), ("yard", 0));
        assert_eq!(exec.command, ["ls", "-la", "--json"]);
        assert_eq!(exec.env, [("A".to_owned(), "b=c".to_owned())]);
        let SandboxCommand::Exec(exec) = parsed(&["exec", "yard", "-w", "/tmp", "--", "-x"]) else {
            panic!("it is another command")
        };
        assert_eq!(
            (exec.cwd.as_deref(), exec.command.as_slice()),
            (Some("/tmp"), &["-x".to_owned()][..])
        );
        assert!(refused(&["exec", "yard"]).contains("COMMAND"));
    }

    #[test]
    fn json_may_be_asked_for_in_two_ways() {
        for line in [["--json", "ls"], ["ls", "--json"]] {
            let line = ["towpath", "sandbox"].iter().chain(&line);
            let Command::Sandbox(sandbox) = Arguments::try_parse_from(line).unwrap().command else {
                panic!("it is another command")
            };
            assert_eq!(sandbox.output(), Output::Json);
        }
        assert!(refused(&["ls", "--json", "--output", "table"]).contains("--output"));
    }

    #[test]
    fn local_and_remote_files_are_distinguished() {
        let remote = |sandbox: &str, path: &str| CopyPath::Remote {
            sandbox: sandbox.to_owned(),
            path: path.to_owned(),
        };
        for (text, expected) in [
            ("-", CopyPath::Stdio),
            ("yard:/tmp/a:b", remote("yard", "/tmp/a:b")),
            ("yard:", remote("yard", "")),
            ("./a:b", CopyPath::Local("./a:b".into())),
            (":b", CopyPath::Local(":b".into())),
            ("a.txt", CopyPath::Local("a.txt".into())),
        ] {
            assert_eq!(copy_path(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn volumes_and_sizes_are_read() {
        let SandboxCommand::Create(new) = parsed(&[
            "create",
            "yard",
            "--volume",
            "v:/data:ro",
            "--volume",
            "w:/w",
            "--memory",
            "512Mi",
            "--label",
            "team=canal",
        ]) else {
            panic!("it is another command")
        };
        assert_eq!(new.memory, Some(512 << 20));
        let read: Vec<_> = new
            .volume
            .iter()
            .map(|mounted| (mounted.volume.as_str(), mounted.path.as_str(), mounted.read_only))
            .collect();
        assert_eq!(read, [("v", "/data", true), ("w", "/w", false)]);
        for wrong in [
            ["create", "--volume", "v"],
            ["create", "--volume", "v:data"],
            ["create", "--memory", "much"],
            ["create", "--env", "=x"],
        ] {
            assert!(refused(&wrong).contains("expected"), "{wrong:?}");
        }
    }
}
