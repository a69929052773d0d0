//! A run on a child: translates its frames into calls of its [`Host`], and a cancel into a frame.

use std::time::Duration;

use serde_json::json;

use super::abandonment;
use super::calls::{self, CreditWindow, SaveBatch};
use super::child::ChildExit;
use super::connection::{OpenError, Stream};
use super::frame::{Frame, FrameType};
use super::message::{self, Cancel, Done, Json, Nodes, Run, json_or_none};
use super::pool::{ChildLease, Pool};
use crate::{CheckpointRef, Chunk, Durability, Execution, Finish, GraphError, Host, Shared};

/// Runs a graph on a child of the pool.
pub async fn run(pool: &Pool, graph: &str, execution: &Execution, host: &dyn Host) -> Result<Finish, GraphError> {
    let cancelled = host.cancelled();
    let request = request(graph, execution)?;
    let (stream, seat) = tokio::select! {
        biased;
        () = cancelled.cancelled() => return Err(GraphError::cancelled()),
        begun = begin(pool, execution.shared_crashes, &request) => begun?,
    };
    let mut running = HostedRun {
        active: Some((stream, seat)),
        grace: pool.options().cancel_grace,
    };
    let ended = running.drive(host).await;
    if !matches!(ended, RunEnd::Abandoned(_)) {
        // The stream is over: nothing must be stopped.
        running.active = None;
    }
    match ended {
        RunEnd::Done(done) => finish(*done, execution),
        RunEnd::Failed(error) | RunEnd::Abandoned(error) => Err(error),
    }
}

/// Asks a child to run it.
async fn begin(pool: &Pool, shared_crashes: u32, request: &Run) -> Result<(Stream, ChildLease), GraphError> {
    loop {
        let seat = pool.lease_for_run(shared_crashes).await?;
        match seat.child().connection.open(FrameType::RUN, request) {
            Ok(stream) => return Ok((stream, seat)),
            // It ended before the run was in it.
            Err(OpenError::Closed) => drop(seat.child().wait_exit().await),
            Err(OpenError::TooLong(error)) => return Err(GraphError::new("ValueError", error.to_string())),
        }
    }
}

enum RunEnd {
    /// The child said so.
    Done(Box<Done>),
    /// The child is gone.
    Failed(GraphError),
    /// The server cannot continue with it, the child still may.
    Abandoned(GraphError),
}

/// A run on a child. Dropped before its end, it is stopped in the background.
struct HostedRun {
    active: Option<(Stream, ChildLease)>,
    grace: Duration,
}

impl Drop for HostedRun {
    fn drop(&mut self) {
        if let Some((stream, seat)) = self.active.take() {
            abandonment::abandon(stream, seat, self.grace);
        }
    }
}

impl HostedRun {
    async fn drive(&mut self, host: &dyn Host) -> RunEnd {
        let Some((stream, seat)) = &mut self.active else {
            return RunEnd::Failed(GraphError::cancelled());
        };
        let cancelled = host.cancelled();
        let mut told = false;
        let mut window = CreditWindow::default();
        let mut frames = Vec::new();
        let patience = tokio::time::sleep(Duration::MAX);
        tokio::pin!(patience);
        loop {
            tokio::select! {
                count = stream.next(&mut frames) => {
                    if count == 0 {
                        return RunEnd::Failed(crashed(seat).await);
                    }
                }
                () = cancelled.cancelled(), if !told => {
                    told = true;
                    stream.send(FrameType::CANCEL, &Cancel { action: "interrupt".to_owned() });
                    patience.as_mut().reset(tokio::time::Instant::now() + self.grace);
                    continue;
                }
                () = &mut patience, if told => {
                    // Others may be in its child, and continue.
                    seat.child().drain();
                    self.grace = Duration::ZERO;
                    return RunEnd::Abandoned(GraphError::cancelled());
                }
            }
            match deal(&mut frames, stream, host, &mut window).await {
                Ok(None) => {}
                Ok(Some(done)) => return RunEnd::Done(Box::new(done)),
                Err(error) => return RunEnd::Abandoned(error),
            }
        }
    }
}

/// Processes a batch of frames: saves and chunks in groups, in their order.
async fn deal(
    frames: &mut Vec<Frame>,
    stream: &Stream,
    host: &dyn Host,
    window: &mut CreditWindow,
) -> Result<Option<Done>, GraphError> {
    let mut saves = SaveBatch::default();
    let mut chunks = Vec::new();
    let mut dealt = 0;
    let mut done = None;
    for frame in frames.drain(..) {
        match frame.r#type {
            FrameType::CHUNK => {
                dealt += frame.payload.len();
                chunks.push(chunk(&frame)?);
            }
            FrameType::CP_PUT | FrameType::CP_WRITES => {
                dealt += frame.payload.len();
                saves.add(&frame)?;
            }
            FrameType::DONE => done = Some(message::read::<Done>(&frame.payload).map_err(calls::protocol)?),
            call if calls::is_call(call) => {
                // It sees what was saved before it.
                saves.flush(stream, host).await?;
                calls::answer(&frame, stream, host).await?;
            }
            FrameType(other) => tracing::debug!(r#type = other, "a frame of a run has an unknown type"),
        }
    }
    if !chunks.is_empty() {
        host.emit(chunks).await?;
    }
    saves.flush(stream, host).await?;
    window.consumed(dealt, stream);
    Ok(done)
}

/// Why a run ended with its child.
async fn crashed(seat: &ChildLease) -> GraphError {
    let ChildExit { how, runs } = seat.child().wait_exit().await;
    if runs > 1 {
        GraphError::shared_crash(how)
    } else {
        GraphError::lost("HostCrashed", how)
    }
}

/// The parts of a chunk: mode, levels of the namespace, JSON.
fn chunk(frame: &Frame) -> Result<Chunk, GraphError> {
    parse_chunk(&frame.payload)
        .ok_or_else(|| GraphError::lost("HostProtocolError", "the graph host sent an event that cannot be read"))
}

fn parse_chunk(payload: &[u8]) -> Option<Chunk> {
    let (&mode, rest) = payload.split_first()?;
    let (&levels, mut rest) = rest.split_first()?;
    let mut text = || {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let (text, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        rest = after;
        str::from_utf8(text).ok().map(str::to_owned)
    };
    let namespace = (0..levels).map(|_| text()).collect::<Option<Vec<_>>>()?;
    let mode = match mode {
        0 => text()?.into(),
        1 => "values".into(),
        2 => "updates".into(),
        3 => "messages".into(),
        4 => "messages/metadata".into(),
        5 => "messages/partial".into(),
        6 => "messages/complete".into(),
        7 => "custom".into(),
        8 => "tasks".into(),
        9 => "checkpoints".into(),
        10 => "debug".into(),
        11 => "events".into(),
        _ => return None,
    };
    Some(Chunk {
        mode,
        namespace,
        data: str::from_utf8(rest).ok()?.into(),
    })
}

fn request(graph: &str, execution: &Execution) -> Result<Run, GraphError> {
    let json = |error: serde_json::Error| GraphError::new("ValueError", error.to_string());
    let command = match &execution.command {
        // The rest of it is on the checkpoint.
        Some(command) if execution.command_saved => {
            let answer = command.resume.as_ref();
            answer.map(|answer| Json::of(&json!({"resume": answer}))).transpose()
        }
        command => command.as_ref().map(Json::of).transpose(),
    };
    let command = command.map_err(json)?;
    // A command takes precedence over an input, even an empty one.
    let input = execution.input.as_ref().filter(|_| execution.command.is_none());
    Ok(Run {
        run: execution.run_id.to_string(),
        thread: execution.thread_id.to_string(),
        graph: graph.to_owned(),
        attempt: execution.attempt,
        repeated: execution.is_retry,
        input: json_or_none(input),
        command,
        config: Json::of(&execution.config).map_err(json)?,
        context: json_or_none(execution.context.as_ref()),
        modes: execution.modes.iter().map(|mode| mode.as_str().to_owned()).collect(),
        subgraphs: execution.subgraphs,
        interrupt_before: nodes(&execution.interrupt_before),
        interrupt_after: nodes(&execution.interrupt_after),
        durability: match execution.durability {
            Durability::Sync => "sync",
            Durability::Async => "async",
            Durability::Exit => "exit",
        }
        .to_owned(),
        strict_resume: execution.strict_resume,
        temporary: execution.temporary,
        fresh: execution.new_thread,
    })
}

fn nodes(nodes: &crate::Nodes) -> Nodes {
    match nodes {
        crate::Nodes::All => Nodes::All("*".to_owned()),
        crate::Nodes::Some(names) => Nodes::Some(names.clone()),
    }
}

fn finish(done: Done, execution: &Execution) -> Result<Finish, GraphError> {
    let unreadable = |error: serde_json::Error| {
        GraphError::lost("HostProtocolError", format!("the result of a run is not JSON: {error}"))
    };
    match done.status.as_str() {
        "success" => {}
        "cancelled" => return Err(GraphError::cancelled()),
        "error" => {
            let raised = done.error.unwrap_or_default();
            return Err(GraphError {
                class: raised.error,
                message: raised.message,
                retry: false,
                traceback: raised.traceback,
            });
        }
        status => {
            let raised = done.error.unwrap_or_default();
            let what = if raised.message.is_empty() {
                status
            } else {
                &raised.message
            };
            return Err(GraphError::lost(
                "HostRetry",
                format!("the graph host returned the run: {what}"),
            ));
        }
    }
    let Some(state) = done.state else {
        return Err(GraphError::lost(
            "HostProtocolError",
            "the graph host did not report the final checkpoint of the run",
        ));
    };
    let checkpoint: Option<CheckpointRef> = match &state.checkpoint {
        Some(checkpoint) => checkpoint.read().map_err(unreadable)?,
        None => None,
    };
    let interrupts = match &state.interrupts {
        Some(interrupts) => interrupts.read().map_err(unreadable)?,
        None => serde_json::Map::new(),
    };
    Ok(Finish {
        values: Shared::of_text(state.values.0).map_err(unreadable)?,
        next: state.next,
        interrupts,
        checkpoint: checkpoint.map(|checkpoint| CheckpointRef {
            thread_id: execution.thread_id,
            ..checkpoint
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_its_mode_its_place_and_its_text() {
        let chunk = parse_chunk(b"\x01\x00{\"a\": 1.0}").unwrap();
        assert_eq!((chunk.event().as_str(), &*chunk.data), ("values", "{\"a\": 1.0}"));
        let chunk = parse_chunk(b"\x02\x02\x00\x03a:1\x00\x03b:2[]").unwrap();
        assert_eq!((chunk.event().as_str(), &*chunk.data), ("updates|a:1|b:2", "[]"));
        let chunk = parse_chunk(b"\x00\x00\x00\x04mine{}").unwrap();
        assert_eq!((chunk.event().as_str(), &*chunk.data), ("mine", "{}"));
        assert!(parse_chunk(b"\x63\x00{}").is_none());
        assert!(parse_chunk(b"\x01\x01\x00\x09a").is_none());
    }
}
