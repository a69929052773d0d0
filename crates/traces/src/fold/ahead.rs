//! Units decoded ahead of the fold that merges them: one thread unpacks and parses while another sorts.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinHandle};
use towpath_store::Store;
use towpath_store::quarantine::Entry;
use towpath_store::units::Unit;

use super::source::{self, Names, NumberedFrame, Source};
use super::{Body, InnerError, quarantine};
use crate::accept;
use crate::body::Limits;
use crate::objects::Objects;

/// Bodies that wait decoded.
const AHEAD: usize = 2;
/// KiB that they come to after decoding. A body that is larger waits alone.
const AHEAD_KIB: u32 = 64 << 10;
/// Units whose names are looked up at once. Each may have thousands.
const NAMED_AT_ONCE: usize = 64;

/// What comes of units, one after another.
pub enum Piece {
    /// The number of a frame, and the body in it.
    Body(i64, Body),
    /// The number of a frame that cannot be read, as it was put into quarantine.
    Quarantined(i64, Entry),
    /// The end of a unit.
    End,
    /// The end of a unit whose object is not there.
    Missing(Entry),
}

/// A piece on its way, and the room that it takes until it is received.
type Sent = (Result<Piece, InnerError>, Option<OwnedSemaphorePermit>);

/// Units being decoded. Dropping it ends that.
pub struct Ahead {
    pieces: mpsc::Receiver<Sent>,
    work: Option<JoinHandle<()>>,
}

impl Ahead {
    /// All frames of all units. With a number, of a single unit the first frame from this one on.
    pub fn start(store: &Store, objects: &Objects, units: &[Unit], only: Option<i64>) -> Self {
        let (send, pieces) = mpsc::channel(AHEAD);
        let (store, objects, units) = (store.clone(), objects.clone(), units.to_vec());
        let work = tokio::spawn(async move {
            if let Err(error) = decode(&store, &objects, &units, only, &send).await {
                // Who is not listening any more needs no reason.
                let _ = send.send((Err(error), None)).await;
            }
        });
        Self {
            pieces,
            work: Some(work),
        }
    }

    /// The next piece. There is one until every unit has ended.
    ///
    /// # Errors
    /// A unit, or what its names mean, cannot be read.
    pub async fn next(&mut self) -> Result<Piece, InnerError> {
        match self.pieces.recv().await {
            Some((piece, _)) => piece,
            None => match self.work.take() {
                Some(work) => match work.await.map_err(JoinError::try_into_panic) {
                    Err(Ok(panic)) => std::panic::resume_unwind(panic),
                    // The runtime is going down, and this fold with it.
                    Ok(()) | Err(Err(_)) => std::future::pending().await,
                },
                None => std::future::pending().await,
            },
        }
    }
}

/// Sends what units hold. Says nothing when nobody listens: that ends at the next piece.
async fn decode(
    store: &Store,
    objects: &Objects,
    units: &[Unit],
    only: Option<i64>,
    send: &mpsc::Sender<Sent>,
) -> Result<(), InnerError> {
    let room = Arc::new(Semaphore::new(AHEAD_KIB as usize));
    let mut source = Source::new(objects, units);
    let mut names = Names::default();
    for (nth, unit) in units.iter().enumerate() {
        if nth % NAMED_AT_ONCE == 0 {
            let next = units.len().min(nth + NAMED_AT_ONCE);
            names = Names::of(store, &units[nth..next]).await?;
        }
        let bytes = match source.bytes(nth, unit).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => {
                tracing::error!(wal.unit = %unit.id, wal.path = %unit.path, "an accepted unit is not there");
                let entry = quarantine::missing(unit, &names.of_unit(unit.id));
                if send.send((Ok(Piece::Missing(entry)), None)).await.is_err() {
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
                Ok(body) => Piece::Body(frame.number, body),
                Err(reason) => {
                    let names = names.of_unit(unit.id);
                    let entry = quarantine::put_aside(objects, unit, &names, &frame, &reason).await?;
                    Piece::Quarantined(frame.number, entry)
                }
            };
            if send.send((Ok(piece), taken)).await.is_err() {
                return Ok(());
            }
            if only.is_some() {
                break;
            }
        }
        if send.send((Ok(Piece::End), None)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Waits until the body of a frame has room beside those that were not received yet. What is not known to be small takes
/// all of it.
async fn room_for(room: &Arc<Semaphore>, frame: &NumberedFrame) -> Option<OwnedSemaphorePermit> {
    let decoded_bytes = frame.frame.as_ref().map_or(0, |frame| frame.head.decoded_bytes);
    let kib = match decoded_bytes {
        0 => AHEAD_KIB,
        bytes => u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(AHEAD_KIB),
    };
    // Nobody closes it, so there is always a permit in the end.
    Arc::clone(room).acquire_many_owned(kib).await.ok()
}

/// What a frame holds, with projects in the places of their names. It was checked when it was accepted, so one that cannot
/// be read is a defect of ours or of the disk.
///
/// # Errors
/// Why it cannot be read.
pub fn body(unit: &Unit, names: &Names, frame: &NumberedFrame) -> Result<Body, String> {
    let known = frame.frame.as_ref().map_err(|damage| {
        tracing::error!(wal.unit = %unit.id, error = %damage, "a part of an accepted unit is damaged");
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
