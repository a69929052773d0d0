//! Groups concurrent calls into one statement.
//!
//! A group starts when the previous one has ended, and takes all waiting requests. There is no timer: a single caller
//! pays for one statement, and sixty-four callers share one. If the database refuses a group because of one of its
//! requests, each request is repeated alone, so that the others do not fail.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use towpath_store as store;

/// Maximum size of a group.
const MAX_GROUP: usize = 512;

type QueuedRequest<Q, A> = (Q, oneshot::Sender<store::Result<A>>);

/// Collects requests and processes one group at a time.
pub struct Batch<Q, A> {
    queue: mpsc::Sender<QueuedRequest<Q, A>>,
    callers: AtomicUsize,
}

/// Counts as a caller until it is dropped.
pub struct CallerGuard<'b>(&'b AtomicUsize);

impl Drop for CallerGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<Q: Clone + Send + Sync + 'static, A: Send + 'static> Batch<Q, A> {
    /// `flush` returns its responses in the order of the requests. Runs on the calling runtime.
    pub fn new<F, Fut>(flush: F) -> Self
    where
        F: Fn(Arc<Vec<Q>>) -> Fut + Send + 'static,
        Fut: Future<Output = store::Result<Vec<A>>> + Send,
    {
        let (send, mut receive) = mpsc::channel::<QueuedRequest<Q, A>>(MAX_GROUP * 2);
        tokio::spawn(async move {
            let mut group = Vec::with_capacity(MAX_GROUP);
            while receive.recv_many(&mut group, MAX_GROUP).await > 0 {
                // Ready tasks may be about to call too, so this yields to the runtime as long as each turn brings
                // another request. A single caller waits for one turn.
                loop {
                    let before = group.len();
                    tokio::task::yield_now().await;
                    while group.len() < MAX_GROUP
                        && let Ok(one) = receive.try_recv()
                    {
                        group.push(one);
                    }
                    if group.len() == before || group.len() == MAX_GROUP {
                        break;
                    }
                }
                let (requests, waiting): (Vec<_>, Vec<_>) = group.drain(..).unzip();
                let requests = Arc::new(requests);
                match flush(requests.clone()).await {
                    Ok(answers) => {
                        for (caller, answer) in waiting.into_iter().zip(answers) {
                            let _ = caller.send(Ok(answer));
                        }
                    }
                    Err(error) if error.is_transient() || requests.len() == 1 => {
                        for caller in waiting {
                            let _ = caller.send(Err(clone_error(&error)));
                        }
                    }
                    Err(_) => {
                        for (request, caller) in requests.iter().zip(waiting) {
                            let answer = flush(Arc::new(vec![request.clone()])).await;
                            let alone = answer.and_then(|mut answers| answers.pop().ok_or_else(stopped_error));
                            let _ = caller.send(alone);
                        }
                    }
                }
            }
        });
        Self {
            queue: send,
            callers: AtomicUsize::new(0),
        }
    }

    /// Permission to run a statement without a group, if there is no other caller: passing a request to another task
    /// costs more than a single statement.
    pub fn try_exclusive(&self) -> Option<CallerGuard<'_>> {
        let free = self
            .callers
            .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        free.is_ok().then(|| CallerGuard(&self.callers))
    }

    /// Processes a request, together with concurrent ones.
    pub async fn call(&self, request: Q) -> store::Result<A> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        let _asking = CallerGuard(&self.callers);
        let (answer, answered) = oneshot::channel();
        if self.queue.send((request, answer)).await.is_err() {
            return Err(stopped_error());
        }
        answered.await.unwrap_or_else(|_| Err(stopped_error()))
    }
}

/// Copies the error for each request of a group.
fn clone_error(error: &store::Error) -> store::Error {
    match error {
        store::Error::Unavailable(source) => store::Error::Unavailable(source.clone()),
        store::Error::Full => store::Error::Full,
        other => store::Error::Open(other.to_string()),
    }
}

fn stopped_error() -> store::Error {
    store::Error::Open("the engine has stopped".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_one_at_a_time_is_alone() {
        let batch: Batch<u32, u32> = Batch::new(async |group: Arc<Vec<u32>>| Ok(group.to_vec()));
        let first = batch.try_exclusive().expect("nobody else asks");
        assert!(batch.try_exclusive().is_none(), "the first one is still at it");
        drop(first);
        assert_eq!(batch.call(7).await.unwrap(), 7);
        assert!(batch.try_exclusive().is_some(), "the caller has its answer and is gone");
    }

    #[tokio::test]
    async fn one_that_is_refused_does_not_take_the_others_along() {
        let batch: Batch<u32, u32> = Batch::new(async |group: Arc<Vec<u32>>| {
            if group.contains(&13) {
                return Err(store::Error::NotFound);
            }
            Ok(group.iter().map(|request| request * 2).collect())
        });
        let answers = futures::future::join_all((10..20).map(|request| batch.call(request))).await;
        for (request, answer) in (10..20).zip(answers) {
            if request == 13 {
                assert!(answer.is_err());
            } else {
                assert_eq!(answer.unwrap(), request * 2);
            }
        }
    }
}
