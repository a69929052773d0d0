//! Two processes of one queue, as far as a test can tell.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use towpath_domain::WorkerId;
use towpath_queue::{Options, Queue, State};

/// A queue as two processes see it. For the queue within a process both are the same.
pub struct Processes {
    /// Where work is recorded.
    pub here: Queue,
    /// Where it is performed.
    pub there: Queue,
    /// The pools that the reader of the other side has got to; none where there is no reader.
    read: Option<Mutex<BTreeSet<String>>>,
}

impl Processes {
    /// Within one process.
    pub fn local() -> Self {
        let here = Queue::local();
        Self {
            there: here.clone(),
            here,
            read: None,
        }
    }

    /// Over the Redis that `TOWPATH_TEST_REDIS` names, under a prefix of its own.
    pub async fn redis() -> Option<Self> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the server to test against is handed over in the environment"
        )]
        let Ok(uri) = std::env::var("TOWPATH_TEST_REDIS") else {
            eprintln!("skipped: TOWPATH_TEST_REDIS is not set");
            return None;
        };
        let options = Options {
            prefix: format!("towpath-test:{}:", WorkerId::new()),
            ..Options::default()
        };
        let here = Queue::redis(&uri, options.clone()).await.unwrap();
        let there = Queue::redis(&uri, options).await.unwrap();
        for queue in [&here, &there] {
            let up = async {
                while queue.health().state != State::Up {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            soon("a connection", up).await;
        }
        Some(Self {
            here,
            there,
            read: Some(Mutex::default()),
        })
    }

    /// Which of `pools` are new to the reader of the other side.
    pub fn first_read<'p>(&self, pools: &[&'p str]) -> Vec<&'p str> {
        let Some(read) = &self.read else { return Vec::new() };
        let mut read = read.lock().unwrap();
        pools
            .iter()
            .copied()
            .filter(|pool| read.insert((*pool).to_owned()))
            .collect()
    }
}

/// Fails the test when a hint that has to come does not. The limit is no expectation of speed.
pub async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(Duration::from_secs(180), wait).await else {
        panic!("waited for {what}")
    };
    value
}
