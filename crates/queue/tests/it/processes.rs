//! Simulates two processes of one queue.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use towpath_domain::WorkerId;
use towpath_queue::{DispatchMode, Options, Queue, State};

/// A queue as two processes see it; the same one for the local queue.
pub struct Processes {
    /// Records work.
    pub here: Queue,
    /// Performs work.
    pub there: Queue,
    /// Pools that the reader of the other side knows; `None` without a reader.
    read: Option<Mutex<BTreeSet<String>>>,
    /// Address of Redis and prefix of the keys.
    redis: Option<(String, String)>,
}

impl Processes {
    /// Within one process.
    pub fn local() -> Self {
        let here = Queue::local();
        Self {
            there: here.clone(),
            here,
            read: None,
            redis: None,
        }
    }

    /// Over the Redis that `TOWPATH_TEST_REDIS` names, with its own prefix.
    pub async fn redis() -> Option<Self> {
        Self::over_redis(DispatchMode::Scan).await
    }

    /// The same with directed dispatch.
    pub async fn directed() -> Option<Self> {
        Self::over_redis(DispatchMode::Directed).await
    }

    async fn over_redis(dispatch: DispatchMode) -> Option<Self> {
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
            dispatch,
            // An answer that is late on a busy machine would lose what it took.
            patience: Duration::from_secs(60),
            ..Options::default()
        };
        let redis = Some((uri.clone(), options.prefix.clone()));
        let here = Queue::redis(&uri, options.clone()).await.unwrap();
        let there = Queue::redis(&uri, options).await.unwrap();
        for queue in [&here, &there] {
            let up = async {
                while queue.health().state != State::Up || queue.can_take() != (dispatch == DispatchMode::Directed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            soon("a connection", up).await;
            let connections = queue.connections().expect("over Redis");
            assert_eq!(
                (connections.needed, connections.open),
                (dispatch.connections(), dispatch.connections())
            );
        }
        Some(Self {
            here,
            there,
            read: Some(Mutex::default()),
            redis,
        })
    }

    /// Deletes keys, without their prefix.
    pub async fn delete(&self, keys: &[String]) {
        let (uri, prefix) = self.redis.as_ref().expect("over Redis");
        let client = redis::Client::open(uri.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd("DEL");
        for key in keys {
            command.arg(format!("{prefix}{key}"));
        }
        command.exec_async(&mut connection).await.unwrap();
    }

    /// Those of `pools` that are new to the reader of the other side.
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

/// Fails the test if an expected hint does not arrive. The limit does not test speed.
pub async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(Duration::from_secs(180), wait).await else {
        panic!("waited for {what}")
    };
    value
}
