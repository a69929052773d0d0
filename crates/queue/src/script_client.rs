//! A connection that calls one script and gives up soon: whoever waits for the answer can go on without it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError, RedisResult};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::streams::{client, within_deadline, without_password};
use crate::{Error, Options};

const PAUSE: Duration = Duration::from_millis(250);
/// The pause after several short connections: a server that is too slow is not tried again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A connection of this length is not short.
const GOOD_CONNECTION: Duration = Duration::from_secs(5);
/// An idle connection is tested at this interval, so that a loss is detected before a call.
const IDLE: Duration = Duration::from_secs(1);
const FIRST_ATTEMPT: Duration = Duration::from_millis(500);

/// What is told of the connection.
#[derive(Clone, Copy)]
pub struct Notices {
    /// 1 while it is open, else 0.
    pub gauge: &'static str,
    /// It is open again.
    pub connected: &'static str,
    /// It cannot be opened.
    pub unavailable: &'static str,
    /// A call failed.
    pub late: &'static str,
}

/// The connection of this process; disconnects when dropped.
pub struct ScriptClient {
    shared: Arc<Shared>,
    _connection_task: JoinSet<()>,
}

struct Shared {
    client: redis::Client,
    password: Option<String>,
    script: &'static str,
    notices: Notices,
    patience: Duration,
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

impl ScriptClient {
    /// Starts to connect, and waits for the first attempt, half a second at most.
    pub async fn start(uri: &str, options: Options, script: &'static str, notices: Notices) -> Result<Self, Error> {
        let (client, password) = client(uri, options.tls_ca)?;
        let shared = Arc::new(Shared {
            client,
            password,
            script,
            notices,
            patience: options.patience,
            connection: Mutex::default(),
            connection_lost: Notify::new(),
        });
        metrics::gauge!(notices.gauge).set(0.0);
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

    /// Whether the connection is open.
    pub fn is_up(&self) -> bool {
        self.shared.connection.lock().is_some()
    }

    /// Calls the script: `fill` adds the number of its keys, the keys and the arguments, and `read` reads the answer.
    /// `None` if Redis does not answer in time, or with something else.
    pub async fn run<A: FromRedisValue, T>(
        &self,
        fill: impl Fn(&mut redis::Cmd),
        read: impl FnOnce(A) -> Option<T>,
    ) -> Option<T> {
        let line = self.shared.connection.lock().clone()?;
        let number = line.number;
        let error = match tokio::time::timeout(self.shared.patience, self.shared.call(line, fill)).await {
            Ok(Ok(answer)) => match read(answer) {
                Some(value) => return Some(value),
                None => RedisError::from((redis::ErrorKind::Io, "unexpected result of the script")),
            },
            Ok(Err(error)) => error,
            Err(_) => timed_out(),
        };
        self.shared.drop_connection(number, error);
        None
    }
}

impl Shared {
    /// Keeps a connection open. `first` receives the result of the first attempt.
    async fn keep_connected(self: Arc<Self>, first: oneshot::Sender<()>) {
        let mut first = Some(first);
        let mut number = 0;
        let mut told = None;
        let mut pause = PAUSE;
        loop {
            number += 1;
            match within_deadline(self.connect(number)).await {
                Ok(line) => {
                    let mut probe = line.connection.clone();
                    *self.connection.lock() = Some(line);
                    let opened = Instant::now();
                    metrics::gauge!(self.notices.gauge).set(1.0);
                    if told.take().is_some() {
                        tracing::info!("{}", self.notices.connected);
                    }
                    first.take();
                    self.while_connected(number, &mut probe).await;
                    told = Some(String::new());
                    pause = if opened.elapsed() < GOOD_CONNECTION {
                        (pause * 2).min(LONGEST_PAUSE)
                    } else {
                        PAUSE
                    };
                }
                Err(error) => {
                    first.take();
                    let text = self.told(error);
                    // Once per outage and reason.
                    if told.as_ref() != Some(&text) {
                        tracing::warn!(error = text, "{}", self.notices.unavailable);
                        told = Some(text);
                    }
                    pause = PAUSE;
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn connect(&self, number: u64) -> RedisResult<ScriptConnection> {
        // Each exchange has its own, usually shorter limit.
        let limit = self.patience.max(Duration::from_secs(2));
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(limit));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(self.script);
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
            if self.connection.lock().as_ref().is_none_or(|line| line.number != number) {
                return;
            }
            if tokio::time::timeout(IDLE, lost).await.is_ok() {
                continue;
            }
            let ping = redis::cmd("PING");
            match tokio::time::timeout(self.patience * 4, ping.exec_async(probe)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.drop_connection(number, error),
                Err(_) => self.drop_connection(number, timed_out()),
            }
        }
    }

    async fn call<A: FromRedisValue>(&self, line: ScriptConnection, fill: impl Fn(&mut redis::Cmd)) -> RedisResult<A> {
        let ScriptConnection {
            mut connection, digest, ..
        } = line;
        let command = |verb: &str, script: &str| {
            let mut command = redis::cmd(verb);
            command.arg(script);
            fill(&mut command);
            command
        };
        let answer: RedisResult<A> = command("EVALSHA", &digest).query_async(&mut connection).await;
        match answer {
            // The server was flushed or restarted, and needs the script again.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                command("EVAL", self.script).query_async(&mut connection).await
            }
            answer => answer,
        }
    }

    /// Drops this connection, so that the next calls do not wait for it.
    fn drop_connection(&self, number: u64, error: RedisError) {
        {
            let mut line = self.connection.lock();
            if line.as_ref().is_none_or(|line| line.number != number) {
                return;
            }
            *line = None;
        }
        metrics::gauge!(self.notices.gauge).set(0.0);
        let text = self.told(error);
        tracing::warn!(error = text, "{}", self.notices.late);
        self.connection_lost.notify_one();
    }

    fn told(&self, error: RedisError) -> String {
        let text = without_password(error);
        match self.password.as_deref().filter(|password| !password.is_empty()) {
            Some(password) => text.replace(password, "***"),
            None => text,
        }
    }
}

fn timed_out() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no answer within the time limit"))
}
