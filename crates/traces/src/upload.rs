//! One object written piece by piece with bounded memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::task::JoinSet;

use crate::columnar::{Error, Result};

/// Size of a part of a multipart upload in bytes: what S3 wants at least, since up to three lie in memory. Some stores
/// want all parts equal.
pub const PART_BYTES: usize = 5 << 20;

/// Parts under way at once. One may travel while the next is filled.
const PARTS_IN_FLIGHT: usize = 2;

/// An object in the making. Nothing is visible under its key before [`Upload::complete`].
///
/// What fits into one part is sent by a single PUT; what is larger becomes a multipart upload, which is aborted when
/// anything fails, and also when the value is dropped unfinished inside a tokio runtime. Only a killed process leaves
/// a multipart behind; buckets are usually told to expire those.
#[derive(Debug)]
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    path: Path,
    buffer: BytesMut,
    part_bytes: usize,
    multipart: Option<Box<dyn MultipartUpload>>,
    in_flight: JoinSet<(object_store::Result<()>, Bytes)>,
    bytes: u64,
}

impl Upload {
    /// Begins an object at `path`. Nothing is sent yet.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self {
            store,
            path,
            buffer: BytesMut::new(),
            part_bytes: PART_BYTES,
            multipart: None,
            in_flight: JoinSet::new(),
            bytes: 0,
        }
    }

    /// With parts of another size; for tests, which want several of them from little data.
    #[must_use]
    pub fn with_part_bytes(mut self, part_bytes: usize) -> Self {
        self.part_bytes = part_bytes.max(1);
        self
    }

    /// Its key.
    #[must_use]
    pub const fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes taken so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes more bytes; returns when they are buffered, which may mean to wait for an earlier part.
    ///
    /// # Errors
    /// The store refused; the upload is aborted.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        let mut rest = bytes;
        if self.buffer.capacity() == 0 && self.multipart.is_some() {
            // At once, since growing by and by leaves pieces of every size behind.
            self.buffer.reserve(self.part_bytes);
        }
        while self.buffer.len() + rest.len() > self.part_bytes {
            let (part, later) = rest.split_at(self.part_bytes - self.buffer.len());
            self.buffer.extend_from_slice(part);
            rest = later;
            self.send_part().await?;
        }
        self.buffer.extend_from_slice(rest);
        Ok(())
    }

    /// Sends what is left of a large object and waits for its parts, so that [`Upload::complete`] is one short
    /// request. A caller that notes down what it is about to make visible does so between the two.
    ///
    /// # Errors
    /// The store refused; the upload is aborted.
    pub async fn seal(&mut self) -> Result<()> {
        if self.multipart.is_some() {
            if !self.buffer.is_empty() {
                self.send_part().await?;
            }
            while !self.in_flight.is_empty() {
                self.wait_for_one().await?;
            }
        }
        Ok(())
    }

    /// Makes the object visible and returns its size in bytes.
    ///
    /// # Errors
    /// The store refused; the upload is aborted.
    pub async fn complete(mut self) -> Result<u64> {
        self.seal().await?;
        let result = match &mut self.multipart {
            Some(multipart) => multipart.complete().await.map(drop),
            None => {
                let payload = PutPayload::from(std::mem::take(&mut self.buffer).freeze());
                self.store.put(&self.path, payload).await.map(drop)
            }
        };
        match result {
            Ok(()) => {
                self.multipart = None;
                Ok(self.bytes)
            }
            Err(source) => Err(self.failed(source).await),
        }
    }

    /// Gives up; nothing becomes visible.
    pub async fn abort(mut self) {
        self.discard().await;
    }

    async fn send_part(&mut self) -> Result<()> {
        if self.multipart.is_none() {
            match self.store.put_multipart(&self.path).await {
                Ok(multipart) => self.multipart = Some(multipart),
                Err(source) => return Err(self.failed(source).await),
            }
        }
        let part = std::mem::take(&mut self.buffer).freeze();
        while self.in_flight.len() >= PARTS_IN_FLIGHT {
            self.wait_for_one().await?;
        }
        if let Some(multipart) = &mut self.multipart {
            let sent = multipart.put_part(part.clone().into());
            self.in_flight.spawn(async move { (sent.await, part) });
        }
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<()> {
        let source = match self.in_flight.join_next().await {
            None => return Ok(()),
            Some(Ok((Ok(()), part))) => {
                // Its memory is the next one's: an allocator that is given so much back keeps it for a while, and a
                // file would need many times what lies here at one moment.
                if let (true, Ok(mut free)) = (self.buffer.capacity() == 0, part.try_into_mut()) {
                    free.clear();
                    self.buffer = free;
                }
                return Ok(());
            }
            Some(Ok((Err(source), _))) => source,
            Some(Err(source)) => object_store::Error::JoinError { source },
        };
        Err(self.failed(source).await)
    }

    async fn failed(&mut self, source: object_store::Error) -> Error {
        self.discard().await;
        Error::write(&self.path, source)
    }

    async fn discard(&mut self) {
        self.in_flight.shutdown().await;
        if let Some(mut multipart) = self.multipart.take() {
            abort(&mut *multipart, &self.path).await;
        }
    }
}

/// What an encoder writes into between two awaits: blocks, since one growing buffer would for a moment hold everything
/// twice. Clones share them, so that what one half-written row group has made so far can be sent already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    full: Vec<Vec<u8>>,
    /// Sent, and to be filled again.
    free: Vec<Vec<u8>>,
}

impl Blocks {
    const BYTES: usize = 1 << 20;
    /// Of the first, which is all that a small segment needs.
    const FIRST_BYTES: usize = 64 << 10;
    /// So many are kept for what comes.
    const FREE: usize = 4;

    /// Hands everything on to an upload, block by block.
    pub(crate) async fn send(&self, upload: &mut Upload) -> Result<()> {
        let blocks = std::mem::take(&mut self.lock().full);
        for mut block in blocks {
            upload.write(&block).await?;
            let mut shared = self.lock();
            if shared.free.len() < Self::FREE {
                block.clear();
                shared.free.push(block);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::io::Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut shared = self.lock();
        let full = shared
            .full
            .last()
            .is_none_or(|block| block.len() + bytes.len() > Self::BYTES);
        if full {
            let least = if shared.full.is_empty() {
                Self::FIRST_BYTES
            } else {
                Self::BYTES
            };
            let free = shared.free.pop();
            let block = free.unwrap_or_else(|| Vec::with_capacity(least.max(bytes.len()).min(Self::BYTES)));
            shared.full.push(block);
        }
        if let Some(block) = shared.full.last_mut() {
            block.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(mut multipart) = self.multipart.take() else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let path = self.path.clone();
            runtime.spawn(async move { abort(&mut *multipart, &path).await });
        }
    }
}

async fn abort(multipart: &mut dyn MultipartUpload, path: &Path) {
    if let Err(error) = multipart.abort().await {
        // The object stays invisible all the same; what is left costs space until the bucket expires it.
        tracing::warn!(object.path = %path, error = %error, "could not abort a multipart upload");
    }
}
