//! Where traces are read: on threads of their own, a few queries at a time.

use std::time::Duration;

use tokio::sync::Semaphore;
use towpath_query::Reader;
use towpath_workflows::heavy::Heavy;

use crate::errors::ApiError;

/// How long a query waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads traces without disturbing those who bring them.
pub struct Reading {
    reader: Reader,
    threads: Heavy,
    turns: Semaphore,
}

impl Reading {
    /// Reads with `reader`, on `threads`.
    #[must_use]
    pub fn new(reader: Reader, threads: Heavy) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            reader,
            threads,
            turns: Semaphore::new(cores.max(2)),
        }
    }

    /// Performs a query. Where its caller goes away, it ends at its next await.
    pub(crate) async fn run<T: Send + 'static, F: Future<Output = Result<T, ApiError>>>(
        &self,
        work: impl FnOnce(Reader) -> F + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = tokio::time::timeout(PATIENCE, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(ApiError::unavailable(
                "too many queries at once",
                Duration::from_secs(2),
            ));
        };
        let reader = self.reader.clone();
        match self.threads.run_local(move || work(reader)).await {
            Ok(answer) => answer,
            Err(failure) => {
                tracing::error!(error = %failure, "a query ended before its time");
                Err(ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
            }
        }
    }
}

impl From<towpath_query::Error> for ApiError {
    fn from(error: towpath_query::Error) -> Self {
        match error {
            towpath_query::Error::Behind => Self::unavailable(error.to_string(), Duration::from_secs(2)),
            towpath_query::Error::TooManyTraces { .. } => Self::bad_request(error.to_string()),
            towpath_query::Error::Store(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}
