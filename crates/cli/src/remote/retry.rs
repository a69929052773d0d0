//! Waiting for a server that is restarted meanwhile.

use std::time::{Duration, Instant};

use crate::exit::Unreachable;

pub const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a server may be unavailable during a wait: the time of a restart.
pub const MAX_OUTAGE: Duration = Duration::from_secs(60);

/// Polls for a result. The server's work continues while the server is unavailable, so failures are retried for a
/// minute from the first one.
pub async fn retry_while_unavailable<T>(ask: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut since: Option<Instant> = None;
    loop {
        let answer = ask().await;
        let Err(why) = &answer else { return answer };
        if !why.is::<Unreachable>() || since.get_or_insert_with(Instant::now).elapsed() >= MAX_OUTAGE {
            return answer;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_server_that_comes_back_is_asked_again() {
        let asked = Cell::new(0);
        let answer = retry_while_unavailable(async || {
            asked.set(asked.get() + 1);
            if asked.get() == 1 {
                Err(anyhow::Error::from(Unreachable("the connection broke".into())))
            } else {
                Ok("deployed")
            }
        })
        .await;
        assert_eq!((answer.unwrap(), asked.get()), ("deployed", 2));
    }

    #[tokio::test]
    async fn a_refusal_is_final() {
        let asked = Cell::new(0);
        let refused = retry_while_unavailable(async || {
            asked.set(asked.get() + 1);
            Err::<(), _>(anyhow::anyhow!("revision not found"))
        })
        .await;
        assert_eq!(
            (refused.unwrap_err().to_string(), asked.get()),
            ("revision not found".to_owned(), 1)
        );
    }
}
