//! Frames of the graph host protocol.
//!
//! ```text
//! u32 length of the rest │ u8 type │ u32 stream │ payload        numbers are big-endian
//! ```

use std::io::{self, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameType(pub u8);

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl FrameType {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }
    };
}

types! {
    /// The child says what it is.
    HELLO = 0x01;
    /// What the child has to load.
    INIT = 0x02;
    /// The child serves.
    READY = 0x03;
    /// The child cannot load its graphs.
    LOAD_ERROR = 0x04;
    /// Are you there?
    PING = 0x05;
    /// I am.
    PONG = 0x06;
    /// A line of the child's log.
    LOG = 0x07;
    /// End.
    SHUTDOWN = 0x08;
    /// Fork a child.
    FORK = 0x09;
    /// A child was forked.
    FORKED = 0x0A;
    /// A child that was forked ended.
    EXITED = 0x0B;
    RUN = 0x10;
    /// An event of a run.
    CHUNK = 0x11;
    /// More bytes may be sent.
    CREDIT = 0x12;
    /// Stop what this stream is about.
    CANCEL = 0x13;
    /// A call without an answer failed.
    FAIL = 0x14;
    /// A run is over.
    DONE = 0x15;
    /// State of a thread.
    STATE_GET = 0x20;
    /// Change of a thread's state.
    STATE_UPDATE = 0x21;
    /// States of a thread.
    HISTORY = 0x22;
    /// Schemas of a graph.
    SCHEMAS = 0x23;
    /// Nodes and edges of a graph.
    DRAW = 0x24;
    /// Schemas of subgraphs.
    SUBGRAPHS = 0x25;
    /// Who calls.
    AUTHENTICATE = 0x26;
    /// Whether they may.
    AUTHORIZE = 0x27;
    /// Vectors of texts.
    EMBED = 0x28;
    /// Answer to a question.
    ANSWER = 0x2F;
    /// A checkpoint is asked for.
    CP_GET = 0x30;
    /// A checkpoint to save.
    CP_PUT = 0x31;
    /// Writes to save.
    CP_WRITES = 0x32;
    /// Checkpoints are asked for.
    CP_LIST = 0x33;
    /// Checkpoints to delete.
    CP_DELETE = 0x34;
    /// Calls to the store of items.
    STORE = 0x38;
    /// Answer to a call of the child.
    REPLY = 0x3F;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub r#type: FrameType,
    /// Which activity it belongs to; 0 is the connection.
    pub stream: u32,
    /// A MessagePack map; of chunks, bytes.
    pub payload: Bytes,
}

/// The peer does not speak this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed.
    #[error("a frame of {0} bytes exceeds the limit")]
    TooLong(usize),
    /// Shorter than its own head.
    #[error("a frame of {0} bytes is shorter than its header")]
    TooShort(usize),
    /// Longer than the other side is sent.
    #[error("{0} or more bytes do not fit into one frame")]
    Over(usize),
}

/// Length, type, stream.
const HEAD: usize = 9;

/// Takes the first complete frame off `buffer`; `None` if more bytes are needed.
pub fn parse_frame(buffer: &mut BytesMut, max_bytes: usize) -> Result<Option<Frame>, FrameError> {
    let Some(length) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length < HEAD - 4 {
        return Err(FrameError::TooShort(length));
    }
    if length > max_bytes {
        return Err(FrameError::TooLong(length));
    }
    if buffer.len() < 4 + length {
        // Reserved at once for a long frame, instead of by doubling.
        buffer.reserve(4 + length - buffer.len());
        return Ok(None);
    }
    let mut frame = buffer.split_to(4 + length).freeze();
    frame.advance(4);
    let r#type = FrameType(frame.get_u8());
    let stream = frame.get_u32();
    Ok(Some(Frame {
        r#type,
        stream,
        payload: frame,
    }))
}

/// A frame as bytes.
pub fn encode(r#type: FrameType, stream: u32, payload: &[u8]) -> Result<Bytes, FrameError> {
    let length = payload.len() + HEAD - 4;
    let length = u32::try_from(length).map_err(|_| FrameError::TooLong(length))?;
    let mut bytes = BytesMut::with_capacity(HEAD + payload.len());
    bytes.put_u32(length);
    bytes.put_u8(r#type.0);
    bytes.put_u32(stream);
    bytes.put_slice(payload);
    Ok(bytes.freeze())
}

/// A frame with a map of named fields of at most `max_bytes` (less than 4 GiB), written in one pass.
///
/// # Panics
/// Never: it has text keys and known lengths.
pub fn encode_map(
    r#type: FrameType,
    stream: u32,
    payload: &impl Serialize,
    max_bytes: usize,
) -> Result<Bytes, FrameError> {
    let mut frame = BoundedWriter {
        bytes: vec![0; HEAD],
        max_bytes,
        exceeded: false,
    };
    let written = rmp_serde::encode::write_named(&mut frame, payload);
    if frame.exceeded {
        return Err(FrameError::Over(max_bytes));
    }
    written.expect("maps with text keys are MessagePack");
    let mut bytes = frame.bytes;
    let length = bytes.len() - 4;
    let length = u32::try_from(length).map_err(|_| FrameError::TooLong(length))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes[4] = r#type.0;
    bytes[5..HEAD].copy_from_slice(&stream.to_be_bytes());
    Ok(bytes.into())
}

/// Bytes that are written no further than allowed.
struct BoundedWriter {
    bytes: Vec<u8>,
    max_bytes: usize,
    exceeded: bool,
}

impl Write for BoundedWriter {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.max_bytes {
            self.exceeded = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
