//! Windows in Redis, for all processes. With the default prefix:
//!
//! ```text
//! towpath:limit:<name>:<identity>   list of microseconds, the oldest first; expires with its window
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::{WindowDecision, WindowRequest};
use crate::streams::{client, within_deadline, without_password};
use crate::{Error, Options, metric};

const SCRIPT: &str = include_str!("take.lua");
/// Time limit of a request to Redis; after it, this process decides.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(250);
/// An idle connection is tested at this interval, so that a loss is detected before a request.
const IDLE: Duration = Duration::from_secs(1);
const FIRST_ATTEMPT: Duration = Duration::from_millis(500);

/// The connection of this process; disconnects when dropped.
pub struct Remote {
    shared: Arc<Shared>,
    _connection_task: JoinSet<()>,
}

struct Shared {
    client: redis::Client,
    password: Option<String>,
    prefix: String,
    connection: Mutex<Option<ScriptConnection>>,
    /// Notifies that the connection is lost.
    connection_lost: Notify,
}

/// A connection and the digest of the script.
#[derive(Clone)]
struct ScriptConnection {
    number: u64,
    connection: MultiplexedConnection,
    digest: Arc<str>,
}

impl Remote {
    /// Starts to connect.
    pub async fn start(uri: &str, options: Options) -> Result<Self, Error> {
        let (client, password) = client(uri, options.tls_ca)?;
        let shared = Arc::new(Shared {
            client,
            password,
            prefix: options.prefix,
            connection: Mutex::default(),
            connection_lost: Notify::new(),
        });
        metrics::gauge!(metric::WINDOWS_SHARED).set(0.0);
        let (first, outcome) = oneshot::channel();
        let mut keeping = JoinSet::new();
        keeping.spawn(shared.clone().keep_connected(first));
        // On a timeout the attempt continues in the background.
        let _ = tokio::time::timeout(FIRST_ATTEMPT, outcome).await;
        Ok(Self {
            shared,
            _connection_task: keeping,
        })
    }

    /// Whether Redis decides on requests.
    pub fn is_up(&self) -> bool {
        self.shared.current_connection().is_some()
    }

    /// Takes a slot in each window, or in none if one of them refuses. `None` if Redis does not answer.
    pub async fn take(&self, asked: &[WindowRequest<'_>]) -> Option<WindowDecision> {
        let line = self.shared.current_connection().clone()?;
        let number = line.number;
        match tokio::time::timeout(PATIENCE, self.shared.run_script(line, asked)).await {
            Ok(Ok(verdict)) => Some(verdict),
            Ok(Err(error)) => {
                self.shared.drop_connection(number, error);
                None
            }
            Err(_) => {
                self.shared.drop_connection(number, timed_out());
                None
            }
        }
    }
}

impl Shared {
    /// Keeps a connection open. `first` receives the result of the first attempt.
    async fn keep_connected(self: Arc<Self>, first: oneshot::Sender<()>) {
        let mut first = Some(first);
        let mut number = 0;
        let mut told = None;
        loop {
            number += 1;
            match within_deadline(self.connect(number)).await {
                Ok(line) => {
                    let mut probe = line.connection.clone();
                    *self.current_connection() = Some(line);
                    metrics::gauge!(metric::WINDOWS_SHARED).set(1.0);
                    if told.take().is_some() {
                        tracing::info!("redis is connected; limits are shared again");
                    }
                    first.take();
                    self.while_connected(number, &mut probe).await;
                    told = Some(String::new());
                }
                Err(error) => {
                    first.take();
                    let text = self.told(error);
                    // Once per outage and reason.
                    if told.as_ref() != Some(&text) {
                        tracing::warn!(
                            error = text,
                            "redis is unavailable; each process counts limits by itself"
                        );
                        told = Some(text);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect(&self, number: u64) -> RedisResult<ScriptConnection> {
        // Each exchange has its own, shorter limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(2)));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        let digest: String = load.query_async(&mut connection).await?;
        Ok(ScriptConnection {
            number,
            connection,
            digest: digest.into(),
        })
    }

    /// Waits until the connection is lost.
    async fn while_connected(&self, number: u64, probe: &mut MultiplexedConnection) {
        loop {
            let lost = self.connection_lost.notified();
            if self
                .current_connection()
                .as_ref()
                .is_none_or(|line| line.number != number)
            {
                return;
            }
            if tokio::time::timeout(IDLE, lost).await.is_ok() {
                continue;
            }
            let ping = redis::cmd("PING");
            match tokio::time::timeout(PATIENCE * 4, ping.exec_async(probe)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.drop_connection(number, error),
                Err(_) => self.drop_connection(number, timed_out()),
            }
        }
    }

    async fn run_script(&self, line: ScriptConnection, asked: &[WindowRequest<'_>]) -> RedisResult<WindowDecision> {
        let ScriptConnection {
            mut connection, digest, ..
        } = line;
        let answer: RedisResult<Vec<i64>> = self
            .command("EVALSHA", &digest, asked)
            .query_async(&mut connection)
            .await;
        let answer = match answer {
            // The server was flushed or restarted, and needs the script again.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.command("EVAL", SCRIPT, asked).query_async(&mut connection).await?
            }
            answer => answer?,
        };
        let windows: Vec<(i64, i64)> = answer.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        if windows.len() == asked.len() {
            Ok(WindowDecision::of(windows))
        } else {
            Err(RedisError::from((
                redis::ErrorKind::Io,
                "unexpected result of the script",
            )))
        }
    }

    fn command(&self, verb: &str, script: &str, asked: &[WindowRequest<'_>]) -> redis::Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(asked.len());
        for ask in asked {
            let who = u128::from_be_bytes(ask.identity);
            command.arg(format!("{}limit:{}:{who:032x}", self.prefix, ask.name));
        }
        for ask in asked {
            let length = u64::try_from(ask.length.as_micros()).unwrap_or(u64::MAX);
            command.arg(ask.limit).arg(length);
        }
        command
    }

    /// Drops this connection, so that the next requests do not wait for it.
    fn drop_connection(&self, number: u64, error: RedisError) {
        {
            let mut line = self.current_connection();
            if line.as_ref().is_none_or(|line| line.number != number) {
                return;
            }
            *line = None;
        }
        metrics::gauge!(metric::WINDOWS_SHARED).set(0.0);
        let text = self.told(error);
        tracing::warn!(
            error = text,
            "redis did not answer in time; each process counts limits by itself"
        );
        self.connection_lost.notify_one();
    }

    fn told(&self, error: RedisError) -> String {
        let text = without_password(error);
        match self.password.as_deref().filter(|password| !password.is_empty()) {
            Some(password) => text.replace(password, "***"),
            None => text,
        }
    }

    fn current_connection(&self) -> MutexGuard<'_, Option<ScriptConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn timed_out() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no answer within the time limit"))
}
