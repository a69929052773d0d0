//! Reading bodies into memory, within bounds: of each its size, how long its client may be silent, and how long it may take;
//! of all together the memory of those that are still on their way.

use std::time::Duration;

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::metric;

/// Memory is counted in these.
const GRAIN_BYTES: usize = 4096;
/// What bodies on their way may take together. A request has no place while its body comes, so places do not bound it.
const MEMORY_BYTES: usize = 1 << 30;
/// So much of each is not counted: however many large ones come, small ones are read.
const UNCOUNTED_BYTES: usize = 16 * 1024;
/// Who finds no room may come back then.
const MEMORY_RETRY_AFTER: Duration = Duration::from_secs(2);

static ROOM: Semaphore = Semaphore::const_new(MEMORY_BYTES / GRAIN_BYTES);

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTimeouts {
    /// A client that is silent for longer has gone away.
    pub idle: Duration,
    /// However steadily it comes.
    pub total: Duration,
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It has more bytes than this.
    TooLarge(usize),
    /// It ended before its end.
    Incomplete,
    /// Its client was silent for too long, or it took too long.
    TooSlow,
    /// Bodies on their way hold all the memory there is for them; there may be some after this.
    OutOfMemory(Duration),
}

/// Reads a whole body of at most `limit_bytes`.
pub(crate) async fn read(mut body: Body, limit_bytes: usize, patience: ReadTimeouts) -> Result<Bytes, BodyError> {
    // Where the length is known, a body too large is refused before any of it is read.
    let known = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if known > limit_bytes {
        return Err(BodyError::TooLarge(limit_bytes));
    }
    let latest = Instant::now() + patience.total;
    let mut room = MemoryPermit(None);
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    loop {
        let frame = match timeout_at(latest.min(Instant::now() + patience.idle), body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(BodyError::Incomplete),
            Err(_) => return Err(BodyError::TooSlow),
        };
        let Ok(data) = frame.into_data() else { continue };
        let bytes = first.len() + whole.len() + data.len();
        if bytes > limit_bytes {
            return Err(BodyError::TooLarge(limit_bytes));
        }
        room.grow(bytes)?;
        if first.is_empty() && whole.is_empty() {
            // Most bodies are one piece, which is not copied.
            first = data;
            continue;
        }
        whole.extend_from_slice(&std::mem::take(&mut first));
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// The memory of one body; given back when dropped.
struct MemoryPermit(Option<SemaphorePermit<'static>>);

impl MemoryPermit {
    fn grow(&mut self, bytes: usize) -> Result<(), BodyError> {
        let held = self.0.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = bytes
            .saturating_sub(UNCOUNTED_BYTES)
            .div_ceil(GRAIN_BYTES)
            .saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        let Ok(permit) = ROOM.try_acquire_many(u32::try_from(more).unwrap_or(u32::MAX)) else {
            metrics::counter!(metric::SHED, "reason" => "bodies").increment(1);
            return Err(BodyError::OutOfMemory(MEMORY_RETRY_AFTER));
        };
        match &mut self.0 {
            Some(all) => all.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::BoxError;
    use futures::stream;

    use super::*;

    const PATIENCE: ReadTimeouts = ReadTimeouts {
        idle: Duration::from_secs(10),
        total: Duration::from_secs(30),
    };

    /// A piece of a body, and the seconds before it comes.
    type Piece = (u64, &'static str);

    /// A body that comes like this, and goes on with silence where it does not end.
    fn body(pieces: &'static [Piece], ends: bool) -> Body {
        Body::from_stream(stream::unfold(pieces, move |left| async move {
            let Some(((seconds, text), left)) = left.split_first() else {
                if !ends {
                    std::future::pending::<()>().await;
                }
                return None;
            };
            tokio::time::sleep(Duration::from_secs(*seconds)).await;
            Some((Ok::<_, BoxError>(Bytes::from_static(text.as_bytes())), left))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_size_and_comes_in_time() {
        let steady = body(&[(9, "a"), (9, "b"), (9, "c")], true);
        assert_eq!(read(steady, 3, PATIENCE).await.unwrap(), "abc");
        for (body, expected) in [
            (body(&[(0, "a"), (0, "bcd")], true), BodyError::TooLarge(3)),
            (Body::from("abcd"), BodyError::TooLarge(3)),
            (body(&[(0, "a")], false), BodyError::TooSlow),
            (body(&[(9, ""), (9, ""), (9, ""), (9, "a")], true), BodyError::TooSlow),
        ] {
            assert_eq!(read(body, 3, PATIENCE).await, Err(expected));
        }
    }
}
