//! Running commands over a restart: Towpath is killed, and later stopped, while commands of a sandbox write. Each client
//! reconnects with its offset. No byte of output is lost, and none comes twice.
//!
//! `TOWPATH_TEST_SANDBOX_COMMANDS` is the number of commands (default 100).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use towpath_tests::{Api, Exit, Layout, World, environment, http, until};

use super::sandboxes::{Leftovers, has_sandboxes};

const DEFAULT_COMMANDS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(300);
/// Delay of a client that reconnects.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const BOXES: &str = "/v2/sandboxes/boxes";
/// Bytes of a line after its number.
const LINE: usize = 2000;

#[tokio::test(flavor = "multi_thread")]
async fn output_of_running_commands_survives_restarts() {
    let wanted = environment("TOWPATH_TEST_SANDBOX_COMMANDS");
    let wanted = wanted.map_or(DEFAULT_COMMANDS, |text| text.parse().expect("a number of commands"));
    let plan = World::plan(Layout::Embedded).env("TOWPATH_SANDBOXES_STOP_GRACE_SECONDS", "1");
    let Some(mut world) = plan.start().await else { return };
    if !has_sandboxes(&world.api).await {
        world.stop().await;
        return;
    }
    let _leftovers = Leftovers(world.data());
    let made = world
        .api
        .post(BOXES, &json!({"name": "writers", "idle_ttl_seconds": 0}))
        .await;
    let made = made.expect(201);
    let id = made["id"].as_str().expect("a sandbox has an id").to_owned();

    let received = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..wanted {
        let client = CommandClient {
            api: world.api.clone(),
            id: id.clone(),
            command_id: format!("writer-{number}"),
            lines: Arc::clone(&received),
        };
        clients.spawn(client.follow());
    }
    let lines = async |more: usize| {
        let before = received.load(Ordering::Relaxed);
        until("lines of commands", PATIENCE, async || {
            (received.load(Ordering::Relaxed) >= before + more).then_some(())
        })
        .await;
    };
    lines(wanted).await;
    world.process("dev").kill().await;
    world.revive().await;
    lines(wanted).await;
    let exit = world.process("dev").terminate(Duration::from_secs(90)).await;
    assert_eq!(exit, Exit::Code(0));
    world.revive().await;
    lines(wanted).await;
    until("the signal to the commands", PATIENCE, async || {
        let body = json!({"command": "touch ~/end", "timeout": 30});
        let path = format!("/v2/sandboxes/dp/{id}/execute");
        let sent = world.api.request(Method::POST, &path, Some(&body)).await.ok()?;
        sent.status.is_success().then_some(())
    })
    .await;
    let mut ended = 0;
    while let Some(output) = clients.join_next().await {
        check_output(&output.expect("the client ends without a panic"));
        ended += 1;
    }
    assert_eq!(ended, wanted);
    let deleted = world
        .api
        .request(Method::DELETE, &format!("{BOXES}/writers"), None)
        .await;
    deleted.expect("the server is there").expect(204);
    world.stop().await;
}

/// The lines are numbered without a gap, and the last one says how many there were.
fn check_output(output: &[u8]) {
    let text = std::str::from_utf8(output).expect("the output is text");
    let mut lines: Vec<&str> = text.lines().collect();
    let last = lines.pop().expect("a command writes a last line");
    assert_eq!(last, format!("end {}", lines.len()));
    for (number, line) in lines.iter().enumerate() {
        let expected = format!("{} {}", number + 1, "0".repeat(LINE));
        assert!(*line == expected, "line {} of {}: {line:.40}", number + 1, lines.len());
    }
}

/// A client of one command over server-sent events, which reconnects until the command has ended.
struct CommandClient {
    api: Api,
    id: String,
    command_id: String,
    /// Lines that all clients received.
    lines: Arc<AtomicUsize>,
}

/// What a client has of its command.
#[derive(Default)]
struct Received {
    is_started: bool,
    output: Vec<u8>,
    has_ended: bool,
}

impl CommandClient {
    async fn follow(self) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE * 2;
        let mut received = Received::default();
        while !received.has_ended {
            assert!(Instant::now() < deadline, "{} does not end", self.command_id);
            if self.read(&mut received).await.is_err() || !received.has_ended {
                sleep(RETRY_DELAY).await;
            }
        }
        received.output
    }

    /// Reads one connection to its end.
    async fn read(&self, received: &mut Received) -> reqwest::Result<()> {
        let (route, body) = if received.is_started {
            let body = json!({"command_id": self.command_id, "stdout_offset": received.output.len()});
            ("resume", body)
        } else {
            ("start", self.request())
        };
        let url = format!("{}/v2/sandboxes/dp/{}/execute/stream/{route}", self.api.base(), self.id);
        let mut request = http().post(url).json(&body);
        for (name, value) in self.api.credentials() {
            request = request.header(name, value);
        }
        let mut response = request.send().await?.error_for_status()?;
        let mut pending = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            pending.extend_from_slice(&chunk);
            while let Some(end) = pending.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = pending.drain(..end + 2).collect();
                self.take_event(received, &event);
            }
        }
        Ok(())
    }

    fn request(&self) -> Value {
        let script = format!(
            "line=$(printf '%0{LINE}d' 0); n=0; until [ -e ~/end ]; do n=$((n + 1)); echo \"$n $line\"; sleep 0.5; done; \
             echo \"end $n\""
        );
        json!({
            "command": script, "command_id": self.command_id, "shell": "/bin/sh", "timeout_seconds": 0,
            "idle_timeout_seconds": 0,
        })
    }

    fn take_event(&self, received: &mut Received, event: &[u8]) {
        let event = std::str::from_utf8(event).expect("an event is text");
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        let Some(kind) = field("event: ") else { return };
        let data: Value = serde_json::from_str(field("data: ").unwrap_or_default()).expect("data is JSON");
        match kind {
            "started" => received.is_started = true,
            "stdout" => {
                let offset = data["offset"].as_u64();
                assert_eq!(
                    offset,
                    Some(received.output.len() as u64),
                    "{}: {kind}",
                    self.command_id
                );
                let bytes = BASE64.decode(data["data"].as_str().unwrap_or_default());
                let bytes = bytes.expect("the output is base64");
                let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
                received.output.extend_from_slice(&bytes);
                self.lines.fetch_add(lines, Ordering::Relaxed);
            }
            "exit" => {
                assert_eq!(data["exit_code"], 0, "{}", self.command_id);
                received.has_ended = true;
            }
            _ => {}
        }
    }
}
