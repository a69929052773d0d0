//! The fault proxy as a program, for suites that are not written in Rust.
//!
//! `fault-proxy HOST:PORT` prints the address it listens on, then takes one mode per line, as
//! [`Mode`](towpath_tests::fault_proxy::Mode) reads them, and returns each line with `harmed <count>`: how often harm
//! was done so far. `?` changes nothing and is answered, too. It ends with its input.

use std::io::{BufRead as _, Write as _};

use tokio::sync::mpsc;
use towpath_tests::fault_proxy::FaultProxy;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let upstream = arguments.next().ok_or("usage: fault-proxy HOST:PORT")?.parse()?;
    let proxy = FaultProxy::start(upstream).await;
    say(&proxy.addr().to_string())?;
    let (tell, mut told) = mpsc::channel(1);
    // A thread of its own: waiting for a line must not hold up bytes that pass.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = told.recv().await {
        if line != "?" {
            proxy.set(line.parse()?);
        }
        say(&format!("harmed {}", proxy.harmed()))?;
    }
    Ok(())
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
