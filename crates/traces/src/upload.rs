//! One object written piece by piece with bounded memory.

mod blocks;

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::task::JoinSet;

pub(crate) use self::blocks::{Blocks, CopiedRange};
use crate::columnar::{Error, Result};

/// Part size of a multipart upload in bytes: the minimum of S3, since up to three are in memory. Some stores require
/// equal parts.
pub const PART_BYTES: usize = 5 << 20;

/// Concurrent part uploads. One may be sent while the next is filled.
const PARTS_IN_FLIGHT: usize = 2;

/// Bytes read from a local file at once, small enough for a core's cache.
const READ_BYTES: usize = 128 << 10;

/// An object being written. Nothing is visible under its key before [`Upload::complete`].
///
/// Data that fit into one part are sent by a single PUT; larger ones become a multipart upload, which is aborted on any
/// failure, and when the value is dropped unfinished inside a tokio runtime. Only a killed process leaves a multipart
/// upload behind; bucket lifecycle rules usually expire those.
#[derive(Debug)]
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    path: Path,
    buffer: BytesMut,
    part_bytes: usize,
    multipart: Option<Box<dyn MultipartUpload>>,
    in_flight: JoinSet<(object_store::Result<()>, Bytes)>,
    bytes: u64,
    checksum: crc32fast::Hasher,
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
            checksum: crc32fast::Hasher::new(),
        }
    }

    /// Sets the part size, for tests with little data.
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

    /// CRC-32 of the bytes taken so far.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.checksum.clone().finalize()
    }

    /// Adds bytes; returns when they are buffered, which may wait for an earlier part.
    ///
    /// # Errors
    /// The store refused; the upload is aborted.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.checksum.update(bytes);
        let mut rest = bytes;
        self.make_room(bytes.len());
        while self.buffer.len() + rest.len() > self.part_bytes {
            let (part, later) = rest.split_at(self.part_bytes - self.buffer.len());
            self.buffer.extend_from_slice(part);
            rest = later;
            self.send_part().await?;
        }
        self.buffer.extend_from_slice(rest);
        Ok(())
    }

    /// Copies a range of another object. Only the current part is in memory.
    ///
    /// A local file is read in this call between awaits: call it where it may occupy a core.
    ///
    /// # Errors
    /// The other object cannot be read or is too short, or the store refused; the upload is aborted.
    pub(crate) async fn copy(&mut self, from: &Arc<dyn ObjectStore>, path: &Path, range: Range<u64>) -> Result<()> {
        let options = GetOptions {
            range: Some(range.clone().into()),
            ..GetOptions::default()
        };
        let found = from.get_opts(path, options).await;
        let found = found.map_err(|source| Error::read(path, source))?;
        match found.payload {
            GetResultPayload::File(file, _) => self.copy_file(&file, path, range).await,
            GetResultPayload::Stream(mut pieces) => {
                let end = self.bytes + (range.end - range.start);
                while let Some(piece) = pieces.try_next().await.map_err(|source| Error::read(path, source))? {
                    self.write(&piece).await?;
                }
                if self.bytes == end {
                    return Ok(());
                }
                Err(unread(path, ErrorKind::UnexpectedEof.into()))
            }
        }
    }

    async fn copy_file(&mut self, file: &File, path: &Path, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            if self.buffer.len() >= self.part_bytes {
                self.send_part().await?;
            }
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            self.make_room(left);
            let filled = self.buffer.len();
            let take = left.min(self.part_bytes - filled).min(READ_BYTES);
            self.buffer.resize(filled + take, 0);
            file.read_exact_at(&mut self.buffer[filled..], at)
                .map_err(|error| unread(path, error))?;
            self.checksum.update(&self.buffer[filled..]);
            at += take as u64;
            self.bytes += take as u64;
        }
        Ok(())
    }

    /// Reserves the buffer at once if it will be needed: growing in steps leaves fragments of every size.
    fn make_room(&mut self, bytes: usize) {
        let full = self.multipart.is_some() || self.buffer.len() + bytes >= self.part_bytes;
        if full && self.buffer.capacity() < self.part_bytes {
            self.buffer.reserve(self.part_bytes - self.buffer.len());
        }
    }

    /// Sends the rest of a large object and waits for its parts, so that [`Upload::complete`] is one short request. A
    /// caller that records what it is about to make visible does so in between.
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
                // The buffer is reused: an allocator keeps freed memory for a while, and a file would need many times
                // its current size.
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

fn unread(path: &Path, error: io::Error) -> Error {
    if error.kind() == ErrorKind::UnexpectedEof {
        return Error::corrupt(path, "it ends before its columns do");
    }
    let source = Box::new(error);
    Error::read(
        path,
        object_store::Error::Generic {
            store: "folder",
            source,
        },
    )
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
        // The object stays invisible; the leftovers cost space until the bucket expires them.
        tracing::warn!(object.path = %path, error = %error, "could not abort a multipart upload");
    }
}
