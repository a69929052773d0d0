//! Figures, for people and for programs.

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::arguments::Output;

/// Measurements, in order.
#[derive(Default, Serialize)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    /// Ratio to a figure of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    against: String,
}

impl Report {
    /// Adds a figure, and prints it on standard error as progress, because a run takes minutes.
    pub fn note(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.row(what.into(), value, unit, None, "");
    }

    /// Adds a figure with its ratio to an earlier one; on a noisy machine only the ratio is reliable.
    pub fn against(&mut self, what: impl Into<String>, value: f64, unit: &'static str, against: &str) {
        let other = self.value(against);
        let against = if other.is_some() { against } else { "" };
        self.row(what.into(), value, unit, other.map(|other| value / other), against);
    }

    /// An earlier figure.
    pub fn value(&self, what: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.what == what).map(|row| row.value)
    }

    fn row(&mut self, what: String, value: f64, unit: &'static str, ratio: Option<f64>, against: &str) {
        eprintln!("{what}: {} {unit}", number(value));
        self.rows.push(Row {
            what,
            value,
            unit,
            ratio,
            against: against.to_owned(),
        });
    }

    pub fn print(&self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Json => println!("{}", serde_json::to_string_pretty(self)?),
            Output::Table => {
                let mut table = Table::new();
                table
                    .load_preset(presets::UTF8_BORDERS_ONLY)
                    .set_header(["measured", "value", "unit", "ratio", "to"]);
                for row in &self.rows {
                    let ratio = row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
                    table.add_row([row.what.as_str(), &number(row.value), row.unit, &ratio, &row.against]);
                }
                println!("{table}");
            }
        }
        Ok(())
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}
