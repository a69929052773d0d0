//! Hints of committed transactions.

use towpath_queue::Queue;
use towpath_store::Hints;

/// Passes ready jobs, wakes and cancel signals of a committed transaction to the queue, for
/// [`Store::on_hints`](towpath_store::Store::on_hints).
pub fn send_hints(queue: &Queue, hints: &Hints) {
    if !hints.ready.is_empty() {
        queue.push(&hints.ready);
    }
    for pool in &hints.wakes {
        queue.wake(pool);
    }
    if !hints.cancels.is_empty() {
        queue.cancel(&hints.cancels);
    }
}
