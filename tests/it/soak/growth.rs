//! What grows without bound: the last third of all rounds beside the middle one. The first third fills what is kept for
//! days.

use std::collections::BTreeSet;

use super::sample::{Kind, Quantity, Sample};

/// How much more the last third may hold.
const FACTOR: f64 = 1.5;
/// Quantities of the closing table.
const SHOWN: usize = 12;
/// Records of what was exported: there is no request that deletes one and no time after which it goes, so they grow
/// with what clients ask for. Files of exports are taken away by the test, as clients do.
const RECORDS: [&str; 4] = ["export", "export_run", "export_file", "export_filter"];

/// What a quantity may have in the last third beyond [`FACTOR`]: as much as two rounds of the same load differ by.
const fn allowance(kind: Kind) -> f64 {
    match kind {
        // A night leaves what it has done itself: jobs of sweeps, compactions and the schedule with their lanes and
        // steps, and what a lost object or a request without an answer has left for the next sweep. That is some tens
        // of rows in a table.
        Kind::Rows => 60.0,
        // One or two for each trace run of the last load that is not compacted yet, and what a killed writer has left.
        Kind::Files => 40.0,
        // Those hold a few kilobytes each; the log of a process's database is cut at 4 MB.
        Kind::FileMegabytes => 8.0,
        // Pages that an allocator keeps after a burst, and pages of the program itself, which are read as code is used.
        Kind::Megabytes => 40.0,
        // Half of what the pools of a process may open: 8 connections to the database, as many of clients that are
        // still kept.
        Kind::Descriptors => 16.0,
        // The pools of two processes, which close what is idle for five minutes only.
        Kind::Connections => 16.0,
        // Free pages: a table keeps the largest size that it has ever had.
        Kind::DatabaseMegabytes => 16.0,
    }
}

/// The averages of the middle and the last third. Rounds that do not divide by three are the first third's.
fn thirds(values: &[f64]) -> (f64, f64) {
    let third = values.len() / 3;
    let (rest, last) = values.split_at(values.len() - third);
    let middle = &rest[rest.len() - third..];
    let average = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    (average(middle), average(last))
}

/// Each quantity with both averages.
fn compared(samples: &[Sample]) -> Vec<(&Quantity, f64, f64)> {
    let quantities: BTreeSet<&Quantity> = samples.iter().flat_map(|sample| sample.values.keys()).collect();
    let compared = quantities.into_iter().map(|quantity| {
        let of = |sample: &Sample| sample.values.get(quantity).copied().unwrap_or_default();
        let (middle, last) = thirds(&samples.iter().map(of).collect::<Vec<_>>());
        (quantity, middle, last)
    });
    compared.collect()
}

fn is_record((kind, name): &Quantity) -> bool {
    let table = name.rsplit(' ').next().unwrap_or_default();
    *kind == Kind::Rows && RECORDS.contains(&table)
}

/// What grows without bound, one line each.
pub fn grown(samples: &[Sample]) -> Vec<String> {
    let too_much = compared(samples)
        .into_iter()
        .filter(|(quantity, middle, last)| !is_record(quantity) && *last > middle * FACTOR + allowance(quantity.0));
    let lines = too_much.map(|((kind, name), middle, last)| {
        format!("{kind} {name}: {middle:.1} in the middle third of the rounds, {last:.1} in the last")
    });
    lines.collect()
}

/// A table of what changed most, measured by what it may change.
pub fn table(samples: &[Sample]) -> String {
    let mut all = compared(samples);
    let change = |&(quantity, middle, last): &(&Quantity, f64, f64)| (last - middle * FACTOR) / allowance(quantity.0);
    all.sort_by(|one, other| change(other).total_cmp(&change(one)));
    let mut table = "| quantity | middle third | last third |\n|---|---|---|".to_owned();
    for ((kind, name), middle, last) in all.into_iter().take(SHOWN) {
        table += &format!("\n| {kind} {name} | {middle:.1} | {last:.1} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::disturbance::Disturbance;

    fn samples(rows: impl Fn(f64) -> f64, table: &str) -> Vec<Sample> {
        let sample = |number: u16| {
            let mut sample = Sample::new(usize::from(number), Disturbance::Latency, 1);
            let quantity = (Kind::Rows, format!("platform {table}"));
            sample.values.insert(quantity, rows(f64::from(number)));
            sample
        };
        (0..90).map(sample).collect()
    }

    #[test]
    fn thirds_are_the_last_rounds() {
        assert_eq!(thirds(&[9.0, 9.0, 1.0, 3.0, 5.0, 7.0]), (2.0, 6.0));
        assert_eq!(thirds(&[9.0, 9.0, 9.0, 2.0, 4.0]), (2.0, 4.0));
    }

    #[test]
    fn what_is_kept_for_days_does_not_grow_and_what_stays_for_ever_does() {
        let kept = samples(|round| 100.0 * round.min(14.0), "job_history");
        assert_eq!(grown(&kept), Vec::<String>::new());
        let leak = |round: f64| 10.0 * round;
        let said = grown(&samples(leak, "job"));
        assert_eq!(
            said,
            ["rows of platform job: 445.0 in the middle third of the rounds, 745.0 in the last"]
        );
        assert_eq!(grown(&samples(leak, "export_run")), Vec::<String>::new());
    }
}
