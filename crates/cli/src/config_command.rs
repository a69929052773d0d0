//! `towpath config`: shows or checks the settings of this process.

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::arguments::{ConfigCommand, ConfigVerb, Output};
use crate::config::{Config, Mode, Origin, ResolvedSetting};

pub fn run(command: &ConfigCommand) -> anyhow::Result<()> {
    let mode = Mode::from(command.command_of);
    let config = Config::load(&command.common.inputs(mode, Vec::new()))?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    match command.command {
        ConfigVerb::Check => println!("the settings are valid"),
        ConfigVerb::Show { output: Output::Table } => println!("{}", table(&config)),
        ConfigVerb::Show { output: Output::Json } => {
            let entries: Vec<Value> = config.resolved.iter().map(entry).collect();
            println!("{}", serde_json::to_string_pretty(&entries)?);
        }
    }
    Ok(())
}

fn table(config: &Config) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(["setting", "value", "from"]);
    for value in &config.resolved {
        table.add_row([
            value.key.name.to_owned(),
            value.redacted().unwrap_or_else(|| "-".to_owned()),
            value.origin.to_string(),
        ]);
    }
    table
}

fn entry(value: &ResolvedSetting) -> Value {
    let mut entry = json!({
        "key": value.key.name,
        "value": value.redacted(),
        "environment": value.key.environment_names().collect::<Vec<_>>(),
        "about": value.key.about,
    });
    entry["origin"] = match &value.origin {
        Origin::Default => json!({ "source": "default" }),
        Origin::File { path, line } => json!({ "source": "file", "path": path, "line": line }),
        Origin::Environment(name) => json!({ "source": "environment", "name": name }),
        Origin::Flag(name) => json!({ "source": "flag", "name": name }),
    };
    entry
}
