//! A separate Redis server for a test, which can be paused and emptied.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use towpath_queue::{DispatchMode, Options, Queue, State};

pub struct RedisServer {
    child: Child,
    pub uri: String,
}

impl RedisServer {
    /// Starts one if the program is installed.
    pub async fn start() -> Option<Self> {
        // Free now; a test that loses the race for it fails, which is rare and obvious.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let spawned = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
            .arg(port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = spawned else {
            println!("skipped: redis-server is not installed");
            return None;
        };
        let server = Self {
            child,
            uri: format!("redis://127.0.0.1:{port}"),
        };
        let deadline = tokio::time::Instant::now() + super::PATIENCE;
        while redis::Client::open(server.uri.as_str())
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .is_err()
        {
            assert!(tokio::time::Instant::now() < deadline, "redis-server does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(server)
    }

    /// A connected queue, as in a separate process.
    pub async fn queue(&self) -> Queue {
        self.queue_with(DispatchMode::Scan).await
    }

    /// The same with directed dispatch.
    pub async fn directed_queue(&self) -> Queue {
        self.queue_with(DispatchMode::Directed).await
    }

    async fn queue_with(&self, dispatch: DispatchMode) -> Queue {
        let options = Options {
            dispatch,
            ..Options::default()
        };
        let queue = Queue::redis(&self.uri, options).await.unwrap();
        let deadline = tokio::time::Instant::now() + super::PATIENCE;
        while queue.health().state != State::Up || queue.can_take() != (dispatch == DispatchMode::Directed) {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", queue.health());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        queue
    }

    pub async fn command(&self, words: &[&str]) {
        let client = redis::Client::open(self.uri.as_str()).unwrap();
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(super::PATIENCE))
            .set_response_timeout(Some(super::PATIENCE));
        let mut conn: MultiplexedConnection = client
            .get_multiplexed_async_connection_with_config(&patient)
            .await
            .unwrap();
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        command.query_async::<()>(&mut conn).await.unwrap();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
