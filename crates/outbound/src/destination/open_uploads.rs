//! Registry of open multipart uploads. An unfinished upload is invisible and costs space until it is aborted, for which
//! only the process that began it knows the id.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// An upload in parts that was begun.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenUpload {
    /// The key it will have.
    pub path: String,
    /// What the destination calls it.
    pub id: String,
}

/// Uploads that were begun and are not over.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenUploads(Arc<UploadState>);

#[derive(Debug, Default)]
struct UploadState {
    open: Mutex<BTreeSet<OpenUpload>>,
    /// Whether there ever was one.
    any: AtomicBool,
}

impl OpenUploads {
    pub(super) fn add(&self, upload: OpenUpload) {
        self.0.any.store(true, Ordering::Relaxed);
        self.0.open.lock().insert(upload);
    }

    pub(super) fn remove(&self, upload: &OpenUpload) {
        self.0.open.lock().remove(upload);
    }

    pub(super) fn list(&self) -> Vec<OpenUpload> {
        self.0.open.lock().iter().cloned().collect()
    }

    pub(super) fn has_any(&self) -> bool {
        self.0.any.load(Ordering::Relaxed)
    }
}
