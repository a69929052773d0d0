//! Time as the processes have it: ahead of the machine's.
//!
//! Files, ids and timers keep the time of the machine. So days begin and end between two rounds only, at rest, and a
//! timer that looks every few minutes is given its turn by a restart (`site.rs`).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use towpath_tests::{Process, until};

pub const DAY_MICROS: i64 = 86_400_000_000;

/// The file that every process reads its offset from.
pub struct TestClock {
    file: PathBuf,
    offset_ms: i64,
}

impl TestClock {
    /// Begins at the next noon: no midnight of the machine comes into a round before twelve hours are over.
    pub fn at_noon(folder: &Path) -> Self {
        let now = machine_micros();
        let today = now.div_euclid(DAY_MICROS) * DAY_MICROS + DAY_MICROS / 2;
        let noon = if today < now { today + DAY_MICROS } else { today };
        let clock = Self {
            file: folder.join("clock-offset"),
            offset_ms: (noon - now) / 1000,
        };
        clock.write();
        clock
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn offset_ms(&self) -> i64 {
        self.offset_ms
    }

    /// Now, in microseconds since 1970.
    pub fn now(&self) -> i64 {
        machine_micros() + self.offset_ms * 1000
    }

    /// The day, counted from 1970-01-01.
    pub fn today(&self) -> i64 {
        self.now().div_euclid(DAY_MICROS)
    }

    /// Moves the clocks of these processes, all of which run, and returns when they have said so.
    pub async fn forward(&mut self, days: i64, processes: &[&Process]) {
        let logs: Vec<(PathBuf, u64)> = processes
            .iter()
            .map(|process| {
                let log = process.log().to_owned();
                let length = std::fs::metadata(&log).map_or(0, |about| about.len());
                (log, length)
            })
            .collect();
        self.offset_ms += days * DAY_MICROS / 1000;
        self.write();
        let what = format!("{} processes to move their clocks by {} ms", logs.len(), self.offset_ms);
        until(&what, Duration::from_secs(60), async || {
            let moved = logs.iter().all(|(log, from)| says(log, *from, self.offset_ms));
            moved.then_some(())
        })
        .await;
    }

    fn write(&self) {
        // Renamed: a reader must not see half a number.
        let draft = self.file.with_extension("new");
        std::fs::write(&draft, self.offset_ms.to_string()).expect("the folder is ours");
        std::fs::rename(&draft, &self.file).expect("both lie in one folder");
    }
}

/// Whether a process has logged this offset since its log had `from` bytes.
fn says(log: &Path, from: u64, offset_ms: i64) -> bool {
    let mut text = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut text)
    });
    let text = String::from_utf8_lossy(&text);
    let said = |end: char| text.contains(&format!("\"offset_ms\":{offset_ms}{end}"));
    read.is_ok() && (said(',') || said('}'))
}

fn machine_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    i64::try_from(since.as_micros()).expect("microseconds fit until the year 294246")
}
