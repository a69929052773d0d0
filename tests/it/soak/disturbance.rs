//! What disturbs a round. The rounds of a layout take these in turn.

use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{interval, sleep};
use towpath_tests::{Layout, Random};

use super::site::{LEASE_SECONDS, Site};

/// Changes of the line to the database in one round, and how long each lasts.
const CHANGES: usize = 12;
const CHANGE: Duration = Duration::from_millis(150);
/// Losses of a Redis in one round, and the time between two.
const LOSSES: usize = 30;
const LOSS: Duration = Duration::from_millis(50);
/// The slowest answer of a database, in milliseconds.
const SLOWEST: u64 = 30;

/// A disturbance. A process stands for those of that name in every world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// SIGKILL, and another start.
    Kill(&'static str),
    /// SIGSTOP for longer than a lease, then SIGCONT.
    Stop(&'static str),
    /// SIGTERM in the middle of the work, and another start.
    Replace(&'static str),
    /// Redis loses everything, again and again.
    FlushRedis,
    /// The line to the database changes.
    Latency,
    /// Once the load is over, an object that holds accepted trace data is lost.
    LostObject,
}

/// One process of each role is killed, another one only stands still: it lives through all rounds, so that what it
/// holds shows.
const CLUSTER: [Disturbance; 9] = [
    Disturbance::Kill("worker-0"),
    Disturbance::Stop("worker-1"),
    Disturbance::FlushRedis,
    Disturbance::Kill("api"),
    Disturbance::LostObject,
    Disturbance::Stop("api-1"),
    Disturbance::Kill("scheduler"),
    Disturbance::Latency,
    Disturbance::Stop("scheduler"),
];
const EMBEDDED: [Disturbance; 4] = [
    Disturbance::Kill("dev"),
    Disturbance::Stop("dev"),
    Disturbance::LostObject,
    Disturbance::Replace("dev"),
];

impl Disturbance {
    /// That of a round.
    pub const fn of(layout: Layout, round: usize) -> Self {
        match layout {
            Layout::Embedded => EMBEDDED[round % EMBEDDED.len()],
            Layout::Cluster { .. } => CLUSTER[round % CLUSTER.len()],
        }
    }

    /// Whether every request is answered, with all that there is to say.
    pub const fn keeps_answers(self) -> bool {
        matches!(self, Self::Latency | Self::LostObject)
    }

    /// Disturbs the load that continues beside it.
    pub async fn make(self, site: &mut Site, dice: &mut Random) {
        match self {
            Self::Kill(name) => site.kill(name).await,
            Self::Stop(name) => {
                site.signal(name, Signal::SIGSTOP);
                // The disturbance itself: nothing is waited for.
                sleep(Duration::from_secs(2 * LEASE_SECONDS)).await;
                site.signal(name, Signal::SIGCONT);
            }
            Self::Replace(name) => site.replace(&[name]).await,
            Self::FlushRedis => {
                let mut ticks = interval(LOSS);
                for _ in 0..LOSSES {
                    ticks.tick().await;
                    site.flush().await;
                }
            }
            Self::Latency => {
                let mut ticks = interval(CHANGE);
                for _ in 0..CHANGES {
                    ticks.tick().await;
                    site.delay(milliseconds(dice));
                }
            }
            Self::LostObject => {}
        }
    }
}

/// How long an answer of the database takes in a round.
pub fn milliseconds(dice: &mut Random) -> u64 {
    1 + dice.below(SLOWEST)
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(name) => write!(f, "kill {name}"),
            Self::Stop(name) => write!(f, "stop {name}"),
            Self::Replace(name) => write!(f, "replace {name}"),
            Self::FlushRedis => f.write_str("flush redis"),
            Self::Latency => f.write_str("change the line"),
            Self::LostObject => f.write_str("lose an object"),
        }
    }
}
