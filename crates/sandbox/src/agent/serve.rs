//! A connection: one request and what belongs to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::copy_bidirectional;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::Agent;
use super::client::{Client, News};
use super::session::Session;
use super::spawn;
use super::users::User;
use crate::wire::{self, Control, Failure, FailureKind, Kind, Reply, Request};

/// Until the request has come, and until a port answers.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn connection(agent: &Arc<Agent>, mut stream: UnixStream) -> io::Result<()> {
    let frame = timeout(PATIENCE, wire::read(&mut stream)).await??;
    let Some(frame) = frame else { return Ok(()) };
    let request: Request = frame.json()?;
    let reply = match request {
        Request::Hello => Reply::Hello { version: wire::VERSION },
        Request::Execute { command } => match agent.execute(&command) {
            Ok(session) => return stay(&session, stream, [0, 0]).await,
            Err(failure) => Reply::Failed { failure },
        },
        Request::Attach {
            command_id,
            stdout_offset,
            stderr_offset,
        } => match agent.find(&command_id) {
            Some(session) => return stay(&session, stream, [stdout_offset, stderr_offset]).await,
            None => unknown(&command_id),
        },
        Request::Kill { command_id } => match agent.find(&command_id) {
            Some(session) => {
                session.signal(Signal::SIGKILL);
                Reply::Done
            }
            None => unknown(&command_id),
        },
        Request::Terminate => {
            for session in agent.all() {
                session.signal(Signal::SIGTERM);
            }
            Reply::Done
        }
        Request::Commands => Reply::Commands {
            commands: agent.statuses(),
        },
        Request::Dial { port } => return dial(stream, port).await,
        Request::File { user, call } => {
            let user = match User::find(agent.setup(), user.as_deref()) {
                Ok(user) => user,
                Err(failure) => return wire::write_json(&mut stream, &Reply::Failed { failure }).await,
            };
            let call = serde_json::to_string(&call)?;
            // The user's process has the connection from here on.
            let connection = stream.into_std()?;
            connection.set_nonblocking(false)?;
            return spawn::file_operation(agent.setup(), &user, &call, OwnedFd::from(connection));
        }
    };
    wire::write_json(&mut stream, &reply).await
}

fn unknown(command_id: &str) -> Reply {
    let text = format!("command {command_id} is not known: it was never started, or its ttl_seconds have passed");
    Reply::Failed {
        failure: Failure::new(FailureKind::NotFound, text),
    }
}

/// Listens to a command until it has ended or the client goes.
async fn stay(session: &Arc<Session>, stream: UnixStream, offsets: [u64; 2]) -> io::Result<()> {
    let mut client = Client::attach(session, offsets);
    let (read, mut write) = stream.into_split();
    let started = Reply::Started {
        command_id: session.id().to_owned(),
        pid: session.pid(),
    };
    wire::write_json(&mut write, &started).await?;
    tokio::select! {
        done = tell(&mut client, &mut write) => done,
        done = hear(session, read) => done,
    }
}

async fn tell(client: &mut Client, to: &mut OwnedWriteHalf) -> io::Result<()> {
    loop {
        match client.next().await {
            News::Output(stream, place, bytes) => {
                let kind = if stream == 0 { Kind::Stdout } else { Kind::Stderr };
                wire::write(to, kind, [&place.to_be_bytes(), &bytes]).await?;
                client.sent(stream, place + bytes.len() as u64);
            }
            News::Exit { exit_code, timed_out } => {
                return wire::write_json(to, &Reply::Exit { exit_code, timed_out }).await;
            }
            News::Nothing => {}
        }
    }
}

async fn hear(session: &Session, mut from: OwnedReadHalf) -> io::Result<()> {
    while let Some(frame) = wire::read(&mut from).await? {
        match frame.kind {
            Kind::Data => session.write(frame.body).await,
            Kind::End => session.close_input(),
            Kind::Json => {
                let Control::Resize { size } = frame.json()?;
                session.resize(size);
            }
            Kind::Stdout | Kind::Stderr => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

async fn dial(mut stream: UnixStream, port: u16) -> io::Result<()> {
    let v4 = timeout(PATIENCE, TcpStream::connect(("127.0.0.1", port))).await;
    let connected = match v4 {
        Ok(Ok(connected)) => Some(connected),
        _ => timeout(PATIENCE, TcpStream::connect(("::1", port)))
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
