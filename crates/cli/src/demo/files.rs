//! Reads an export back from its files, with only a Parquet reader.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use arrow::array::{Array as _, AsArray as _};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

#[derive(Debug, Default)]
pub struct Contents {
    /// Each file with its rows and bytes, in the order of their paths.
    pub files: Vec<(PathBuf, u64, u64)>,
    pub rows: u64,
    /// Number of different ids.
    pub ids: u64,
}

pub fn read(folder: &Path) -> anyhow::Result<Contents> {
    let mut paths = Vec::new();
    find(folder, &mut paths).with_context(|| format!("folder {}", folder.display()))?;
    paths.sort();
    let mut contents = Contents::default();
    let mut ids = HashSet::new();
    for path in paths {
        let (rows, bytes) = read_file(&path, &mut ids).with_context(|| format!("file {}", path.display()))?;
        contents.rows += rows;
        contents.files.push((path, rows, bytes));
    }
    contents.ids = ids.len() as u64;
    Ok(contents)
}

/// Counts rows by reading them, independently of the footer.
fn read_file(path: &Path, ids: &mut HashSet<u128>) -> anyhow::Result<(u64, u64)> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let id = ProjectionMask::columns(builder.parquet_schema(), ["id"]);
    let mut rows = 0;
    for batch in builder.with_projection(id).with_batch_size(8192).build()? {
        let batch = batch?;
        let column = batch
            .column(0)
            .as_string_opt::<i32>()
            .context("column id is not text")?;
        rows += column.len() as u64;
        for id in column.iter().flatten() {
            ids.insert(
                uuid::Uuid::parse_str(id)
                    .with_context(|| format!("id {id:?}"))?
                    .as_u128(),
            );
        }
    }
    Ok((rows, bytes))
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            found.push(path);
        }
    }
    Ok(())
}
