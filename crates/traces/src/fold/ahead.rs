//! Units decoded ahead of the fold that merges them: one thread unpacks and parses while another sorts.

use bytes::Bytes;
use object_store::path::Path;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use towpath_store::units::Unit;

use super::Body;
use crate::accept::{self, Contents};
use crate::body::Limits;
use crate::objects::{Objects, ObjectsError};
use crate::wal::{self, Frame, unit};

/// Bodies that wait decoded. Each may be large, so there are few.
const AHEAD: usize = 2;

/// What comes of units, one after another.
pub enum Piece {
    /// A body.
    Body(Body),
    /// A part that cannot be read.
    Damaged,
    /// The end of a unit, with its bytes; without them where its object is not there.
    End(Option<Bytes>),
}

/// Units being decoded. Dropping it ends that.
pub struct Ahead {
    pieces: mpsc::Receiver<Result<Piece, ObjectsError>>,
    work: Option<JoinHandle<()>>,
}

impl Ahead {
    pub fn start(objects: &Objects, units: &[Unit]) -> Self {
        let (send, pieces) = mpsc::channel(AHEAD);
        let (objects, units) = (objects.clone(), units.to_vec());
        let work = tokio::spawn(async move {
            for unit in units {
                if let Err(error) = decode(&objects, &unit, &send).await {
                    // Who is not listening any more needs no reason.
                    let _ = send.send(Err(error)).await;
                    return;
                }
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
    /// A unit cannot be read.
    pub async fn next(&mut self) -> Result<Piece, ObjectsError> {
        match self.pieces.recv().await {
            Some(piece) => piece,
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

/// Sends what a unit holds. Says nothing when nobody listens: that ends at the next piece.
async fn decode(
    objects: &Objects,
    unit: &Unit,
    send: &mpsc::Sender<Result<Piece, ObjectsError>>,
) -> Result<(), ObjectsError> {
    let path = Path::from(unit.path.as_str());
    let bytes = match objects.get(&path).await {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => {
            tracing::error!(wal.unit = %unit.id, wal.path = %path, "an accepted unit is not there; it stays open");
            let _ = send.send(Ok(Piece::End(None))).await;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut index = 0_u32;
    for frame in unit::read(bytes.clone()) {
        let base = index;
        let contents = match frame {
            Ok(frame) => {
                index = index.saturating_add(frame.head.items);
                contents(unit, &frame).map(|contents| (frame.head.tenant, contents))
            }
            Err(damage) => {
                index = index.saturating_add(damage.items.unwrap_or(0));
                tracing::error!(wal.unit = %unit.id, error = %damage, "a part of an accepted unit is damaged");
                None
            }
        };
        let piece = contents.map_or(Piece::Damaged, |(tenant, contents)| {
            Piece::Body(Body {
                tenant,
                first: wal::seq(unit.seq, base),
                contents,
            })
        });
        if send.send(Ok(piece)).await.is_err() {
            return Ok(());
        }
    }
    let _ = send.send(Ok(Piece::End(Some(bytes)))).await;
    Ok(())
}

/// What a frame holds. It was checked when it was accepted, so an error here is a defect of ours or of the disk.
pub fn contents(unit: &Unit, frame: &Frame) -> Option<Contents> {
    match accept::read(frame, &Limits::NONE) {
        Ok(contents) => Some(contents),
        Err(error) => {
            tracing::error!(wal.unit = %unit.id, tenant.id = %frame.head.tenant, %error, "an accepted body cannot be read");
            None
        }
    }
}
