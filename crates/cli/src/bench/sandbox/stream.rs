//! Commands over WebSockets, and output whose connection is cut.

use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use uuid::Uuid;

use super::Report;
use super::platform::Platform;
use crate::arguments::BenchSandbox;

const CUTS: u64 = 5;
/// Bytes of a line: a number of nine digits and its end.
const LINE: usize = 10;
const FIRST_LINE: u64 = 100_000_000;
/// Connections that may break besides those that are cut.
const MAX_BREAKS: u64 = 10;

/// Runs a command to its successful end, over a connection of its own.
pub(super) async fn run(platform: &Platform, sandbox: &str, command: &str) -> anyhow::Result<()> {
    let mut socket = connect(platform, sandbox, &execute_frame(&new_id(), command)).await?;
    while let Some(frame) = next_frame(&mut socket).await? {
        if let Some(code) = exit_code(&frame)? {
            ensure!(code == 0, "{command}: exit code {code}");
            return Ok(());
        }
    }
    bail!("{command}: the connection broke")
}

/// Numbered lines, of which none may be lost or doubled although the connection is cut.
pub(super) async fn measure(
    options: &BenchSandbox,
    platform: &Platform,
    sandbox: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let bytes = options.output_mb * 1_000_000;
    let id = new_id();
    let command = format!("seq {FIRST_LINE} 999999999 | head -c {bytes}");
    let mut frame = execute_frame(&id, &command);
    let mut received = 0;
    let mut cuts = 0;
    let begun = Instant::now();
    'connections: for connections in 0.. {
        ensure!(
            connections <= CUTS + MAX_BREAKS,
            "the connection breaks again and again"
        );
        let mut socket = connect(platform, sandbox, &frame).await?;
        while let Some(message) = next_frame(&mut socket).await? {
            if let Some(code) = exit_code(&message)? {
                ensure!(code == 0, "the command of the stream ended with exit code {code}");
                break 'connections;
            }
            if message["type"] != "stdout" {
                continue;
            }
            let data = message["data"].as_str().unwrap_or_default().as_bytes();
            let offset = message["offset"].as_u64().unwrap_or(received);
            ensure!(offset == received, "output at {offset} follows output up to {received}");
            check_lines(received, data)?;
            received += data.len() as u64;
            if cuts < CUTS && received > bytes / (CUTS + 1) * (cuts + 1) {
                cuts += 1;
                break;
            }
        }
        frame = json!({"type": "reconnect", "command_id": id, "stdout_offset": received, "stderr_offset": 0});
    }
    ensure!(received == bytes, "{received} of {bytes} bytes of output were received");
    let rate = bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
    let what = format!(
        "server: {} MB of output, {cuts} cuts, every byte compared",
        options.output_mb
    );
    report.note(what, rate, "MB/s");
    Ok(())
}

fn check_lines(from: u64, data: &[u8]) -> anyhow::Result<()> {
    let mut at = from;
    let mut rest = data;
    while !rest.is_empty() {
        let line = format!("{}\n", FIRST_LINE + at / LINE as u64);
        let begin = usize::try_from(at % LINE as u64)?;
        let count = (LINE - begin).min(rest.len());
        let expected = &line.as_bytes()[begin..begin + count];
        ensure!(rest[..count] == *expected, "the output at {at} is lost or doubled");
        at += count as u64;
        rest = &rest[count..];
    }
    Ok(())
}

type Socket = WebSocketStream<TcpStream>;

async fn connect(platform: &Platform, sandbox: &str, first: &Value) -> anyhow::Result<Socket> {
    let host = platform.base.strip_prefix("http://").context("the server has no TLS")?;
    let mut request = format!("ws://{host}{sandbox}/execute/ws").into_client_request()?;
    request.headers_mut().insert("x-api-key", platform.key.clone());
    let connection = TcpStream::connect(host).await?;
    connection.set_nodelay(true)?;
    let (mut socket, _) = tokio_tungstenite::client_async(request, connection).await?;
    socket.send(Message::text(first.to_string())).await?;
    Ok(socket)
}

async fn next_frame(socket: &mut Socket) -> anyhow::Result<Option<Value>> {
    while let Some(message) = socket.next().await {
        if let Message::Text(text) = message? {
            return Ok(Some(serde_json::from_str(text.as_str())?));
        }
    }
    Ok(None)
}

/// The end of the command, if the frame tells it.
fn exit_code(frame: &Value) -> anyhow::Result<Option<i64>> {
    match frame["type"].as_str() {
        Some("exit") => Ok(frame["exit_code"].as_i64()),
        Some("error") => bail!("the command failed: {}", frame["error"]),
        _ => Ok(None),
    }
}

fn execute_frame(id: &str, command: &str) -> Value {
    json!({"type": "execute", "command_id": id, "command": command, "timeout_seconds": 0, "close_stdin": true})
}

fn new_id() -> String {
    Uuid::now_v7().simple().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_from_any_byte() {
        let text = b"100000000\n100000001\n100000002\n";
        check_lines(0, text).unwrap();
        check_lines(13, &text[13..]).unwrap();
        check_lines(10, text).unwrap_err();
        check_lines(0, &text[10..]).unwrap_err();
    }
}
