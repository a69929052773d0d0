//! What a site holds at the end of a round.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use towpath_tests::World;

use super::disturbance::Disturbance;
use super::site::Site;

const MEGABYTE: f64 = 1024.0 * 1024.0;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Of a table.
    Rows,
    /// Below a folder.
    Files,
    /// Of the files below a folder.
    FileMegabytes,
    /// Of a process, resident.
    Megabytes,
    /// Open in a process.
    Descriptors,
    /// To a database.
    Connections,
    DatabaseMegabytes,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rows => "rows of",
            Self::Files => "files below",
            Self::FileMegabytes => "MB below",
            Self::Megabytes => "resident MB of",
            Self::Descriptors => "descriptors of",
            Self::Connections => "connections to",
            Self::DatabaseMegabytes => "MB of the database",
        })
    }
}

/// A quantity by its kind and by what has it.
pub type Quantity = (Kind, String);

/// One round.
pub struct Sample {
    pub number: usize,
    pub disturbance: Disturbance,
    pub delay_ms: u64,
    pub seconds: f64,
    pub requests: usize,
    pub values: BTreeMap<Quantity, f64>,
}

impl Sample {
    pub const HEAD: &str = "| round | disturbance | database ms | seconds | requests | job | job_history | rows | files | MB of files \
         | largest process MB | descriptors | connections | MB of databases |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

    pub fn new(number: usize, disturbance: Disturbance, delay_ms: u64) -> Self {
        Self {
            number,
            disturbance,
            delay_ms,
            seconds: 0.0,
            requests: 0,
            values: BTreeMap::new(),
        }
    }

    /// Counts what processes hold: at rest, before a night replaces some of them.
    pub fn count_processes(&mut self, site: &Site) {
        for (kind, world) in site.looked_at() {
            for process in &world.processes {
                let Some(pid) = process.pid() else { continue };
                let name = format!("{kind} {}", process.program().name);
                let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
                self.set(Kind::Megabytes, &name, resident_kilobytes(pid) / 1024.0);
                self.set(Kind::Descriptors, &name, descriptors as f64);
            }
        }
    }

    /// Counts what is in databases and folders: after the night, when everything that tidies up has had its turn.
    pub async fn count_stored(&mut self, site: &mut Site) {
        for store in &mut site.stores {
            for (table, rows) in store.rows().await {
                self.set(Kind::Rows, &format!("{} {table}", store.name), rows as f64);
            }
            if let Some((connections, bytes)) = store.server().await {
                self.set(Kind::Connections, store.name, connections as f64);
                self.set(Kind::DatabaseMegabytes, store.name, bytes as f64 / MEGABYTE);
            }
        }
        self.count_files(&site.platform);
    }

    fn count_files(&mut self, world: &World) {
        let data = world.data();
        let mut folders = BTreeMap::new();
        tally(&data, &data, &mut folders);
        for (folder, (files, bytes)) in folders {
            let megabytes = bytes as f64 / MEGABYTE;
            if folder.ends_with(".db") {
                self.set(Kind::DatabaseMegabytes, &folder, megabytes);
            } else {
                self.set(Kind::Files, &folder, files as f64);
                self.set(Kind::FileMegabytes, &folder, megabytes);
            }
        }
    }

    fn set(&mut self, kind: Kind, of: &str, value: f64) {
        self.values.insert((kind, of.to_owned()), value);
    }

    /// Its row of the table.
    pub fn line(&self) -> String {
        let of = |kind: Kind| self.values.iter().filter(move |((other, _), _)| *other == kind);
        let sum = |kind: Kind| of(kind).map(|(_, value)| value).sum::<f64>();
        let rows = |table: &str| {
            let named = of(Kind::Rows).filter(|((_, name), _)| name.rsplit(' ').next() == Some(table));
            named.map(|(_, value)| value).sum::<f64>()
        };
        let largest = of(Kind::Megabytes).map(|(_, value)| *value).fold(0.0, f64::max);
        format!(
            "| {} | {} | {} | {:.1} | {} | {} | {} | {} | {} | {:.1} | {largest:.0} | {} | {} | {:.1} |",
            self.number,
            self.disturbance,
            self.delay_ms,
            self.seconds,
            self.requests,
            rows("job"),
            rows("job_history"),
            sum(Kind::Rows),
            sum(Kind::Files),
            sum(Kind::FileMegabytes),
            sum(Kind::Descriptors),
            sum(Kind::Connections),
            sum(Kind::DatabaseMegabytes),
        )
    }
}

/// Counts files and bytes by folder: the first two names below `root`, or the database that a file belongs to.
fn tally(root: &Path, folder: &Path, folders: &mut BTreeMap<String, (u64, u64)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // One that is removed meanwhile counts for nothing.
        let Ok(about) = entry.metadata() else { continue };
        if about.is_dir() {
            tally(root, &path, folders);
            continue;
        }
        let below = path.strip_prefix(root).expect("a file below the folder");
        let names: Vec<_> = below.iter().map(OsStr::to_string_lossy).collect();
        let top = match &names[..] {
            [file] => file
                .find(".db")
                .map_or("data".to_owned(), |at| file[..at + 3].to_owned()),
            // What an agent server or an export keeps.
            [folder, _] => folder.to_string(),
            [folder, second, ..] => format!("{folder}/{second}"),
            [] => continue,
        };
        // Each export has a folder of its own.
        let top: &str = if top.starts_with("exports") { "exports" } else { &top };
        let counted = folders.entry(top.to_owned()).or_default();
        *counted = (counted.0 + 1, counted.1 + about.len());
    }
}

fn resident_kilobytes(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kilobytes.unwrap_or_default()
}
