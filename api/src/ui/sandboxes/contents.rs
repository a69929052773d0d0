//! Commands and files of a running sandbox, for its page.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;
use towpath_domain::Timestamp;
use towpath_sandbox::{BoxAgent, ByteRange, CommandStatus, Entry, Error, OutputTail};
use towpath_store::sandboxes::boxes::SandboxBox;

use crate::app::App;
use crate::platform::sandboxes::commands::latest_first;
use crate::platform::sandboxes::readiness::{none_if_stopped, running_agent};
use crate::ui::formatting;

/// Maximum size of each output on a page.
const MAX_OUTPUT_BYTES: usize = 32 << 10;
/// Maximum number of files on a page.
const MAX_ENTRIES: usize = 200;
/// Maximum size of a file preview.
const MAX_PREVIEW_BYTES: u64 = 32 << 10;
/// The page refreshes every two seconds, so it must not wait much longer for the agent of a sandbox.
const AGENT_TIMEOUT: Duration = Duration::from_secs(4);

/// Query of the detail page.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(in crate::ui) struct DetailQuery {
    /// Command whose output is shown; by default the latest.
    pub(super) command: String,
    /// Folder or file that is shown; by default the home directory.
    pub(super) path: String,
}

/// Commands and files of a running sandbox.
pub(super) struct Contents {
    pub(super) commands: Vec<CommandRow>,
    pub(super) said: Option<OutputView>,
    pub(super) files: Option<FileView>,
    /// Why `files` is missing.
    pub(super) unread: Option<String>,
}

pub(super) struct CommandRow {
    pub(super) id: String,
    pub(super) state: String,
    pub(super) tone: &'static str,
    pub(super) pid: i32,
    pub(super) age: String,
    pub(super) is_shown: bool,
}

/// The end of the output of a command.
pub(super) struct OutputView {
    pub(super) id: String,
    /// Whether only a part is shown.
    pub(super) is_cut: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// A folder, or the beginning of a file.
pub(super) struct FileView {
    pub(super) path: String,
    pub(super) above: Option<String>,
    pub(super) is_dir: bool,
    /// Whether only a part is shown.
    pub(super) is_cut: bool,
    pub(super) entries: Vec<FileRow>,
    pub(super) bytes: String,
    /// `None` for a binary file.
    pub(super) text: Option<String>,
}

pub(super) struct FileRow {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) is_dir: bool,
    pub(super) bytes: String,
    pub(super) changed: String,
    pub(super) age: String,
}

/// The contents of a running sandbox, or the error; the page shows either.
pub(super) async fn load_contents(
    app: &App,
    row: &SandboxBox,
    what: &DetailQuery,
) -> (Option<Contents>, Option<String>) {
    let looked = async {
        match running_agent(app, row).await {
            Ok(Some(agent)) => none_if_stopped(app, row.id, read_contents(app, &agent, what).await),
            Ok(None) => Ok(None),
            Err(refused) => Err(refused),
        }
    };
    match timeout(AGENT_TIMEOUT, looked).await {
        Ok(Ok(inside)) => (inside, None),
        Ok(Err(refused)) => (None, Some(refused.text().to_owned())),
        Err(_) => (None, Some("the sandbox did not respond in time".to_owned())),
    }
}

async fn read_contents(app: &App, agent: &BoxAgent, what: &DetailQuery) -> Result<Contents, Error> {
    let known = latest_first(agent.commands().await?);
    let chosen = match what.command.as_str() {
        "" => known.first(),
        id => known.iter().find(|command| command.command_id == id),
    };
    let said = match chosen {
        // The command may have been removed since.
        Some(command) => agent.tail(&command.command_id, MAX_OUTPUT_BYTES).await.ok(),
        None => None,
    };
    let said = chosen.zip(said).map(|(command, tail)| output_view(command, &tail));
    let (files, unread) = match file_view(app, agent, &what.path).await {
        Ok(files) => (Some(files), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let shown = said.as_ref().map(|said| said.id.as_str());
    Ok(Contents {
        commands: known.iter().map(|command| command_row(command, shown)).collect(),
        said,
        files,
        unread,
    })
}

pub(super) fn command_row(command: &CommandStatus, shown: Option<&str>) -> CommandRow {
    let (state, tone) = match command.exit_code {
        None => ("running".to_owned(), "busy"),
        Some(0) => ("exit 0".to_owned(), "good"),
        Some(code) => (format!("exit {code}"), "bad"),
    };
    CommandRow {
        state,
        tone,
        pid: command.pid,
        age: format!("{} ago", formatting::span(Duration::from_secs(command.age_seconds))),
        is_shown: shown == Some(command.command_id.as_str()),
        id: command.command_id.clone(),
    }
}

fn output_view(command: &CommandStatus, tail: &OutputTail) -> OutputView {
    OutputView {
        id: command.command_id.clone(),
        is_cut: tail.stdout_offset > 0 || tail.stderr_offset > 0,
        stdout: strip_escapes(&tail.stdout),
        stderr: strip_escapes(&tail.stderr),
    }
}

/// A folder, or the beginning of a file.
async fn file_view(app: &App, agent: &BoxAgent, path: &str) -> Result<FileView, Error> {
    let stat = agent.stat(if path.is_empty() { "." } else { path }).await?;
    let above = parent_folder(&stat.path);
    if stat.is_dir {
        let page = agent.list(&stat.path, MAX_ENTRIES).await?;
        let now = app.clock.now();
        return Ok(FileView {
            above,
            is_dir: true,
            is_cut: page.truncated,
            entries: page.matches.into_iter().map(|entry| file_row(entry, now)).collect(),
            bytes: String::new(),
            text: None,
            path: stat.path,
        });
    }
    let content = match stat.size_bytes {
        0 => Vec::new(),
        _ => {
            let range = ByteRange::From(0, Some(MAX_PREVIEW_BYTES - 1));
            agent.download(&stat.path, Some(range)).await?.read_to_end().await?
        }
    };
    Ok(FileView {
        above,
        is_dir: false,
        is_cut: stat.size_bytes > MAX_PREVIEW_BYTES,
        entries: Vec::new(),
        bytes: byte_text(stat.size_bytes),
        text: (!content.contains(&0)).then(|| String::from_utf8_lossy(&content).into_owned()),
        path: stat.path,
    })
}

fn file_row(entry: Entry, now: Timestamp) -> FileRow {
    let changed = Timestamp::from_micros(entry.modified_ns / 1000);
    FileRow {
        name: entry.path.rsplit('/').next().unwrap_or_default().to_owned(),
        is_dir: entry.is_dir,
        bytes: if entry.is_dir {
            String::new()
        } else {
            byte_text(entry.size_bytes)
        },
        changed: formatting::moment(changed),
        age: formatting::relative(changed, now),
        path: entry.path,
    }
}

fn byte_text(number: u64) -> String {
    formatting::bytes(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Parent of an absolute path.
fn parent_folder(path: &str) -> Option<String> {
    let (above, name) = path.trim_end_matches('/').rsplit_once('/')?;
    if name.is_empty() {
        return None;
    }
    Some(if above.is_empty() { "/" } else { above }.to_owned())
}

/// Output without terminal control sequences.
fn strip_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => skip_escape(&mut letters),
            '\n' | '\t' => plain.push(letter),
            letter if letter.is_control() => {}
            letter => plain.push(letter),
        }
    }
    plain
}

fn skip_escape(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match letters.next() {
        // Control sequence: parameters and a final letter.
        Some('[') => while letters.next().is_some_and(|letter| !('@'..='~').contains(&letter)) {},
        // Character set selection.
        Some('(' | ')') => drop(letters.next()),
        // Window title, up to BEL or another escape.
        Some(']') => {
            while let Some(letter) = letters.next() {
                if letter == '\u{7}' {
                    return;
                }
                if letter == '\u{1b}' {
                    letters.next_if_eq(&'\\');
                    return;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_shown_without_what_a_terminal_is_told() {
        assert_eq!(strip_escapes("a\u{1b}[1;31mred\u{1b}[0m\r\n\tb\u{7}"), "ared\n\tb");
        assert_eq!(
            strip_escapes("\u{1b}]0;title\u{7}text\u{1b}]2;x\u{1b}\\ end"),
            "text end"
        );
        assert_eq!(strip_escapes("cut\u{1b}[3"), "cut");
    }

    #[test]
    fn folders_lie_in_folders() {
        assert_eq!(parent_folder("/home/user").as_deref(), Some("/home"));
        assert_eq!(parent_folder("/home/").as_deref(), Some("/"));
        assert_eq!(parent_folder("/"), None);
    }
}
