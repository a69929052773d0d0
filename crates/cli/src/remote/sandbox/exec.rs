//! Commands in a sandbox over a WebSocket, with standard input, output and the exit code.

mod input;

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use reqwest::Upgraded;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{interval, sleep};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use uuid::Uuid;

use self::input::{Input, input};
use super::super::client::{Client, segment};
use super::super::print;
use super::super::retry::{MAX_OUTAGE, POLL_INTERVAL};
use super::{data_path, to_map};
use crate::arguments::Output;
use crate::arguments::remote::Exec;
use crate::exit::{CommandExit, PIPE_CLOSED, Unreachable};

type Socket = WebSocketStream<Upgraded>;

/// Pings keep proxies from closing an idle connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// As of a program that Ctrl-C ended: 128 and the number of SIGINT.
const INTERRUPTED_EXIT_CODE: u8 = 130;
/// As timeout(1) ends.
const TIMED_OUT_EXIT_CODE: u8 = 124;

pub async fn run(client: &Client, command: Exec, output: Output) -> anyhow::Result<()> {
    let path = format!("{}/execute/ws", data_path(client, &command.sandbox).await?);
    let id = Uuid::now_v7().simple().to_string();
    let first = execute_frame(&command, &id);
    let mut progress = Progress::new(id);
    if command.detach {
        return detach(client, &path, &first, &progress, output).await;
    }
    let signals = Arc::new(Signals::default());
    tokio::spawn(watch_interrupts(Arc::clone(&signals)));
    let mut given = (!command.no_stdin).then(input);
    let outcome = attach_until_end(client, &path, &first, &mut progress, &mut given, &signals, output);
    match outcome.await? {
        _ if signals.interrupted.load(Relaxed) => Err(CommandExit(INTERRUPTED_EXIT_CODE).into()),
        CommandOutcome::Exit(0) => Ok(()),
        CommandOutcome::Exit(code) => Err(CommandExit(u8::try_from(code).unwrap_or(u8::MAX)).into()),
        CommandOutcome::TimedOut(text) => {
            eprintln!("error: {text}");
            Err(CommandExit(TIMED_OUT_EXIT_CODE).into())
        }
    }
}

pub async fn logs(
    client: &Client,
    sandbox: &str,
    command: Option<String>,
    follow: bool,
    output: Output,
) -> anyhow::Result<()> {
    let data = data_path(client, sandbox).await?;
    let id = match command {
        Some(id) => id,
        None => {
            let known = client.get(&format!("{data}/commands"), &[]).await?;
            let latest = known["commands"][0]["command_id"].as_str();
            latest.ok_or_else(|| anyhow!("the sandbox has no commands"))?.to_owned()
        }
    };
    let path = format!("{data}/commands/{}/output", segment(&id));
    let tail = client.get(&path, &[]).await?;
    if !follow && output == Output::Json {
        print::json(&tail);
        return Ok(());
    }
    let mut progress = Progress::new(id);
    progress.is_started = true;
    for stream in ["stdout", "stderr"] {
        let offset = tail[format!("{stream}_offset")].as_u64().unwrap_or(0);
        if offset > 0 && output == Output::Table {
            eprintln!("the first {offset} bytes of {stream} are omitted");
        }
        *progress.stream_offset(stream) = offset;
        let frame = json!({"type": stream, "offset": offset, "data": tail[stream]});
        progress.print_frame(&frame, &mut io::stdout(), &mut io::stderr(), output)?;
    }
    if !follow {
        return Ok(());
    }
    let path = format!("{data}/execute/ws");
    let (first, mut given, signals) = (Value::Null, None, Signals::default());
    let outcome = attach_until_end(client, &path, &first, &mut progress, &mut given, &signals, output);
    match outcome.await? {
        CommandOutcome::Exit(0) => Ok(()),
        CommandOutcome::Exit(code) => Err(CommandExit(u8::try_from(code).unwrap_or(u8::MAX)).into()),
        CommandOutcome::TimedOut(text) => bail!("{text}"),
    }
}

/// The frame that starts a command.
fn execute_frame(command: &Exec, id: &str) -> Value {
    let mut frame = json!({
        "type": "execute",
        "command_id": id,
        "command": shell_line(&command.command),
        "timeout_seconds": command.timeout,
        "close_stdin": command.no_stdin || command.detach,
    });
    if command.detach {
        // No client stays connected.
        frame["idle_timeout_seconds"] = 0.into();
    }
    if let Some(shell) = &command.shell {
        frame["shell"] = shell.as_str().into();
    }
    match &command.user {
        Some(user) => {
            frame["run_config"] = json!({"user": user, "work_dir": command.cwd, "env_vars": to_map(&command.env)});
        }
        None => {
            if let Some(cwd) = &command.cwd {
                frame["cwd"] = cwd.as_str().into();
            }
            if !command.env.is_empty() {
                frame["env"] = json!(to_map(&command.env));
            }
        }
    }
    frame
}

/// One argument is a shell command line; several are a program and its arguments, quoted for the shell.
fn shell_line(command: &[String]) -> String {
    match command {
        [line] => line.clone(),
        words => words.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quote_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Starts a command without waiting for its end.
async fn detach(client: &Client, path: &str, first: &Value, progress: &Progress, output: Output) -> anyhow::Result<()> {
    let mut socket = client.socket(path).await?;
    socket.send(text_message(first)).await.map_err(|_| connection_lost())?;
    while let Some(Ok(message)) = socket.next().await {
        let Some(frame) = parse_message(&message) else { continue };
        match frame["type"].as_str() {
            Some("started") => {
                match output {
                    Output::Json => println!("{frame}"),
                    Output::Table => println!("{}", progress.id),
                }
                let _ = socket.close(None).await;
                return Ok(());
            }
            Some("error") => bail!("{}", print::text(&frame["error"])),
            _ => {}
        }
    }
    Err(connection_lost())
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
enum CommandOutcome {
    Exit(i64),
    TimedOut(String),
}

/// Shared state of the connection and the signal handler.
#[derive(Default)]
struct Signals {
    /// Whether input was sent. A broken connection may have lost some of it, so no reconnect follows.
    sent_input: AtomicBool,
    interrupted: AtomicBool,
    interrupt: Notify,
}

/// The first Ctrl-C kills the command, the second one exits. This is a separate task because printing may block.
async fn watch_interrupts(signals: Arc<Signals>) {
    while tokio::signal::ctrl_c().await.is_ok() {
        if signals.interrupted.swap(true, Relaxed) {
            std::process::exit(INTERRUPTED_EXIT_CODE.into());
        }
        signals.interrupt.notify_one();
    }
}

/// Follows a command until it ends, and reconnects at the last offsets when the connection breaks.
async fn attach_until_end(
    client: &Client,
    path: &str,
    first: &Value,
    progress: &mut Progress,
    given: &mut Option<mpsc::Receiver<Input>>,
    signals: &Signals,
    output: Output,
) -> anyhow::Result<CommandOutcome> {
    let mut since: Option<Instant> = None;
    loop {
        let before = progress.frames;
        let why = match attach(client, path, first, progress, given, signals, output).await {
            Ok(end) => return Ok(end),
            Err(why) => why,
        };
        if !why.is::<Unreachable>() || !progress.is_started {
            return Err(why);
        }
        if signals.sent_input.load(Relaxed) {
            let text = "the connection broke after input was sent, and some of it may be lost";
            bail!("{text}; the command may still run: see towpath sandbox ps and logs");
        }
        if progress.frames > before {
            since = None;
        }
        if since.get_or_insert_with(Instant::now).elapsed() >= MAX_OUTAGE {
            return Err(why);
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn attach(
    client: &Client,
    path: &str,
    first: &Value,
    progress: &mut Progress,
    given: &mut Option<mpsc::Receiver<Input>>,
    signals: &Signals,
    output: Output,
) -> anyhow::Result<CommandOutcome> {
    let mut socket = client.socket(path).await?;
    let frame = if progress.is_started {
        json!({
            "type": "reconnect", "command_id": progress.id, "stdout_offset": progress.stdout, "stderr_offset": progress.stderr,
        })
    } else {
        first.clone()
    };
    socket.send(text_message(&frame)).await.map_err(|_| connection_lost())?;
    let (sink, stream) = socket.split();
    // Concurrently: otherwise a command that writes before it reads would block both sides.
    tokio::select! {
        end = receive(stream, progress, output) => end,
        never = send(sink, given, signals) => match never {
            Err(error) => Err(error),
            Ok(never) => match never {},
        },
    }
}

/// Prints the output of the command until it ends.
async fn receive(
    mut stream: SplitStream<Socket>,
    progress: &mut Progress,
    output: Output,
) -> anyhow::Result<CommandOutcome> {
    while let Some(Ok(message)) = stream.next().await {
        let Some(frame) = parse_message(&message) else { continue };
        if let Some(end) = progress.print_frame(&frame, &mut io::stdout(), &mut io::stderr(), output)? {
            return Ok(end);
        }
    }
    Err(connection_lost())
}

/// Sends input and the kill request. It returns only if standard input cannot be read; `receive` reports a broken
/// connection.
async fn send(
    mut sink: SplitSink<Socket, Message>,
    given: &mut Option<mpsc::Receiver<Input>>,
    signals: &Signals,
) -> anyhow::Result<Infallible> {
    let mut beat = interval(PING_INTERVAL);
    // The first tick is immediate.
    beat.tick().await;
    if signals.interrupted.load(Relaxed) {
        signals.interrupt.notify_one();
    }
    loop {
        let message = tokio::select! {
            piece = next_input(given) => match piece {
                Some(Input::Text(data)) => {
                    signals.sent_input.store(true, Relaxed);
                    text_message(&json!({"type": "input", "data": data}))
                }
                Some(Input::Unreadable(why)) => bail!("standard input: {why}"),
                None => {
                    *given = None;
                    text_message(&json!({"type": "close_stdin"}))
                }
            },
            () = signals.interrupt.notified() => text_message(&json!({"type": "kill"})),
            _ = beat.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn next_input(given: &mut Option<mpsc::Receiver<Input>>) -> Option<Input> {
    match given {
        Some(given) => given.recv().await,
        None => std::future::pending().await,
    }
}

fn text_message(frame: &Value) -> Message {
    Message::text(frame.to_string())
}

fn parse_message(message: &Message) -> Option<Value> {
    match message {
        Message::Text(text) => serde_json::from_str(text.as_str()).ok(),
        _ => None,
    }
}

fn connection_lost() -> anyhow::Error {
    Unreachable("the connection to the sandbox broke".to_owned()).into()
}

/// How much of the output of a command was printed.
#[derive(Debug)]
struct Progress {
    id: String,
    is_started: bool,
    /// Received frames.
    frames: u64,
    stdout: u64,
    stderr: u64,
}

impl Progress {
    fn new(id: String) -> Self {
        Self {
            id,
            is_started: false,
            frames: 0,
            stdout: 0,
            stderr: 0,
        }
    }

    fn stream_offset(&mut self, stream: &str) -> &mut u64 {
        if stream == "stderr" {
            &mut self.stderr
        } else {
            &mut self.stdout
        }
    }

    /// Handles a frame of the server.
    fn print_frame(
        &mut self,
        frame: &Value,
        out: &mut impl Write,
        err: &mut impl Write,
        output: Output,
    ) -> anyhow::Result<Option<CommandOutcome>> {
        self.frames += 1;
        let kind = frame["type"].as_str().unwrap_or_default();
        if output == Output::Json {
            write_output(out, format!("{frame}\n").as_bytes())?;
        }
        match kind {
            "started" => self.is_started = true,
            "stdout" | "stderr" => {
                let data = frame["data"].as_str().unwrap_or_default();
                let at = frame["offset"].as_u64().unwrap_or(0);
                let progress = self.stream_offset(kind);
                let lost = at.saturating_sub(*progress);
                // These bytes are already printed.
                let known = usize::try_from(progress.saturating_sub(at)).unwrap_or(usize::MAX);
                *progress = (*progress).max(at.saturating_add(data.len() as u64));
                let fresh = data.as_bytes().get(known..).unwrap_or_default();
                if output == Output::Table {
                    if lost > 0 {
                        let note =
                            format!("\n[{lost} bytes of {kind} are lost: there was more than the sandbox keeps]\n");
                        write_output(err, note.as_bytes())?;
                    }
                    match kind {
                        "stdout" => write_output(out, fresh)?,
                        _ => write_output(err, fresh)?,
                    }
                }
            }
            "exit" => return Ok(Some(CommandOutcome::Exit(frame["exit_code"].as_i64().unwrap_or(1)))),
            "error" => {
                let said = print::text(&frame["error"]);
                return match frame["error_type"].as_str() {
                    Some("CommandTimeout") => Ok(Some(CommandOutcome::TimedOut(said))),
                    Some("NotReady" | "ServerShuttingDown") => Err(Unreachable(said).into()),
                    _ => Err(anyhow!("{said}")),
                };
            }
            _ => {}
        }
        Ok(None)
    }
}

fn write_output(to: &mut impl Write, bytes: &[u8]) -> anyhow::Result<()> {
    let done = to.write_all(bytes).and_then(|()| to.flush());
    done.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CommandExit(PIPE_CLOSED).into(),
        _ => anyhow!(error).context("printing the output of the command"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn taken(progress: &mut Progress, frame: &Value, output: Output) -> (String, String, Option<CommandOutcome>) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let end = progress.print_frame(frame, &mut out, &mut err, output).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), end)
    }

    #[test]
    fn arguments_reach_the_program_as_they_are() {
        assert_eq!(shell_line(&words(&["echo $HOME | wc"])), "echo $HOME | wc");
        assert_eq!(
            shell_line(&words(&["ls", "-la", "a b", "it's", ""])),
            r"ls -la 'a b' 'it'\''s' ''"
        );
    }

    #[test]
    fn a_user_takes_folder_and_variables_along() {
        let mut command = Exec {
            sandbox: "yard".to_owned(),
            command: words(&["id"]),
            cwd: Some("/tmp".to_owned()),
            env: vec![("A".to_owned(), "1".to_owned())],
            user: None,
            shell: None,
            timeout: 5,
            no_stdin: false,
            detach: false,
        };
        let plain = execute_frame(&command, "c");
        assert_eq!((&plain["cwd"], &plain["env"]), (&json!("/tmp"), &json!({"A": "1"})));
        assert_eq!(
            (&plain["close_stdin"], &plain["timeout_seconds"]),
            (&json!(false), &json!(5))
        );
        assert_eq!(plain["run_config"], Value::Null);
        command.user = Some("root".to_owned());
        command.detach = true;
        let of_root = execute_frame(&command, "c");
        let expected = json!({"user": "root", "work_dir": "/tmp", "env_vars": {"A": "1"}});
        assert_eq!(of_root["run_config"], expected);
        assert_eq!((&of_root["cwd"], &of_root["env"]), (&Value::Null, &Value::Null));
        assert_eq!(
            (&of_root["close_stdin"], &of_root["idle_timeout_seconds"]),
            (&json!(true), &json!(0))
        );
    }

    #[test]
    fn streams_go_on_where_they_were() {
        let mut progress = Progress::new("c".to_owned());
        let stdout = |offset: u64, data: &str| json!({"type": "stdout", "offset": offset, "data": data});
        assert_eq!(taken(&mut progress, &json!({"type": "started"}), Output::Table).2, None);
        assert!(progress.is_started);
        assert_eq!(taken(&mut progress, &stdout(0, "aä"), Output::Table).0, "aä");
        assert_eq!(progress.stdout, 3, "bytes are counted");
        let again = taken(&mut progress, &stdout(0, "aäb"), Output::Table);
        assert_eq!((again.0.as_str(), progress.stdout), ("b", 4));
        let (out, err, _) = taken(&mut progress, &stdout(10, "x"), Output::Table);
        assert!(err.contains("6 bytes of stdout are lost"), "{err}");
        assert_eq!((out.as_str(), progress.stdout, progress.stderr), ("x", 11, 0));
        let err = json!({"type": "stderr", "offset": 0, "data": "e"});
        assert_eq!(
            taken(&mut progress, &err, Output::Table),
            (String::new(), "e".to_owned(), None)
        );
        let end = taken(&mut progress, &json!({"type": "exit", "exit_code": 3}), Output::Table).2;
        assert_eq!(end, Some(CommandOutcome::Exit(3)));
    }

    #[test]
    fn programs_read_a_frame_in_each_line() {
        let mut progress = Progress::new("c".to_owned());
        let frame = json!({"type": "stderr", "offset": 0, "data": "e\n"});
        let (out, err, _) = taken(&mut progress, &frame, Output::Json);
        assert_eq!(
            (serde_json::from_str::<Value>(&out).unwrap(), err),
            (frame, String::new())
        );
        assert_eq!(out.lines().count(), 1);
    }

    #[test]
    fn errors_are_told_apart() {
        let mut progress = Progress::new("c".to_owned());
        let mut error = |kind: &str| {
            let frame = json!({"type": "error", "error_type": kind, "error": "why"});
            progress.print_frame(&frame, &mut io::sink(), &mut io::sink(), Output::Table)
        };
        assert_eq!(
            error("CommandTimeout").unwrap(),
            Some(CommandOutcome::TimedOut("why".to_owned()))
        );
        assert!(error("NotReady").unwrap_err().is::<Unreachable>());
        let refused = error("CommandError").unwrap_err();
        assert!(!refused.is::<Unreachable>() && refused.to_string() == "why");
    }
}
