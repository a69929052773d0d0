//! The same trace runs in a DuckDB file, through its appender and as Arrow tables, in a Python that has it.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::json;

use super::bodies::extra;
use crate::bench::comparison;
use crate::bench::report::Report;
use crate::bench::runs::Runs;

/// The faster one of the two ways.
pub const BEST: &str = "DuckDB, the better of both";

/// Rows are parsed outside of the measured time, 20,000 at a time. The time covers inserts, commits and the final
/// checkpoint. There is no index and no primary key, and texts are not parsed.
const SCRIPT: &str = r#"
import datetime, json, os, resource, sys, time, uuid
import duckdb
asked = json.load(sys.stdin)
COLUMNS = [
    ("id", "UUID"), ("trace_id", "UUID"), ("parent_run_id", "UUID"), ("dotted_order", "VARCHAR"), ("name", "VARCHAR"),
    ("run_type", "VARCHAR"), ("start_time", "TIMESTAMPTZ"), ("end_time", "TIMESTAMPTZ"), ("error", "VARCHAR"),
    ("tags", "VARCHAR"), ("inputs", "VARCHAR"), ("outputs", "VARCHAR"), ("events", "VARCHAR"), ("extra", "VARCHAR"),
]
def chunks():
    chunk = []
    with open(asked["rows"]) as lines:
        for line in lines:
            chunk.append(json.loads(line))
            if len(chunk) == 20000:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
def used():
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime
def measured(name, prepare, append):
    path = os.path.join(asked["folder"], name + ".duckdb")
    connection = duckdb.connect(path)
    connection.execute("SET enable_progress_bar = false")
    connection.execute("CREATE TABLE trace_run (%s)" % ", ".join("%s %s" % column for column in COLUMNS))
    rows = seconds = cpu = 0
    for chunk in chunks():
        ready = prepare(chunk)
        began, before = time.monotonic(), used()
        append(connection, ready)
        seconds, cpu, rows = seconds + time.monotonic() - began, cpu + used() - before, rows + len(chunk)
    began, before = time.monotonic(), used()
    connection.execute("CHECKPOINT")
    seconds, cpu = seconds + time.monotonic() - began, cpu + used() - before
    stored = connection.execute("SELECT count(*) FROM trace_run").fetchone()[0]
    assert stored == rows, (stored, rows)
    connection.close()
    return {"rows": rows, "seconds": seconds, "cpu_seconds": cpu, "bytes": os.path.getsize(path)}
kinds = [kind for _, kind in COLUMNS]
convert = {"UUID": uuid.UUID, "TIMESTAMPTZ": datetime.datetime.fromisoformat, "VARCHAR": str}
def tuples(chunk):
    return [tuple(None if value is None else convert[kind](value) for kind, value in zip(kinds, row)) for row in chunk]
def append(connection, ready):
    appender = connection.appender("trace_run")
    appender.append_rows(ready)
    appender.flush()
told = {"appender": measured("appender", tuples, append), "arrow": None}
try:
    import pyarrow
except ImportError:
    pyarrow = None
if pyarrow:
    def table(chunk):
        return pyarrow.table({name: list(column) for (name, _), column in zip(COLUMNS, zip(*chunk))})
    def insert(connection, ready):
        connection.register("chunk", ready)
        connection.execute("INSERT INTO trace_run SELECT * FROM chunk")
        connection.unregister("chunk")
    told["arrow"] = measured("arrow", table, insert)
print(json.dumps(told))
"#;

#[derive(Deserialize)]
struct DuckDbReport {
    appender: LoadResult,
    arrow: Option<LoadResult>,
}

#[derive(Deserialize)]
struct LoadResult {
    rows: u64,
    seconds: f64,
    cpu_seconds: f64,
    bytes: u64,
}

impl LoadResult {
    fn rate(&self) -> f64 {
        self.rows as f64 / self.seconds
    }
}

pub async fn measure(python: &Path, runs: &Runs, rows: u64, report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("towpath-bench.").tempdir()?;
    let file = folder.path().join("rows.jsonl");
    write(&file, runs, rows).context("writing rows for DuckDB")?;
    let asked = json!({"rows": file, "folder": folder.path()});
    let told: DuckDbReport = comparison::run_script(python, SCRIPT, &asked).await?;
    note(report, "DuckDB, appender", &told.appender);
    let mut best = told.appender.rate();
    if let Some(arrow) = &told.arrow {
        note(report, "DuckDB, Arrow inserts", arrow);
        best = best.max(arrow.rate());
    }
    report.note(BEST, best, "runs/s");
    Ok(())
}

fn note(report: &mut Report, name: &str, seen: &LoadResult) {
    report.note(name, seen.rate(), "runs/s");
    report.note(format!("{name}: CPU"), seen.cpu_seconds, "s");
    report.note(
        format!("{name}: on disk"),
        seen.bytes as f64 / seen.rows as f64,
        "bytes/run",
    );
}

/// One JSON array per line, in the order of the script's columns.
fn write(file: &Path, runs: &Runs, rows: u64) -> anyhow::Result<()> {
    let mut to = std::io::BufWriter::new(std::fs::File::create(file)?);
    for index in 0..rows {
        let post = runs.post(index);
        let fields = &post.fields;
        let row = json!([
            post.id,
            fields.trace_id,
            fields.parent_run_id,
            fields.dotted_order,
            fields.name,
            fields.run_type,
            fields.start_time,
            fields.end_time,
            fields.error,
            json!(fields.tags).to_string(),
            fields.inputs,
            fields.outputs,
            fields.events,
            extra(fields),
        ]);
        writeln!(to, "{row}")?;
    }
    Ok(to.flush()?)
}
