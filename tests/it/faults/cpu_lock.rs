//! Which fault has the processors for itself.

use std::fs::File;

/// A turn alone. The next one begins when this is dropped.
///
/// Figures of a fault are read: how slow the slowest answer was, how soon all was well again. Where a fault makes
/// everything wait, it leaves the processors to others and its figures are those of its time limits, so such faults are
/// made at the same time. Where ingest continues under it, or a cluster starts, the processors are busy, and that is
/// done one after another.
pub struct CpuLock {
    _lock: File,
}

impl CpuLock {
    /// Waits for the turn. Tests may be processes of their own, so it is the lock of a file beside the test binary.
    pub async fn take() -> Self {
        let taken = tokio::task::spawn_blocking(|| {
            let test = std::env::current_exe()?;
            let lock = File::options()
                .create(true)
                .append(true)
                .open(test.with_file_name("faults.lock"))?;
            lock.lock()?;
            std::io::Result::Ok(lock)
        });
        let taken = taken.await.expect("waiting for a lock does not panic");
        Self {
            _lock: taken.expect("the folder of the test binary can be written"),
        }
    }
}
