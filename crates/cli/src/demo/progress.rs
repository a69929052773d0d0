//! Progress: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Progress {
    bar: ProgressBar,
    done: &'static str,
    started: Instant,
    total: u64,
}

impl Progress {
    /// `doing` and `done` are two forms of one verb, such as "sending" and "sent".
    pub fn start(doing: &'static str, done: &'static str, total: u64) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let target = if terminal {
            ProgressDrawTarget::stdout()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{msg:>9} [{bar:40}] {human_pos}/{human_len} trace runs, {per_sec}")
            .expect("the template is fixed and valid")
            .progress_chars("=> ");
        let bar = ProgressBar::with_draw_target(Some(total), target)
            .with_style(style)
            .with_message(doing);
        if !terminal {
            println!("{doing} {} trace runs …", grouped(total));
        }
        Self {
            bar,
            done,
            started: Instant::now(),
            total,
        }
    }

    pub fn add(&self, rows: u64) {
        self.bar.inc(rows);
    }

    pub fn set(&self, rows: u64) {
        self.bar.set_position(rows);
    }

    /// Ends the progress and prints how long it took.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
        let seconds = self.started.elapsed().as_secs_f64().max(1e-6);
        println!(
            "{} {} trace runs in {seconds:.2} s ({}/s)",
            self.done,
            grouped(self.total),
            rate(self.total, seconds)
        );
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "for people"
)]
fn rate(rows: u64, seconds: f64) -> String {
    grouped((rows as f64 / seconds) as u64)
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_have_commas() {
        assert_eq!(
            [0, 12, 123, 1234, 123_456, 1_234_567].map(grouped),
            ["0", "12", "123", "1,234", "123,456", "1,234,567"]
        );
    }
}
