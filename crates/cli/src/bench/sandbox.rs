//! `towpath bench sandbox`: how fast boxes start, wake, fork and answer, and what they take.
//!
//! First the driver alone, in this process; then `towpath dev` with SQLite, over HTTP and WebSockets as clients use it.
//! Nothing else is compared: a container runtime on the same machine has commands of its own.

mod driver;
mod platform;
mod stream;

use std::time::{Duration, Instant};

use towpath_sandbox::{ImageSettings, NamespaceSettings};

use super::report::Report;
use super::server::{self, Child};
use crate::arguments::BenchSandbox;

/// Users of boxes of a benchmark, apart from those of a server on the same machine.
const FIRST_USER: u32 = 1_600_000_000;

pub async fn run(options: &BenchSandbox) -> anyhow::Result<()> {
    let mut report = Report::default();
    let folder = server::folder()?;
    let settings = NamespaceSettings {
        root: folder.path().join("sandboxes"),
        program: crate::wiring::program()?,
        first_user: FIRST_USER,
        images: ImageSettings::default(),
    };
    driver::measure(options, settings, &mut report).await?;
    let environment = server_environment(options);
    let environment: Vec<(&str, String)> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
    let child = Child::dev_with(None, &environment).await?;
    let measured = platform::measure(options, &child, &mut report).await;
    let folder = child.stop_and_keep().await?;
    // Boxes outlive their platform.
    let left = NamespaceSettings {
        root: folder.path().join(server::DATA).join("sandboxes"),
        program: crate::wiring::program()?,
        first_user: FIRST_USER,
        images: ImageSettings::default(),
    };
    driver::destroy_all(left).await?;
    measured?;
    report.print(options.output)
}

fn server_environment(options: &BenchSandbox) -> Vec<(String, String)> {
    let own = crate::config::read_environment();
    let mut environment: Vec<(String, String)> = own
        .iter()
        .filter(|(name, _)| !name.starts_with("TOWPATH_"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let boxes = (options.rounds * 4).max(1000).to_string();
    for (name, value) in [
        ("TOWPATH_SANDBOXES_FIRST_USER_ID", FIRST_USER.to_string()),
        ("TOWPATH_SANDBOXES_MAX_PER_WORKSPACE", boxes),
    ] {
        environment.push((name.to_owned(), value));
    }
    environment
}

/// Durations of one kind of operation.
#[derive(Debug, Default)]
struct Durations(Vec<Duration>);

impl Durations {
    async fn time<T>(&mut self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let begun = Instant::now();
        let done = work.await?;
        self.0.push(begun.elapsed());
        Ok(done)
    }

    /// Reports the median and the 99th percentile.
    fn note(mut self, report: &mut Report, what: &str) {
        self.0.sort_unstable();
        for (name, part) in [("median", 50), ("p99", 99)] {
            let at = (self.0.len() * part / 100).min(self.0.len().saturating_sub(1));
            if let Some(duration) = self.0.get(at) {
                report.note(format!("{what}, {name}"), duration.as_secs_f64() * 1000.0, "ms");
            }
        }
    }
}
