//! Windows in Redis, for all processes. With the default prefix:
//!
//! ```text
//! towpath:limit:<name>:<identity>   list of microseconds, the oldest first; expires with its window
//! ```

use super::{WindowDecision, WindowRequest};
use crate::script_client::{Notices, ScriptClient};
use crate::{Error, Options, metric};

const SCRIPT: &str = include_str!("take.lua");

const NOTICES: Notices = Notices {
    gauge: metric::WINDOWS_SHARED,
    connected: "redis is connected; limits are shared again",
    unavailable: "redis is unavailable; each process counts limits by itself",
    late: "redis did not answer in time; each process counts limits by itself",
};

/// The connection of this process; disconnects when dropped.
pub struct Remote {
    client: ScriptClient,
    prefix: String,
}

impl Remote {
    /// Starts to connect.
    pub async fn start(uri: &str, options: Options) -> Result<Self, Error> {
        Ok(Self {
            prefix: options.prefix.clone(),
            client: ScriptClient::start(uri, options, SCRIPT, NOTICES).await?,
        })
    }

    /// Whether Redis decides on requests.
    pub fn is_up(&self) -> bool {
        self.client.is_up()
    }

    /// Takes a slot in each window, or in none if one of them refuses. `None` if Redis does not answer.
    pub async fn take(&self, asked: &[WindowRequest<'_>]) -> Option<WindowDecision> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(asked.len());
            for ask in asked {
                let who = u128::from_be_bytes(ask.identity);
                command.arg(format!("{}limit:{}:{who:032x}", self.prefix, ask.name));
            }
            for ask in asked {
                let length = u64::try_from(ask.length.as_micros()).unwrap_or(u64::MAX);
                command.arg(ask.limit).arg(length);
            }
        };
        let read = |answer: Vec<i64>| {
            let windows: Vec<(i64, i64)> = answer.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            (windows.len() == asked.len()).then(|| WindowDecision::of(windows))
        };
        self.client.run(fill, read).await
    }
}
