//! The file format of an object of the write-ahead log.
//!
//! ```text
//! object := magic unit*             all numbers little-endian
//! magic  := "TOWPWAL" 0x01          the last byte is the version
//! unit   := frame*                  what one workspace sent
//! frame  := "FRME" head_length:u32 body_length:u64 prefix_crc:u32 payload_crc:u32 head body
//! head   := JSON of FrameHead       tenant, route, content type, encoding, received_at, items, decoded_bytes
//! body   := the request's body as sent, still compressed
//! ```
//!
//! `prefix_crc` covers the 16 bytes before it, `payload_crc` head and body. With a good prefix and a bad payload only
//! that frame is lost; with a bad prefix, the rest of its WAL segment. Where a WAL segment begins and ends is known
//! from the catalog, so one that was cut off between two frames is noticed, too.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use towpath_domain::{TenantId, Timestamp};

use crate::accept::Route;
use crate::body::Encoding;

const MAGIC: &[u8; 8] = b"TOWPWAL\x01";
const MARK: &[u8; 4] = b"FRME";
const PREFIX: usize = 24;

/// What is known of a body beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameHead {
    /// The sender's workspace.
    pub tenant: TenantId,
    /// How it came.
    pub route: Route,
    /// `Content-Type` of the request.
    pub content_type: String,
    /// `Content-Encoding` of the request.
    pub encoding: Encoding,
    /// When it was added.
    pub received_at: Timestamp,
    /// Number of its operations, feedback and attachments, which are numbered across the WAL segment.
    pub items: u32,
    /// Decoded size of the body. 0 in frames of earlier builds, which did not store it.
    #[serde(default)]
    pub decoded_bytes: u64,
}

/// One accepted body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What is known of it.
    pub head: FrameHead,
    /// As sent.
    pub body: Bytes,
}

/// A damaged frame, or the damaged rest of a WAL segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("damaged at byte {at}: {what}")]
pub struct DamagedFrame {
    /// Offset in the object.
    pub at: u64,
    /// What does not fit.
    pub what: &'static str,
    /// Number of items that are lost with it, if known.
    pub items: Option<u32>,
    /// The frame, or everything after it if the next one cannot be found.
    pub bytes: Bytes,
}

/// Where the first WAL segment begins in an object.
pub const FIRST: u64 = MAGIC.len() as u64;

/// The pieces of an object, in order: the magic, then two for each frame. Bodies are not copied.
#[must_use]
pub fn write<'a>(frames: impl Iterator<Item = &'a Frame>) -> Vec<Bytes> {
    let mut pieces = vec![Bytes::from_static(MAGIC)];
    for frame in frames {
        let head = serde_json::to_vec(&frame.head).expect("a frame's head is plain data with text keys");
        let mut payload = crc32fast::Hasher::new();
        payload.update(&head);
        payload.update(&frame.body);
        let mut start = BytesMut::with_capacity(PREFIX + head.len());
        start.extend_from_slice(MARK);
        start.extend_from_slice(
            &u32::try_from(head.len())
                .expect("a head is shorter than 4 GiB")
                .to_le_bytes(),
        );
        start.extend_from_slice(&(frame.body.len() as u64).to_le_bytes());
        let prefix = crc32fast::hash(&start);
        start.extend_from_slice(&prefix.to_le_bytes());
        start.extend_from_slice(&payload.finalize().to_le_bytes());
        start.extend_from_slice(&head);
        pieces.push(start.freeze());
        pieces.push(frame.body.clone());
    }
    pieces
}

/// How many bytes each frame takes of what [`write`] has made.
pub fn frame_lengths(pieces: &[Bytes]) -> impl Iterator<Item = u64> {
    let frames = pieces.get(1..).unwrap_or_default().chunks(2);
    frames.map(|frame| frame.iter().map(|piece| piece.len() as u64).sum())
}

/// The pieces of an object with these frames alone, unchanged.
#[must_use]
pub fn single_segment_object(frames: Bytes) -> Vec<Bytes> {
    vec![Bytes::from_static(MAGIC), frames]
}

/// Reads all frames of an object. After a damaged payload it continues with the next frame.
#[must_use]
pub fn read(object: Bytes) -> Frames {
    let length = object.len() as u64;
    read_range(object, 0, length)
}

/// Reads the frames of a WAL segment that begins at `byte_offset` of its object and should have `length` bytes. A WAL
/// segment at offset 0 is the whole object.
#[must_use]
pub fn read_range(unit: Bytes, byte_offset: u64, length: u64) -> Frames {
    Frames {
        end: byte_offset + unit.len() as u64,
        cut: (unit.len() as u64) < length,
        rest: unit,
        state: if byte_offset == 0 { State::Start } else { State::Frames },
    }
}

/// Iterator over frames.
pub struct Frames {
    /// Where `rest` ends in the object.
    end: u64,
    /// There should be more.
    cut: bool,
    rest: Bytes,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Start,
    Frames,
    End,
}

impl Iterator for Frames {
    type Item = Result<Frame, DamagedFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Start {
            self.state = State::Frames;
            if !self.rest.starts_with(MAGIC) {
                return Some(Err(self.lost("not an object of this version")));
            }
            self.rest.advance(MAGIC.len());
        }
        if self.state == State::End {
            return None;
        }
        if self.rest.is_empty() {
            // Said once.
            return std::mem::take(&mut self.cut).then(|| Err(self.lost("the end is cut off")));
        }
        Some(self.frame())
    }
}

impl Frames {
    fn at(&self) -> u64 {
        self.end - self.rest.len() as u64
    }

    fn frame(&mut self) -> Result<Frame, DamagedFrame> {
        let at = self.at();
        let Some(prefix) = self.rest.first_chunk::<PREFIX>() else {
            return Err(self.lost("a frame is cut off"));
        };
        let number =
            |from: usize| u32::from_le_bytes([prefix[from], prefix[from + 1], prefix[from + 2], prefix[from + 3]]);
        if &prefix[..4] != MARK || number(16) != crc32fast::hash(&prefix[..16]) {
            return Err(self.lost("the start of a frame does not match its checksum"));
        }
        let head_length = number(4) as usize;
        let body_length = u64::from(number(8)) | (u64::from(number(12)) << 32);
        let expected = number(20);
        let length = usize::try_from(body_length)
            .ok()
            .and_then(|body| body.checked_add(head_length));
        let length = length.filter(|length| *length <= self.rest.len() - PREFIX);
        let Some(length) = length else {
            return Err(self.lost("a frame is cut off"));
        };
        let whole = self.rest.split_to(PREFIX + length);
        let mut payload = whole.slice(PREFIX..);
        let matches = crc32fast::hash(&payload) == expected;
        let head = payload.split_to(head_length);
        let head: Option<FrameHead> = serde_json::from_slice(&head).ok();
        match head {
            Some(head) if matches => Ok(Frame { head, body: payload }),
            head => Err(DamagedFrame {
                at,
                what: "a frame does not match its checksum",
                // Without this number, the following frames would be numbered wrongly; see `flush`.
                items: head.map(|head| head.items),
                bytes: whole,
            }),
        }
    }

    /// Gives up on the rest.
    fn lost(&mut self, what: &'static str) -> DamagedFrame {
        self.state = State::End;
        DamagedFrame {
            at: self.at(),
            what,
            items: None,
            bytes: self.rest.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame {
            head: FrameHead {
                tenant: TenantId::nil(),
                route: Route::Multipart,
                content_type: "multipart/form-data; boundary=b".into(),
                encoding: Encoding::Zstd,
                received_at: Timestamp::from_micros(5),
                items: 3,
                decoded_bytes: 40,
            },
            body: Bytes::from_static(text.as_bytes()),
        }
    }

    fn unit(frames: &[Frame]) -> Vec<u8> {
        write(frames.iter()).concat()
    }

    #[test]
    fn frames_come_back() {
        let frames = [frame("one"), frame(""), frame("three")];
        assert_eq!(
            read(unit(&frames).into()).collect::<Result<Vec<_>, _>>().unwrap(),
            frames
        );
        assert_eq!(read(unit(&[]).into()).count(), 0);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed_and_harms_no_other_frame() {
        let frames = [frame("one"), frame("two")];
        let whole = unit(&frames);
        for bit in 0..whole.len() * 8 {
            let mut hurt = whole.clone();
            hurt[bit / 8] ^= 1 << (bit % 8);
            let read: Vec<_> = read(hurt.into()).collect();
            assert!(read.iter().any(Result::is_err), "bit {bit}");
            for good in read.into_iter().flatten() {
                assert!(frames.contains(&good), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_damaged_payload_leaves_the_next_frame_readable() {
        let frames = [frame("one"), frame("two")];
        let mut hurt = unit(&frames);
        let at = hurt.windows(3).position(|window| window == b"one").unwrap();
        hurt[at] = b'0';
        let read: Vec<_> = read(hurt.into()).collect();
        assert_eq!(read[0].as_ref().unwrap_err().items, Some(3));
        assert_eq!(read[1].as_ref().unwrap(), &frames[1]);
    }

    #[test]
    fn a_unit_is_read_from_its_range() {
        let frames = [frame("one"), frame("two"), frame("three")];
        let pieces = write(frames.iter());
        let lengths: Vec<u64> = frame_lengths(&pieces).collect();
        let object = Bytes::from(pieces.concat());
        assert_eq!(FIRST + lengths.iter().sum::<u64>(), object.len() as u64);
        let from = FIRST + lengths[0];
        let range = |length: u64| object.slice(usize::try_from(from).unwrap()..usize::try_from(from + length).unwrap());
        let length = lengths[1] + lengths[2];
        let read: Result<Vec<_>, _> = read_range(range(length), from, length).collect();
        assert_eq!(read.unwrap(), frames[1..]);
        // Cut off between two frames.
        let cut: Vec<_> = read_range(range(lengths[1]), from, length).collect();
        assert_eq!((cut.len(), cut[0].as_ref().unwrap()), (2, &frames[1]));
        assert_eq!(cut[1].as_ref().unwrap_err().at, from + lengths[1]);
        let whole = Bytes::from(single_segment_object(range(length)).concat());
        assert_eq!(super::read(whole).collect::<Result<Vec<_>, _>>().unwrap(), frames[1..]);
    }

    #[test]
    fn a_head_without_a_decoded_size_is_read() {
        let mut head = serde_json::to_value(frame("one").head).unwrap();
        head.as_object_mut().unwrap().remove("decoded_bytes");
        assert_eq!(serde_json::from_value::<FrameHead>(head).unwrap().decoded_bytes, 0);
    }

    #[test]
    fn a_unit_cut_inside_a_frame_is_noticed() {
        let one = unit(&[frame("one")]).len();
        let whole = unit(&[frame("one"), frame("two")]);
        for end in (0..whole.len()).filter(|end| *end != one && *end != MAGIC.len()) {
            assert!(
                read(whole[..end].to_vec().into()).any(|frame| frame.is_err()),
                "cut at {end}"
            );
        }
    }
}
