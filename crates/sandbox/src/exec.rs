//! Commands in a box.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The id of the command in its box: 1 to 128 letters, digits, `-` and `_`. A second request with the same id
    /// attaches to the command from offset 0 instead of running it again.
    pub command_id: String,
    /// What the shell runs (`-c`).
    pub command: String,
    /// The shell. `/bin/sh` is in where the box does not have it.
    pub shell: String,
    /// The user; the box's by default.
    pub user: Option<String>,
    /// The working directory; the box's `work_dir` by default, to which relative paths refer.
    pub cwd: Option<String>,
    /// Variables over those of the box.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The command is killed after so many seconds. 0: never.
    pub timeout_seconds: u64,
    /// Seconds without a client after which the command is killed. 0: never.
    pub idle_timeout_seconds: u64,
    /// Seconds that output and exit code are kept after the end. Negative: as long as the box runs.
    pub ttl_seconds: i64,
    /// Whether the command is killed when its last client goes away.
    pub kill_on_disconnect: bool,
    /// Whether standard input is empty. A terminal ignores it.
    pub close_stdin: bool,
    /// A terminal of this size. Its output is all stdout.
    pub pty: Option<PtySize>,
}

impl ExecRequest {
    /// A command with the defaults of clients and without standard input.
    #[must_use]
    pub fn new(command_id: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            command_id: command_id.into(),
            command: command.into(),
            shell: "/bin/bash".to_owned(),
            user: None,
            cwd: None,
            env: BTreeMap::new(),
            timeout_seconds: 60,
            idle_timeout_seconds: 300,
            ttl_seconds: 600,
            kill_on_disconnect: false,
            close_stdin: true,
            pty: None,
        }
    }
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

impl Default for PtySize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// Output. Valid UTF-8 that ends at a character boundary, if the stream was attached at one.
    Stdout {
        /// Bytes of the stream before `data`. If it is greater than expected, output in between was lost.
        offset: u64,
        data: Bytes,
    },
    /// Output to standard error, in the same way.
    Stderr {
        /// Bytes of the stream before `data`.
        offset: u64,
        data: Bytes,
    },
    /// The last event: the command has ended and its output is complete.
    Exit {
        /// Its exit code, or 128 and the number of the signal.
        exit_code: i32,
        /// Whether it was killed for `timeout_seconds`.
        timed_out: bool,
    },
}

/// A command that the agent knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStatus {
    pub command_id: String,
    /// Its process id in the box.
    pub pid: i32,
    /// Its exit code, once it has ended.
    pub exit_code: Option<i32>,
    /// Seconds since it was started.
    #[serde(default)]
    pub age_seconds: u64,
}

/// The end of the output of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputTail {
    /// Bytes of standard output before `stdout`.
    pub stdout_offset: u64,
    /// The end of standard output, of a terminal too.
    pub stdout: String,
    /// Bytes of standard error before `stderr`.
    pub stderr_offset: u64,
    /// The end of standard error.
    pub stderr: String,
    /// Its exit code, once it has ended and its output is complete.
    pub exit_code: Option<i32>,
    /// Whether it was killed for `timeout_seconds`.
    pub timed_out: bool,
}
