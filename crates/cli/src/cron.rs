//! `towpath cron`: prints the next times of a schedule, for example across a clock change.

use anyhow::anyhow;
use towpath_domain::agent::cron::{Schedule, zone};
use towpath_domain::{Clock, Rejection, Timestamp};

use crate::arguments::{Cron, Output};
use crate::exit::Usage;

pub fn run(command: &Cron) -> anyhow::Result<()> {
    let wrong = |why: Rejection| anyhow!(Usage(why.message));
    let schedule: Schedule = command.schedule.parse().map_err(wrong)?;
    let zone = zone(Some(&command.timezone)).map_err(wrong)?;
    let mut time = command.after.unwrap_or_else(|| Clock::system().now());
    let mut times: Vec<Timestamp> = Vec::new();
    for _ in 0..command.count {
        let Some(next) = schedule.next_after(time, zone) else {
            break;
        };
        times.push(next);
        time = next;
    }
    match command.output {
        Output::Json => println!("{}", serde_json::to_string(&times)?),
        Output::Table if times.is_empty() => println!("never"),
        Output::Table => {
            for time in times {
                let local = time.to_utc().with_timezone(&zone);
                println!(
                    "{}   {}",
                    local.format("%a %Y-%m-%d %H:%M:%S %Z"),
                    time.to_utc().format("%Y-%m-%dT%H:%M:%SZ")
                );
            }
        }
    }
    Ok(())
}
