//! Calls of children to the server on a stream, served by its [`Host`].

use serde::Serialize;
use serde_json::{Map, Value};

use super::connection::Stream;
use super::frame::{Frame, FrameType};
use super::message::{
    self, Bin, CallFailure, CpGet, CpList, CpPut, CpSaved, CpWrites, Credit, Json, Reply, Store, StoreOp, StoreResult,
    WireError,
};
use crate::{
    GraphError, HistoryQuery, Host, HostError, ItemCall, Save, SavedTypedCheckpoint, TypedBlob, TypedPut, TypedValue,
    TypedWrite, TypedWrites,
};

/// As langgraph's stores have it.
const SEARCH_LIMIT: u32 = 10;
const NAMESPACES_LIMIT: u32 = 100;

/// Saves that came together, with the calls that wait for them.
#[derive(Default)]
pub(super) struct SaveBatch {
    batch: Vec<Save>,
    waiting: Vec<u64>,
}

impl SaveBatch {
    /// Takes a save off its frame.
    pub(super) fn add(&mut self, frame: &Frame) -> Result<(), GraphError> {
        let (save, call) = if frame.r#type == FrameType::CP_PUT {
            let put: CpPut = message::read(&frame.payload).map_err(protocol)?;
            let call = put.call;
            (Save::TypedCheckpoint(typed_put(put)), call)
        } else {
            let put: CpWrites = message::read(&frame.payload).map_err(protocol)?;
            let call = put.call;
            (Save::TypedWrites(typed_writes(put)), call)
        };
        self.batch.push(save);
        self.waiting.extend(call);
        Ok(())
    }

    /// Hands them over, in their order.
    pub(super) async fn flush(&mut self, stream: &Stream, host: &dyn Host) -> Result<(), GraphError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let saved = host.save_all(std::mem::take(&mut self.batch)).await;
        let waiting = std::mem::take(&mut self.waiting);
        match &saved {
            Ok(()) => {
                for call in waiting {
                    reply(stream, call, Ok(None::<()>));
                }
            }
            Err(error) => {
                let failed = failed(error);
                for call in waiting {
                    reply::<()>(stream, call, Err(failed.clone()));
                }
                stream.send(FrameType::FAIL, &failed);
            }
        }
        // A failed save makes the rest of the run worthless, except for an invalid call, which is the graph's problem.
        match saved {
            Err(error @ (HostError::Lost(_) | HostError::Cancelled)) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Consumed bytes of a stream, returned to the sender as credit.
#[derive(Default)]
pub(super) struct CreditWindow(u64);

impl CreditWindow {
    pub(super) fn consumed(&mut self, bytes: usize, stream: &Stream) {
        self.0 += bytes as u64;
        if self.0 >= super::process::WINDOW_BYTES / 4 {
            stream.send(FrameType::CREDIT, &Credit { bytes: self.0 });
            self.0 = 0;
        }
    }
}

/// Whether a frame is a call to answer.
pub(super) fn is_call(r#type: FrameType) -> bool {
    matches!(
        r#type,
        FrameType::CP_GET | FrameType::CP_LIST | FrameType::CP_DELETE | FrameType::STORE
    )
}

/// Answers one call. An error concerns the connection or the server, and ends the run.
pub(super) async fn answer(frame: &Frame, stream: &Stream, host: &dyn Host) -> Result<(), GraphError> {
    let cancelled = host.cancelled();
    tokio::select! {
        biased;
        // What is looked up takes memory until the child has read it.
        () = stream.wait_writable() => {}
        () = cancelled.cancelled() => return Err(GraphError::cancelled()),
    }
    let lost = match frame.r#type {
        FrameType::CP_GET => {
            let ask: CpGet = message::read(&frame.payload).map_err(protocol)?;
            let found = match check_thread(ask.thread.as_deref()) {
                Some(error) => Err(error),
                None => host.load_typed(&ask.ns, ask.id.as_deref()).await,
            };
            reply_or_lost(stream, ask.call, found.map(|saved| saved.map(cp_saved)))
        }
        FrameType::CP_LIST => {
            let ask: CpList = message::read(&frame.payload).map_err(protocol)?;
            let found = match (check_thread(ask.thread.as_deref()), object(ask.filter.as_ref())) {
                (Some(error), _) | (None, Err(error)) => Err(error),
                (None, Ok(filter)) => {
                    let query = HistoryQuery {
                        limit: ask.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
                        before: ask.before,
                        filter,
                    };
                    host.list_typed(&ask.ns, &query).await
                }
            };
            let found = found.map(|saved| Some(saved.into_iter().map(cp_saved).collect::<Vec<_>>()));
            reply_or_lost(stream, ask.call, found)
        }
        FrameType::STORE => {
            let ask: Store = message::read(&frame.payload).map_err(protocol)?;
            reply_or_lost(stream, ask.call, store(ask.ops, host).await.map(Some))
        }
        _ => {
            #[derive(serde::Deserialize)]
            struct Any {
                call: Option<u64>,
            }
            let ask: Any = message::read(&frame.payload).map_err(protocol)?;
            if let Some(call) = ask.call {
                let failed = CallFailure {
                    kind: "unsupported".to_owned(),
                    error: "NotImplementedError".to_owned(),
                    message: "checkpoints can only be deleted through the server's API".to_owned(),
                };
                reply::<()>(stream, call, Err(failed));
            }
            None
        }
    };
    lost.map_or(Ok(()), |error| Err(error.into()))
}

/// Replies; what the run cannot continue after comes back.
fn reply_or_lost<T: Serialize>(stream: &Stream, call: u64, answer: Result<Option<T>, HostError>) -> Option<HostError> {
    match answer {
        Ok(value) => {
            reply(stream, call, Ok(value));
            None
        }
        Err(error) => {
            reply::<()>(stream, call, Err(failed(&error)));
            matches!(error, HostError::Lost(_) | HostError::Cancelled).then_some(error)
        }
    }
}

fn reply<T: Serialize>(stream: &Stream, call: u64, answer: Result<Option<T>, CallFailure>) {
    let (value, error) = match answer {
        Ok(value) => (value, None),
        Err(error) => (None, Some(error)),
    };
    let Err(error) = stream.try_send(FrameType::REPLY, &Reply { call, value, error }) else {
        return;
    };
    let failed = CallFailure {
        kind: "invalid".to_owned(),
        error: "ValueError".to_owned(),
        message: format!("the graph requested too much data in one read: {error}"),
    };
    let reply = Reply::<()> {
        call,
        value: None,
        error: Some(failed),
    };
    stream.send(FrameType::REPLY, &reply);
}

fn failed(error: &HostError) -> CallFailure {
    let (kind, class, message) = match error {
        HostError::Invalid { class, message } => ("invalid", class.as_str(), message.as_str()),
        HostError::Cancelled => ("cancelled", "CancelledError", "the run was cancelled"),
        HostError::Lost(message) => ("lost", "HostLost", message.as_str()),
    };
    CallFailure {
        kind: kind.to_owned(),
        error: class.to_owned(),
        message: message.to_owned(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` calls it")]
pub(super) fn protocol(error: WireError) -> GraphError {
    GraphError::lost(
        "HostProtocolError",
        format!("the graph host sent an unreadable message: {error}"),
    )
}

fn check_thread(thread: Option<&str>) -> Option<HostError> {
    thread.map(|thread| HostError::Invalid {
        class: "ValueError".to_owned(),
        message: format!("a run can access the checkpoints of its own thread only, not of {thread}"),
    })
}

fn object(json: Option<&Json>) -> Result<Map<String, Value>, HostError> {
    let Some(json) = json else { return Ok(Map::new()) };
    json.read::<Option<Map<String, Value>>>()
        .map(Option::unwrap_or_default)
        .map_err(|error| HostError::Invalid {
            class: "ValueError".to_owned(),
            message: format!("expected an object: {error}"),
        })
}

fn typed(encoding: String, bytes: Option<Bin>) -> TypedValue {
    TypedValue {
        encoding,
        bytes: bytes.unwrap_or_default().0,
    }
}

fn typed_put(put: CpPut) -> TypedPut {
    let blob = |(channel, version, encoding, bytes)| TypedBlob {
        channel,
        version,
        value: typed(encoding, bytes),
    };
    TypedPut {
        ns: put.ns,
        id: put.id,
        parent: put.parent,
        checkpoint: put.checkpoint.0,
        metadata: put.metadata.0,
        blobs: put.blobs.into_iter().map(blob).collect(),
    }
}

fn typed_writes(put: CpWrites) -> TypedWrites {
    let write = |(idx, channel, encoding, bytes)| (idx, channel, typed(encoding, bytes));
    TypedWrites {
        ns: put.ns,
        checkpoint_id: put.id,
        task: put.task,
        path: put.path,
        writes: put.writes.into_iter().map(write).collect(),
    }
}

fn cp_saved(saved: SavedTypedCheckpoint) -> CpSaved {
    let blob = |blob: TypedBlob| {
        let TypedValue { encoding, bytes } = blob.value;
        (blob.channel, blob.version, encoding, Some(Bin(bytes)))
    };
    let write = |write: TypedWrite| {
        let TypedValue { encoding, bytes } = write.value;
        (
            write.task,
            write.idx,
            write.channel,
            encoding,
            Some(Bin(bytes)),
            write.path,
        )
    };
    CpSaved {
        ns: saved.ns,
        id: saved.id,
        parent: saved.parent,
        checkpoint: Json(saved.checkpoint),
        metadata: Json(saved.metadata),
        blobs: saved.blobs.into_iter().map(blob).collect(),
        writes: saved.writes.into_iter().map(write).collect(),
    }
}

async fn store(ops: Vec<StoreOp>, host: &dyn Host) -> Result<Vec<StoreResult>, HostError> {
    let calls: Vec<ItemCall> = ops.into_iter().map(item_call).collect::<Result<_, _>>()?;
    let lists: Vec<ResponseShape> = calls.iter().map(ResponseShape::of).collect();
    let answers = host.items(calls).await?;
    Ok(answers
        .into_iter()
        .zip(lists)
        .map(|(answer, shape)| shape.result(answer))
        .collect())
}

/// How an answer is written.
#[derive(Clone, Copy)]
enum ResponseShape {
    Item,
    Items,
    Namespaces,
}

impl ResponseShape {
    const fn of(call: &ItemCall) -> Self {
        match call {
            ItemCall::Get { .. } | ItemCall::Put { .. } | ItemCall::Delete { .. } => Self::Item,
            ItemCall::Search { .. } => Self::Items,
            ItemCall::Namespaces { .. } => Self::Namespaces,
        }
    }

    fn result(self, answer: Value) -> StoreResult {
        match (self, answer) {
            (_, Value::Null) => StoreResult::Nil(()),
            (Self::Items, Value::Array(items)) => {
                StoreResult::Items(items.iter().map(|item| Json(item.to_string())).collect())
            }
            (Self::Namespaces, answer) => StoreResult::Namespaces(serde_json::from_value(answer).unwrap_or_default()),
            (_, item) => StoreResult::Item(Json(item.to_string())),
        }
    }
}

fn item_call(op: StoreOp) -> Result<ItemCall, HostError> {
    Ok(match op {
        StoreOp::Get {
            namespace,
            key,
            refresh_ttl,
        } => ItemCall::Get {
            namespace,
            key,
            refresh: refresh_ttl,
        },
        StoreOp::Put {
            namespace,
            key,
            value: None,
            ..
        } => ItemCall::Delete { namespace, key },
        StoreOp::Put {
            namespace,
            key,
            value,
            ttl_minutes,
            index,
        } => ItemCall::Put {
            namespace,
            key,
            value: object(value.as_ref())?,
            ttl_minutes,
            index,
        },
        StoreOp::Search {
            prefix,
            filter,
            limit,
            offset,
            query,
            refresh_ttl,
        } => ItemCall::Search {
            prefix,
            filter: object(filter.as_ref())?,
            query: query.filter(|query| !query.is_empty()),
            limit: limit.unwrap_or(SEARCH_LIMIT),
            offset: offset.unwrap_or(0),
            refresh: refresh_ttl,
        },
        StoreOp::Namespaces {
            prefix,
            suffix,
            max_depth,
            limit,
            offset,
        } => ItemCall::Namespaces {
            prefix,
            suffix,
            max_depth,
            limit: limit.unwrap_or(NAMESPACES_LIMIT),
            offset: offset.unwrap_or(0),
        },
    })
}
