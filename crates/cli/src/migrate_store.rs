//! `towpath migrate-store`: the rows of an installation on SQLite, moved to PostgreSQL.

use std::path::{Path, PathBuf};

use anyhow::bail;
use comfy_table::{Table, presets};
use towpath_store::migrations;
use towpath_store::move_store::{self, MoveError, MoveOptions, MoveReport, Progress, Stage};

use crate::arguments::MigrateStore;
use crate::backup::restore_marker::check_no_restore;
use crate::config::{Config, Mode};
use crate::data_dir::DataDir;
use crate::exit::Usage;
use crate::telemetry;

/// Files of a data folder.
const DATABASE: &str = "towpath.db";
const AGENT: &str = "agent.db";

/// Rows of a large table between two lines of progress.
const LINE_EVERY: i64 = 50_000;

struct Source {
    /// Absent for a file that was named by itself.
    folder: Option<PathBuf>,
    database: PathBuf,
    /// The database of the agent server of `towpath dev`.
    agent: Option<PathBuf>,
}

impl Source {
    fn find(from: &str) -> anyhow::Result<Self> {
        if let Some(file) = from.strip_prefix("sqlite://") {
            let database = PathBuf::from(file.split('?').next().unwrap_or_default());
            expect_file(&database)?;
            return Ok(Self {
                folder: None,
                database,
                agent: None,
            });
        }
        let folder = PathBuf::from(from);
        let database = folder.join(DATABASE);
        expect_file(&database)?;
        let agent = folder.join(AGENT);
        Ok(Self {
            folder: Some(folder),
            database,
            agent: agent.is_file().then_some(agent),
        })
    }
}

fn expect_file(database: &Path) -> anyhow::Result<()> {
    if !database.is_file() {
        bail!(Usage(format!(
            "there is no database {}; name its data folder, or the file as sqlite:///path/to/file, with --from",
            database.display()
        )));
    }
    Ok(())
}

pub async fn run(command: MigrateStore) -> anyhow::Result<()> {
    let config = Config::load(&command.common.inputs(Mode::Dev, Vec::new()))?;
    let _spans = telemetry::start_logging(&config)?;
    config.test_switches.apply();
    let to = match &command.to {
        Some(to) => to.as_str(),
        None => config.settings.database_uri.reveal(),
    };
    expect_postgres(to, "--to, or DATABASE_URI,")?;
    let source = Source::find(&command.from)?;
    let agent = match (&source.agent, &command.agent_to) {
        (Some(file), Some(to)) => {
            expect_postgres(to, "--agent-to")?;
            Some((file, to.as_str()))
        }
        (Some(file), None) if !command.without_agent => bail!(Usage(format!(
            "{} is the database of an agent server: name an empty database for it with --agent-to, or leave it out with \
             --without-agent",
            file.display()
        ))),
        (None, Some(_)) => bail!(Usage(format!(
            "--agent-to is for the agent server of towpath dev, and {} has no {AGENT}",
            command.from
        ))),
        (_, None) => None,
    };
    if agent.is_some_and(|(_, agent)| agent == to) {
        bail!(Usage(
            "--to and --agent-to name one database; an agent server needs a database of its own".to_owned()
        ));
    }
    // No server may use the folder, nor start in it, until the end.
    let _held = match &source.folder {
        Some(folder) => {
            check_no_restore(folder)?;
            Some(DataDir::open(folder)?)
        }
        None => None,
    };
    // Before the first of them is moved.
    for file in [Some(&source.database), agent.map(|(file, _)| file)]
        .into_iter()
        .flatten()
    {
        migrations::of_sqlite(file).await?.check()?;
    }
    let options = MoveOptions {
        replace_nul: command.replace_nul,
        ..MoveOptions::default()
    };
    let mut reports = vec![(DATABASE, move_database(&source.database, to, options).await?)];
    if let Some((file, to)) = agent {
        reports.push((AGENT, move_database(file, to, options).await?));
    }
    summarize(&source, &reports);
    Ok(())
}

fn expect_postgres(uri: &str, option: &str) -> anyhow::Result<()> {
    if uri.starts_with("postgres://") || uri.starts_with("postgresql://") {
        return Ok(());
    }
    bail!(Usage(format!(
        "{option} must be the address of an empty PostgreSQL database: postgres://user@host/database"
    )))
}

async fn move_database(file: &Path, to: &str, options: MoveOptions) -> anyhow::Result<MoveReport> {
    let mut lines = ProgressLines::new(file);
    let moved = move_store::run(file, to, options, &mut |progress| lines.print(progress)).await;
    moved.map_err(|error| match error {
        MoveError::Refused(why) => Usage(why).into(),
        other => other.into(),
    })
}

/// A line for each stage, each copied or verified table with rows, and now and then for a large one.
struct ProgressLines {
    file: String,
    printed: i64,
}

impl ProgressLines {
    fn new(file: &Path) -> Self {
        Self {
            file: file.display().to_string(),
            printed: 0,
        }
    }

    fn print(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Begun(stage) => println!("{}: {}", self.file, stage_text(stage)),
            Progress::Table {
                stage,
                name,
                done,
                rows,
                is_complete,
            } => {
                let is_due = done - self.printed >= LINE_EVERY;
                if is_complete {
                    self.printed = 0;
                } else if is_due {
                    self.printed = done;
                }
                match rows {
                    Some(rows) if is_due || (is_complete && rows > 0) => {
                        println!("  {} {name}: {done} of {rows} rows", past(stage));
                    }
                    None if is_due && !is_complete => println!("  {} {name}: {done} rows", past(stage)),
                    Some(_) | None => {}
                }
            }
        }
    }
}

const fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::Preparing => "creating the tables",
        Stage::Checking => "checking that PostgreSQL can hold every value",
        Stage::Copying => "copying",
        Stage::Verifying => "comparing every row",
        Stage::Finished => "every row is equal, and every foreign key is valid",
    }
}

const fn past(stage: Stage) -> &'static str {
    match stage {
        Stage::Checking => "checked",
        Stage::Verifying => "verified",
        Stage::Preparing | Stage::Copying | Stage::Finished => "copied",
    }
}

fn summarize(source: &Source, reports: &[(&str, MoveReport)]) {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(["FILE", "TABLE", "ROWS", "VERIFIED"]);
    for (file, report) in reports {
        for moved in report.tables.iter().filter(|moved| moved.rows > 0) {
            table.add_row([
                (*file).to_owned(),
                moved.name.clone(),
                moved.rows.to_string(),
                "yes".to_owned(),
            ]);
        }
    }
    for line in table.to_string().lines() {
        println!("{}", line.trim_end());
    }
    for (file, report) in reports {
        let rows: i64 = report.tables.iter().map(|moved| moved.rows).sum();
        let verb = if report.was_finished { "had moved" } else { "moved" };
        println!(
            "{verb} {file} to {}: {} tables, {rows} rows, all verified",
            report.target,
            report.tables.len()
        );
    }
    if let Some(folder) = &source.folder {
        println!(
            "objects, exports, deployments, sandboxes and keys stay in {}: start the new processes with this data folder \
             and the encryption key",
            folder.display()
        );
    }
    for (_, report) in reports.iter().filter(|(file, _)| *file == AGENT) {
        if let [only] = &report.assistant_workspaces[..] {
            println!("start the agent server with TOWPATH_TENANT_ID={only}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_folder_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().display().to_string();
        assert!(Source::find(&named).err().unwrap().is::<Usage>());
        std::fs::write(folder.path().join(DATABASE), "").unwrap();
        let found = Source::find(&named).unwrap();
        assert!(found.folder.is_some() && found.agent.is_none());
        std::fs::write(folder.path().join(AGENT), "").unwrap();
        assert!(Source::find(&named).unwrap().agent.is_some());
        let file = Source::find(&format!("sqlite://{named}/{AGENT}?mode=ro")).unwrap();
        assert_eq!(file.database, folder.path().join(AGENT));
        assert!(file.folder.is_none() && file.agent.is_none());
    }

    #[test]
    fn an_address_of_another_database_is_wrong_usage() {
        for wrong in ["", "sqlite:///a.db", "mysql://h/d"] {
            assert!(expect_postgres(wrong, "--to").unwrap_err().is::<Usage>());
        }
        expect_postgres("postgres://u:p@h/d", "--to").unwrap();
    }
}
