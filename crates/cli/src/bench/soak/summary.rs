//! The result of a run, as tables or JSON.

use comfy_table::{Table, presets};
use serde::Serialize;
use towpath_store::baseline::Costs;

use super::Plan;
use super::days::Day;
use super::growth::{Growth, Statement};
use crate::arguments::Output;

/// The samples of a run.
pub struct Summary {
    plan: Plan,
    /// One sample per day.
    pub days: Vec<Day>,
    /// Statement costs, cumulative: before the first day and after each day.
    pub costs: Vec<Costs>,
    /// Why statement costs are not measured.
    uncounted: Option<String>,
}

/// The JSON output.
#[derive(Serialize)]
struct Document<'a> {
    plan: &'a Plan,
    days: &'a [Day],
    quantities: Vec<Growth>,
    statements: Vec<Statement>,
    /// Why `statements` is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_measured: Option<&'a str>,
}

impl Summary {
    /// An empty summary.
    pub fn new(plan: Plan, uncounted: Option<&str>) -> Self {
        Self {
            plan,
            days: Vec::new(),
            costs: Vec::new(),
            uncounted: uncounted.map(str::to_owned),
        }
    }

    fn quantities(&self) -> Vec<Growth> {
        Growth::of(&self.days, self.plan.quarter())
    }

    fn statements(&self) -> Vec<Statement> {
        if self.uncounted.is_some() {
            return Vec::new();
        }
        Statement::of(&self.costs, self.plan.quarter())
    }

    /// One line for each exceeded bound.
    pub fn violations(&self) -> Vec<String> {
        let quantities = self.quantities();
        let statements = self.statements();
        let quantities = quantities.iter().filter(|growth| growth.exceeds_bound());
        let statements = statements.iter().filter(|statement| statement.exceeds_bound());
        quantities
            .map(Growth::describe)
            .chain(statements.map(Statement::describe))
            .collect()
    }

    /// Prints the summary on standard output.
    pub fn print(&self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Json => {
                let document = Document {
                    plan: &self.plan,
                    days: &self.days,
                    quantities: self.quantities(),
                    statements: self.statements(),
                    not_measured: self.uncounted.as_deref(),
                };
                println!("{}", serde_json::to_string_pretty(&document)?);
            }
            Output::Table => {
                println!("{}", self.table_of_days());
                println!("{}", table_of_quantities(&self.quantities()));
                match &self.uncounted {
                    None => println!("{}", table_of_statements(&self.statements())),
                    Some(why) => println!("blocks per statement: not measured: {why}"),
                }
            }
        }
        Ok(())
    }

    fn table_of_days(&self) -> Table {
        let mut table = table(&[
            "day",
            "jobs/s",
            "recorded",
            "drained",
            "pruned",
            "vacuumed",
            "job",
            "history",
            "lane",
            "step",
            "attempt",
            "worker",
            "lease",
            "connections",
            "MB",
            "pages (free)",
            "memory MB",
        ]);
        for day in &self.days {
            let pages = day.pages.map(|pages| format!("{} ({})", pages.all, pages.free));
            table.add_row([
                day.day.to_string(),
                format!("{:.0}", day.jobs_per_s),
                format!("{:.1} s", day.recorded_s),
                format!("{:.1} s", day.drained_s),
                format!("{:.1} s", day.pruned_s),
                format!("{:.1} s", day.vacuumed_s),
                day.rows.job.to_string(),
                day.rows.job_history.to_string(),
                day.rows.lane.to_string(),
                day.rows.step.to_string(),
                day.rows.attempt.to_string(),
                day.processes.worker.to_string(),
                day.processes.lease.to_string(),
                day.processes.connections.to_string(),
                format!("{:.1}", day.size_mb),
                pages.unwrap_or_default(),
                format!("{:.1}", day.memory_mb),
            ]);
        }
        table
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_BORDERS_ONLY)
        .set_header(header.iter().copied());
    table
}

fn table_of_quantities(quantities: &[Growth]) -> Table {
    let mut table = table(&[
        "quantity",
        "second quarter",
        "last quarter",
        "unit",
        "ratio",
        "allowance",
        "",
    ]);
    for growth in quantities {
        let ratio = growth.last / growth.second;
        table.add_row([
            growth.name.to_owned(),
            format!("{:.1}", growth.second),
            format!("{:.1}", growth.last),
            growth.unit.to_owned(),
            if ratio.is_finite() {
                format!("{ratio:.2}")
            } else {
                String::new()
            },
            growth.allowance.to_string(),
            verdict(growth.exceeds_bound()),
        ]);
    }
    table
}

fn table_of_statements(statements: &[Statement]) -> Table {
    let mut table = table(&[
        "statement",
        "calls",
        "rows/call",
        "blocks/call",
        "last quarter: calls",
        "rows/call",
        "blocks/call",
        "",
    ]);
    for statement in statements {
        let mut row = vec![statement.name.to_owned()];
        for calls in [statement.second, statement.last] {
            row.extend([
                calls.calls.to_string(),
                format!("{:.1}", calls.rows_per_call),
                format!("{:.1}", calls.blocks_per_call),
            ]);
        }
        row.push(verdict(statement.exceeds_bound()));
        table.add_row(row);
    }
    table
}

fn verdict(exceeds_bound: bool) -> String {
    let verdict = if exceeds_bound { "exceeded" } else { "ok" };
    verdict.to_owned()
}
