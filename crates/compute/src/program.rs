//! Runs one program to its end: closed environment, own process group, limited time and output, streamed lines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::log::{LONGEST_LINE, Log, Splitter};
use crate::metric;
use crate::orphans::{self, RUN_MARK};
use crate::tree::{self, Limits};

/// Limit of output that is kept for a caller.
const KEPT_OUTPUT: usize = 64 << 20;
/// How long to wait for output after the end of a program.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// How often a folder is looked at that must not grow too large.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// A program to run.
pub struct Program {
    command: Command,
    what: &'static str,
    limit: Duration,
    watched: Option<FolderWatch>,
    run: String,
}

/// Folders that must not grow too large.
#[derive(Clone)]
struct FolderWatch {
    folders: Vec<PathBuf>,
    /// Bytes of all of them together, where that is bounded.
    max_bytes: Option<u64>,
    /// Bytes that stay free on their disk.
    free: u64,
}

/// How a program ended.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to its standard output, where that was kept.
    pub output: Vec<u8>,
    /// The last of what it wrote to its standard error.
    pub error: String,
}

impl Program {
    /// `what` describes it in messages and metrics. It gets only the given environment, and no input.
    #[must_use]
    pub fn new(what: &'static str, program: impl AsRef<OsStr>, limit: Duration) -> Self {
        let mut command = Command::new(program);
        let run = Uuid::now_v7().to_string();
        command
            .env_clear()
            .env(RUN_MARK, &run)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        Self {
            command,
            what,
            limit,
            watched: None,
            run,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds variables.
    #[must_use]
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(mut self, variables: impl IntoIterator<Item = (K, V)>) -> Self {
        self.command.envs(variables);
        self
    }

    /// Runs in this folder.
    #[must_use]
    pub fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Stops it when `folders` together exceed the size of a tree, or leave too little disk space.
    #[must_use]
    pub fn with_size_limit<'a>(mut self, folders: impl IntoIterator<Item = &'a Path>, limits: Limits) -> Self {
        self.watched = Some(FolderWatch {
            folders: folders.into_iter().map(Path::to_owned).collect(),
            max_bytes: Some(limits.bytes),
            free: limits.free,
        });
        self
    }

    /// Stops it when the disk of `folder` has less than `free` bytes left.
    #[must_use]
    pub fn reserve_disk_space(mut self, folder: &Path, free: u64) -> Self {
        self.watched = Some(FolderWatch {
            folders: vec![folder.to_owned()],
            max_bytes: None,
            free,
        });
        self
    }

    /// Runs it, its output as lines into the log.
    pub async fn run(self, log: &Log, cancel: &CancellationToken) -> Result<ProgramOutput> {
        // Boxed, since its large state would be embedded in each caller.
        Box::pin(self.perform(Some(log), cancel)).await
    }

    /// Runs it and keeps its output.
    pub async fn read(self, cancel: &CancellationToken) -> Result<ProgramOutput> {
        Box::pin(self.perform(None, cancel)).await
    }

    async fn perform(mut self, log: Option<&Log>, cancel: &CancellationToken) -> Result<ProgramOutput> {
        let begun = Instant::now();
        let program = self.command.as_std().get_program().to_string_lossy().into_owned();
        let mut child = self.command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::Refused(format!("this machine has no program {program:?}")),
            _ => Error::Io {
                what: format!("starting {program}"),
                source,
            },
        })?;
        // Dropped on every path, including cancellation.
        let group = Group::of(&child, self.run);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut tail = Vec::new();
        let mut output = Vec::new();
        let work = async {
            let kept = &mut output;
            let read = async {
                match (stdout, log) {
                    (Some(stdout), Some(log)) => lines(stdout, log, |_| {}).await,
                    (Some(stdout), None) => whole(stdout, kept).await,
                    (None, _) => Ok(()),
                }
            };
            let errors = async {
                match stderr {
                    Some(stderr) => lines(stderr, log.unwrap_or(&Log::none()), |line| keep(&mut tail, line)).await,
                    None => Ok(()),
                }
            };
            let ended = CancellationToken::new();
            let both = async {
                let (read, errors) = tokio::join!(read, errors);
                read.and(errors)
            };
            // Something it left running may hold its output open for ever.
            let both = async {
                tokio::select! {
                    both = both => both,
                    () = async { ended.cancelled().await; tokio::time::sleep(OUTPUT_GRACE).await } => Ok(()),
                }
            };
            let status = async {
                let status = child.wait().await;
                ended.cancel();
                status.map_err(Error::io("waiting for a program"))
            };
            let (read, status) = tokio::join!(both, status);
            read.and(status)
        };
        let what = self.what;
        let status = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::Cancelled),
            () = tokio::time::sleep(self.limit) => {
                Err(Error::TimedOut(format!("{what} took longer than {} s", self.limit.as_secs())))
            }
            too_large = watch(self.watched.as_ref()) => Err(too_large),
            status = work => status,
        };
        drop(group);
        let status = status?;
        let seconds = begun.elapsed().as_secs_f64();
        metrics::histogram!(metric::PROGRAM_SECONDS, "what" => what).record(seconds);
        Ok(ProgramOutput {
            code: status.code(),
            output,
            error: String::from_utf8_lossy(&tail).trim().to_owned(),
        })
    }
}

/// A process group, ended with everything in it when this is dropped.
pub(crate) struct Group {
    leader: Option<Pid>,
    run: String,
}

impl Group {
    pub(crate) fn of(child: &Child, run: String) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Self { leader, run }
    }

    pub(crate) fn end(&self) {
        if let Some(leader) = self.leader {
            // Also after the leader has ended: the group id stays reserved while the group has members.
            let _ = killpg(leader, Signal::SIGKILL);
        }
        orphans::end(RUN_MARK, &self.run);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

async fn watch(watched: Option<&FolderWatch>) -> Error {
    let Some(watched) = watched else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(WATCH_EVERY).await;
        let watched = watched.clone();
        let looked = tokio::task::spawn_blocking(move || watched.check()).await;
        if let Ok(Err(error)) = looked {
            return error;
        }
    }
}

impl FolderWatch {
    fn check(&self) -> Result<()> {
        for folder in &self.folders {
            tree::has_room(folder, self.free)?;
        }
        let Some(most) = self.max_bytes else { return Ok(()) };
        let bytes: u64 = self.folders.iter().map(|folder| tree::bytes(folder, most)).sum();
        if bytes > most {
            return Err(Error::Refused(format!("it is larger than {} MB", most >> 20)));
        }
        Ok(())
    }
}

/// Reads lines into the log; `also` sees each of them.
pub(crate) async fn lines(from: impl AsyncRead + Unpin, log: &Log, mut also: impl FnMut(&[u8])) -> Result<()> {
    let mut from = BufReader::new(from);
    let mut lines = Splitter::new(log);
    let mut buffer = vec![0; 8192];
    loop {
        let read = from
            .read(&mut buffer)
            .await
            .map_err(Error::io("reading a program's output"))?;
        if read == 0 {
            break;
        }
        lines.take(&buffer[..read], &mut also);
    }
    lines.finish(also);
    Ok(())
}

fn keep(tail: &mut Vec<u8>, line: &[u8]) {
    if line.is_empty() {
        return;
    }
    if !tail.is_empty() {
        tail.push(b'\n');
    }
    tail.extend_from_slice(line);
    let excess = tail.len().saturating_sub(2 * LONGEST_LINE);
    tail.drain(..excess);
}

async fn whole(from: impl AsyncRead + Unpin, to: &mut Vec<u8>) -> Result<()> {
    let limit = KEPT_OUTPUT as u64 + 1;
    from.take(limit)
        .read_to_end(to)
        .await
        .map_err(Error::io("reading a program's output"))?;
    if to.len() > KEPT_OUTPUT {
        return Err(Error::Refused("a program wrote too much output".to_owned()));
    }
    Ok(())
}
