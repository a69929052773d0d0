//! A connection: one request and what belongs to it.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{Interest, Ready, copy_bidirectional};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::Agent;
use super::client::{Client, ClientEvent};
use super::session::Session;
use super::spawn;
use super::users::User;
use crate::descriptor;
use crate::wire::{self, CommandControl, Failure, FailureKind, FrameKind, Reply, Request};

/// Until the request has come, and until a port answers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a client is looked for whose input no one reads.
const LOOK: Duration = Duration::from_secs(1);
/// Size limit of a file operation, which is an argument of its process. The kernel's limit is 128 KiB.
const LONGEST_CALL: usize = 100 << 10;

pub(super) async fn serve_connection(agent: &Arc<Agent>, mut stream: UnixStream) -> io::Result<()> {
    let frame = timeout(REQUEST_TIMEOUT, wire::read_frame(&mut stream)).await??;
    let Some(frame) = frame else { return Ok(()) };
    let request: Request = frame.parse_json()?;
    let reply = match request {
        Request::Hello => Reply::Hello { version: wire::VERSION },
        Request::Execute { command } => match agent.execute(&command) {
            Ok(session) => return stream_command(&session, stream, [0, 0]).await,
            Err(failure) => Reply::Failed { failure },
        },
        Request::Attach {
            command_id,
            stdout_offset,
            stderr_offset,
        } => match agent.find(&command_id) {
            Some(session) => return stream_command(&session, stream, [stdout_offset, stderr_offset]).await,
            None => unknown_command(&command_id),
        },
        Request::Kill { command_id } => match agent.find(&command_id) {
            Some(session) => {
                session.send_signal(Signal::SIGKILL);
                Reply::Done
            }
            None => unknown_command(&command_id),
        },
        Request::Terminate => {
            for session in agent.all() {
                session.send_signal(Signal::SIGTERM);
            }
            Reply::Done
        }
        Request::Commands => Reply::Commands {
            commands: agent.statuses(),
        },
        Request::Tail { command_id, most } => match agent.find(&command_id) {
            Some(session) => Reply::Tail {
                tail: session.tail(most.min(wire::TAIL_BYTES)),
            },
            None => unknown_command(&command_id),
        },
        Request::Dial { port } => return proxy_port(stream, port).await,
        Request::Proxy => match agent.proxy() {
            Some(listener) => {
                wire::write_json(&mut stream, &Reply::Done).await?;
                return descriptor::send(&stream, listener);
            }
            None => Reply::Failed {
                failure: Failure::new(FailureKind::Unsupported, "the sandbox was started without a proxy"),
            },
        },
        Request::File { user, call } => {
            let user = match User::find(agent.setup(), user.as_deref()) {
                Ok(user) => user,
                Err(failure) => return wire::write_json(&mut stream, &Reply::Failed { failure }).await,
            };
            let call = serde_json::to_string(&call)?;
            if call.len() > LONGEST_CALL {
                let failure = Failure::new(FailureKind::Invalid, "path or pattern is too long");
                return wire::write_json(&mut stream, &Reply::Failed { failure }).await;
            }
            // The user's process has the connection from here on.
            let connection = stream.into_std()?;
            connection.set_nonblocking(false)?;
            let mut spare = connection.try_clone()?;
            let spawned = spawn::spawn_file_operation(agent.setup(), &user, &call, OwnedFd::from(connection));
            return spawned.or_else(|error| {
                let text = format!("the sandbox cannot start a process for the operation: {error}");
                let failure = Failure::new(FailureKind::Busy, text);
                wire::write_json_blocking(&mut spare, &Reply::Failed { failure })
            });
        }
    };
    wire::write_json(&mut stream, &reply).await
}

fn unknown_command(command_id: &str) -> Reply {
    let text = format!("command {command_id} does not exist: it was never started, or its ttl_seconds have passed");
    Reply::Failed {
        failure: Failure::new(FailureKind::NotFound, text),
    }
}

/// Listens to a command until it has ended or the client goes.
async fn stream_command(session: &Arc<Session>, stream: UnixStream, offsets: [u64; 2]) -> io::Result<()> {
    let mut client = Client::attach(session, offsets);
    let (read, mut write) = stream.into_split();
    let started = Reply::Started {
        command_id: session.id().to_owned(),
        pid: session.pid(),
    };
    wire::write_json(&mut write, &started).await?;
    tokio::select! {
        done = send_events(&mut client, &mut write) => done,
        done = receive_input(session, read) => done,
    }
}

async fn send_events(client: &mut Client, to: &mut OwnedWriteHalf) -> io::Result<()> {
    loop {
        match client.next().await {
            ClientEvent::Output(stream, place, bytes) => {
                let kind = if stream == 0 {
                    FrameKind::Stdout
                } else {
                    FrameKind::Stderr
                };
                wire::write_frame(to, kind, [&place.to_be_bytes(), &bytes]).await?;
                client.mark_sent(stream, place + bytes.len() as u64);
            }
            ClientEvent::Exit { exit_code, timed_out } => {
                return wire::write_json(to, &Reply::Exit { exit_code, timed_out }).await;
            }
            ClientEvent::Nothing => {}
        }
    }
}

async fn receive_input(session: &Session, mut from: OwnedReadHalf) -> io::Result<()> {
    while let Some(frame) = wire::read_frame(&mut from).await? {
        match frame.kind {
            FrameKind::Data => {
                let mut written = pin!(session.write(frame.body));
                // A command that reads no input must not hide that its client has disconnected.
                while timeout(LOOK, &mut written).await.is_err() {
                    let ready = timeout(Duration::ZERO, from.ready(Interest::READABLE)).await;
                    if ready.is_ok_and(|ready| ready.is_ok_and(Ready::is_read_closed)) {
                        return Ok(());
                    }
                }
            }
            FrameKind::End => session.close_input(),
            FrameKind::Json => {
                let CommandControl::Resize { size } = frame.parse_json()?;
                session.resize(size);
            }
            FrameKind::Stdout | FrameKind::Stderr => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

async fn proxy_port(mut stream: UnixStream, port: u16) -> io::Result<()> {
    let v4 = timeout(REQUEST_TIMEOUT, TcpStream::connect(("127.0.0.1", port))).await;
    let connected = match v4 {
        Ok(Ok(connected)) => Some(connected),
        _ => timeout(REQUEST_TIMEOUT, TcpStream::connect(("::1", port)))
            .await
            .ok()
            .and_then(Result::ok),
    };
    let Some(mut connected) = connected else {
        let mut failure = Failure::new(FailureKind::Refused, "nothing listens on the port");
        failure.number = port.into();
        return wire::write_json(&mut stream, &Reply::Failed { failure }).await;
    };
    wire::write_json(&mut stream, &Reply::Done).await?;
    copy_bidirectional(&mut stream, &mut connected).await.map(drop)
}
