//! Runs trace queries on separate threads, a few at a time.

use std::time::Duration;

use tokio::sync::Semaphore;
use towpath_query::Reader;
use towpath_workflows::cpu_pool::CpuPool;

use crate::errors::ApiError;

/// How long a query waits for a thread.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs trace queries without slowing down ingest.
pub struct QueryExecutor {
    reader: Reader,
    threads: CpuPool,
    permits: Semaphore,
}

impl QueryExecutor {
    /// Reads with `reader`, on `threads`.
    #[must_use]
    pub fn new(reader: Reader, threads: CpuPool) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            reader,
            threads,
            permits: Semaphore::new(cores.max(2)),
        }
    }

    /// Runs a query. If the caller disconnects, it ends at its next await.
    pub(crate) async fn run<T: Send + 'static, F: Future<Output = Result<T, ApiError>>>(
        &self,
        work: impl FnOnce(Reader) -> F + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = tokio::time::timeout(QUEUE_TIMEOUT, self.permits.acquire()).await;
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
                tracing::error!(error = %failure, "a query ended unexpectedly");
                Err(ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
            }
        }
    }
}

impl From<towpath_query::Error> for ApiError {
    fn from(error: towpath_query::Error) -> Self {
        match error {
            towpath_query::Error::FlushBehind => Self::unavailable(error.to_string(), Duration::from_secs(2)),
            towpath_query::Error::TooManyTraces { .. } | towpath_query::Error::TooManyRuns { .. } => {
                Self::bad_request(error.to_string())
            }
            towpath_query::Error::Store(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}
