//! Many callers, one statement.
//!
//! A flush starts when the previous one ends and takes whatever waits by then. There is no timer: one caller alone
//! pays for one statement, sixty-four at once pay for one together.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use towpath_store as store;

/// The most one flush takes.
const LARGEST: usize = 512;

type Waiting<Q, A> = (Q, oneshot::Sender<store::Result<A>>);

/// Gathers requests and hands them to one flush at a time.
pub(crate) struct Batch<Q, A>(mpsc::Sender<Waiting<Q, A>>);

impl<Q: Send + Sync + 'static, A: Send + 'static> Batch<Q, A> {
    /// `flush` answers its requests in their order.
    pub(crate) fn new<F, Fut>(flush: F) -> Self
    where
        F: Fn(Arc<Vec<Q>>) -> Fut + Send + 'static,
        Fut: Future<Output = store::Result<Vec<A>>> + Send,
    {
        let (send, mut receive) = mpsc::channel::<Waiting<Q, A>>(LARGEST * 2);
        tokio::spawn(async move {
            let mut group = Vec::with_capacity(LARGEST);
            while receive.recv_many(&mut group, LARGEST).await > 0 {
                let (requests, waiting): (Vec<_>, Vec<_>) = group.drain(..).unzip();
                match flush(Arc::new(requests)).await {
                    Ok(answers) => {
                        for (caller, answer) in waiting.into_iter().zip(answers) {
                            let _ = caller.send(Ok(answer));
                        }
                    }
                    Err(error) => {
                        let error = Arc::new(error);
                        for caller in waiting {
                            let _ = caller.send(Err(again(&error)));
                        }
                    }
                }
            }
        });
        Self(send)
    }

    pub(crate) async fn call(&self, request: Q) -> store::Result<A> {
        let (answer, answered) = oneshot::channel();
        if self.0.send((request, answer)).await.is_err() {
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
