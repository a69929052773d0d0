//! Decodes WAL segments ahead of the flush: one thread decompresses and parses while another merges.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinHandle};
use towpath_store::Store;
use towpath_store::quarantine::Entry;
use towpath_store::wal_segments::WalSegment;

use super::source::{self, Names, NumberedFrame, WalSegmentReader};
use super::{Body, MergeError, quarantine};
use crate::accept;
use crate::body::Limits;
use crate::objects::Objects;

/// Bodies that wait decoded.
const AHEAD: usize = 2;
/// KiB of decoded bodies ahead. A larger body waits alone.
const AHEAD_KIB: u32 = 64 << 10;
/// WAL segments whose names are looked up at once. Each may have thousands.
const NAMED_AT_ONCE: usize = 64;

/// What comes of WAL segments, one after another.
pub enum PrefetchItem {
    /// The number of a frame, and the body in it.
    Body(i64, Body),
    /// The number of a frame that cannot be read, and its quarantine entry.
    Quarantined(i64, Entry),
    /// The end of a WAL segment.
    End,
    /// The end of a WAL segment whose object is not there.
    Missing(Entry),
}

/// An item with the memory permit that is held until it is received.
type PrefetchMessage = (Result<PrefetchItem, MergeError>, Option<OwnedSemaphorePermit>);

/// WAL segments being decoded. Dropping it ends that.
pub struct Prefetch {
    items: mpsc::Receiver<PrefetchMessage>,
    task: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// All frames of all WAL segments. With a number, the first frame of a single WAL segment from this number on.
    pub fn start(store: &Store, objects: &Objects, units: &[WalSegment], only: Option<i64>) -> Self {
        let (send, pieces) = mpsc::channel(AHEAD);
        let (store, objects, units) = (store.clone(), objects.clone(), units.to_vec());
        let work = tokio::spawn(async move {
            if let Err(error) = decode(&store, &objects, &units, only, &send).await {
                // Who is not listening any more needs no reason.
                let _ = send.send((Err(error), None)).await;
            }
        });
        Self {
            items: pieces,
            task: Some(work),
        }
    }

    /// The next item, until every WAL segment has ended.
    pub async fn next(&mut self) -> Result<PrefetchItem, MergeError> {
        match self.items.recv().await {
            Some((piece, _)) => piece,
            None => match self.task.take() {
                Some(work) => match work.await.map_err(JoinError::try_into_panic) {
                    Err(Ok(panic)) => std::panic::resume_unwind(panic),
                    // The runtime is going down, and this flush with it.
                    Ok(()) | Err(Err(_)) => std::future::pending().await,
                },
                None => std::future::pending().await,
            },
        }
    }
}

/// Sends the content of WAL segments, until the receiver is gone.
async fn decode(
    store: &Store,
    objects: &Objects,
    units: &[WalSegment],
    only: Option<i64>,
    send: &mpsc::Sender<PrefetchMessage>,
) -> Result<(), MergeError> {
    let room = Arc::new(Semaphore::new(AHEAD_KIB as usize));
    let mut source = WalSegmentReader::new(objects, units);
    let mut names = Names::default();
    for (nth, unit) in units.iter().enumerate() {
        if nth % NAMED_AT_ONCE == 0 {
            let next = units.len().min(nth + NAMED_AT_ONCE);
            names = Names::of(store, &units[nth..next]).await?;
        }
        let bytes = match source.bytes(nth, unit).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => {
                tracing::error!(wal.unit = %unit.id, wal.path = %unit.path, "an accepted WAL segment is missing");
                let entry = quarantine::missing(unit, &names.of_segment(unit.id));
                if send.send((Ok(PrefetchItem::Missing(entry)), None)).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for frame in source::frames(unit, bytes) {
            if only.is_some_and(|only| frame.number < only) {
                continue;
            }
            // Before it is decoded: that takes the room.
            let taken = room_for(&room, &frame).await;
            let piece = match body(unit, &names, &frame) {
                Ok(body) => PrefetchItem::Body(frame.number, body),
                Err(reason) => {
                    let names = names.of_segment(unit.id);
                    let entry = quarantine::quarantine_frames(objects, unit, &names, &frame, &reason).await?;
                    PrefetchItem::Quarantined(frame.number, entry)
                }
            };
            if send.send((Ok(piece), taken)).await.is_err() {
                return Ok(());
            }
            if only.is_some() {
                break;
            }
        }
        if send.send((Ok(PrefetchItem::End), None)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Waits until the body of a frame fits into memory with those not received yet. A body of unknown size takes all of
/// it.
async fn room_for(room: &Arc<Semaphore>, frame: &NumberedFrame) -> Option<OwnedSemaphorePermit> {
    let decoded_bytes = frame.frame.as_ref().map_or(0, |frame| frame.head.decoded_bytes);
    let kib = match decoded_bytes {
        0 => AHEAD_KIB,
        bytes => u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(AHEAD_KIB),
    };
    // No one closes it, so there is always a permit in the end.
    Arc::clone(room).acquire_many_owned(kib).await.ok()
}

/// The content of a frame with project names resolved. It was checked at acceptance, so an unreadable one means a bug
/// or a disk error.
pub fn body(unit: &WalSegment, names: &Names, frame: &NumberedFrame) -> Result<Body, String> {
    let known = frame.frame.as_ref().map_err(|damage| {
        tracing::error!(wal.unit = %unit.id, error = %damage, "part of an accepted WAL segment is damaged");
        damage.to_string()
    })?;
    match accept::read(known, &Limits::NONE) {
        Ok(mut contents) => {
            names.resolve(unit.id, &mut contents);
            Ok(Body {
                tenant: unit.tenant_id,
                first: frame.first,
                contents,
            })
        }
        Err(error) => {
            tracing::error!(wal.unit = %unit.id, tenant.id = %unit.tenant_id, %error, "an accepted body cannot be read");
            Err("its body cannot be read".to_owned())
        }
    }
}
