//! The comparison of the last quarter of the days with the second quarter.

use serde::Serialize;
use towpath_store::baseline::{Cost, Costs};

use super::days::Day;

/// A quantity may grow by this factor, plus its allowance.
const QUANTITY_FACTOR: f64 = 1.5;
/// Blocks per call may grow by this factor,
const BLOCKS_FACTOR: f64 = 2.0;
/// plus this many blocks.
const BLOCKS_ALLOWANCE: f64 = 20.0;
/// Statements with fewer calls in either quarter are not compared.
const MIN_CALLS: i64 = 20;

/// A bounded quantity of a daily sample.
struct Quantity {
    name: &'static str,
    unit: &'static str,
    /// In `unit`; added to the bound so that small values do not fail on noise.
    allowance: f64,
    of: fn(&Day) -> f64,
}

const QUANTITIES: [Quantity; 10] = [
    rows("rows of job", |day| day.rows.job as f64),
    rows("rows of job_history", |day| day.rows.job_history as f64),
    rows("rows of lane", |day| day.rows.lane as f64),
    rows("rows of step", |day| day.rows.step as f64),
    rows("rows of attempt", |day| day.rows.attempt as f64),
    Quantity {
        name: "rows of worker",
        unit: "rows",
        allowance: 4.0,
        of: |day| day.processes.worker as f64,
    },
    Quantity {
        name: "rows of lease",
        unit: "rows",
        allowance: 4.0,
        of: |day| day.processes.lease as f64,
    },
    Quantity {
        name: "connections",
        unit: "connections",
        allowance: 4.0,
        of: |day| day.processes.connections as f64,
    },
    Quantity {
        name: "database",
        unit: "MB",
        allowance: 64.0,
        of: |day| day.size_mb,
    },
    Quantity {
        name: "memory of the process",
        unit: "MB",
        allowance: 32.0,
        of: |day| day.memory_mb,
    },
];

/// Rows of a table whose size depends on the number of jobs.
const fn rows(name: &'static str, of: fn(&Day) -> f64) -> Quantity {
    Quantity {
        name,
        unit: "rows",
        allowance: 1000.0,
        of,
    }
}

/// The mean of a quantity in both quarters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Growth {
    /// The quantity.
    pub name: &'static str,
    /// Unit of all values.
    pub unit: &'static str,
    /// Mean of the second quarter.
    pub second: f64,
    /// Mean of the last quarter.
    pub last: f64,
    /// Constant part of the bound.
    pub allowance: f64,
}

impl Growth {
    /// Compares all quantities; `quarter` is its length in days.
    pub fn of(days: &[Day], quarter: usize) -> Vec<Self> {
        let second = days.get(quarter..2 * quarter).unwrap_or_default();
        let last = &days[days.len().saturating_sub(quarter)..];
        let growth = |quantity: &Quantity| Self {
            name: quantity.name,
            unit: quantity.unit,
            second: mean(second, quantity.of),
            last: mean(last, quantity.of),
            allowance: quantity.allowance,
        };
        QUANTITIES.iter().map(growth).collect()
    }

    /// Whether the last quarter is above the bound.
    pub fn exceeds_bound(&self) -> bool {
        self.last > QUANTITY_FACTOR * self.second + self.allowance
    }

    /// One line for the error message.
    pub fn describe(&self) -> String {
        format!(
            "{}: {:.1} {unit} in the last quarter, {:.1} in the second; the bound is {QUANTITY_FACTOR} x + {} {unit}",
            self.name,
            self.last,
            self.second,
            self.allowance,
            unit = self.unit
        )
    }
}

fn mean(days: &[Day], of: fn(&Day) -> f64) -> f64 {
    days.iter().map(of).sum::<f64>() / days.len().max(1) as f64
}

/// A statement of the engine in both quarters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Statement {
    /// The statement.
    pub name: &'static str,
    /// Calls of the second quarter.
    pub second: Calls,
    /// Calls of the last quarter.
    pub last: Calls,
}

/// Calls of one statement in one quarter.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Calls {
    /// Number of calls.
    pub calls: i64,
    /// Rows returned or changed.
    pub rows_per_call: f64,
    /// Shared blocks read or found in the cache.
    pub blocks_per_call: f64,
}

impl From<Cost> for Calls {
    fn from(cost: Cost) -> Self {
        let per_call = |sum: i64| sum as f64 / cost.calls.max(1) as f64;
        Self {
            calls: cost.calls,
            rows_per_call: per_call(cost.rows),
            blocks_per_call: per_call(cost.blocks),
        }
    }
}

impl Statement {
    /// Compares all statements. `costs` is cumulative: before the first day and after each day. `quarter` is its length in
    /// days.
    pub fn of(costs: &[Costs], quarter: usize) -> Vec<Self> {
        let between = |from: usize, to: usize| match (costs.get(from), costs.get(to)) {
            (Some(from), Some(to)) => to.since(from),
            _ => Vec::new(),
        };
        let end = costs.len().saturating_sub(1);
        let second = between(quarter, 2 * quarter);
        let last = between(end.saturating_sub(quarter), end);
        let both = second.into_iter().zip(last);
        both.map(|((name, second), (_, last))| Self {
            name,
            second: second.into(),
            last: last.into(),
        })
        .collect()
    }

    /// Whether blocks per call of the last quarter are above the bound.
    pub fn exceeds_bound(&self) -> bool {
        let compared = self.second.calls >= MIN_CALLS && self.last.calls >= MIN_CALLS;
        compared && self.last.blocks_per_call > BLOCKS_FACTOR * self.second.blocks_per_call + BLOCKS_ALLOWANCE
    }

    /// One line for the error message.
    pub fn describe(&self) -> String {
        format!(
            "{}: {:.1} blocks per call in the last quarter, {:.1} in the second; the bound is {BLOCKS_FACTOR} x + \
             {BLOCKS_ALLOWANCE}",
            self.name, self.last.blocks_per_call, self.second.blocks_per_call
        )
    }
}
