//! What an encoder has written and no one has sent yet.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use parking_lot::Mutex;

use super::Upload;
use crate::columnar::Result;

/// The output of an encoder between two awaits: blocks, since growing one buffer would briefly hold everything twice.
/// Clones share them, so that the beginning of an unfinished row group can already be sent.
///
/// A range of the file may be a [`CopiedRange`] of another object. The encoder's output there stands in for that
/// object's bytes, which are read when they are sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks(Arc<Mutex<BlocksState>>);

/// A range of another object, to be copied.
#[derive(Clone, Debug)]
pub(crate) struct CopiedRange {
    /// Where the object is.
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    /// Bytes of it.
    pub(crate) range: Range<u64>,
}

#[derive(Debug, Default)]
struct BlocksState {
    ready: Vec<BlockPiece>,
    /// Sent, and to be filled again.
    free: Vec<Vec<u8>>,
    /// How many bytes were taken.
    taken: u64,
    /// Ranges of the file that are copied, in order, from the one at `taken` on.
    copied: VecDeque<(Range<u64>, CopiedRange)>,
}

#[derive(Debug)]
enum BlockPiece {
    Bytes(Vec<u8>),
    Copied(CopiedRange),
}

impl Blocks {
    const BYTES: usize = 1 << 20;
    /// Of the first, which is all that a small segment needs.
    const FIRST_BYTES: usize = 64 << 10;
    /// So many are kept for what comes.
    const FREE: usize = 4;

    /// Declares that the output at `at` stands in for bytes of another object. Ranges are declared in order, before
    /// they are written.
    pub(crate) fn copy(&self, at: u64, from: CopiedRange) {
        let end = at + (from.range.end - from.range.start);
        if end > at {
            self.0.lock().copied.push_back((at..end, from));
        }
    }

    /// Hands everything on to an upload, piece by piece.
    pub(crate) async fn send(&self, upload: &mut Upload) -> Result<()> {
        let ready = std::mem::take(&mut self.0.lock().ready);
        for piece in ready {
            let mut block = match piece {
                BlockPiece::Copied(from) => {
                    upload.copy(&from.store, &from.path, from.range).await?;
                    continue;
                }
                BlockPiece::Bytes(block) => block,
            };
            upload.write(&block).await?;
            let mut shared = self.0.lock();
            if shared.free.len() < Self::FREE {
                block.clear();
                shared.free.push(block);
            }
        }
        Ok(())
    }
}

impl BlocksState {
    /// Takes some of `bytes` and returns how many: up to the next boundary of a copied range.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let up_to = |end: u64, at: u64| usize::try_from(end - at).unwrap_or(usize::MAX).min(bytes.len());
        let taken = match self.copied.front() {
            Some((at, _)) if at.start <= self.taken => {
                let (at, from) = (at.clone(), self.taken);
                let stand_ins = up_to(at.end, from);
                if at.start == from
                    && let Some((_, copied)) = self.copied.front()
                {
                    let copied = copied.clone();
                    self.push(copied);
                }
                if from + stand_ins as u64 == at.end {
                    self.copied.pop_front();
                }
                stand_ins
            }
            next => {
                let own = next.map_or(bytes.len(), |(at, _)| up_to(at.start, self.taken));
                self.write(&bytes[..own]);
                own
            }
        };
        self.taken += taken as u64;
        taken
    }

    /// Neighbours are read as one.
    fn push(&mut self, next: CopiedRange) {
        match self.ready.last_mut() {
            Some(BlockPiece::Copied(last)) if last.path == next.path && last.range.end == next.range.start => {
                last.range.end = next.range.end;
            }
            _ => self.ready.push(BlockPiece::Copied(next)),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match self.ready.last_mut() {
            Some(BlockPiece::Bytes(block)) if block.len() + bytes.len() <= Blocks::BYTES => {
                block.extend_from_slice(bytes);
            }
            last => {
                let least = if last.is_none() {
                    Blocks::FIRST_BYTES
                } else {
                    Blocks::BYTES
                };
                let free = self.free.pop();
                let mut block = free.unwrap_or_else(|| Vec::with_capacity(least.max(bytes.len()).min(Blocks::BYTES)));
                block.extend_from_slice(bytes);
                self.ready.push(BlockPiece::Bytes(block));
            }
        }
    }
}

impl std::io::Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut shared = self.0.lock();
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = shared.take(rest);
            rest = &rest[taken..];
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use object_store::ObjectStoreExt as _;
    use object_store::memory::InMemory;
    use proptest::prelude::*;

    use super::*;

    /// Whatever the sizes of writes and the moments of sends, the bytes are the same.
    async fn check(parts: Vec<(bool, usize)>, step: usize, sends: usize) {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let source: Vec<u8> = (0..20_000_u32).map(|at| (at * 31 % 251) as u8).collect();
        let other = Path::from("other");
        store.put(&other, source.clone().into()).await.unwrap();
        let mut blocks = Blocks::default();
        let path = Path::from("made");
        let mut upload = Upload::new(store.clone(), path.clone()).with_part_bytes(777);
        let (mut expected, mut told, mut from) = (Vec::new(), Vec::new(), 0);
        for (copied, bytes) in parts {
            if copied {
                let range = from..from + bytes;
                from += bytes;
                let copied = CopiedRange {
                    store: store.clone(),
                    path: other.clone(),
                    range: range.start as u64..range.end as u64,
                };
                blocks.copy(expected.len() as u64, copied);
                expected.extend_from_slice(&source[range]);
                told.extend(std::iter::repeat_n(0, bytes));
            } else {
                let own = vec![expected.len() as u8; bytes];
                expected.extend_from_slice(&own);
                told.extend(own);
            }
        }
        for (count, piece) in told.chunks(step).enumerate() {
            blocks.write_all(piece).unwrap();
            if count % sends == 0 {
                blocks.send(&mut upload).await.unwrap();
            }
        }
        blocks.send(&mut upload).await.unwrap();
        assert_eq!(upload.checksum(), crc32fast::hash(&expected));
        assert_eq!(upload.complete().await.unwrap(), expected.len() as u64);
        let made = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert!(made == expected);
    }

    proptest! {
        #[test]
        fn copied_ranges_come_in_their_place(
            parts in prop::collection::vec((any::<bool>(), 0_usize..1500), 0..12),
            step in 1_usize..3000,
            sends in 1_usize..4,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(check(parts, step, sends));
        }
    }
}
