//! Units decoded ahead of the fold that merges them: one thread unpacks and parses while another sorts.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use towpath_domain::TenantId;
use towpath_store::Store;
use towpath_store::units::Unit;

use super::InnerError;
use super::source::{self, Names, Source};
use crate::accept::{self, Contents};
use crate::body::Limits;
use crate::objects::Objects;
use crate::wal::Frame;

/// Bodies that wait decoded. Each may be large, so there are few.
const AHEAD: usize = 2;
/// Units whose names are looked up at once. Each may have thousands.
const NAMED_AT_ONCE: usize = 64;

/// What comes of units, one after another.
pub enum Piece {
    /// A body.
    Body {
        /// Its sender's workspace.
        tenant: TenantId,
        /// The number of its first item in the order of acceptance.
        first: i64,
        /// What it holds.
        contents: Contents,
    },
    /// A part that cannot be read.
    Damaged,
    /// The end of a unit, with its bytes; without them where its object is not there.
    End(Option<Bytes>),
}

/// Units being decoded. Dropping it ends that.
pub struct Ahead {
    pieces: mpsc::Receiver<Result<Piece, InnerError>>,
    work: Option<JoinHandle<()>>,
}

impl Ahead {
    pub fn start(store: &Store, objects: &Objects, units: &[Unit]) -> Self {
        let (send, pieces) = mpsc::channel(AHEAD);
        let (store, objects, units) = (store.clone(), objects.clone(), units.to_vec());
        let work = tokio::spawn(async move {
            if let Err(error) = decode(&store, &objects, &units, &send).await {
                // Who is not listening any more needs no reason.
                let _ = send.send(Err(error)).await;
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

/// Sends what units hold. Says nothing when nobody listens: that ends at the next piece.
async fn decode(
    store: &Store,
    objects: &Objects,
    units: &[Unit],
    send: &mpsc::Sender<Result<Piece, InnerError>>,
) -> Result<(), InnerError> {
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
                tracing::error!(wal.unit = %unit.id, wal.path = %unit.path, "an accepted unit is not there; it stays open");
                if send.send(Ok(Piece::End(None))).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for (first, frame) in source::frames(unit, bytes.clone()) {
            let contents = match frame {
                Ok(frame) => contents(unit, &names, &frame),
                Err(damage) => {
                    tracing::error!(wal.unit = %unit.id, error = %damage, "a part of an accepted unit is damaged");
                    None
                }
            };
            let piece = contents.map_or(Piece::Damaged, |contents| Piece::Body {
                tenant: unit.tenant_id,
                first,
                contents,
            });
            if send.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
        if send.send(Ok(Piece::End(Some(bytes)))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// What a frame holds, with projects in the places of their names. It was checked when it was accepted, so an error here is
/// a defect of ours or of the disk.
pub fn contents(unit: &Unit, names: &Names, frame: &Frame) -> Option<Contents> {
    match accept::read(frame, &Limits::NONE) {
        Ok(mut contents) => {
            names.resolve(unit.id, &mut contents);
            Some(contents)
        }
        Err(error) => {
            tracing::error!(wal.unit = %unit.id, tenant.id = %frame.head.tenant, %error, "an accepted body cannot be read");
            None
        }
    }
}
