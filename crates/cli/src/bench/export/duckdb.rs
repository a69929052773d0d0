//! The same export with DuckDB, in a Python that has it.

use std::path::Path;

use crate::bench::comparison;
use towpath_traces::schema::EXPORT_FIELDS;

use super::PhaseResult;
use super::prepare::Layout;

const SCRIPT: &str = r#"
import json, resource, sys, time
import duckdb
asked = json.load(sys.stdin)
columns = ", ".join('"%s"' % name for name in asked["columns"])
connection = duckdb.connect()
# It would draw its progress among what is printed here.
connection.execute("SET enable_progress_bar = false")
began = time.monotonic()
connection.execute(
    f"COPY (SELECT {columns}, year(start_time) AS year, month(start_time) AS month, day(start_time) AS day"
    f" FROM read_parquet($files, hive_partitioning = false)) TO '{asked['to']}'"
    " (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480, PARTITION_BY (year, month, day), OVERWRITE_OR_IGNORE)",
    {"files": asked["files"]},
)
seconds = time.monotonic() - began
used = resource.getrusage(resource.RUSAGE_SELF)
import pathlib
written = list(pathlib.Path(asked["to"]).rglob("*.parquet"))
rows = duckdb.sql(f"SELECT count(*) FROM read_parquet('{asked['to']}/**/*.parquet')").fetchall()[0][0]
print(json.dumps({
    "rows": rows, "bytes": sum(path.stat().st_size for path in written), "seconds": seconds,
    "cpu_seconds": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024,
}))
"#;

pub async fn run(python: &Path, folder: &Path) -> anyhow::Result<PhaseResult> {
    let asked = serde_json::json!({
        "columns": EXPORT_FIELDS,
        "files": Layout::read(folder)?.files(folder),
        "to": folder.join("duckdb").display().to_string(),
    });
    comparison::run_script(python, SCRIPT, &asked).await
}
