//! Many callers, one statement.
//!
//! A flush starts when the previous one ends and takes whatever waits by then. There is no timer: one caller alone
//! pays for one statement, sixty-four at once pay for one together. When the database refuses a group because of what
//! one of them asks, each is asked alone, so that the others do not fail with it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use towpath_store as store;

/// The most one flush takes.
const LARGEST: usize = 512;

type Waiting<Q, A> = (Q, oneshot::Sender<store::Result<A>>);

/// Gathers requests and hands them to one flush at a time.
pub struct Batch<Q, A> {
    send: mpsc::Sender<Waiting<Q, A>>,
    asking: AtomicUsize,
}

/// Stands for a caller until it is dropped.
pub struct Asking<'b>(&'b AtomicUsize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<Q: Clone + Send + Sync + 'static, A: Send + 'static> Batch<Q, A> {
    /// `flush` answers its requests in their order. On the calling runtime.
    pub fn new<F, Fut>(flush: F) -> Self
    where
        F: Fn(Arc<Vec<Q>>) -> Fut + Send + 'static,
        Fut: Future<Output = store::Result<Vec<A>>> + Send,
    {
        let (send, mut receive) = mpsc::channel::<Waiting<Q, A>>(LARGEST * 2);
        tokio::spawn(async move {
            let mut group = Vec::with_capacity(LARGEST);
            while receive.recv_many(&mut group, LARGEST).await > 0 {
                // Tasks that are ready to run may be about to ask too. No timer: a few turns of the runtime, for as
                // long as each brings somebody, so that one caller alone waits for a single turn.
                loop {
                    let before = group.len();
                    tokio::task::yield_now().await;
                    while group.len() < LARGEST
                        && let Ok(one) = receive.try_recv()
                    {
                        group.push(one);
                    }
                    if group.len() == before || group.len() == LARGEST {
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
                            let _ = caller.send(Err(again(&error)));
                        }
                    }
                    Err(_) => {
                        for (request, caller) in requests.iter().zip(waiting) {
                            let answer = flush(Arc::new(vec![request.clone()])).await;
                            let alone = answer.and_then(|mut answers| answers.pop().ok_or_else(gone));
                            let _ = caller.send(alone);
                        }
                    }
                }
            }
        });
        Self {
            send,
            asking: AtomicUsize::new(0),
        }
    }

    /// When nobody asks at this moment, leave to do so without company: handing a request to another task and waiting for it
    /// costs more than the statement of one alone.
    pub fn alone(&self) -> Option<Asking<'_>> {
        let free = self.asking.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        free.is_ok().then(|| Asking(&self.asking))
    }

    /// Asks with whoever else does.
    ///
    /// # Errors
    /// Those of the flush.
    pub async fn call(&self, request: Q) -> store::Result<A> {
        self.asking.fetch_add(1, Ordering::Relaxed);
        let _asking = Asking(&self.asking);
        let (answer, answered) = oneshot::channel();
        if self.send.send((request, answer)).await.is_err() {
            return Err(gone());
        }
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The same error for each of a group.
fn again(error: &store::Error) -> store::Error {
    match error {
        store::Error::Unavailable(source) => store::Error::Unavailable(source.clone()),
        store::Error::Full => store::Error::Full,
        other => store::Error::Open(other.to_string()),
    }
}

fn gone() -> store::Error {
    store::Error::Open("the engine has stopped".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_one_at_a_time_is_alone() {
        let batch: Batch<u32, u32> = Batch::new(async |group: Arc<Vec<u32>>| Ok(group.to_vec()));
        let first = batch.alone().expect("nobody else asks");
        assert!(batch.alone().is_none(), "the first one is still at it");
        drop(first);
        assert_eq!(batch.call(7).await.unwrap(), 7);
        assert!(batch.alone().is_some(), "the caller has its answer and is gone");
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
