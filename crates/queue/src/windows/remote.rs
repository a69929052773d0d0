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

use super::{Ask, Verdict};
use crate::streams::{client, plain, within_deadline};
use crate::{Error, Options, metric};

const SCRIPT: &str = include_str!("take.lua");
/// A request waits for Redis no longer; then it is judged here.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(250);
/// A connection that nobody uses is tried this often, so that a loss shows before a request.
const IDLE: Duration = Duration::from_secs(1);
/// How long a start waits for the first attempt.
const FIRST_ATTEMPT: Duration = Duration::from_millis(500);

/// The connection of this process; dropped, it hangs up.
pub struct Remote {
    shared: Arc<Shared>,
    /// Aborted on drop.
    _keeping: JoinSet<()>,
}

struct Shared {
    client: redis::Client,
    password: Option<String>,
    prefix: String,
    line: Mutex<Option<Line>>,
    /// The line is gone.
    lost: Notify,
}

/// A connection and the script's digest, by which the server calls it.
#[derive(Clone)]
struct Line {
    number: u64,
    connection: MultiplexedConnection,
    digest: Arc<str>,
}

impl Remote {
    /// Begins to connect.
    pub async fn start(uri: &str, options: Options) -> Result<Self, Error> {
        let (client, password) = client(uri, options.tls_ca)?;
        let shared = Arc::new(Shared {
            client,
            password,
            prefix: options.prefix,
            line: Mutex::default(),
            lost: Notify::new(),
        });
        metrics::gauge!(metric::WINDOWS_SHARED).set(0.0);
        let (first, outcome) = oneshot::channel();
        let mut keeping = JoinSet::new();
        keeping.spawn(shared.clone().keep_connected(first));
        // Late is fine: the attempt goes on in the background.
        let _ = tokio::time::timeout(FIRST_ATTEMPT, outcome).await;
        Ok(Self {
            shared,
            _keeping: keeping,
        })
    }

    /// Whether requests are judged there.
    pub fn is_up(&self) -> bool {
        self.shared.line().is_some()
    }

    /// Takes a place in each window, or in none where one of them refuses. `None` where Redis does not say.
    pub async fn take(&self, asked: &[Ask<'_>]) -> Option<Verdict> {
        let line = self.shared.line().clone()?;
        let number = line.number;
        match tokio::time::timeout(PATIENCE, self.shared.ask(line, asked)).await {
            Ok(Ok(verdict)) => Some(verdict),
            Ok(Err(error)) => {
                self.shared.lose(number, error);
                None
            }
            Err(_) => {
                self.shared.lose(number, late());
                None
            }
        }
    }
}

impl Shared {
    /// One connection after the other, for ever. `first` hears of the first one's outcome.
    async fn keep_connected(self: Arc<Self>, first: oneshot::Sender<()>) {
        let mut first = Some(first);
        let mut number = 0;
        let mut told = None;
        loop {
            number += 1;
            match within_deadline(self.connect(number)).await {
                Ok(line) => {
                    let mut probe = line.connection.clone();
                    *self.line() = Some(line);
                    metrics::gauge!(metric::WINDOWS_SHARED).set(1.0);
                    if told.take().is_some() {
                        tracing::info!("redis is back, limits are shared again");
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
                        tracing::warn!(error = text, "redis is away, each process counts limits by itself");
                        told = Some(text);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect(&self, number: u64) -> RedisResult<Line> {
        // Each exchange has a limit of ours, shorter than this.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(2)));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SCRIPT);
        let digest: String = load.query_async(&mut connection).await?;
        Ok(Line {
            number,
            connection,
            digest: digest.into(),
        })
    }

    /// Waits until the line is lost.
    async fn while_connected(&self, number: u64, probe: &mut MultiplexedConnection) {
        loop {
            let lost = self.lost.notified();
            if self.line().as_ref().is_none_or(|line| line.number != number) {
                return;
            }
            if tokio::time::timeout(IDLE, lost).await.is_ok() {
                continue;
            }
            let ping = redis::cmd("PING");
            match tokio::time::timeout(PATIENCE * 4, ping.exec_async(probe)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.lose(number, error),
                Err(_) => self.lose(number, late()),
            }
        }
    }

    async fn ask(&self, line: Line, asked: &[Ask<'_>]) -> RedisResult<Verdict> {
        let Line {
            mut connection, digest, ..
        } = line;
        let answer: RedisResult<Vec<i64>> = self
            .command("EVALSHA", &digest, asked)
            .query_async(&mut connection)
            .await;
        let answer = match answer {
            // The server was flushed or started again: it gets the text, and knows it from then on.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.command("EVAL", SCRIPT, asked).query_async(&mut connection).await?
            }
            answer => answer?,
        };
        let windows: Vec<(i64, i64)> = answer.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        if windows.len() == asked.len() {
            Ok(Verdict::of(windows))
        } else {
            Err(RedisError::from((
                redis::ErrorKind::Io,
                "the script answers something else",
            )))
        }
    }

    fn command(&self, verb: &str, script: &str, asked: &[Ask<'_>]) -> redis::Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(asked.len());
        for ask in asked {
            let who = u128::from_be_bytes(ask.who);
            command.arg(format!("{}limit:{}:{who:032x}", self.prefix, ask.name));
        }
        for ask in asked {
            let length = u64::try_from(ask.length.as_micros()).unwrap_or(u64::MAX);
            command.arg(ask.count).arg(length);
        }
        command
    }

    /// Gives the line with this number up, so that the next requests wait for nothing.
    fn lose(&self, number: u64, error: RedisError) {
        {
            let mut line = self.line();
            if line.as_ref().is_none_or(|line| line.number != number) {
                return;
            }
            *line = None;
        }
        metrics::gauge!(metric::WINDOWS_SHARED).set(0.0);
        let text = self.told(error);
        tracing::warn!(
            error = text,
            "redis does not answer in time, each process counts limits by itself"
        );
        self.lost.notify_one();
    }

    fn told(&self, error: RedisError) -> String {
        let text = plain(error);
        match self.password.as_deref().filter(|password| !password.is_empty()) {
            Some(password) => text.replace(password, "***"),
            None => text,
        }
    }

    fn line(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn late() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no answer within the time limits have"))
}
